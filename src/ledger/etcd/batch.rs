//! Changes on their way into one transaction, what is known of each mark, and what a transaction says. Never talks to
//! etcd. Called by `writer.rs`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::values::{self, Keys};
use crate::base::Token;
use crate::ledger::{Change, Done, Mark, StoreError};
use crate::owner::{Attempt, Held, Revision};

/// A change whose caller waits. Dropped without an answer it says that the tenure is
/// over, and nothing is known of it.
pub(super) struct Pending {
    pub(super) change: Change,
    done: Option<Done>,
}

impl Pending {
    pub(super) fn new(change: Change, done: Done) -> Pending {
        Pending {
            change,
            done: Some(done),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        match &self.change {
            Change::Raise { name, .. } | Change::Reset { name, .. } | Change::Note { name, .. } => name,
        }
    }

    pub(super) fn mark(&self) -> &Mark {
        match &self.change {
            Change::Raise { mark, .. } | Change::Reset { mark, .. } | Change::Note { mark, .. } => mark,
        }
    }

    pub(super) fn is_reset(&self) -> bool {
        matches!(self.change, Change::Reset { .. })
    }

    /// Whether it adds to the audit trail and leaves the mark as it is.
    pub(super) fn is_note(&self) -> bool {
        matches!(self.change, Change::Note { .. })
    }

    /// What it adds to the audit trail, if it does. At most one change of a transaction does.
    pub(super) fn record(&self) -> Option<Vec<u8>> {
        match &self.change {
            Change::Raise { .. } => None,
            Change::Reset { name, mark, audit } | Change::Note { name, mark, audit } => {
                Some(values::write_reset(name, mark, audit))
            }
        }
    }

    pub(super) fn answer(mut self, result: Result<(), StoreError>) {
        self.tell(result);
    }

    fn tell(&mut self, result: Result<(), StoreError>) {
        if let Some(done) = self.done.take()
            && catch_unwind(AssertUnwindSafe(|| done(result))).is_err()
        {
            tracing::error!("a callback of the ledger panicked; this is a bug");
        }
    }

    /// About how many bytes it adds to a request: the name in the comparison, the write and the read.
    fn bytes(&self) -> usize {
        let audit = match &self.change {
            Change::Raise { .. } => 0,
            Change::Reset { audit, .. } | Change::Note { audit, .. } => {
                audit.from.len() + audit.reason.len() + audit.by.len()
            }
        };
        3 * self.name().len() + audit + OVERHEAD_BYTES
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.tell(Err(StoreError::NotOwner));
    }
}

/// The bounds of one transaction. They shrink to what the server takes, and stay there.
#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Bounds {
    /// etcd takes 128 operations and 1.5 MiB, if nobody has set it otherwise. One comparison is the owner's.
    pub(super) const USUAL: Bounds = Bounds {
        count: 127,
        bytes: 1024 * 1024,
    };

    /// Takes changes off the queue that fit into one transaction: each mark once, and what adds to the audit trail alone.
    pub(super) fn take(&self, queue: &mut VecDeque<Pending>) -> Vec<Pending> {
        let mut batch: Vec<Pending> = Vec::new();
        let mut names = std::collections::HashSet::new();
        let mut bytes = 0;
        while let Some(next) = queue.front() {
            let records = |pending: &Pending| pending.is_reset() || pending.is_note();
            let alone = records(next) || batch.first().is_some_and(records);
            bytes += next.bytes();
            let fits = batch.len() < self.count && bytes <= self.bytes && !alone;
            if !batch.is_empty() && (!fits || names.contains(next.name())) {
                break;
            }
            names.insert(next.name().clone());
            batch.extend(queue.pop_front());
        }
        batch
    }
}

/// A mark as etcd holds it, as far as this tenure knows.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    revision: i64,
    token: [u64; 2],
}

/// All marks, by a keyed hash of their names: two names that share one only make a comparison fail, which is seen.
pub(super) struct Marks {
    known: HashMap<[u64; 2], Known>,
    keys: (u64, u64),
}

impl Marks {
    pub(super) fn new() -> Marks {
        let draw = |n: u8| RandomState::new().hash_one(n);
        Marks {
            known: HashMap::new(),
            keys: (draw(1), draw(2)),
        }
    }

    pub(super) fn learn(&mut self, name: &str, token: Token, revision: Revision) {
        let known = Known {
            revision: revision.0,
            token: halves(token.0),
        };
        self.known.insert(self.place(name), known);
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.known.remove(&self.place(name));
    }

    fn get(&self, name: &str) -> Option<(Token, Revision)> {
        let known = self.known.get(&self.place(name))?;
        let [high, low] = known.token;
        let token = Token(u128::from(high) << 64 | u128::from(low));
        Some((token, Revision(known.revision)))
    }

    fn place(&self, name: &str) -> [u64; 2] {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write(name.as_bytes());
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }

    /// What a change attempts, by what is known now.
    pub(super) fn attempt(&self, pending: &Pending) -> Attempt {
        let known = self.get(pending.name());
        Attempt {
            token: pending.mark().token,
            reset: pending.is_reset(),
            known: known.map_or(Revision(0), |(_, revision)| revision),
        }
    }

