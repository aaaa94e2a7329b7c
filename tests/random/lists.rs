//! The checker of what a Redis server applied, in which order: read out of the server's own log of writes
//! (`appendonly`), and held against what clients were told.
//!
//! Every write carries an element of its own, `TOKEN-NUMBER`, into a key `orders:RESOURCE…`. What may be said of it is
//! [`Outcome`]; the rest of this file is what must hold, see [`check`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;

/// What became of a write, as far as its client was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It took effect: the server's reply came.
    Applied,
    /// It did not, and never will.
    Refused,
    /// Nobody told.
    Unknown,
}

/// A write of one element.
#[derive(Clone, Copy, Debug)]
pub struct Wrote {
    pub number: u64,
    pub resource: usize,
    pub token: u64,
    pub outcome: Outcome,
    /// Writes with the same one are one transaction, or one script.
    pub together: Option<u64>,
}

/// A pop by this token.
#[derive(Clone, Copy, Debug)]
pub struct Popped {
    pub resource: usize,
    pub token: u64,
    pub got: Got,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// The element with this number.
    Element(u64),
    Nothing,
    /// Nobody told.
    Unknown,
}

/// An answered read by this token: the list had so many elements.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub resource: usize,
    pub token: u64,
    pub len: usize,
}

/// What clients did and were told.
#[derive(Clone, Default, Debug)]
pub struct History {
    pub wrote: Vec<Wrote>,
    pub popped: Vec<Popped>,
    pub read: Vec<Read>,
}

impl History {
    pub fn add(&mut self, other: History) {
        self.wrote.extend(other.wrote);
        self.popped.extend(other.popped);
        self.read.extend(other.read);
    }
}

/// Something that took effect at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// An element came to this resource, into its list where `listed`; `block` numbers the transaction.
    Came {
        resource: usize,
        token: u64,
        number: u64,
        listed: bool,
        block: Option<usize>,
    },
    /// An element was taken out of the resource's queue.
    Left { resource: usize, number: u64 },
}

/// What must hold of a run; the first thing that doesn't is told.
///
/// 1. On each resource the tokens of what took effect never go down; a pop counts as its holder's.
/// 2. What was told to have taken effect is there once, what was refused is not, everything else at most once.
/// 3. A transaction took effect as a whole, with nothing in between, or not at all.
/// 4. After an answered read with token N nothing of a lower token comes (S11).
/// 5. A holder that pops gets nothing of a newer one.
pub fn check(history: &History, journal: &[Effect]) -> Result<(), String> {
    never_down(history, journal)?;
    as_told(history, journal)?;
    all_or_none(history, journal)?;
    reads_are_final(history, journal)
}

fn never_down(history: &History, journal: &[Effect]) -> Result<(), String> {
    let poppers: HashMap<u64, u64> = history
        .popped
        .iter()
        .filter_map(|popped| match popped.got {
            Got::Element(element) => Some((element, popped.token)),
            Got::Nothing | Got::Unknown => None,
        })
        .collect();
    // Pops whose reply was lost, by resource: their tokens, and how often.
    let mut lost: BTreeMap<usize, BTreeMap<u64, usize>> = BTreeMap::new();
    for popped in history.popped.iter().filter(|popped| popped.got == Got::Unknown) {
        *lost
            .entry(popped.resource)
            .or_default()
            .entry(popped.token)
            .or_default() += 1;
    }
    let mut marks: BTreeMap<usize, u64> = BTreeMap::new();
    for (at, effect) in journal.iter().enumerate() {
        let (resource, token) = match *effect {
            Effect::Came { resource, token, .. } => (resource, token),
            Effect::Left { resource, number } => match poppers.get(&number) {
                Some(token) => (resource, *token),
                None => {
                    let mark = marks.get(&resource).copied().unwrap_or_default();
                    let lost = lost.entry(resource).or_default();
                    let Some((&token, _)) = lost.range(mark..).next() else {
                        return Err(format!(
                            "orders:{resource}: element {number} left, and nobody of {mark} or newer can have taken it: {}",
                            around(journal, at)
                        ));
                    };
                    let left = lost.entry(token).or_default();
                    *left -= 1;
                    if *left == 0 {
                        lost.remove(&token);
                    }
                    (resource, token)
                }
            },
        };
        let mark = marks.entry(resource).or_insert(token);
        if token < *mark {
            return Err(format!(
                "orders:{resource}: {effect:?} of token {token} took effect after {mark}: {}",
                around(journal, at)
            ));
        }
        *mark = token;
    }
    Ok(())
}

