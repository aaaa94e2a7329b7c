//! The bytes of the store's records: marks, audit entries and the head, each with a checksum over its name and
//! value, and the digest over all of them. Never touches a disk. Called by `store.rs` alone.

use std::hash::Hasher as _;
use std::time::Duration;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::base::{Token, TokenFormat};
use crate::ledger::{Audit, AuditEntry, Mark};

/// What a record can't be, said in a few words.
pub(super) type Flaw = String;

/// The number of records of one table and the wrapping sum of their hashes. It does not depend on their order,
/// so each commit carries it on without reading the others; a vanished, added or replaced record shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Digest {
    pub(super) count: u64,
    sum: u128,
}

impl Digest {
    pub(super) fn add(&mut self, hash: u128) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(hash);
    }

    pub(super) fn remove(&mut self, hash: u128) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(hash);
    }
}

/// What stands in the same transaction as every change: which commit it is, what all records add up to, and the
/// marker of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Head {
    /// Grows by one with each commit.
    pub(super) sequence: u64,
    pub(super) marks: Digest,
    pub(super) audits: Digest,
    /// True where the run that wrote it left nothing in flight.
    pub(super) clean: bool,
    pub(super) settle_ms: u64,
}

/// A record's value as it is stored, and its hash for the [`Digest`].
pub(super) struct Sealed {
    pub(super) bytes: Vec<u8>,
    pub(super) hash: u128,
}

pub(super) fn seal_mark(name: &[u8], mark: &Mark) -> Sealed {
    seal(KIND_MARK, name, mark_body(mark).to_vec())
}

pub(super) fn open_mark(name: &[u8], value: &[u8]) -> Result<(Mark, u128), Flaw> {
    let (body, hash) = unseal(KIND_MARK, name, value)?;
    Ok((read_mark(body)?, hash))
}

pub(super) fn seal_audit(sequence: u64, name: &str, mark: &Mark, audit: &Audit) -> Sealed {
    let mut body = mark_body(mark).to_vec();
    for text in [name, &audit.from, &audit.reason, &audit.by] {
        body.extend_from_slice(&(text.len() as u64).to_le_bytes());
        body.extend_from_slice(text.as_bytes());
    }
    seal(KIND_AUDIT, &sequence.to_be_bytes(), body)
}

pub(super) fn open_audit(sequence: u64, value: &[u8]) -> Result<(AuditEntry, u128), Flaw> {
    let (body, hash) = unseal(KIND_AUDIT, &sequence.to_be_bytes(), value)?;
    let (mark, mut rest) = body
        .split_at_checked(MARK_BYTES)
        .ok_or("an audit entry is too short")?;
    let mut text = || -> Result<String, Flaw> {
        let len = take(&mut rest).map(u64::from_le_bytes)?;
        let len = usize::try_from(len).map_err(|_| "an audit entry's length is too large")?;
        let (text, tail) = rest.split_at_checked(len).ok_or("an audit entry is cut short")?;
        rest = tail;
        String::from_utf8(text.to_vec()).map_err(|_| "an audit entry is not text".into())
    };
    let entry = AuditEntry {
        sequence,
        mark: read_mark(mark)?,
        name: text()?,
        audit: Audit {
            from: text()?,
            reason: text()?,
            by: text()?,
        },
    };
    Ok((entry, hash))
}

pub(super) fn seal_head(head: &Head) -> Vec<u8> {
    let mut body = Vec::with_capacity(80);
    body.extend_from_slice(&head.sequence.to_le_bytes());
    for digest in [head.marks, head.audits] {
        body.extend_from_slice(&digest.count.to_le_bytes());
        body.extend_from_slice(&digest.sum.to_le_bytes());
    }
    body.push(u8::from(head.clean));
    body.extend_from_slice(&head.settle_ms.to_le_bytes());
    seal(KIND_HEAD, b"", body).bytes
}

pub(super) fn open_head(value: &[u8]) -> Result<Head, Flaw> {
    let (mut body, _) = unseal(KIND_HEAD, b"", value)?;
    let body = &mut body;
    Ok(Head {
        sequence: take(body).map(u64::from_le_bytes)?,
        marks: read_digest(body)?,
        audits: read_digest(body)?,
        clean: take::<1>(body)? == [1],
        settle_ms: take(body).map(u64::from_le_bytes)?,
    })
}

/// A checksum for small fixed records outside the tables.
pub(super) fn checksum(kind: u8, body: &[u8]) -> u64 {
    low(hash(kind, b"", body))
}

/// Whole milliseconds, rounded up: a wait may become longer, never shorter.
pub(super) fn ms_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn seal(kind: u8, key: &[u8], mut body: Vec<u8>) -> Sealed {
    let hash = hash(kind, key, &body);
    body.extend_from_slice(&low(hash).to_le_bytes());
    Sealed { bytes: body, hash }
}