    /// A raise never lowers a mark: where it is that high already, it is only made certain that it stands.
    pub(super) fn writes(&self, pending: &Pending) -> bool {
        let known = self.get(pending.name());
        !pending.is_note()
            && (pending.is_reset() || known.is_none_or(|(token, _)| token < pending.mark().token))
    }

    /// One transaction: the owner's key and each mark must be as they are known; else they are read.
    pub(super) fn transaction(&self, keys: &Keys, tenure: Revision, batch: &[Pending], audit: u64) -> Txn {
        let (mut when, mut then, mut otherwise) = (Vec::new(), Vec::new(), Vec::new());
        when.push(Compare::create_revision(keys.owner(), CompareOp::Equal, tenure.0));
        otherwise.push(TxnOp::get(keys.owner(), None));
        for pending in batch {
            if !pending.is_note() {
                let key = keys.mark(pending.name());
                let known = self.attempt(pending).known;
                when.push(Compare::mod_revision(key.clone(), CompareOp::Equal, known.0));
                if self.writes(pending) {
                    then.push(TxnOp::put(key.clone(), values::write_mark(pending.mark()), None));
                }
                otherwise.push(TxnOp::get(key, None));
            }
            if let Some(record) = pending.record() {
                let key = keys.audit(audit);
                when.push(Compare::create_revision(key.clone(), CompareOp::Equal, 0));
                then.push(TxnOp::put(key.clone(), record, None));
                otherwise.push(TxnOp::get(key, None));
            }
        }
        Txn::new().when(when).and_then(then).or_else(otherwise)
    }
}

/// A mark as a refused transaction has read it.
pub(super) fn held(kv: &KeyValue) -> Result<Held, values::Flaw> {
    let mark = values::read_mark(kv.value())?;
    Ok(Held {
        token: mark.token,
        revision: Revision(kv.mod_revision()),
    })
}

fn halves(n: u128) -> [u64; 2] {
    let low = n & u128::from(u64::MAX);
    [n >> 64, low].map(|half| u64::try_from(half).expect("64 bits are left"))
}

/// Keys' prefixes, values, and what the wire adds.
const OVERHEAD_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::{Bounds, Marks, Pending};
    use crate::base::{Token, TokenFormat};
    use crate::ledger::{Audit, Change, Mark, StoreError};
    use crate::owner::Revision;

    fn mark(token: u128) -> Mark {
        Mark {
            token: Token(token),
            format: TokenFormat::Integer,
            raised_at_ms: 0,
        }
    }

    fn raise(name: &str, token: u128) -> Pending {
        let change = Change::Raise {
            name: Arc::from(name),
            mark: mark(token),
        };
        Pending::new(change, Box::new(|_| {}))
    }

    fn reset(name: &str) -> Pending {
        let audit = Audit {
            from: String::new(),
            reason: "r".into(),
            by: String::new(),
        };
        let change = Change::Reset {
            name: Arc::from(name),
            mark: mark(1),
            audit,
        };
        Pending::new(change, Box::new(|_| {}))
    }

    fn sizes(bounds: &Bounds, queue: Vec<Pending>) -> Vec<usize> {
        let mut queue = VecDeque::from(queue);
        let mut sizes = vec![];
        while !queue.is_empty() {
            sizes.push(bounds.take(&mut queue).len());
        }
        sizes
    }

    #[test]
    fn a_transaction_takes_what_fits_each_mark_once_and_a_reset_alone() {
        let many = (0..300).map(|n| raise(&n.to_string(), 1)).collect();
        assert_eq!(sizes(&Bounds::USUAL, many), [127, 127, 46]);
        assert_eq!(
            sizes(&Bounds::USUAL, vec![raise("a", 1), raise("b", 1), raise("a", 2)]),
            [2, 1]
        );
        let mixed = vec![raise("a", 1), reset("b"), raise("c", 1), raise("d", 1)];
        assert_eq!(sizes(&Bounds::USUAL, mixed), [1, 1, 2]);
        let long = "x".repeat(120_000);
        let long = (0..5).map(|n| raise(&format!("{long}{n}"), 1)).collect();
        assert_eq!(sizes(&Bounds::USUAL, long), [2, 2, 1]);
        let small = Bounds { count: 1, bytes: 1 };
        assert_eq!(sizes(&small, vec![raise("a", 1), raise("b", 1)]), [1, 1]);
    }

    #[test]
    fn what_is_dropped_has_an_answer() {
        let (tell, told) = channel();
        let change = raise("a", 1).change.clone();
        let done = move |result: Result<(), StoreError>| tell.send(result).unwrap();
        drop(Pending::new(change, Box::new(done)));
        assert!(matches!(told.recv(), Ok(Err(StoreError::NotOwner))));
    }

    #[test]
    fn marks_are_known_by_the_name_whole() {
        let mut marks = Marks::new();
        marks.learn("a", Token(u128::MAX - 1), Revision(7));
        assert_eq!(marks.get("a"), Some((Token(u128::MAX - 1), Revision(7))));
        assert_eq!(marks.get("b"), None);
        assert!(!marks.writes(&raise("a", 5)));
        assert!(marks.writes(&reset("a")));
        marks.forget("a");
        assert!(marks.writes(&raise("a", 5)));
    }
}
