//! The PROXY protocol, versions 1 and 2, as a sender puts it in front of a connection: who the client is and, in
//! version 2, any further values (TLVs). Pure: bytes in, a header or "more" out; the same for every split.
//!
//! Strict, since the header carries the token: what is reserved, runs past its bounds or fails its own checksum is
//! malformed, and so is a wrong byte as soon as it is there. Bounded: a header that says it is longer than allowed is
//! refused by its length alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What begins version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const FIXED: usize = 16;
/// What begins version 1.
const WORD: &[u8; 6] = b"PROXY ";
/// The shortest line of version 1, its end included: it says that nothing is known.
const LINE_MIN: usize = 15;
/// The longest line of version 1, its end included.
const LINE_MAX: usize = 107;
/// Two paths of Unix sockets.
const UNIX_BYTES: usize = 216;

/// The kind of a TLV that holds the header's checksum.
pub const CRC32C: u8 = 0x03;

/// Where a connection came from and where to, as the sender says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// What it connected to.
    pub destination: SocketAddr,
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// `None` where the sender speaks for itself, or says nothing that is an address of TCP.
    pub addresses: Option<Addresses>,
    /// Whole TLVs, one after the other.
    tlvs: &'a [u8],
}

/// Why bytes are not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

impl<'a> Header<'a> {
    /// Reads the header that `bytes` begin with, and says how long it is; `None` where it is not whole yet. One of
    /// more than `max` bytes is malformed.
    ///
    /// # Errors
    /// [`Malformed`]: whatever follows, it will be no header.
    pub fn parse(bytes: &'a [u8], max: usize) -> Result<Option<(Header<'a>, usize)>, Malformed> {
        let Some(first) = bytes.first() else {
            return Ok(None);
        };
        let parsed = match first {
            b'\r' => binary(bytes, max)?,
            _ => line(bytes)?,
        };
        match parsed {
            Some((_, len)) if len > max => Err(TOO_LONG),
            None if bytes.len() >= max => Err(TOO_LONG),
            other => Ok(other),
        }
    }

    /// All TLVs, in order.
    pub fn tlvs(&self) -> impl Iterator<Item = (u8, &'a [u8])> {
        Tlvs(self.tlvs)
    }

    /// The value of the TLV of this kind; `None` where there is none.
    ///
    /// # Errors
    /// [`Malformed`]: it is there twice.
    pub fn tlv(&self, kind: u8) -> Result<Option<&'a [u8]>, Malformed> {
        let mut found = self.tlvs().filter(|(other, _)| *other == kind);
        let first = found.next();
        match found.next() {
            None => Ok(first.map(|(_, value)| value)),
            Some(_) => Err(Malformed("a TLV that the rule reads is there twice")),
        }
    }
}

const TOO_LONG: Malformed = Malformed("the header is longer than max_header_bytes");

/// How many more bytes belong to the header that `bytes` begin, at the least; what follows it is never among them.
/// For bytes that [`Header::parse`] asked more of.
#[must_use]
pub fn wanted(bytes: &[u8]) -> usize {
    let least = match (bytes.first(), bytes.get(14..FIXED)) {
        (None, _) => 1,
        (Some(b'\r'), None) => FIXED,
        (Some(b'\r'), Some(length)) => FIXED + usize::from(u16::from_be_bytes([length[0], length[1]])),
        (Some(_), _) => LINE_MIN,
    };
    least.saturating_sub(bytes.len()).max(1)
}

type Parsed<'a> = Result<Option<(Header<'a>, usize)>, Malformed>;

fn binary(bytes: &[u8], max: usize) -> Parsed<'_> {
    if !starts_alike(bytes, SIGNATURE) {
        return Err(Malformed("this is no PROXY header"));
    }
    // Byte by byte, so that a wrong one is told before the next has come.
    let local = match bytes.get(12) {
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => {
            return Err(Malformed(
                "a PROXY header's version and command are 2 and LOCAL or PROXY",
            ));
        }
        None => return Ok(None),
    };
    let Some(family) = bytes.get(13).copied() else {
        return Ok(None);
    };
    let block = address_bytes(family).ok_or(Malformed("a PROXY header's family or protocol is reserved"))?;
    let Some(length) = bytes.get(14..FIXED) else {
        return Ok(None);
    };
    let len = FIXED + usize::from(u16::from_be_bytes([length[0], length[1]]));
    if len > max {
        return Err(TOO_LONG);
    }
    if len < FIXED + block {
        return Err(Malformed("a PROXY header is too short for its addresses"));
    }
    let Some(whole) = bytes.get(..len) else {
        return Ok(None);
    };
    let (addresses, tlvs) = whole[FIXED..].split_at(block);
    check_tlvs(whole, tlvs)?;
    let addresses = match local {
        true => None,
        false => read_addresses(family, addresses),
    };
    Ok(Some((Header { addresses, tlvs }, len)))
}

/// How many bytes of addresses a family and a protocol have; `None` where they are reserved.
fn address_bytes(family: u8) -> Option<usize> {
    match family {
        0x00 => Some(0),
        0x11 | 0x12 => Some(12),
        0x21 | 0x22 => Some(36),
        0x31 | 0x32 => Some(UNIX_BYTES),
        _ => None,
    }
}

