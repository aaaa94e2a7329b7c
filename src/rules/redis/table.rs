//! What a Redis server says of its commands: which of them write, and where their keys stand. Read from the reply to
//! `COMMAND` by the gate; asked for each command. What it can't tell for sure it says so, and never guesses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

/// All commands of a server, as it names them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// Those with names of up to eight bytes.
    short: HashMap<u64, Command, BuildHasherDefault<NameHash>>,
    long: Named,
}

type Named = HashMap<Box<[u8]>, Command, BuildHasherDefault<NameHash>>;

/// Hashes names (FNV-1a). It is the server that puts them in: no client can choose some that meet in one place.
#[derive(Clone, Copy, Debug)]
pub struct NameHash(u64);

impl Default for NameHash {
    fn default() -> NameHash {
        NameHash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// A length, which tells nothing that the bytes don't.
    fn write_usize(&mut self, _length: usize) {}

    /// A short name: its first letters should tell in the highest bits, its last ones in the lowest.
    fn write_u64(&mut self, name: u64) {
        let mixed = (self.0 ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// One command, or one subcommand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// Its name, in lower case; a subcommand's with its command's, as `config set`.
    pub name: Box<str>,
    /// What the server says of it.
    pub flags: Flags,
    /// Where its keys stand, in the server's words of version 7.
    pub specs: Box<[KeySpec]>,
    /// The same, in the words of earlier versions: the first, the last and the step; zeros where it has none.
    pub range: (i64, i64, i64),
    /// Its subcommands, by their names in lower case.
    pub below: HashMap<Box<[u8]>, Command, BuildHasherDefault<NameHash>>,
    /// What all of its calls have in common, where that is all there is to know of one.
    pub usual: Option<Usual>,
}

/// A command that has one key, always in the same place, and that never waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usual {
    /// Which word the key is.
    pub key: usize,
    /// Whether the command counts as a write.
    pub write: bool,
    /// Whether it may change the key.
    pub changes: bool,
}

/// What a server says of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// It may change data.
    pub write: bool,
    /// It changes none.
    pub readonly: bool,
    /// It may wait for others.
    pub blocking: bool,
    /// It has keys where the earlier words can't say.
    pub movable: bool,
}

/// Where some keys of a command stand, and what it does with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// Where to begin.
    pub begin: Begin,
    /// Which from there.
    pub find: Find,
    /// What it does with them.
    pub access: Access,
    /// There may be more keys than these.
    pub incomplete: bool,
}

/// Where keys begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At this word.
    Index(i64),
    /// Behind this word, looked for from a place on; from the end where that is negative.
    Keyword(Box<[u8]>, i64),
    /// The server can't say.
    Unknown,
}

/// Which words are keys, from where they begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// To the last one, by a step; `limit` says which part of the rest where the last is counted from the end.
    Range {
        /// The last, from the first; from the end where it is negative.
        last: i64,
        /// From key to key.
        step: i64,
        /// 2: the first half of the rest; 0 and 1: all.
        limit: i64,
    },
    /// So many as a word says.
    Count {
        /// Which word says it.
        count_at: i64,
        /// Where the first key stands.
        first: i64,
        /// From key to key.
        step: i64,
    },
    /// The server can't say.
    Unknown,
}

/// What a command does with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It only looks at it.
    Read,
    /// It may change it.
    Write,
    /// It is no key.
    None,
}

/// Which words of a command are keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Touched {
    /// These, and what is done with each.
    Keys(SmallVec<[(usize, Access); 4]>),
    /// They can't be told.
    Unclear,
    /// They can be told once more of the command has come.
    Later,
}

impl Table {
    /// Adds a command.
    pub fn add(&mut self, command: Command) {
        match packed(command.name.as_bytes()) {
            Some(name) => self.short.insert(name, command),
            None => self.long.insert(command.name.as_bytes().into(), command),
        };
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    /// The command of these words: a subcommand where there is such.
    #[must_use]
    pub fn find(&self, first: &[u8], second: Option<&[u8]>) -> Option<&Command> {
        let command = self.top(first)?;
        if command.below.is_empty() {
            return Some(command);
        }
        match second {
            Some(second) => look_up(&command.below, second),
            None => Some(command),
        }
    }

    /// Whether it knows a command of this name, if not this subcommand of it.
    #[must_use]
    pub fn knows(&self, first: &[u8]) -> bool {
        self.top(first).is_some()
    }

    fn top(&self, name: &[u8]) -> Option<&Command> {
        match packed(name) {
            Some(name) => self.short.get(&name),
            None => look_up(&self.long, name),
        }
    }
}

/// A name of up to eight bytes, in lower case; none that would have to be filled up with what it ends with itself.
fn packed(name: &[u8]) -> Option<u64> {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    let len = name.len();
    let word = match *name {
        [.., 0] => return None,
        // In two halves, which may overlap.
        [a, b, c, d, ..] if len <= 8 => {
            let (first, last) = (u32::from_le_bytes([a, b, c, d]), name.last_chunk()?);
            u64::from(first) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4))
        }
        [a, b, c] => u64::from_le_bytes([a, b, c, 0, 0, 0, 0, 0]),
        [a, b] => u64::from_le_bytes([a, b, 0, 0, 0, 0, 0, 0]),
        [a] => u64::from(a),
        _ => return None,
    };
    // The highest bit of each byte tells whether it is from A to Z: a quarter of it is the difference to a small letter.
    let seven = word & (LOW * 0x7f);
    let from_a = seven + LOW * u64::from(0x80 - b'A');
    let past_z = seven + LOW * u64::from(0x7f - b'Z');
    let capitals = from_a & !past_z & !word & (LOW * 0x80);
    Some(word | (capitals >> 2))
}

