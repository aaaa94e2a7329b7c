//! What stands in front of a session: a PROXY header and a preface from any bytes. The same for every split, and what is
//! read is where it is said to be: checked against another implementation of the header, and a reading by words.

use std::net::SocketAddr;

use fencegate::wire::preface::{self, Begins};
use fencegate::wire::proxy::{self, Addresses, Header};

use super::{Draw, shown};

const MAX: usize = 2048;

pub fn check(data: &[u8]) {
    check_header(data);
    check_preface(data);
    check_written(data);
}

fn check_header(data: &[u8]) {
    let whole = Header::parse(data, MAX);
    let mut draw = Draw::of(data);
    for _ in 0..4 {
        // Fewer bytes say the same, or ask for more; they never say something else.
        let part = &data[..draw.below(data.len() + 1)];
        match (Header::parse(part, MAX), &whole) {
            (Ok(None), _) => {}
            (Ok(Some(early)), Ok(Some(late))) => assert_eq!(early, *late, "{}", shown(data)),
            (Err(early), Err(late)) => assert_eq!(early, *late, "{}", shown(data)),
            (early, late) => panic!("{early:?} became {late:?}: {}", shown(data)),
        }
    }
    if let Ok(None) = whole {
        assert!(proxy::wanted(data) > 0 && data.len() < MAX, "{}", shown(data));
    }
    let Ok(Some((header, len))) = whole else { return };
    assert!(len <= data.len() && len <= MAX);
    check_wanted(data, len);
    if data[0] == b'\r' {
        check_other(data, &header, len);
    }
    // One byte less is not whole.
    assert_eq!(Header::parse(&data[..len - 1], MAX), Ok(None), "{}", shown(data));
}

/// Reading what is wanted, piece by piece, ends with the header and takes nothing behind it.
fn check_wanted(data: &[u8], len: usize) {
    let mut came = 0;
    while Header::parse(&data[..came], MAX) == Ok(None) {
        came += proxy::wanted(&data[..came]);
        assert!(came <= len, "{came} of {len}: {}", shown(data));
    }
    assert_eq!(came, len);
}

/// TLVs lie one behind the other up to the header's end, and its addresses are where they stand.
fn check_other(data: &[u8], header: &Header<'_>, len: usize) {
    let block = match data[13] {
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => 0,
    };
    let mut at = 16 + block;
    for (kind, value) in header.tlvs() {
        assert_eq!(data[at], kind);
        assert_eq!(
            usize::from(u16::from_be_bytes([data[at + 1], data[at + 2]])),
            value.len()
        );
        assert_eq!(&data[at + 3..at + 3 + value.len()], value);
        at += 3 + value.len();
    }
    assert_eq!(at, len, "{}", shown(data));
    for kind in [0xe0, 0xe1] {
        let count = header.tlvs().filter(|(other, _)| *other == kind).count();
        assert_eq!(header.tlv(kind).is_err(), count > 1);
    }
}

fn check_preface(data: &[u8]) {
    let whole = preface::parse(data, MAX);
    let mut draw = Draw::of(data);
    for _ in 0..4 {
        let part = &data[..draw.below(data.len() + 1)];
        match (preface::parse(part, MAX), whole) {
            (Ok(Begins::Unclear), _) => {}
            (early, late) => assert_eq!(early, late, "{}", shown(data)),
        }
    }
    let Ok(Begins::With(line, len)) = whole else {
        return;
    };
    let words = match line.token {
        Some(token) => format!("FENCE {} {token}\n", line.resource),
        None => format!("FENCE {}\n", line.resource),
    };
    assert_eq!(words.as_bytes(), &data[..len], "{}", shown(data));
}

/// Whatever addresses are written are read again.
fn check_written(data: &[u8]) {
    let mut draw = Draw::of(data);
    let mut address = |v6: bool| -> SocketAddr {
        let port = draw.below(65_536) as u16;
        let mut byte = || draw.below(256) as u8;
        match v6 {
            false => ([byte(), byte(), byte(), byte()], port).into(),
            true => (std::array::from_fn::<u8, 16, _>(|_| byte()), port).into(),
        }
    };
    for v6 in [false, true] {
        let addresses = Addresses {
            source: address(v6),
            destination: address(v6),
        };
        let mut out = Vec::new();
        proxy::write(&mut out, addresses);
        let (header, len) = Header::parse(&out, MAX).unwrap().unwrap();
        assert_eq!((header.addresses, len), (Some(addresses), out.len()));
    }
}
