//! What stands in etcd: the keys below the prefix, and their values, small JSON with the number of their format.
//! `docs/store-etcd.md` describes both for operators. Never talks to etcd. Called by everything else here.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::base::{Token, TokenFormat};
use crate::ledger::{Audit, AuditEntry, Mark};
use crate::owner::Marker;

/// The format of all values that this version writes and reads.
pub const FORMAT: u32 = 1;
/// The longest name of a resource in bytes: three times it stands in the request that raises it, and etcd takes
/// requests of 1.5 MiB.
pub const NAME_BYTES_MAX: usize = 128 * 1024;

/// The keys of one prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys below `prefix`, which ends with a slash.
    pub fn below(prefix: &str) -> Keys {
        Keys {
            prefix: prefix.to_owned(),
        }
    }

    /// Who owns the prefix; lives as long as that instance's lease.
    pub fn owner(&self) -> String {
        format!("{}owner", self.prefix)
    }

    /// How the last run ended.
    pub fn marker(&self) -> String {
        format!("{}marker", self.prefix)
    }

    /// Which cluster the prefix was made in.
    pub fn identity(&self) -> String {
        format!("{}identity", self.prefix)
    }

    /// One resource's mark; with a part of a name, where the names that start so begin.
    pub fn mark(&self, name: &str) -> String {
        format!("{}mark/{name}", self.prefix)
    }

    /// The name in a mark's key.
    pub fn name<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"mark/")
    }

    /// One entry of the audit trail. The digits keep their order.
    pub fn audit(&self, sequence: u64) -> String {
        format!("{}audit/{sequence:020}", self.prefix)
    }

    /// Before the first entry of the audit trail, and after the last one.
    pub fn audits(&self) -> (Vec<u8>, Vec<u8>) {
        let start = format!("{}audit/", self.prefix).into_bytes();
        let end = after_all_that_start_with(&start);
        (start, end)
    }

    /// The number in an audit entry's key.
    pub fn sequence(&self, key: &[u8]) -> Option<u64> {
        let digits = key
            .strip_prefix(self.prefix.as_bytes())?
            .strip_prefix(b"audit/")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// The least key that comes after all that start with `prefix`.
pub fn after_all_that_start_with(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All bytes are 0xff: etcd takes a single NUL for "to the end".
    vec![0]
}

/// The value of `owner`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct OwnerValue {
    pub format: u32,
    /// Drawn at random for each candidacy: how an instance knows its own.
    pub id: String,
    /// For people: host, process.
    pub who: String,
    pub since_ms: u64,
}

/// The value of `marker`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct MarkerValue {
    pub format: u32,
    pub clean: bool,
    pub settle_after_ms: u64,
    /// The [`OwnerValue::id`] of the tenure that wrote it.
    pub by: String,
    pub at_ms: u64,
}

impl MarkerValue {
    pub fn new(marker: Marker, by: &str, at_ms: u64) -> MarkerValue {
        MarkerValue {
            format: FORMAT,
            clean: marker.clean,
            settle_after_ms: ms_up(marker.settle_after),
            by: by.to_owned(),
            at_ms,
        }
    }

    pub fn marker(&self) -> Marker {
        Marker {
            clean: self.clean,
            settle_after: Duration::from_millis(self.settle_after_ms),
        }
    }
}

/// The value of `identity`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct IdentityValue {
    pub format: u32,
    /// The etcd cluster's id that the prefix was made in, or was adopted in, in hex.
    pub cluster: String,
    /// Drawn at random when the prefix was made, and with each adoption.
    pub adoption: String,
    /// The adoptions before this one: an older copy of the prefix shows one of them.
    #[serde(default)]
    pub earlier: Vec<String>,
    pub at_ms: u64,
}

impl IdentityValue {
    pub fn new(cluster: u64, at_ms: u64) -> IdentityValue {
        IdentityValue {
            format: FORMAT,
            cluster: shown_cluster(cluster),
            adoption: random_id(),
            earlier: Vec::new(),
            at_ms,
        }
    }

