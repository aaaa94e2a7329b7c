//! Walking the tree by the keys of `schema.rs`: every getter reports what is wrong and goes on, so that all
//! problems come at once. A getter's `None` means that a problem was reported, or that an optional key is not
//! there. Called by `build.rs`.

use super::hint;
use super::problem::At;
use super::schema::{Key, Kind, Section, State, Variants};
use super::tree::{Entry, Found, Node, Value};

/// A word of a choice, as the program knows it.
pub(super) trait Word: Sized {
    /// `None` for a word that the schema doesn't have.
    fn from_word(word: &str) -> Option<Self>;
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) at: At,
    pub(super) value: T,
}

/// A value, or a map.
pub(super) enum Either<'t, T> {
    Value(Placed<T>),
    Map(Map<'t>),
}

/// A map of the configuration that is being read.
pub(super) struct Map<'t> {
    section: &'static Section,
    /// The way to it, as `listeners[0].upstream`; empty at the top.
    path: String,
    /// The place of its key, or of itself in a list.
    pub(super) at: At,
    entries: &'t [Entry],
}

impl<'t> Map<'t> {
    /// Whether the key stands there, with whatever value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Whether the key stands there and is a map that has `below`.
    pub(super) fn has_below(&self, name: &str, below: &str) -> bool {
        match self.entry(name).map(|entry| &entry.node.value) {
            Some(Value::Map(entries)) => entries.iter().any(|e| e.key == below),
            Some(_) | None => false,
        }
    }

    /// Whether the key may stand there.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.section.key(name).is_some()
    }

    /// Where the key stands; where the map does, if it is not there.
    pub(super) fn place_of(&self, name: &str) -> At {
        self.entry(name).map_or(self.at, |e| e.at)
    }

    /// Where the value of a key stands; where the map does, if there is none.
    pub(super) fn value_place_of(&self, name: &str) -> At {
        self.entry(name).map_or(self.at, |e| e.node.at)
    }

    /// The way to one of its keys.
    pub(super) fn path_to(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_string()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// The way to it, or what it is.
    pub(super) fn name(&self) -> &str {
        if self.path.is_empty() {
            self.section.what
        } else {
            &self.path
        }
    }

    fn entry(&self, name: &str) -> Option<&'t Entry> {
        self.entries.iter().find(|e| e.key == name)
    }

    fn key(&self, name: &str) -> &'static Key {
        self.section
            .key(name)
            .expect("the reader asks only for keys of the schema")
    }
}

/// Collects what is wrong while the tree is read.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Found>,
    pub(super) warnings: Vec<Found>,
}

impl Reader {
    pub(super) fn problem(&mut self, at: At, message: impl Into<String>) {
        self.problems.push((at, message.into()));
    }

    pub(super) fn warn(&mut self, at: At, message: impl Into<String>) {
        self.warnings.push((at, message.into()));
    }

    /// The whole configuration.
    pub(super) fn root<'t>(&mut self, node: &'t Node, section: &'static Section) -> Option<Map<'t>> {
        self.open(node, node.at, section, String::new())
    }

