//! The PROXY header against another implementation, against every split, and against what is malformed.

use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader, Tlv};

use super::{Addresses, Header, Malformed, crc32c, wanted, write};

const MAX: usize = 64 * 1024;

fn addresses(source: &str, destination: &str) -> Addresses {
    Addresses {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

/// A header of version 2 by the other implementation.
fn other(addresses: Option<Addresses>, tlvs: &[(u8, &[u8])]) -> Vec<u8> {
    let mut header = match addresses {
        Some(a) => ProxyHeader::with_address(ProxiedAddress::stream(a.source, a.destination)),
        None => ProxyHeader::with_local(),
    };
    for (kind, value) in tlvs {
        header.append_tlv(Tlv::Custom(*kind, (*value).into()));
    }
    let mut out = vec![0; 70_000];
    let len = header.encode_to_slice_v2(&mut out).unwrap();
    out.truncate(len);
    out
}

fn refused(bytes: &[u8]) -> Malformed {
    Header::parse(bytes, MAX).unwrap_err()
}

#[test]
fn what_another_implementation_writes_is_read_whole_at_every_split() {
    let v4 = addresses("10.1.2.3:4", "192.0.2.1:65535");
    let v6 = addresses("[2001:db8::1]:7", "[::1]:8");
    for from in [None, Some(v4), Some(v6)] {
        let bytes = other(from, &[(0xe0, b"r/1"), (4, b""), (0xe1, b"34")]);
        let long = [&bytes[..], b"payload"].concat();
        for cut in 0..bytes.len() {
            assert_eq!(Header::parse(&long[..cut], MAX), Ok(None), "{cut}");
        }
        for cut in bytes.len()..=long.len() {
            let (header, len) = Header::parse(&long[..cut], MAX).unwrap().unwrap();
            assert_eq!((header.addresses, len), (from, bytes.len()));
            assert_eq!(header.tlv(0xe0), Ok(Some(&b"r/1"[..])));
            assert_eq!(header.tlv(0xe1), Ok(Some(&b"34"[..])));
            assert_eq!(header.tlv(0xe2), Ok(None));
        }
    }
}

#[test]
fn what_is_written_is_read_by_another_implementation() {
    for (source, destination) in [("10.1.2.3:4", "192.0.2.1:5"), ("[2001:db8::1]:7", "[::1]:8")] {
        let ours = addresses(source, destination);
        let mut out = Vec::new();
        write(&mut out, ours);
        let (header, len) = ProxyHeader::parse(&out, ParseConfig::default()).unwrap();
        let theirs = header.proxied_address().unwrap();
        assert_eq!(
            (theirs.source, theirs.destination),
            (ours.source, ours.destination)
        );
        assert_eq!(len, out.len());
    }
    let mut out = Vec::new();
    write(&mut out, addresses("10.1.2.3:4", "[::1]:5"));
    let (header, _) = Header::parse(&out, MAX).unwrap().unwrap();
    assert_eq!(
        header.addresses,
        Some(addresses("[::ffff:10.1.2.3]:4", "[::1]:5"))
    );
}

#[test]
fn lines_of_version_1_are_read_exactly_at_every_split() {
    for (text, from) in [
        (
            "PROXY TCP4 10.1.2.3 192.0.2.1 4 65535\r\n",
            Some(addresses("10.1.2.3:4", "192.0.2.1:65535")),
        ),
        (
            "PROXY TCP6 2001:db8::1 ::1 7 0\r\n",
            Some(addresses("[2001:db8::1]:7", "[::1]:0")),
        ),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN ffff::1 any thing\r\n", None),
    ] {
        let long = format!("{text}GET /");
        for cut in 0..text.len() {
            assert_eq!(
                Header::parse(&long.as_bytes()[..cut], MAX),
                Ok(None),
                "{text} {cut}"
            );
        }
        let (header, len) = Header::parse(long.as_bytes(), MAX).unwrap().unwrap();
        assert_eq!((header.addresses, len), (from, text.len()), "{text}");
        assert_eq!(header.tlvs().count(), 0);
    }
    for bad in [
        "PROXY TCP4 10.1.2.3 192.0.2.1 4 65536\r\n",
        "PROXY TCP4 10.1.2.3 192.0.2.1 +4 5\r\n",
        "PROXY TCP4 10.1.2.3 192.0.2.1 04 5\r\n",
        "PROXY TCP4 10.1.2.3 192.0.2.1 4 5 \r\n",
        "PROXY TCP4  10.1.2.3 192.0.2.1 4 5\r\n",
        "PROXY TCP4 ::1 ::1 4 5\r\n",
        "PROXY TCP6 10.1.2.3 10.1.2.3 4 5\r\n",
        "PROXY TCP4 10.1.2.3 192.0.2.1 4 5\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY UDP4 10.1.2.3 192.0.2.1 4 5\r\n",
        "PROXY\r\n",
        "PROXX",
        "GET / HTTP/1.1\r\n",
        "FENCE a 1\n",
    ] {
        refused(bad.as_bytes());
    }
    refused(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat());
}

#[test]
fn whoever_reads_what_is_wanted_reads_the_header_and_no_byte_more() {
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(91));
    for header in [
        other(
            Some(addresses("10.1.2.3:4", "192.0.2.1:5")),
            &[(0xe0, &[b'r'; 5000]), (0xe1, b"34")],
        ),
        other(None, &[]),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY TCP4 1.1.1.1 1.1.1.1 0 0\r\n".to_vec(),
        longest.into_bytes(),
    ] {
        let long = [&header[..], &[b'p'; 100]].concat();
        let (mut came, mut reads) = (0, 0);
        while Header::parse(&long[..came], MAX).unwrap().is_none() {
            came += wanted(&long[..came]);
            reads += 1;
        }
        assert_eq!(came, header.len());
        assert!(reads < 100, "{reads}");
    }
}

#[test]
fn a_wrong_byte_is_malformed_as_soon_as_it_is_there() {
    let good = other(Some(addresses("10.1.2.3:4", "192.0.2.1:5")), &[]);
    for at in 0..14 {
        let mut bytes = good[..=at].to_vec();
        bytes[at] ^= 0x80;
        refused(&bytes);
    }
    for (command, family) in [
        (0x11, 0x11),
        (0x22, 0x11),
        (0x21, 0x13),
        (0x21, 0x41),
        (0x21, 0x01),
        (0x21, 0x10),
    ] {
        let mut bytes = good.clone();
        (bytes[12], bytes[13]) = (command, family);
        refused(&bytes);
    }
}

#[test]
fn lengths_that_do_not_fit_are_malformed() {
    let bytes = other(Some(addresses("10.1.2.3:4", "192.0.2.1:5")), &[(0xe1, b"34")]);
    let with_length = |len: u16| {
        let mut bytes = bytes.clone();
        bytes[14..16].copy_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&[0; 100]);
        bytes
    };
    refused(&with_length(11));
    assert_eq!(
        refused(&with_length(16)),
        Malformed("a TLV runs past the end of its header")
    );
    refused(&with_length(13));
    assert!(Header::parse(&with_length(12), MAX).unwrap().is_some());
    // By its length alone, before it is there.
    let (_, len) = Header::parse(&bytes, bytes.len()).unwrap().unwrap();
    assert_eq!(len, bytes.len());
    Header::parse(&bytes[..16], bytes.len() - 1).unwrap_err();
    Header::parse(b"PROXY UNKNOWN\r\n", 14).unwrap_err();
}