    /// The same prefix, adopted in `cluster`.
    pub fn adopted(self, cluster: u64, at_ms: u64) -> IdentityValue {
        let mut earlier = self.earlier;
        earlier.push(self.adoption);
        IdentityValue {
            earlier,
            ..IdentityValue::new(cluster, at_ms)
        }
    }
}

/// The value of `mark/NAME`.
#[derive(Serialize, Deserialize)]
struct MarkValue {
    format: u32,
    token: String,
    token_format: String,
    raised_at_ms: u64,
}

/// The value of `audit/SEQ`.
#[derive(Serialize, Deserialize)]
struct AuditValue {
    format: u32,
    /// `reset` or `adopt`.
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    token_format: String,
    at_ms: u64,
    #[serde(default)]
    from: String,
    reason: String,
    by: String,
}

pub fn write_mark(mark: &Mark) -> Vec<u8> {
    json(&MarkValue {
        format: FORMAT,
        token: mark.format.show(mark.token).to_string(),
        token_format: mark.format.as_str().to_owned(),
        raised_at_ms: mark.raised_at_ms,
    })
}

pub fn read_mark(value: &[u8]) -> Result<Mark, Flaw> {
    let value: MarkValue = read(value)?;
    let (token, format) = read_token(&value.token, &value.token_format)?;
    Ok(Mark {
        token,
        format,
        raised_at_ms: value.raised_at_ms,
    })
}

pub fn write_reset(name: &str, mark: &Mark, audit: &Audit) -> Vec<u8> {
    json(&AuditValue {
        format: FORMAT,
        kind: "reset".to_owned(),
        name: name.to_owned(),
        token: mark.format.show(mark.token).to_string(),
        token_format: mark.format.as_str().to_owned(),
        at_ms: mark.raised_at_ms,
        from: audit.from.clone(),
        reason: audit.reason.clone(),
        by: audit.by.clone(),
    })
}

pub fn write_adoption(reason: &str, by: &str, at_ms: u64) -> Vec<u8> {
    json(&AuditValue {
        format: FORMAT,
        kind: "adopt".to_owned(),
        name: String::new(),
        token: String::new(),
        token_format: String::new(),
        at_ms,
        from: String::new(),
        reason: reason.to_owned(),
        by: by.to_owned(),
    })
}

/// An entry of the audit trail; `None` where it tells of an adoption.
pub fn read_audit(sequence: u64, value: &[u8]) -> Result<Option<AuditEntry>, Flaw> {
    let value: AuditValue = read(value)?;
    match value.kind.as_str() {
        "adopt" => return Ok(None),
        "reset" => {}
        other => return Err(Flaw::Unreadable(format!("the kind {other:?} is unknown"))),
    }
    let (token, format) = read_token(&value.token, &value.token_format)?;
    Ok(Some(AuditEntry {
        sequence,
        name: value.name,
        mark: Mark {
            token,
            format,
            raised_at_ms: value.at_ms,
        },
        audit: Audit {
            from: value.from,
            reason: value.reason,
            by: value.by,
        },
    }))
}

/// Why a value can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It has another format.
    Format(u64),
    /// It is not what is written here.
    Unreadable(String),
}

#[derive(Deserialize)]
struct Versioned {
    format: u64,
}

/// Reads a value of this format. The number comes first: another format may look different in all else.
pub fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, Flaw> {
    let versioned: Versioned =
        serde_json::from_slice(value).map_err(|error| Flaw::Unreadable(error.to_string()))?;
    if versioned.format != u64::from(FORMAT) {
        return Err(Flaw::Format(versioned.format));
    }
    serde_json::from_slice(value).map_err(|error| Flaw::Unreadable(error.to_string()))
}

pub fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("these values are text and numbers")
}

/// A cluster's id as etcdctl shows it with `--hex`.
pub fn shown_cluster(id: u64) -> String {
    format!("{id:016x}")
}

/// 128 random bits in hex.
pub fn random_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    // Each state has keys of its own, drawn by the system.
    let half = |n: u8| RandomState::new().hash_one((n, std::process::id()));
    format!("{:016x}{:016x}", half(1), half(2))
}