fn as_told(history: &History, journal: &[Effect]) -> Result<(), String> {
    let mut found: HashMap<u64, usize> = HashMap::new();
    for effect in journal {
        if let Effect::Came { number, .. } = effect {
            *found.entry(*number).or_default() += 1;
        }
    }
    for wrote in &history.wrote {
        let times = found.remove(&wrote.number).unwrap_or_default();
        let fine = match wrote.outcome {
            Outcome::Applied => times == 1,
            Outcome::Refused => times == 0,
            Outcome::Unknown => times <= 1,
        };
        if !fine {
            return Err(format!("{wrote:?} took effect {times} times"));
        }
    }
    match found.keys().next() {
        Some(number) => Err(format!("nobody wrote {number}")),
        None => Ok(()),
    }
}

fn all_or_none(history: &History, journal: &[Effect]) -> Result<(), String> {
    let mut places: HashMap<u64, (usize, Option<usize>)> = HashMap::new();
    for (at, effect) in journal.iter().enumerate() {
        if let Effect::Came { number, block, .. } = effect {
            places.insert(*number, (at, *block));
        }
    }
    let mut transactions: BTreeMap<u64, Vec<&Wrote>> = BTreeMap::new();
    for wrote in &history.wrote {
        if let Some(together) = wrote.together {
            transactions.entry(together).or_default().push(wrote);
        }
    }
    for writes in transactions.values() {
        let there: Vec<_> = writes
            .iter()
            .filter_map(|wrote| places.get(&wrote.number))
            .collect();
        let outcome = writes[0].outcome;
        let is_whole = there.is_empty() || there.len() == writes.len();
        let is_told_alike = writes.iter().all(|wrote| wrote.outcome == outcome);
        // A server that applies one write alone does not call it a transaction.
        let is_one =
            there.len() < 2 || there[0].1.is_some() && there.iter().all(|place| place.1 == there[0].1);
        let is_in_order = there.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !(is_whole && is_told_alike && is_one && is_in_order) {
            return Err(format!("a transaction came apart: {writes:?} at {there:?}"));
        }
    }
    Ok(())
}

fn reads_are_final(history: &History, journal: &[Effect]) -> Result<(), String> {
    let lists = lists(journal);
    for read in &history.read {
        let list = lists.get(&read.resource).map(Vec::as_slice).unwrap_or_default();
        if read.len > list.len() {
            return Err(format!("{read:?} saw more than the {} there are", list.len()));
        }
        // What came next is the oldest: tokens never go down.
        if let Some(older) = list.get(read.len).filter(|(token, _)| *token < read.token) {
            return Err(format!("{older:?} came after {read:?}"));
        }
    }
    let pushers: HashMap<u64, u64> = journal
        .iter()
        .filter_map(|effect| match effect {
            Effect::Came { number, token, .. } => Some((*number, *token)),
            Effect::Left { .. } => None,
        })
        .collect();
    for popped in &history.popped {
        let Got::Element(element) = popped.got else {
            continue;
        };
        let pushed = pushers.get(&element);
        if pushed.is_none_or(|token| *token > popped.token) {
            return Err(format!("{popped:?} got what token {pushed:?} had pushed"));
        }
    }
    Ok(())
}