fn unseal<'v>(kind: u8, key: &[u8], value: &'v [u8]) -> Result<(&'v [u8], u128), Flaw> {
    let (body, sum) = value.split_last_chunk::<8>().ok_or("a record is too short")?;
    let hash = hash(kind, key, body);
    if low(hash).to_le_bytes() != *sum {
        return Err("a record's checksum does not match".into());
    }
    Ok((body, hash))
}

fn mark_body(mark: &Mark) -> [u8; MARK_BYTES] {
    let mut body = [0; MARK_BYTES];
    body[..16].copy_from_slice(&mark.token.0.to_le_bytes());
    body[16] = match mark.format {
        TokenFormat::Integer => 0,
        TokenFormat::Hex => 1,
        TokenFormat::Pair => 2,
    };
    body[17..].copy_from_slice(&mark.raised_at_ms.to_le_bytes());
    body
}

fn read_mark(mut body: &[u8]) -> Result<Mark, Flaw> {
    let token = Token(u128::from_le_bytes(take(&mut body)?));
    let format = match take::<1>(&mut body)? {
        [0] => TokenFormat::Integer,
        [1] => TokenFormat::Hex,
        [2] => TokenFormat::Pair,
        [other] => return Err(format!("a mark has the unknown token format {other}")),
    };
    let raised_at_ms = u64::from_le_bytes(take(&mut body)?);
    Ok(Mark {
        token,
        format,
        raised_at_ms,
    })
}

fn read_digest(body: &mut &[u8]) -> Result<Digest, Flaw> {
    Ok(Digest {
        count: take(body).map(u64::from_le_bytes)?,
        sum: take(body).map(u128::from_le_bytes)?,
    })
}

fn take<const N: usize>(body: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (first, rest) = body.split_first_chunk::<N>().ok_or("a record is cut short")?;
    *body = rest;
    Ok(*first)
}

fn hash(kind: u8, key: &[u8], body: &[u8]) -> u128 {
    // Fixed keys: this finds accidents, not forgers. Who can write to the folder can do anything anyway.
    let mut hasher = SipHasher13::new_with_keys(0x6665_6e63_6567_6174, 0x6d61_726b_7320_7631);
    hasher.write(&[kind]);
    hasher.write(&(key.len() as u64).to_le_bytes());
    hasher.write(key);
    hasher.write(body);
    hasher.finish128().as_u128()
}

fn low(hash: u128) -> u64 {
    (hash & u128::from(u64::MAX)) as u64
}

const MARK_BYTES: usize = 25;
const KIND_MARK: u8 = 1;
const KIND_AUDIT: u8 = 2;
const KIND_HEAD: u8 = 3;

#[cfg(test)]
mod tests {
    use super::{Digest, Head, open_audit, open_head, open_mark, seal_audit, seal_head, seal_mark};
    use crate::base::{Token, TokenFormat};
    use crate::ledger::{Audit, Mark};

    fn mark(token: u128) -> Mark {
        Mark {
            token: Token(token),
            format: TokenFormat::Pair,
            raised_at_ms: 1_700_000_000_123,
        }
    }

    #[test]
    fn what_is_sealed_is_read_back() {
        let sealed = seal_mark(b"a", &mark(u128::MAX));
        assert_eq!(open_mark(b"a", &sealed.bytes), Ok((mark(u128::MAX), sealed.hash)));
        let audit = Audit {
            from: "9".into(),
            reason: "größer".into(),
            by: String::new(),
        };
        let sealed = seal_audit(7, "a/b", &mark(3), &audit);
        let (entry, _) = open_audit(7, &sealed.bytes).unwrap();
        assert_eq!(
            (entry.sequence, entry.name.as_str(), entry.audit),
            (7, "a/b", audit)
        );
        let head = Head {
            sequence: 5,
            clean: true,
            settle_ms: 9,
            ..Head::default()
        };
        assert_eq!(open_head(&seal_head(&head)), Ok(head));
    }

    #[test]
    fn a_record_under_another_name_or_with_another_bit_is_refused() {
        let sealed = seal_mark(b"a", &mark(5));
        assert!(open_mark(b"b", &sealed.bytes).is_err());
        for at in 0..sealed.bytes.len() * 8 {
            let mut bytes = sealed.bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(open_mark(b"a", &bytes).is_err(), "bit {at}");
        }
        for len in 0..sealed.bytes.len() {
            assert!(open_mark(b"a", &sealed.bytes[..len]).is_err(), "length {len}");
        }
    }

    #[test]
    fn a_digest_shows_a_replaced_record_and_no_order() {
        let hashes = [1, 2, 3].map(|n| seal_mark(b"a", &mark(n)).hash);
        let (mut one, mut other) = (Digest::default(), Digest::default());
        hashes.iter().for_each(|h| one.add(*h));
        hashes.iter().rev().for_each(|h| other.add(*h));
        assert_eq!(one, other);
        other.remove(hashes[0]);
        other.add(hashes[1]);
        assert_ne!(one, other);
    }
}