    /// A map below a key; an empty one where the key may be left out and is.
    pub(super) fn section<'t>(&mut self, map: &Map<'t>, name: &str) -> Option<Map<'t>> {
        let key = map.key(name);
        let Kind::Section(section) = key.kind else {
            unreachable!("{name} is a section in the schema");
        };
        match map.entry(name) {
            Some(entry) => self.open(&entry.node, entry.at, section, map.path_to(name)),
            None if matches!(key.state, State::Required) => None,
            None => Some(Map {
                section,
                path: map.path_to(name),
                at: map.at,
                entries: &[],
            }),
        }
    }

    /// The maps of the list below a key; those that are none are reported and left out.
    pub(super) fn sections<'t>(&mut self, map: &Map<'t>, name: &str) -> Vec<Map<'t>> {
        let Kind::Sections(section) = map.key(name).kind else {
            unreachable!("{name} is a list of sections in the schema");
        };
        let items = self.items(map, name, "a list");
        let mut maps = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", map.path_to(name));
            maps.extend(self.open(item, item.at, section, path));
        }
        maps
    }

    /// The maps of a list whose keys hang on a word, each with its word; what is none is reported and left out.
    pub(super) fn variants<'t, W: Word>(&mut self, map: &Map<'t>, name: &str) -> Vec<(W, Map<'t>)> {
        let Kind::Variants(variants) = map.key(name).kind else {
            unreachable!("{name} is a list of variants in the schema");
        };
        let mut maps = Vec::new();
        for (index, item) in self.items(map, name, "a list").iter().enumerate() {
            let path = format!("{}[{index}]", map.path_to(name));
            maps.extend(self.variant(item, path, variants));
        }
        maps
    }

    fn variant<'t, W: Word>(
        &mut self,
        item: &'t Node,
        path: String,
        variants: &'static Variants,
    ) -> Option<(W, Map<'t>)> {
        let told = match &item.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == variants.by),
            _ => None,
        };
        let word = match told {
            None => variants.default.to_string(),
            Some(entry) => {
                let words: Vec<&str> = variants.each.iter().map(|(word, _)| *word).collect();
                let later: Vec<&str> = variants.later.iter().map(|later| later.word).collect();
                let what = format!("one of {}", words.join(", "));
                let path = format!("{path}.{}", variants.by);
                let word = self.scalar(&entry.node, &path, &what, |text| Ok(text.to_string()))?;
                // The keys beside it are those of its own: nothing more can be said about them.
                self.check_word(entry.node.at, &path, &word, (&words, &later))?;
                word
            }
        };
        let (_, section) = variants.each.iter().find(|(known, _)| **known == *word)?;
        let map = self.open(item, item.at, section, path)?;
        Some((
            W::from_word(&word).expect("every word of the schema that is built is known"),
            map,
        ))
    }

    /// The value of a key, or its default.
    pub(super) fn value<T>(
        &mut self,
        map: &Map<'_>,
        name: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.placed(map, name, read).map(|placed| placed.value)
    }

    /// The value of a key, or its default, and where it stands.
    pub(super) fn placed<T>(
        &mut self,
        map: &Map<'_>,
        name: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let key = map.key(name);
        let Some(entry) = map.entry(name) else {
            let State::Default(default) = key.state else {
                return None;
            };
            let value =
                read(default).unwrap_or_else(|error| panic!("the schema's default of {name}: {error}"));
            return Some(Placed { at: map.at, value });
        };
        let what = match key.kind {
            Kind::Value(what) => what.to_string(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            _ => unreachable!("{name} is a value in the schema"),
        };
        let value = self.scalar(&entry.node, &map.path_to(name), &what, read)?;
        Some(Placed {
            at: entry.node.at,
            value,
        })
    }

    /// The value below a key, or the map; `None` where the key is not there or something is wrong with it.
    pub(super) fn either<'t, T>(
        &mut self,
        map: &Map<'t>,
        name: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Either<'t, T>> {
        let Kind::Either(what, section) = map.key(name).kind else {
            unreachable!("{name} is a value or a section in the schema");
        };
        let entry = map.entry(name)?;
        if let Value::Map(_) = entry.node.value {
            return self
                .open(&entry.node, entry.at, section, map.path_to(name))
                .map(Either::Map);
        }
        let value = self.scalar(
            &entry.node,
            &map.path_to(name),
            &format!("{what}, or a map"),
            read,
        )?;
        let at = entry.node.at;
        Some(Either::Value(Placed { at, value }))
    }

    /// One of the words of a choice, or its default.
    pub(super) fn choice<W: Word>(&mut self, map: &Map<'_>, name: &str) -> Option<W> {
        let Kind::Choice(words) = map.key(name).kind else {
            unreachable!("{name} is a choice in the schema");
        };
        let found = self.placed(map, name, |text| Ok(text.to_string()))?;
        self.check_word(found.at, &map.path_to(name), &found.value, (words, &[]))?;
        let word = W::from_word(&found.value);
        Some(word.expect("every word of the schema that is built is known"))
    }

    /// Reports a word that is not one of the first, or one of the second: those are not built.
    fn check_word(
        &mut self,
        at: At,
        path: &str,
        word: &str,
        (words, later): (&[&str], &[&str]),
    ) -> Option<()> {
        if words.contains(&word) {
            return Some(());
        }
        let message = if later.contains(&word) {
            format!("{path}: {word} is not supported yet")
        } else {
            let hint = hint::suggestion(word, words.iter().copied());
            format!(
                "{path}: {word:?} is not known; it is one of {}{hint}",
                words.join(", ")
            )
        };
        self.problem(at, message);
        None
    }

    /// The values of a list below a key; `None` where the key is not there or something is wrong with it.
    pub(super) fn values<T>(
        &mut self,
        map: &Map<'_>,
        name: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<Placed<T>>> {
        let Kind::Values(what) = map.key(name).kind else {
            unreachable!("{name} is a list of values in the schema");
        };
        map.entry(name)?;
        let items = self.items(map, name, &format!("a list of {what}"));
        self.each(&map.path_to(name), items, read)
    }

    /// The values below a key that holds one or a list of them; `None` where the key is not there or something is
    /// wrong with it.
    pub(super) fn one_or_more<T>(
        &mut self,
        map: &Map<'_>,
        name: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<Placed<T>>> {
        let Kind::OneOrMore(what) = map.key(name).kind else {
            unreachable!("{name} is one value or more in the schema");
        };
        let entry = map.entry(name)?;
        let path = map.path_to(name);
        if !matches!(entry.node.value, Value::List(_)) {
            let value = self.scalar(&entry.node, &path, &format!("one of {what}, or a list"), read)?;
            let at = entry.node.at;
            return Some(vec![Placed { at, value }]);
        }
        let items = self.items(map, name, &format!("a list of {what}"));
        self.each(&path, items, read)
    }

    /// The entries of a map whose keys are the user's; `None` where the key is not there or something is wrong
    /// with it.
    pub(super) fn pairs<T>(
        &mut self,
        map: &Map<'_>,
        name: &str,
        read_key: fn(&str) -> Result<Box<str>, String>,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<(Placed<Box<str>>, T)>> {
        let Kind::Pairs(what) = map.key(name).kind else {
            unreachable!("{name} is a map of pairs in the schema");
        };
        let entry = map.entry(name)?;
        let path = map.path_to(name);
        let entries = match &entry.node.value {
            Value::Map(entries) if !entries.is_empty() => entries,
            Value::Bad => return None,
            other => {
                let message = format!("{path} must be a map of {what}, and this is {}", describe(other));
                self.problem(entry.node.at, message);
                return None;
            }
        };
        let mut pairs = Vec::new();
        for Entry { key, at, node } in entries {
            let path = format!("{path}.{key}");
            let value = self.scalar(node, &path, "one value", read);
            match (read_key(key), value) {
                (Ok(key), Some(value)) => pairs.push((Placed { at: *at, value: key }, value)),
                (Ok(_), None) => {}
                (Err(message), _) => self.problem(*at, format!("{path}: {message}")),
            }
        }
        (pairs.len() == entries.len()).then_some(pairs)
    }

    fn each<T>(
        &mut self,
        path: &str,
        items: &[Node],
        read: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<Placed<T>>> {
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if let Some(value) = self.scalar(item, &format!("{path}[{index}]"), "one value", read) {
                values.push(Placed { at: item.at, value });
            }
        }
        (!items.is_empty() && values.len() == items.len()).then_some(values)
    }

    fn items<'t>(&mut self, map: &Map<'t>, name: &str, what: &str) -> &'t [Node] {
        let Some(entry) = map.entry(name) else {
            return &[];
        };
        match &entry.node.value {
            Value::List(items) if items.is_empty() => {
                self.problem(
                    entry.at,
                    format!(
                        "{} is an empty list; it needs at least one entry",
                        map.path_to(name)
                    ),
                );
                items
            }
            Value::List(items) => items,
            Value::Bad => &[],
            other => {
                let path = map.path_to(name);
                self.problem(
                    entry.node.at,
                    format!("{path} must be {what}, and this is {}", describe(other)),
                );
                &[]
            }
        }
    }

    fn scalar<T>(
        &mut self,
        node: &Node,
        path: &str,
        what: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match &node.value {
            Value::Text(text) => match read(text) {
                Ok(value) => Some(value),
                Err(message) => {
                    self.problem(node.at, format!("{path}: {message}"));
                    None
                }
            },
            Value::Bad => None,
            other => {
                self.problem(
                    node.at,
                    format!("{path} must be {what}, and this is {}", describe(other)),
                );
                None
            }
        }
    }

    fn open<'t>(
        &mut self,
        node: &'t Node,
        at: At,
        section: &'static Section,
        path: String,
    ) -> Option<Map<'t>> {
        let entries = match &node.value {
            Value::Map(entries) => entries,
            Value::Bad => return None,
            other => {
                let whole = if path.is_empty() { section.what } else { &path };
                self.problem(
                    node.at,
                    format!("{whole} must be a map of keys, and this is {}", describe(other)),
                );
                return None;
            }
        };
        let map = Map {
            section,
            path,
            at,
            entries,
        };
        for entry in entries {
            self.check_key(&map, entry);
        }
        for key in section.keys {
            if matches!(key.state, State::Required) && !map.has(key.name) {
                self.missing(&map, key.name);
            }
        }
        Some(map)
    }

    /// Reports that a key is not there.
    pub(super) fn missing(&mut self, map: &Map<'_>, name: &str) {
        let message = format!("{} lacks the key {name:?}: {}", map.name(), map.key(name).doc);
        self.problem(map.at, message);
    }

    fn check_key(&mut self, map: &Map<'_>, entry: &Entry) {
        let path = map.path_to(&entry.key);
        match map.section.key(&entry.key) {
            Some(_) => {}
            None if map.path.is_empty() && entry.key.starts_with("x-") => {}
            None => {
                let hint = hint::of_key(map.section, &entry.key);
                self.problem(entry.at, format!("unknown key {path:?}{hint}"));
            }
        }
    }
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Nothing => "empty",
        Value::Text(_) => "a single value",
        Value::List(_) => "a list",
        Value::Map(entries) if entries.is_empty() => "an empty map",
        Value::Map(_) => "a map",
        Value::Bad => "not readable",
    }
}
