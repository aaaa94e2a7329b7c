//! The reply to `COMMAND`, made a [`Table`]. What is said in a way that is not known is taken for "can't tell".

use super::session::{taken, waits};
use crate::rules::redis::{Access, Begin, Command, Find, Flags, KeySpec, Table};
use crate::wire::resp::Value;

/// Reads the reply to `COMMAND`; `None` where it is none.
pub fn read(reply: &Value) -> Option<Table> {
    let mut table = Table::default();
    for entry in reply.list() {
        if let Some(mut command) = command(entry) {
            let own = taken(&[command.name.as_bytes()]).is_some();
            command.usual = command.one_key().filter(|_| !own && !may_wait(&command));
            table.add(command);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn may_wait(command: &Command) -> bool {
    let word = [&b"block"[..]];
    waits(&command.name, command.flags.blocking, &word)
}

/// Name, arity, flags, first, last, step; from version 7 on: categories, tips, key specifications, subcommands.
fn command(entry: &Value) -> Option<Command> {
    let parts = entry.list();
    let name = String::from_utf8(parts.first()?.text()?.to_ascii_lowercase()).ok()?;
    let at = |index: usize| parts.get(index).and_then(Value::integer);
    let mut command = Command {
        name: name.replace('|', " ").into(),
        flags: flags(parts.get(2).map(Value::list).unwrap_or_default()),
        specs: parts
            .get(8)
            .map(Value::list)
            .unwrap_or_default()
            .iter()
            .map(spec)
            .collect(),
        range: (at(3)?, at(4)?, at(5)?),
        ..Command::default()
    };
    for below in parts.get(9).map(Value::list).unwrap_or_default() {
        if let Some(below) = self::command(below) {
            let own = below.name.rsplit(' ').next().unwrap_or_default();
            command.below.insert(own.as_bytes().into(), below);
        }
    }
    Some(command)
}

fn flags(words: &[Value]) -> Flags {
    let has = |flag: &[u8]| words.iter().any(|word| word.text() == Some(flag));
    Flags {
        write: has(b"write"),
        readonly: has(b"readonly"),
        blocking: has(b"blocking"),
        movable: has(b"movablekeys"),
    }
}

fn spec(value: &Value) -> KeySpec {
    let flags = value.get(b"flags").map(Value::list).unwrap_or_default();
    let has = |flag: &[u8]| flags.iter().any(|word| word.text() == Some(flag));
    KeySpec {
        begin: value
            .get(b"begin_search")
            .and_then(begin)
            .unwrap_or(Begin::Unknown),
        find: value.get(b"find_keys").and_then(find).unwrap_or(Find::Unknown),
        access: match (has(b"not_key"), has(b"RO")) {
            (true, _) => Access::None,
            (false, true) => Access::Read,
            // Also where it says nothing.
            (false, false) => Access::Write,
        },
        incomplete: has(b"incomplete"),
    }
}

fn begin(value: &Value) -> Option<Begin> {
    let spec = value.get(b"spec")?;
    match value.get(b"type")?.text()? {
        b"index" => Some(Begin::Index(spec.get(b"index")?.integer()?)),
        b"keyword" => Some(Begin::Keyword(
            spec.get(b"keyword")?.text()?.into(),
            spec.get(b"startfrom")?.integer()?,
        )),
        _ => None,
    }
}

fn find(value: &Value) -> Option<Find> {
    let spec = value.get(b"spec")?;
    let number = |key: &[u8]| spec.get(key).and_then(Value::integer);
    match value.get(b"type")?.text()? {
        b"range" => Some(Find::Range {
            last: number(b"lastkey")?,
            step: number(b"keystep")?,
            limit: number(b"limit")?,
        }),
        b"keynum" => Some(Find::Count {
            count_at: number(b"keynumidx")?,
            first: number(b"firstkey")?,
            step: number(b"keystep")?,
        }),
        _ => None,
    }
}