fn read_token(token: &str, format: &str) -> Result<(Token, TokenFormat), Flaw> {
    let format = [TokenFormat::Integer, TokenFormat::Hex, TokenFormat::Pair]
        .into_iter()
        .find(|known| known.as_str() == format)
        .ok_or_else(|| Flaw::Unreadable(format!("the token format {format:?} is unknown")))?;
    let token = format
        .parse(token.as_bytes())
        .map_err(|_| Flaw::Unreadable(format!("{token:?} is no {} token", format.as_str())))?;
    Ok((token, format))
}

/// Whole milliseconds, rounded up: a wait may become longer, never shorter.
fn ms_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        Flaw, IdentityValue, Keys, MarkerValue, after_all_that_start_with, read, read_audit, read_mark,
        write_adoption, write_mark, write_reset,
    };
    use crate::base::{Token, TokenFormat};
    use crate::ledger::{Audit, Mark};
    use crate::owner::Marker;

    fn mark() -> Mark {
        Mark {
            token: Token(7 << 64 | 9),
            format: TokenFormat::Pair,
            raised_at_ms: 1_700_000_000_123,
        }
    }

    #[test]
    fn values_are_read_back() {
        assert_eq!(read_mark(&write_mark(&mark())), Ok(mark()));
        let audit = Audit {
            from: "9.9".into(),
            reason: "größer \" \n".into(),
            by: String::new(),
        };
        let entry = read_audit(3, &write_reset("a/ß", &mark(), &audit))
            .unwrap()
            .unwrap();
        assert_eq!((entry.sequence, &*entry.name, entry.mark), (3, "a/ß", mark()));
        assert_eq!(entry.audit, audit);
        assert_eq!(read_audit(4, &write_adoption("restored", "ops", 1)), Ok(None));
    }

    #[test]
    fn a_wait_is_never_written_down_shorter() {
        let marker = Marker {
            clean: false,
            settle_after: Duration::from_nanos(1_000_001),
        };
        assert_eq!(MarkerValue::new(marker, "x", 0).settle_after_ms, 2);
    }

    #[test]
    fn what_this_version_does_not_write_is_not_read() {
        let flaw = |value: &str| read_mark(value.as_bytes()).unwrap_err();
        assert_eq!(flaw(r#"{"format":2,"mark":"x"}"#), Flaw::Format(2));
        for bad in [
            "",
            "34",
            "{}",
            r#"{"format":1}"#,
            r#"{"format":1,"token":"-1","token_format":"integer","raised_at_ms":0}"#,
            r#"{"format":1,"token":"1","token_format":"decimal","raised_at_ms":0}"#,
            r#"{"format":1,"token":1,"token_format":"integer","raised_at_ms":0}"#,
        ] {
            assert!(matches!(flaw(bad), Flaw::Unreadable(_)), "{bad}");
        }
    }

    #[test]
    fn an_adoption_remembers_those_before_it() {
        let made = IdentityValue::new(7, 1);
        let adopted = made.clone().adopted(8, 2).adopted(9, 3);
        assert_eq!(adopted.cluster, "0000000000000009");
        assert_eq!(adopted.earlier.len(), 2);
        assert_eq!(adopted.earlier[0], made.adoption);
        assert_eq!(read::<IdentityValue>(&super::json(&adopted)), Ok(adopted));
    }

    #[test]
    fn keys_are_told_apart_and_ranges_end_behind_their_prefix() {
        let keys = Keys::below("/fencegate/a/");
        assert_eq!(keys.name(keys.mark("x/y").as_bytes()), Some(&b"x/y"[..]));
        assert_eq!(keys.name(keys.owner().as_bytes()), None);
        assert_eq!(keys.sequence(keys.audit(12).as_bytes()), Some(12));
        assert_eq!(after_all_that_start_with(b"a/"), b"a0");
        assert_eq!(after_all_that_start_with(&[1, 0xff]), [2]);
        assert_eq!(after_all_that_start_with(&[0xff]), [0]);
    }
}