/// Names are in lower case, and short.
fn look_up<'t>(commands: &'t Named, name: &[u8]) -> Option<&'t Command> {
    let mut lower: SmallVec<[u8; 32]> = SmallVec::from_slice(name.get(..name.len().min(64))?);
    if lower.len() < name.len() {
        return None;
    }
    lower.make_ascii_lowercase();
    commands.get(&lower[..])
}

impl Command {
    /// Whether it counts as a write: it says so, or doesn't say that it only reads and may change some key.
    #[must_use]
    pub fn writes(&self) -> bool {
        let changes = |spec: &KeySpec| spec.access == Access::Write;
        let unsaid = self.specs.is_empty() && (self.flags.movable || self.range.0 > 0);
        self.flags.write
            || !self.flags.readonly && (self.specs.iter().any(changes) || unsaid && !self.only_looks())
    }

    /// Whether it is a script or a function that may write: what it does stands in no table.
    #[must_use]
    pub fn is_script(&self) -> bool {
        matches!(&*self.name, "eval" | "evalsha" | "fcall") || self.writes() && self.takes_any_number()
    }

    /// Renamed scripts show by this: keys by number and no word on what is done with them.
    fn takes_any_number(&self) -> bool {
        let counted = |spec: &KeySpec| matches!(spec.find, Find::Count { .. });
        !self.flags.write && !self.specs.is_empty() && self.specs.iter().all(counted)
    }

    /// Commands with keys that earlier servers flag neither as reading nor as writing.
    fn only_looks(&self) -> bool {
        matches!(&*self.name, "watch" | "spublish" | "ssubscribe" | "sunsubscribe")
    }

    /// The one key of all calls, where the server's words come down to that: then [`Command::touched`] says the same of each
    /// call that has the key.
    #[must_use]
    pub fn one_key(&self) -> Option<Usual> {
        let write = self.writes();
        let (at, last, step, access) = match &self.specs[..] {
            [] if self.flags.movable || self.known_from_earlier().is_some() => return None,
            [] => {
                let (first, last, step) = self.range;
                (first, last - first, step, Access::Write)
            }
            [only] => match (&only.begin, only.find) {
                _ if write && only.incomplete => return None,
                (Begin::Index(at), Find::Range { last, step, .. }) => (*at, last, step, only.access),
                (_, _) => return None,
            },
            [_, _, ..] => return None,
        };
        let usual = last == 0 && step > 0 && at > 0 && access != Access::None && self.below.is_empty();
        usual.then_some(Usual {
            key: usize::try_from(at).ok()?,
            write,
            changes: write && access == Access::Write,
        })
    }

    /// Which of the words are keys, of a command with `count` words of which the first have come.
    #[must_use]
    pub fn touched(&self, words: &[&[u8]], count: usize) -> Touched {
        if !self.specs.is_empty() {
            return self.by_specs(words, count);
        }
        if let Some(spec) = self.known_from_earlier() {
            let mut found = SmallVec::new();
            return spec.find(words, count, &mut found).touched(found);
        }
        let (first, last, step) = self.range;
        match (first, self.flags.movable) {
            (_, true) => Touched::Unclear,
            (..=0, false) => Touched::Keys(SmallVec::new()),
            (1.., false) => {
                let access = if self.writes() {
                    Access::Write
                } else {
                    Access::Read
                };
                let last = if last < 0 { count as i64 + last } else { last };
                let mut found = SmallVec::new();
                place(first, last, step, access, (words.len(), count), &mut found).touched(found)
            }
        }
    }

    fn by_specs(&self, words: &[&[u8]], count: usize) -> Touched {
        let writes = self.writes();
        let mut found = SmallVec::new();
        for spec in self.specs.iter().filter(|spec| spec.access != Access::None) {
            if writes && spec.incomplete {
                return Touched::Unclear;
            }
            match spec.find(words, count, &mut found) {
                Found::All => {}
                Found::Later => return Touched::Later,
                // What it only looks at can be left out.
                Found::Unclear if !writes => {}
                Found::Unclear => return Touched::Unclear,
            }
        }
        if !writes {
            found.iter_mut().for_each(|(_, access)| *access = Access::Read);
        }
        Touched::Keys(found)
    }

