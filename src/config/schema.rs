//! Every key of the configuration: its type, its default and what it means, in one place.
//!
//! `reader.rs` takes defaults, known words and suggestions from here, so that a default is read by the same code
//! as what a user writes. Keys that are known and not built are refused by name, never ignored.

mod matching;
mod tls;
mod token;

use self::matching::{MATCH, PATH_FROM};
use self::tls::{CLIENT_TLS, SERVER_TLS};
use self::token::TOKEN;

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
    /// One of the first words; those of the second are known and not built.
    Partly(&'static [&'static str], &'static [&'static str]),
    /// A list of values, in words.
    Values(&'static str),
    /// One value or a list of them, in words.
    OneOrMore(&'static str),
    /// A map whose keys are the user's, in words.
    Pairs(&'static str),
    /// A map.
    Section(&'static Section),
    /// A list of maps.
    Sections(&'static Section),
    /// Anything: the key is not built.
    Anything,
}

/// Whether a key must stand there, and what holds where it doesn't.
#[derive(Clone, Copy)]
pub(super) enum State {
    Required,
    Optional,
    Default(&'static str),
    NotBuilt,
}

impl Section {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.name == name)
    }
}

use Kind::{Anything, Choice, Partly, Sections, Value, Values};
use State::{Default, NotBuilt, Optional, Required};

const fn key(name: &'static str, kind: Kind, state: State, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        state,
        doc,
    }
}

const fn later(name: &'static str, doc: &'static str) -> Key {
    key(name, Anything, NotBuilt, doc)
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
            "how long a stop waits for what is in flight or in doubt",
        ),
        key(
            "listeners",
            Sections(&LISTENER),
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
            Partly(&["file", "memory"], &["etcd"]),
            Default("file"),
            "file; memory loses its marks at exit",
        ),
        key(
            "path",
            Value("a folder"),
            Default("./fencegate-data"),
            "the folder of kind file",
        ),
        later("endpoints", "the addresses of kind etcd"),
        later("prefix", "the keys' prefix of kind etcd"),
        later("owner_ttl", "the lease of kind etcd"),
        later("username", "the user of kind etcd"),
        later("password_file", "the password of kind etcd"),
        later("tls", "TLS of kind etcd"),
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

pub(super) static LISTENER: Section = Section {
    what: "a listener",
    keys: &[
        key("name", Value("a name"), Required, "its name in metrics and logs"),
        key("bind", Value("IP:PORT"), Required, "where it listens"),
        key(
            "protocol",
            Partly(&["http"], &["tcp", "redis", "postgres", "mysql"]),
            Default("http"),
            "what clients speak",
        ),
        key("tls", Kind::Section(&SERVER_TLS), Optional, "TLS towards clients"),
        key(
            "errors",
            Choice(&["problem", "s3"]),
            Default("problem"),
            "how refusals are written",
        ),
        key(
            "paths",
            Choice(&["strict", "lenient"]),
            Default("strict"),
            "which paths are taken",
        ),
        key("upstream", Kind::Section(&UPSTREAM), Required, "the backend"),
        key("limits", Kind::Section(&LIMITS), Optional, "bounds on clients"),
        key(
            "unmatched",
            Kind::Section(&UNMATCHED),
            Optional,
            "what happens where no rule matches",
        ),
        key(
            "rules",
            Sections(&RULE),
            Optional,
            "the rules; the first that matches counts",
        ),
        key(
            "forwarded",
            Value("true or false"),
            Default("true"),
            "whether X-Forwarded-For, X-Forwarded-Proto and Via are added",
        ),
        key(
            "safe_methods",
            Values("HTTP methods"),
            Optional,
            "the methods that only read",
        ),
        key(
            "upgrades",
            Choice(&["refuse", "pass"]),
            Default("refuse"),
            "whether upgraded connections are allowed",
        ),
    ],
};

pub(super) static UPSTREAM: Section = Section {
    what: "an upstream",
    keys: &[
        key(
            "url",
            Value("a URL"),
            Required,
            "the backend's address: http://HOST:PORT, https://HOST:PORT or unix:/PATH",
        ),
        key(
            "connect_timeout",
            Value("a duration"),
            Default("2s"),
            "how long a connect may take",
        ),
        key(
            "response_timeout",
            Value("a duration"),
            Default("60s"),
            "from the commit point to the answer's head, then between its pieces",
        ),
        key(
            "settle_after",
            Value("a duration"),
            Optional,
            "how long a write whose answer is lost may still take effect; response_timeout if left out",
        ),
        key(
            "commit_point",
            Choice(&["last_byte", "first_byte"]),
            Default("last_byte"),
            "first_byte for backends that write in place",
        ),
        key(
            "tls",
            Kind::Section(&CLIENT_TLS),
            Optional,
            "TLS towards a backend with https://",
        ),
        key(
            "max_connections",
            Value("a number"),
            Default("1024"),
            "how many connections may be open at once",
        ),
        key(
            "in_doubt_statuses",
            Values("HTTP statuses"),
            Optional,
            "answers that are an intermediary's word; 502 and 504 if left out",
        ),
        later("username", "for asking a redis backend"),
        later("password_file", "for asking a redis backend"),
        later("proxy_protocol", "the PROXY header towards a tcp backend"),
    ],
};

pub(super) static LIMITS: Section = Section {
    what: "limits",
    keys: &[
        key(
            "header_timeout",
            Value("a duration"),
            Default("10s"),
            "how long a head may take to arrive",
        ),
        key(
            "max_header_bytes",
            Value("a size"),
            Default("64KiB"),
            "how large a head may be",
        ),
        key(
            "idle_timeout",
            Value("a duration"),
            Default("60s"),
            "how long a connection may stand idle",
        ),
        key(
            "max_waiting",
            Value("a number"),
            Default("1024"),
            "how many requests may wait at once",
        ),
    ],
};

pub(super) static UNMATCHED: Section = Section {
    what: "unmatched",
    keys: &[
        key(
            "reads",
            Choice(&["pass", "deny"]),
            Default("pass"),
            "safe methods that no rule matches",
        ),
        key(
            "writes",
            Choice(&["pass", "deny"]),
            Default("deny"),
            "writes that no rule matches",
        ),
    ],
};

pub(super) static RULE: Section = Section {
    what: "a rule",
    keys: &[
        key(
            "name",
            Value("a name"),
            Required,
            "its name in metrics, logs and answers",
        ),
        key(
            "match",
            Kind::Section(&MATCH),
            Required,
            "the requests that it takes",
        ),
        key(
            "resource",
            Value("a name as \"bucket/{bucket}\""),
            Optional,
            "how the resource is named",
        ),
        key(
            "token",
            Kind::Section(&TOKEN),
            Optional,
            "where the token comes from",
        ),
        key(
            "fences",
            Sections(&FENCE),
            Optional,
            "several resources, each with its token",
        ),
        key(
            "allow",
            Kind::Section(&ALLOW),
            Optional,
            "who may present tokens; everybody if left out",
        ),
        key(
            "missing",
            Choice(&["deny", "pass", "pass_until_fenced"]),
            Default("deny"),
            "what happens to writes without a token",
        ),
        key(
            "mode",
            Choice(&["enforce", "observe"]),
            Default("enforce"),
            "observe counts and logs, and lets through",
        ),
        key(
            "reads",
            Choice(&["raise", "ignore"]),
            Default("raise"),
            "whether reads with a token are compared",
        ),
        key(
            "drain_timeout",
            Value("a duration"),
            Default("30s"),
            "how long a request may wait for older writes",
        ),
        key(
            "fold_case",
            Value("true or false"),
            Default("false"),
            "true where the backend's names ignore case",
        ),
        key(
            "action",
            Choice(&["fence", "deny"]),
            Default("fence"),
            "deny refuses the writes that it matches",
        ),
    ],
};

pub(super) static ALLOW: Section = Section {
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

pub(super) static FENCE: Section = Section {
    what: "a fence",
    keys: &[
        key(
            "resource",
            Value("a name as \"bucket/{bucket}\""),
            Required,
            "how the resource is named",
        ),
        key(
            "token",
            Kind::Section(&TOKEN),
            Required,
            "where the token comes from",
        ),
        key(
            "path_from",
            Kind::Section(&PATH_FROM),
            Optional,
            "the field whose path names the resource",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use super::{Kind, ROOT, Section, State};

    fn each(section: &'static Section, look: &mut dyn FnMut(&'static Section, &'static super::Key)) {
        for key in section.keys {
            look(section, key);
            if let Kind::Section(below) | Kind::Sections(below) = key.kind {
                each(below, look);
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
    fn the_default_of_a_choice_is_one_of_its_words() {
        each(&ROOT, &mut |section, key| {
            if let (Kind::Choice(words) | Kind::Partly(words, _), State::Default(default)) =
                (&key.kind, key.state)
            {
                assert!(words.contains(&default), "{}.{}", section.what, key.name);
            }
        });
    }
}