/// Those of TCP. A sender of datagrams, or one at a Unix socket, has none that mean anything here.
fn read_addresses(family: u8, block: &[u8]) -> Option<Addresses> {
    let ip = |at: usize| -> Option<IpAddr> {
        match family {
            0x11 => Some(<[u8; 4]>::try_from(block.get(at..at + 4)?).ok()?.into()),
            _ => Some(<[u8; 16]>::try_from(block.get(at..at + 16)?).ok()?.into()),
        }
    };
    let port = |at: usize| Some(u16::from_be_bytes(block.get(at..at + 2)?.try_into().ok()?));
    let size = match family {
        0x11 => 4,
        0x21 => 16,
        _ => return None,
    };
    Some(Addresses {
        source: SocketAddr::new(ip(0)?, port(2 * size)?),
        destination: SocketAddr::new(ip(size)?, port(2 * size + 2)?),
    })
}

/// Every TLV ends where the next begins, and the last where the header does; a checksum is right.
fn check_tlvs(whole: &[u8], tlvs: &[u8]) -> Result<(), Malformed> {
    let mut left = tlvs;
    let mut sums = 0;
    while !left.is_empty() {
        let (kind, value, rest) =
            split_tlv(left).ok_or(Malformed("a TLV runs past the end of its header"))?;
        if kind == CRC32C {
            sums += 1;
            check_sum(whole, whole.len() - rest.len() - value.len(), value)?;
        }
        left = rest;
    }
    match sums {
        0 | 1 => Ok(()),
        _ => Err(Malformed("a PROXY header has two checksums")),
    }
}

fn check_sum(whole: &[u8], at: usize, value: &[u8]) -> Result<(), Malformed> {
    let wanted = <[u8; 4]>::try_from(value).map_err(|_| Malformed("a checksum has four bytes"))?;
    let found = crc32c(whole[..at].iter().chain(&[0; 4]).chain(&whole[at + 4..]));
    match found == u32::from_be_bytes(wanted) {
        true => Ok(()),
        false => Err(Malformed("a PROXY header's checksum is wrong")),
    }
}

/// Castagnoli's, reflected, bit by bit: headers are short, and few have one.
fn crc32c<'b>(bytes: impl Iterator<Item = &'b u8>) -> u32 {
    let sum = bytes.fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    });
    !sum
}

fn split_tlv(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [kind, high, low, rest @ ..] = bytes else {
        return None;
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    let (value, rest) = rest.split_at_checked(len)?;
    Some((*kind, value, rest))
}

struct Tlvs<'a>(&'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, value, rest) = split_tlv(self.0)?;
        self.0 = rest;
        Some((kind, value))
    }
}

// ---- version 1

fn line(bytes: &[u8]) -> Parsed<'_> {
    if !starts_alike(bytes, WORD) {
        return Err(Malformed("this is no PROXY header"));
    }
    let window = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return match bytes.len() < LINE_MAX {
            true => Ok(None),
            false => Err(Malformed("a PROXY line has at most 107 bytes")),
        };
    };
    const WRONG: Malformed =
        Malformed("a PROXY line is not one of TCP4, TCP6 and UNKNOWN with its addresses");
    let text = window[..end].strip_suffix(b"\r").ok_or(WRONG)?;
    let text = std::str::from_utf8(text).map_err(|_| WRONG)?;
    let addresses = match text.split(' ').collect::<Vec<_>>()[1..] {
        ["TCP4", source, destination, from, to] => Some((
            SocketAddr::new(v4(source).ok_or(WRONG)?, port(from).ok_or(WRONG)?),
            SocketAddr::new(v4(destination).ok_or(WRONG)?, port(to).ok_or(WRONG)?),
        )),
        ["TCP6", source, destination, from, to] => Some((
            SocketAddr::new(v6(source).ok_or(WRONG)?, port(from).ok_or(WRONG)?),
            SocketAddr::new(v6(destination).ok_or(WRONG)?, port(to).ok_or(WRONG)?),
        )),
        // What follows it is to be ignored.
        ["UNKNOWN", ..] => None,
        _ => return Err(WRONG),
    };
    let addresses = addresses.map(|(source, destination)| Addresses { source, destination });
    Ok(Some((Header { addresses, tlvs: &[] }, end + 1)))
}

fn v4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::from)
}

fn v6(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv6Addr>().ok().map(IpAddr::from)
}

/// Digits alone, without leading zeros: what the standard library also takes, a sign, is none.
fn port(text: &str) -> Option<u16> {
    let sound = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    sound.then(|| text.parse().ok()).flatten()
}

/// Whether both are the same as far as both go.
fn starts_alike(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.iter().zip(wanted).all(|(a, b)| a == b)
}

// ---- writing

/// Appends a header of version 2 without TLVs. Addresses of two families are both written as IPv6 ones.
pub fn write(out: &mut Vec<u8>, addresses: Addresses) {
    out.extend_from_slice(SIGNATURE);
    let Addresses { source, destination } = addresses;
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        (from, to) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&as_v6(from).octets());
            out.extend_from_slice(&as_v6(to).octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests;
