//! YAML text to a tree in which every node knows its line and column.
//!
//! Plain text stays text: `no`, `010` and `1e3` are what they look like, and each key's reader decides what it
//! takes. Tags, merge keys and further documents are refused; anchors and aliases are allowed within bounds, so
//! that a small file can't grow into a large one. Knows no key. Called by `mod.rs`.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::problem::At;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A key without a value, or `null`.
    Nothing,
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// A problem was reported already.
    Bad,
}

/// One key of a map.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: At,
    pub(super) node: Node,
}

/// A problem before the file has its name.
pub(super) type Found = (At, String);

/// Reads a text. The tree is there unless the text is not YAML at all.
pub(super) fn read(text: &str) -> (Option<Node>, Vec<Found>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = TreeReader {
        parser: Parser::new_from_str(text),
        end: end_of(text),
        anchors: HashMap::new(),
        nodes: 0,
        found: Vec::new(),
    };
    match reader.document() {
        Ok(node) => (Some(node), reader.found),
        Err(fatal) => {
            reader.found.push(fatal);
            (None, reader.found)
        }
    }
}

struct TreeReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// The parser counts a line too many where the last one lacks its end.
    end: At,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    found: Vec<Found>,
}

impl<'t> TreeReader<'t> {
    fn document(&mut self) -> Result<Node, Found> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
                Event::StreamEnd => {
                    return Err((
                        self.place(span.start),
                        "the file is empty; it needs at least version and listeners".into(),
                    ));
                }
                event => {
                    let node = self.node(event, span, 0)?;
                    self.end()?;
                    return Ok(node);
                }
            }
        }
    }

    fn end(&mut self) -> Result<(), Found> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(_), span) => {
                    return Err((
                        self.place(span.start),
                        "a second document starts here; a configuration is one document".into(),
                    ));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Found> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err((
                self.place(*error.marker()),
                format!("this is not YAML: {}", error.info()),
            )),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Found> {
        let at = self.place(span.start);
        if depth > DEPTH_MAX {
            return Err((at, format!("more than {DEPTH_MAX} levels are nested here")));
        }
        self.count(1, at)?;
        let (value, anchor, tag) = match event {
            Event::Alias(id) => return self.alias(id, at, depth),
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style), anchor, tag),
            Event::SequenceStart(anchor, tag) => (self.list(depth)?, anchor, tag),
            Event::MappingStart(anchor, tag) => (self.map(depth)?, anchor, tag),
            other => {
                return Err((
                    at,
                    format!("this is not YAML that is understood here ({other:?})"),
                ));
            }
        };
        if let Some(tag) = tag {
            self.found
                .push((at, format!("the tag {tag} is not allowed; write the value alone")));
        }
        let node = Node { at, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Value, Found> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Found> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Map(entries)),
                other => other,
            };
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            self.entry(key, node, &mut entries);
        }
    }

    fn entry(&mut self, key: Node, node: Node, entries: &mut Vec<Entry>) {
        let Value::Text(name) = key.value else {
            self.found.push((key.at, "a key must be a plain word".into()));
            return;
        };
        if name == "<<" {
            self.found.push((
                key.at,
                "merge keys (<<) are not allowed; write the keys out, or alias a whole value".into(),
            ));
            return;
        }
        if let Some(first) = entries.iter().find(|e| e.key == name) {
            self.found.push((
                key.at,
                format!(
                    "the key {name:?} stands here again; it is at {} already",
                    first.at
                ),
            ));
            return;
        }
        entries.push(Entry {
            key: name,
            at: key.at,
            node,
        });
    }

    fn alias(&mut self, id: usize, at: At, depth: usize) -> Result<Node, Found> {
        let node = self
            .anchors
            .get(&id)
            .cloned()
            .ok_or_else(|| (at, "this alias stands within its own anchor".to_string()))?;
        let (size, height) = measure(&node);
        self.count(size, at)?;
        if depth + height > DEPTH_MAX {
            return Err((
                at,
                format!("with this alias more than {DEPTH_MAX} levels are nested"),
            ));
        }
        Ok(node)
    }

    fn place(&self, marker: Marker) -> At {
        let at = At {
            line: marker.line().max(1),
            column: marker.col() + 1,
        };
        at.min(self.end)
    }

    fn count(&mut self, more: usize, at: At) -> Result<(), Found> {
        self.nodes += more;
        if self.nodes > NODES_MAX {
            return Err((
                at,
                format!("the configuration has more than {NODES_MAX} values, aliases counted in full"),
            ));
        }
        Ok(())
    }
}

const DEPTH_MAX: usize = 32;
const NODES_MAX: usize = 100_000;

fn scalar(text: &str, style: ScalarStyle) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if style == ScalarStyle::Plain => Value::Nothing,
        text => Value::Text(text.to_string()),
    }
}

/// How many nodes there are, and how many levels below this one.
fn measure(node: &Node) -> (usize, usize) {
    let within = |nodes: &mut dyn Iterator<Item = &Node>| {
        nodes
            .map(measure)
            .fold((1, 0), |(size, height), (s, h)| (size + s, height.max(h + 1)))
    };
    match &node.value {
        Value::List(items) => within(&mut items.iter()),
        Value::Map(entries) => within(&mut entries.iter().map(|e| &e.node)),
        Value::Nothing | Value::Text(_) | Value::Bad => (1, 0),
    }
}

/// The place behind the last character.
fn end_of(text: &str) -> At {
    let mut end = At { line: 1, column: 1 };
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\r' if rest.peek() == Some(&'\n') => {}
            '\r' | '\n' => {
                end.line += 1;
                end.column = 1;
            }
            _ => end.column += 1,
        }
    }
    end
}
