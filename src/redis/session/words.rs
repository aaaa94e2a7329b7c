//! The commands that the gate itself has to understand, by the names that they have in every server: those that change
//! what the connection is, or what its replies look like.

use smallvec::SmallVec;

use super::subscribed::Subscription;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special<'w> {
    /// The gate's own: here is a token.
    Fence(Option<&'w [u8]>),
    Multi,
    Exec,
    Discard,
    Reset,
    Quit,
    Monitor,
    /// `CLIENT SETNAME`.
    Name(&'w [u8]),
    /// `HELLO`, with the user and the name that it sets.
    Hello {
        user: Option<&'w [u8]>,
        name: Option<&'w [u8]>,
    },
    /// `AUTH`, with the user.
    Auth(&'w [u8]),
    /// `CLIENT REPLY`.
    Reply(&'w [u8]),
    /// Asks or changes something of the connection alone, and touches no data.
    Harmless,
    /// `SUBSCRIBE` and its kin, with so many names.
    Subscriptions(Subscription, usize),
    /// `SYNC` and `PSYNC`: from its reply on the connection carries what the server writes, and no replies.
    Sync,
    /// What a replica tells of how far it has come; it has no reply.
    Acknowledged,
}

/// What a command is, where the gate has to understand it.
pub fn special<'w>(words: &[&'w [u8]]) -> Option<Special<'w>> {
    let first = lower(words.first()?);
    let word = |index: usize| words.get(index).copied();
    match &first[..] {
        b"fence" => Some(Special::Fence(word(1).filter(|_| words.len() == 2))),
        b"multi" => Some(Special::Multi),
        b"exec" => Some(Special::Exec),
        b"discard" => Some(Special::Discard),
        b"reset" => Some(Special::Reset),
        b"quit" => Some(Special::Quit),
        b"monitor" => Some(Special::Monitor),
        b"hello" => Some(hello(words)),
        b"auth" => match words {
            [_, user, _] => Some(Special::Auth(user)),
            _ => Some(Special::Auth(b"default")),
        },
        b"client" => match (&lower(word(1).unwrap_or_default())[..], words) {
            (b"setname", [_, _, name]) => Some(Special::Name(name)),
            (b"reply", [_, _, how]) => Some(Special::Reply(how)),
            _ => Some(Special::Harmless),
        },
        b"command" | b"select" | b"ping" | b"echo" => Some(Special::Harmless),
        b"psync" | b"sync" => Some(Special::Sync),
        b"replconf" if word(1).is_some_and(|word| word.eq_ignore_ascii_case(b"ack")) => {
            Some(Special::Acknowledged)
        }
        b"replconf" => Some(Special::Harmless),
        other => Subscription::of(other).map(|kind| Special::Subscriptions(kind, words.len() - 1)),
    }
}

/// What becomes of a command that the gate itself understands, for people; `None` where the rules say.
#[must_use]
pub fn taken(words: &[&[u8]]) -> Option<&'static str> {
    Some(match special(words)? {
        Special::Fence(_) => "the gate's own: from here on the connection presents this token",
        Special::Multi => {
            "passes: it begins a transaction, whose commands are compared as they come, and at EXEC"
        }
        Special::Exec => {
            "all that the transaction's commands name is compared once more, and raised; one that is stale by then \
             discards it"
        }
        Special::Discard => "passes: it ends the transaction, and nothing of it happens",
        Special::Reset => "passes: the connection presents no token from here on",
        Special::Name(_) | Special::Hello { .. } | Special::Auth(_) => {
            "passes: a token in the name, or in the user's name where a rule has a pattern, is the connection's from here on"
        }
        Special::Reply(_) => "the gate's own: the server always replies, and the gate leaves the replies out",
        Special::Quit | Special::Monitor | Special::Harmless | Special::Subscriptions(..) => {
            "passes: it is about the connection, and changes no data"
        }
        Special::Sync => {
            "a read of everything, as unmatched.reads says; from then on the connection carries the server's writes alone"
        }
        Special::Acknowledged => "passes from a replica, and is dropped from everybody else",
    })
}

/// A word in lower case; of one that is longer than any name that is looked for, a part.
pub fn lower(word: &[u8]) -> SmallVec<[u8; 32]> {
    let mut lower: SmallVec<[u8; 32]> = SmallVec::from_slice(&word[..word.len().min(64)]);
    lower.make_ascii_lowercase();
    lower
}

fn hello<'w>(words: &[&'w [u8]]) -> Special<'w> {
    let (mut user, mut name) = (None, None);
    let mut rest = words.get(2..).unwrap_or_default();
    loop {
        rest = match rest {
            [option, one, _, tail @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                user = Some(*one);
                tail
            }
            [option, one, tail @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                name = Some(*one);
                tail
            }
            _ => return Special::Hello { user, name },
        };
    }
}

/// Whether a command that may wait for others does so here.
pub fn waits(name: &str, blocking: bool, words: &[&[u8]]) -> bool {
    match name {
        "wait" | "waitaof" => true,
        "xread" | "xreadgroup" => words.iter().any(|word| word.eq_ignore_ascii_case(b"block")),
        _ => blocking,
    }
}