/// The lists of all resources, as `(token, number)`, which the journal leads to.
pub fn lists(journal: &[Effect]) -> BTreeMap<usize, Vec<(u64, u64)>> {
    let mut lists: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    for effect in journal {
        if let Effect::Came {
            resource,
            token,
            number,
            listed: true,
            ..
        } = *effect
        {
            lists.entry(resource).or_default().push((token, number));
        }
    }
    lists
}

fn around(journal: &[Effect], at: usize) -> String {
    let mut text = String::new();
    for effect in &journal[at.saturating_sub(12)..=at] {
        let _ = write!(text, "\n  {effect:?}");
    }
    text
}

// ---- the server's log

/// Reads what a server has written to its `appendonly` log.
pub fn journal(log: &[u8]) -> Vec<Effect> {
    let mut journal = Vec::new();
    let (mut block, mut blocks) = (None, 0);
    let mut queues: HashMap<Vec<u8>, VecDeque<(usize, u64)>> = HashMap::new();
    let mut rest = log;
    while !rest.is_empty() {
        if rest[0] == b'#' {
            // A time.
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
            rest = &rest[end + 1..];
            continue;
        }
        let words = command(&mut rest);
        let name = String::from_utf8_lossy(words[0]).to_ascii_lowercase();
        match name.as_str() {
            "select" | "del" => {}
            "multi" => {
                blocks += 1;
                block = Some(blocks);
            }
            "exec" => block = None,
            "rpush" => {
                for element in &words[2..] {
                    let effect = came(words[1], element, block);
                    if words[1].ends_with(b":q") {
                        let Effect::Came { resource, number, .. } = effect else {
                            unreachable!("made so")
                        };
                        let queue = queues.entry(words[1].to_vec()).or_default();
                        queue.push_back((resource, number));
                    }
                    journal.push(effect);
                }
            }
            "set" => journal.push(came(words[1], words[2], block)),
            "mset" => {
                // One command is as whole as a transaction.
                blocks += 1;
                let block = block.or(Some(blocks));
                for pair in words[1..].chunks(2) {
                    journal.push(came(pair[0], pair[1], block));
                }
            }
            "lpop" | "lmove" | "rpoplpush" => {
                let queue = queues.get_mut(words[1]).unwrap();
                let from_right =
                    name == "rpoplpush" || name == "lmove" && words[3].eq_ignore_ascii_case(b"right");
                let left = match from_right {
                    true => queue.pop_back(),
                    false => queue.pop_front(),
                };
                let (resource, number) = left.expect("nothing leaves an empty queue");
                journal.push(Effect::Left { resource, number });
            }
            _ => panic!("the server applied {name}"),
        }
    }
    journal
}

fn came(key: &[u8], element: &[u8], block: Option<usize>) -> Effect {
    let key = std::str::from_utf8(key).unwrap();
    let of_key = key.strip_prefix("orders:").unwrap();
    let (resource, kind) = of_key.split_once(':').unwrap_or((of_key, ""));
    let (token, number) = split(element);
    Effect::Came {
        resource: resource.parse().unwrap(),
        token,
        number,
        listed: kind.is_empty(),
        block,
    }
}

/// An element's token and number; a large one has more behind them.
pub fn split(element: &[u8]) -> (u64, u64) {
    let text = std::str::from_utf8(&element[..element.len().min(60)]).unwrap();
    let mut parts = text.split('-');
    let mut part = || parts.next().unwrap().parse().unwrap();
    (part(), part())
}

fn command<'a>(rest: &mut &'a [u8]) -> Vec<&'a [u8]> {
    let count = number(rest, b'*');
    let mut words = Vec::new();
    for _ in 0..count {
        let len = number(rest, b'$');
        words.push(&rest[..len]);
        *rest = &rest[len + 2..];
    }
    words
}

fn number(rest: &mut &[u8], sign: u8) -> usize {
    let end = rest.iter().position(|byte| *byte == b'\r').unwrap();
    assert_eq!(rest[0], sign);
    let number = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
    *rest = &rest[end + 2..];
    number
}
