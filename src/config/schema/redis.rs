//! The keys of a listener that speaks RESP, the protocol of Redis.

use super::Kind::{self, Choice, Sections, Value, Values};
use super::State::{Default, Optional, Required};
use super::protocols::{
    ALLOWED, BACKEND_TLS, BIND, CONNECT_TIMEOUT, DRAIN_TIMEOUT, MAX_CONNECTIONS, MAX_WAITING, MISSING, MODE,
    NAME, RULE_NAME, TLS,
};
use super::{Section, key};

pub(super) static LISTENER: Section = Section {
    what: "a listener",
    keys: &[
        NAME,
        BIND,
        key(
            "protocol",
            Choice(&["redis"]),
            Required,
            "what clients speak: RESP, the protocol of Redis",
        ),
        TLS,
        key("upstream", Kind::Section(&UPSTREAM), Required, "the server"),
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
            "the rules; for each key the first that takes it counts",
        ),
    ],
};

static UPSTREAM: Section = Section {
    what: "an upstream",
    keys: &[
        key(
            "url",
            Value("a URL of TCP"),
            Required,
            "the server's address: tcp://HOST:PORT or unix:/PATH",
        ),
        CONNECT_TIMEOUT,
        key(
            "response_timeout",
            Value("a duration"),
            Default("60s"),
            "from a command's commit point to its reply; commands that block are exempt",
        ),
        key(
            "settle_after",
            Value("a duration"),
            Optional,
            "how long a write whose reply is lost may still take effect; response_timeout if left out",
        ),
        BACKEND_TLS,
        MAX_CONNECTIONS,
        key(
            "username",
            Value("a name"),
            Optional,
            "the user as whom the gate asks the server about its commands",
        ),
        key(
            "password_file",
            Value("a file"),
            Optional,
            "the file with that user's password",
        ),
    ],
};

static LIMITS: Section = Section {
    what: "limits",
    keys: &[
        key(
            "idle_timeout",
            Value("a duration"),
            Optional,
            "how long a client may be silent; for ever if left out",
        ),
        MAX_WAITING,
    ],
};

static UNMATCHED: Section = Section {
    what: "unmatched",
    keys: &[
        key(
            "reads",
            Choice(&["pass", "deny"]),
            Default("pass"),
            "keys that are read, and that no rule takes",
        ),
        key(
            "writes",
            Choice(&["pass", "deny"]),
            Default("deny"),
            "keys that are written, and commands that write without naming a key",
        ),
    ],
};

static RULE: Section = Section {
    what: "a rule",
    keys: &[
        RULE_NAME,
        key(
            "match",
            Kind::Section(&MATCH),
            Required,
            "the keys and commands that it takes",
        ),
        key(
            "resource",
            Value("a name as \"orders/{id}\""),
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
        ALLOWED,
        MISSING,
        MODE,
        key(
            "reads",
            Choice(&["raise", "ignore"]),
            Default("raise"),
            "whether reads of a connection with a token are compared",
        ),
        DRAIN_TIMEOUT,
        key(
            "fold_case",
            Value("true or false"),
            Default("false"),
            "true where names that differ in letter case only are one resource",
        ),
        key(
            "action",
            Choice(&["fence", "deny"]),
            Default("fence"),
            "deny refuses the writes that it matches",
        ),
    ],
};

static MATCH: Section = Section {
    what: "match",
    keys: &[
        key(
            "keys",
            Value("a pattern as \"orders:{id}*\""),
            Optional,
            "the keys: {name} takes everything up to the next colon, * at the end the rest",
        ),
        key(
            "commands",
            Values("names of commands"),
            Optional,
            "the commands, as FLUSHALL or CONFIG SET; without keys beside it also those that name no key",
        ),
        key(
            "undeclared_keys",
            Value("true or false"),
            Default("false"),
            "true takes writes whose keys can't be told: scripts that declare none, unknown commands",
        ),
    ],
};

static TOKEN: Section = Section {
    what: "token",
    keys: &[
        key(
            "connection",
            Value("true"),
            Required,
            "true: the connection's token, fencing-token=N in its name, or by FENCE N",
        ),
        key(
            "pattern",
            Value("a regular expression"),
            Optional,
            "takes the token out of the client's name or the user's, instead of fencing-token=N",
        ),
        key(
            "format",
            Choice(&["integer", "hex", "pair"]),
            Default("integer"),
            "how tokens are written",
        ),
        key(
            "max_step",
            Value("a number"),
            Optional,
            "refuses a raise by more than this, but for a resource's first; for format integer",
        ),
    ],
};

static FENCE: Section = Section {
    what: "a fence",
    keys: &[
        key(
            "resource",
            Value("a name as \"orders/{id}\""),
            Required,
            "how the resource is named",
        ),
        key(
            "token",
            Kind::Section(&TOKEN),
            Required,
            "where the token comes from",
        ),
    ],
};
