//! What a command is by its server's table: whether it counts as a write, and which keys it touches. Asked for each
//! command by `session/`, and by `fencegate explain`.

use super::asker::{Asker, Unasked};
use crate::rules::redis::{Access, Command, Touched};

/// Whether a command counts as a write, and may write what it doesn't name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// It counts as a write.
    pub write: bool,
    /// It may write keys that it doesn't name.
    pub undeclared: bool,
}

impl Kind {
    /// Of a command as the table has it, if it does; `keyless` says that no key of it is known, `untold` that there may
    /// be some.
    #[must_use]
    pub fn of(found: Option<&Command>, keyless: bool, untold: bool) -> Kind {
        let write = found.is_none_or(|command| {
            command.writes() || keyless && !command.flags.readonly && !is_harmless(&command.name)
        });
        let open = untold || found.is_none_or(Command::is_script);
        Kind {
            write,
            undeclared: keyless && open,
        }
    }
}

/// A command, for explaining it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Its name in the table, or as it was written.
    pub name: String,
    /// Whether the table has it.
    pub known: bool,
    /// What it is.
    pub kind: Kind,
    /// Its keys, and whether it may change each; `None` where they can't be told.
    pub keys: Option<Vec<(Vec<u8>, bool)>>,
}

/// Asks the server about a command, which is not executed.
///
/// # Errors
/// [`Unasked`].
pub async fn describe(asker: &Asker, words: &[&[u8]]) -> Result<Described, Unasked> {
    let table = asker.table().await?;
    let found = table.find(words[0], words.get(1).copied());
    let touched = found.map_or(Touched::Unclear, |command| command.touched(words, words.len()));
    let keys = match touched {
        Touched::Keys(places) => {
            let key = |(at, access): (usize, Access)| (words[at].to_vec(), access == Access::Write);
            Some(places.into_iter().map(key).collect::<Vec<_>>())
        }
        Touched::Unclear | Touched::Later => asker.keys(words).await?,
    };
    let kind = Kind::of(found, keys.as_ref().is_none_or(Vec::is_empty), keys.is_none());
    let written = || String::from_utf8_lossy(words[0]).to_ascii_lowercase();
    Ok(Described {
        name: found.map_or_else(written, |command| command.name.to_string()),
        known: found.is_some(),
        kind,
        keys: keys.map(|keys| {
            keys.into_iter()
                .map(|(key, changes)| (key, kind.write && changes))
                .collect()
        }),
    })
}

/// Whether a command without keys, which its server doesn't call a write, changes no data either. All others are taken
/// for writes: one that was renamed, or that a module brought, could be anything.
fn is_harmless(name: &str) -> bool {
    match name.split_once(' ') {
        Some(("cluster", below)) => matches!(
            below,
            "info" | "nodes" | "slots" | "shards" | "keyslot" | "myid" | "links" | "help"
        ),
        Some(("script", below)) => matches!(below, "load" | "exists" | "flush" | "kill" | "help"),
        Some(("module", below)) => matches!(below, "list" | "help"),
        Some(("function", below)) => matches!(below, "list" | "dump" | "stats" | "kill" | "help"),
        Some((first, _)) => matches!(
            first,
            "config" | "acl" | "memory" | "latency" | "slowlog" | "pubsub" | "object" | "xinfo" | "xgroup"
        ),
        None => matches!(
            name,
            "ping"
                | "echo"
                | "info"
                | "dbsize"
                | "time"
                | "publish"
                | "spublish"
                | "pubsub"
                | "config"
                | "acl"
                | "memory"
                | "latency"
                | "slowlog"
                | "lastsave"
                | "role"
                | "script"
                | "function"
                | "module"
                | "cluster"
                | "keys"
                | "scan"
                | "randomkey"
                | "wait"
                | "waitaof"
                | "unwatch"
                | "object"
                | "readonly"
                | "readwrite"
                | "asking"
                | "lolwut"
                | "save"
                | "bgsave"
                | "bgrewriteaof"
                | "xinfo"
                | "xgroup"
        ),
    }
}