    /// Scripts of servers that have no key specifications yet: their keys stand where they always have.
    fn known_from_earlier(&self) -> Option<KeySpec> {
        let access = match &*self.name {
            "eval" | "evalsha" | "fcall" => Access::Write,
            "eval_ro" | "evalsha_ro" | "fcall_ro" => Access::Read,
            _ => return None,
        };
        Some(KeySpec {
            begin: Begin::Index(2),
            find: Find::Count {
                count_at: 0,
                first: 1,
                step: 1,
            },
            access,
            incomplete: false,
        })
    }
}

enum Found {
    All,
    Unclear,
    Later,
}

/// Where keys stand, and what is done with each.
type Places = SmallVec<[(usize, Access); 4]>;

impl Found {
    fn touched(self, keys: Places) -> Touched {
        match self {
            Found::All => Touched::Keys(keys),
            Found::Unclear => Touched::Unclear,
            Found::Later => Touched::Later,
        }
    }
}

impl KeySpec {
    fn find(&self, words: &[&[u8]], count: usize, keys: &mut Places) -> Found {
        let first = match &self.begin {
            Begin::Index(index) => *index,
            Begin::Keyword(keyword, from) => match behind(keyword, *from, words, count) {
                Ok(Some(first)) => first,
                // Optional, and not there.
                Ok(None) => return Found::All,
                Err(Incomplete) => return Found::Later,
            },
            Begin::Unknown => return Found::Unclear,
        };
        let argc = count as i64;
        let (first, last, step) = match self.find {
            Find::Range { last, step, .. } if last >= 0 => (first, first.saturating_add(last), step),
            Find::Range { last, step, limit } => match limit {
                0 | 1 => (first, argc + last, step),
                limit => (first, first + (argc - first) / limit + last, step),
            },
            Find::Count {
                count_at,
                first: offset,
                step,
            } => {
                let at = first.saturating_add(count_at);
                if at < 1 || at >= argc {
                    return Found::Unclear;
                }
                let Some(word) = words.get(at as usize) else {
                    return Found::Later;
                };
                let Some(numkeys) = number(word) else {
                    return Found::Unclear;
                };
                let first = first.saturating_add(offset);
                let last = first.saturating_add((numkeys - 1).saturating_mul(step));
                if numkeys > 0 && last >= argc {
                    return Found::Unclear;
                }
                (first, last, step)
            }
            Find::Unknown => return Found::Unclear,
        };
        place(first, last, step, self.access, (words.len(), count), keys)
    }
}

/// Adds the words from `first` to `last`, as far as the command has them; all must have come.
fn place(
    first: i64,
    last: i64,
    step: i64,
    access: Access,
    (come, count): (usize, usize),
    keys: &mut Places,
) -> Found {
    if first < 1 || step < 1 {
        return Found::Unclear;
    }
    let last = last.min(count as i64 - 1);
    if first == last && last < come as i64 {
        // Of most commands.
        keys.push((first as usize, access));
        return Found::All;
    }
    // The last word of the range need not be a key: MSET ends with a value, which is not waited for.
    if last >= first && last - (last - first) % step >= come as i64 {
        return Found::Later;
    }
    let places = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    keys.extend(places.map(|at| (at as usize, access)));
    Found::All
}

struct Incomplete;

/// The place behind a keyword, as Redis looks for it.
fn behind(keyword: &[u8], from: i64, words: &[&[u8]], count: usize) -> Result<Option<i64>, Incomplete> {
    let argc = count as i64;
    let is_it = |at: i64| {
        words
            .get(at as usize)
            .map(|word| word.eq_ignore_ascii_case(keyword))
    };
    let mut places: Box<dyn Iterator<Item = i64>> = if from > 0 {
        Box::new(from..argc - 1)
    } else {
        Box::new((2..=argc + from).rev())
    };
    for at in places.by_ref() {
        match is_it(at) {
            Some(true) => return Ok(Some(at + 1)),
            Some(false) => {}
            None => return Err(Incomplete),
        }
    }
    Ok(None)
}

/// A number of keys, as Redis reads it.
fn number(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    let plain = text == "0" || text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::packed;

    #[test]
    fn a_short_name_is_packed_in_lower_case_whatever_its_bytes() {
        for len in 0..=9 {
            for at in 0..len {
                for byte in 0..=255 {
                    for rest in [b'A', b'z', b'[', b'@', 0xc1] {
                        let mut name = vec![rest; len];
                        name[at] = byte;
                        let plain = len <= 8 && name.last() != Some(&0);
                        let mut wanted = [0; 8];
                        wanted
                            .iter_mut()
                            .zip(&name)
                            .for_each(|(to, from)| *to = from.to_ascii_lowercase());
                        let wanted = plain.then(|| u64::from_le_bytes(wanted));
                        assert_eq!(packed(&name), wanted, "{}", name.escape_ascii());
                    }
                }
            }
        }
        assert_eq!(packed(b""), None);
    }
}