#[test]
fn datagrams_and_unix_sockets_have_no_addresses_here() {
    let mut unix = b"\r\n\r\n\0\r\nQUIT\n\x21\x31\x00\xdd".to_vec();
    unix.extend_from_slice(&[b'x'; 216]);
    unix.extend_from_slice(b"\xe1\x00\x0234");
    let (header, len) = Header::parse(&unix, MAX).unwrap().unwrap();
    assert_eq!((header.addresses, len), (None, unix.len()));
    assert_eq!(header.tlv(0xe1), Ok(Some(&b"34"[..])));
    let mut datagram = other(Some(addresses("10.1.2.3:4", "192.0.2.1:5")), &[]);
    datagram[13] = 0x12;
    assert_eq!(Header::parse(&datagram, MAX).unwrap().unwrap().0.addresses, None);
}

#[test]
fn a_tlv_that_is_there_twice_is_malformed_for_whoever_reads_it() {
    let bytes = other(None, &[(0xe0, b"a"), (0xe1, b"1"), (0xe1, b"1")]);
    let (header, _) = Header::parse(&bytes, MAX).unwrap().unwrap();
    assert_eq!(header.tlv(0xe0), Ok(Some(&b"a"[..])));
    header.tlv(0xe1).unwrap_err();
}

#[test]
fn a_checksum_must_be_right() {
    assert_eq!(crc32c(b"123456789".iter()), 0xe306_9283);
    let mut bytes = other(None, &[(0xe1, b"34"), (super::CRC32C, &[0; 4])]);
    let sum = crc32c(bytes.iter());
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&sum.to_be_bytes());
    assert!(Header::parse(&bytes, MAX).unwrap().is_some());
    // The token, and the sum itself.
    for at in (19..21).chain(at..at + 4) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(
            refused(&bytes),
            Malformed("a PROXY header's checksum is wrong"),
            "{at}"
        );
    }
    refused(&other(None, &[(super::CRC32C, &[0; 3])]));
}
