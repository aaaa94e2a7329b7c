//! Every key of the configuration: its type, its default and what it means, in one place.
//!
//! `reader.rs` takes defaults, known words and suggestions from here, so that a default is read by the same code
//! as what a user writes. Keys that are known and not built are refused by name, never ignored.

mod http;
mod matching;
mod protocols;
mod redis;
mod tcp;
mod tls;
mod token;

use self::protocols::PROTOCOLS;
pub(super) use self::protocols::{Later, Variants};
use self::tls::{ETCD_TLS, SERVER_TLS};

/// A map of the configuration.
pub(super) struct Section {
    /// What it is called in a problem.
    pub(super) what: &'static str,
    pub(super) keys: &'static [Key],
}

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// What it means, for people.
    pub(super) doc: &'static str,
}

/// What stands behind a key.
pub(super) enum Kind {
    /// One value, in words.
    Value(&'static str),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of values, in words.
    Values(&'static str),
    /// One value or a list of them, in words.
    OneOrMore(&'static str),
    /// A map whose keys are the user's, in words.
    Pairs(&'static str),
    /// A map.
    Section(&'static Section),
    /// One value, in words, or a map.
    Either(&'static str, &'static Section),
    /// A list of maps.
    Sections(&'static Section),
    /// A list of maps whose keys hang on the word of one of them.
    Variants(&'static Variants),
}

/// Whether a key must stand there, and what holds where it doesn't.
#[derive(Clone, Copy)]
pub(super) enum State {
    Required,
    Optional,
    Default(&'static str),
}

impl Section {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.name == name)
    }
}

use Kind::{Choice, Value, Values};
use State::{Default, Optional, Required};

const fn key(name: &'static str, kind: Kind, state: State, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        state,
        doc,
    }
}

pub(super) static ROOT: Section = Section {
    what: "the configuration",
    keys: &[
        key(
            "version",
            Value("the number 1"),
            Required,
            "the configuration's version: 1",
        ),
        key(
            "store",
            Kind::Section(&STORE),
            Optional,
            "where marks are durable",
        ),
        key("admin", Kind::Section(&ADMIN), Optional, "the admin address"),
        key("log", Kind::Section(&LOG), Optional, "how the log is written"),
        key(
            "shutdown_timeout",
            Value("a duration"),
            Default("30s"),
            "how long a stop waits for what is in flight or in doubt: longer than settle_after, or a stop may count as a crash",
        ),
        key(
            "listeners",
            Kind::Variants(&PROTOCOLS),
            Required,
            "the addresses that take requests",
        ),
    ],
};

pub(super) static STORE: Section = Section {
    what: "store",
    keys: &[
        key(
            "kind",
            Choice(&["file", "etcd", "memory"]),
            Default("file"),
            "file: a folder of this machine; etcd: for several instances, of which one is active; memory loses its marks at exit",
        ),
        key(
            "path",
            Value("a folder"),
            Default("./fencegate-data"),
            "the folder of kind file",
        ),
        key(
            "endpoints",
            Values("URLs, as http://HOST:PORT"),
            Optional,
            "etcd's members, all with http:// or all with https://; tried in turn",
        ),
        key(
            "prefix",
            Value("a prefix"),
            Default("/fencegate/default/"),
            "what the keys of kind etcd start with: one for each backend, the same for all its instances",
        ),
        key(
            "owner_ttl",
            Value("a duration"),
            Default("30s"),
            "how long the owner's lease in etcd lasts without a renewal, in whole seconds: so long after an owner has failed nobody writes, and new holders wait for settle_after more",
        ),
        key("username", Value("a name"), Optional, "the user of etcd"),
        key(
            "password",
            Value("a secret"),
            Optional,
            "its password; better in a file",
        ),
        key(
            "password_file",
            Value("a file"),
            Optional,
            "the file with its password",
        ),
        key("tls", Kind::Section(&ETCD_TLS), Optional, "TLS towards etcd"),
    ],
};

pub(super) static ADMIN: Section = Section {
    what: "admin",
    keys: &[
        key(
            "bind",
            Value("IP:PORT"),
            Default("127.0.0.1:9901"),
            "where it listens: a loopback address, unless there is a token_file, or tls with client_ca_file",
        ),
        key(
            "token_file",
            Value("a file"),
            Optional,
            "the file with the token that its clients must show, as Authorization: Bearer …",
        ),
        key(
            "tls",
            Kind::Section(&SERVER_TLS),
            Optional,
            "TLS towards its clients: certificate, key, and whose certificates clients must show",
        ),
    ],
};

pub(super) static LOG: Section = Section {
    what: "log",
    keys: &[
        key(
            "format",
            Choice(&["text", "json"]),
            Default("text"),
            "lines for people or for machines",
        ),
        key(
            "level",
            Choice(&["error", "warn", "info", "debug", "trace"]),
            Default("info"),
            "the least level that is written",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use super::{Kind, ROOT, Section, State};

    fn each(section: &'static Section, look: &mut dyn FnMut(&'static Section, &'static super::Key)) {
        for key in section.keys {
            look(section, key);
            match key.kind {
                Kind::Section(below) | Kind::Sections(below) | Kind::Either(_, below) => each(below, look),
                Kind::Variants(variants) => variants.each.iter().for_each(|(_, below)| each(below, look)),
                _ => {}
            }
        }
    }

    #[test]
    fn every_key_is_described_and_stands_once() {
        each(&ROOT, &mut |section, key| {
            assert!(!key.doc.is_empty(), "{}.{}", section.what, key.name);
            let twins = section.keys.iter().filter(|k| k.name == key.name).count();
            assert_eq!(twins, 1, "{}.{}", section.what, key.name);
        });
    }

    #[test]
    fn every_protocol_has_its_own_word_under_its_own_name() {
        for (word, section) in super::PROTOCOLS.each {
            let key = section.key(super::PROTOCOLS.by).unwrap();
            assert!(matches!(key.kind, Kind::Choice([only]) if only == word), "{word}");
        }
    }

    #[test]
    fn the_default_of_a_choice_is_one_of_its_words() {
        each(&ROOT, &mut |section, key| {
            if let (Kind::Choice(words), State::Default(default)) = (&key.kind, key.state) {
                assert!(words.contains(&default), "{}.{}", section.what, key.name);
            }
        });
    }
}
