//! Small replies as values: those to what the gate itself asks.

use super::{ProtocolError, number};

/// A reply, whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text of any kind.
    Text(Vec<u8>),
    /// An error.
    Error(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// An array, a set, or a push; of a map its keys and values in turn.
    List(Vec<Value>),
    /// Nothing, or a value of a type that the gate asks for nowhere.
    Null,
}

const DEPTH_MAX: usize = 32;

impl Value {
    /// Reads the value at the start of `bytes`, which has come whole.
    ///
    /// # Errors
    /// [`ProtocolError`] also where it has not come whole.
    pub fn read(bytes: &[u8]) -> Result<Value, ProtocolError> {
        let mut rest = bytes;
        read(&mut rest, DEPTH_MAX)
    }

    /// The elements; none of what is no list.
    #[must_use]
    pub fn list(&self) -> &[Value] {
        match self {
            Value::List(elements) => elements,
            Value::Text(_) | Value::Error(_) | Value::Integer(_) | Value::Null => &[],
        }
    }

    /// The text, where it is one.
    #[must_use]
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text),
            Value::Error(_) | Value::Integer(_) | Value::List(_) | Value::Null => None,
        }
    }

    /// The integer, where it is one.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Value::Integer(value) => Some(*value),
            Value::Text(_) | Value::Error(_) | Value::List(_) | Value::Null => None,
        }
    }

    /// The value of a key, where this is a map.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        let mut pairs = self.list().chunks_exact(2);
        pairs
            .find(|pair| pair[0].text().is_some_and(|text| text.eq_ignore_ascii_case(key)))
            .map(|pair| &pair[1])
    }
}

fn read(rest: &mut &[u8], depth: usize) -> Result<Value, ProtocolError> {
    let (kind, line) = take_line(rest)?;
    let length = |most: usize| match number(line) {
        Some(-1) => Ok(None),
        Some(n @ 0..) if n as usize <= most => Ok(Some(n as usize)),
        _ => Err(ProtocolError::Reply),
    };
    match kind {
        b'+' => Ok(Value::Text(line.to_vec())),
        b'-' => Ok(Value::Error(line.to_vec())),
        b':' => number(line).map(Value::Integer).ok_or(ProtocolError::Reply),
        b'_' | b',' | b'#' | b'(' => Ok(Value::Null),
        b'$' | b'=' | b'!' => {
            let Some(length) = length(rest.len())? else {
                return Ok(Value::Null);
            };
            let text = rest.get(..length).ok_or(ProtocolError::Reply)?.to_vec();
            *rest = rest.get(length + 2..).ok_or(ProtocolError::Reply)?;
            Ok(match kind {
                b'!' => Value::Error(text),
                _ => Value::Text(text),
            })
        }
        b'*' | b'~' | b'>' | b'%' => {
            // Each element has three bytes at least.
            let Some(length) = length(rest.len() / 3)? else {
                return Ok(Value::Null);
            };
            let depth = depth.checked_sub(1).ok_or(ProtocolError::Reply)?;
            let elements = if kind == b'%' { length * 2 } else { length };
            let read = (0..elements).map(|_| read_element(rest, depth));
            read.collect::<Result<Vec<_>, _>>().map(Value::List)
        }
        _ => Err(ProtocolError::Reply),
    }
}

/// A push may stand before it, which is none.
fn read_element(rest: &mut &[u8], depth: usize) -> Result<Value, ProtocolError> {
    while rest.first() == Some(&b'>') {
        let _passed_over = read(rest, depth)?;
    }
    read(rest, depth)
}

fn take_line<'b>(rest: &mut &'b [u8]) -> Result<(u8, &'b [u8]), ProtocolError> {
    let end = memchr::memchr(b'\n', rest).ok_or(ProtocolError::Reply)?;
    let line = rest[..end].strip_suffix(b"\r").ok_or(ProtocolError::LineEnd)?;
    *rest = &rest[end + 1..];
    line.split_first()
        .map(|(kind, line)| (*kind, line))
        .ok_or(ProtocolError::Reply)
}
