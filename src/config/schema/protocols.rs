//! Which protocols a listener can speak, the keys that all of them have, and which keys are only another's.

use super::Kind::{self, Choice, Value, Values};
use super::State::{Default, Optional, Required};
use super::tls::{CLIENT_TLS, SERVER_TLS};
use super::{Key, Section, http, key, redis, tcp};

/// Maps whose keys hang on the word of one of their keys.
pub(in crate::config) struct Variants {
    /// That key.
    pub(in crate::config) by: &'static str,
    /// Its word where it is left out.
    pub(in crate::config) default: &'static str,
    /// The words and their maps.
    pub(in crate::config) each: &'static [(&'static str, &'static Section)],
    /// The words that are known and not built.
    pub(in crate::config) later: &'static [Later],
}

/// A word that is known and not built.
pub(in crate::config) struct Later {
    pub(in crate::config) word: &'static str,
    /// Keys that only it will have, wherever they stand.
    pub(in crate::config) keys: &'static [&'static str],
}

pub(super) static PROTOCOLS: Variants = Variants {
    by: "protocol",
    default: "http",
    each: &[
        ("http", &http::LISTENER),
        ("tcp", &tcp::LISTENER),
        ("redis", &redis::LISTENER),
    ],
    later: &[
        Later {
            word: "postgres",
            keys: &["startup_option", "database"],
        },
        Later {
            word: "mysql",
            keys: &[],
        },
    ],
};

// ---- keys that a listener has whatever it speaks

pub(super) const NAME: Key = key("name", Value("a name"), Required, "its name in metrics and logs");

pub(super) const BIND: Key = key("bind", Value("IP:PORT"), Required, "where it listens");

pub(super) const TLS: Key = key("tls", Kind::Section(&SERVER_TLS), Optional, "TLS towards clients");

pub(super) const BACKEND_TLS: Key = key(
    "tls",
    Kind::Section(&CLIENT_TLS),
    Optional,
    "TLS towards the backend, if only {}; plain if left out",
);

pub(super) const CONNECT_TIMEOUT: Key = key(
    "connect_timeout",
    Value("a duration"),
    Default("2s"),
    "how long a connect may take",
);

pub(super) const MAX_CONNECTIONS: Key = key(
    "max_connections",
    Value("a number"),
    Default("1024"),
    "how many connections may be open at once",
);

pub(super) const MAX_WAITING: Key = key(
    "max_waiting",
    Value("a number"),
    Default("1024"),
    "how many requests may wait at once",
);

pub(super) const RULE_NAME: Key = key(
    "name",
    Value("a name"),
    Required,
    "its name in metrics, logs and answers",
);

pub(super) const ALLOWED: Key = key(
    "allow",
    Kind::Section(&ALLOW),
    Optional,
    "who may present tokens; everybody if left out",
);

pub(super) const MISSING: Key = key(
    "missing",
    Choice(&["deny", "pass", "pass_until_fenced"]),
    Default("deny"),
    "what happens to writes without a token",
);

pub(super) const MODE: Key = key(
    "mode",
    Choice(&["enforce", "observe"]),
    Default("enforce"),
    "observe counts and logs, and lets through",
);

pub(super) const DRAIN_TIMEOUT: Key = key(
    "drain_timeout",
    Value("a duration"),
    Default("30s"),
    "how long a request may wait for older writes",
);

static ALLOW: Section = Section {
    what: "allow",
    keys: &[
        key(
            "cidr",
            Values("networks"),
            Optional,
            "the clients' networks, as 10.0.0.0/8, or single addresses",
        ),
        key(
            "client_cert",
            Value("a name as \"CN=orders-*\""),
            Optional,
            "the name in the client's verified certificate: CN=…, SAN=DNS:… or SAN=URI:…, with * for any characters",
        ),
    ],
};

impl Variants {
    /// The word whose map, or one below it, is `section`; `None` where none's is, or more than one's.
    pub(in crate::config) fn word_of(&self, section: &Section) -> Option<&'static str> {
        let mut owners = self
            .each
            .iter()
            .filter(|(_, top)| has(top, &|below| std::ptr::eq(below, section)));
        match (owners.next(), owners.next()) {
            (Some((word, _)), None) => Some(word),
            _ => None,
        }
    }

    /// The words that know `name` in a map like `section`.
    pub(in crate::config) fn words_with(&self, section: &Section, name: &str) -> Vec<&'static str> {
        let like = |below: &Section| below.what == section.what && below.key(name).is_some();
        let words = self.each.iter().filter(|(_, top)| has(top, &like));
        words.map(|(word, _)| *word).collect()
    }
}

/// Whether `is` holds for a map, or for one below it.
fn has(section: &Section, is: &dyn Fn(&Section) -> bool) -> bool {
    is(section)
        || section.keys.iter().any(|key| match key.kind {
            Kind::Section(below) | Kind::Sections(below) | Kind::Either(_, below) => has(below, is),
            _ => false,
        })
}
