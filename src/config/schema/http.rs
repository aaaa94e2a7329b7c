//! The keys of a listener that speaks HTTP.

use super::Kind::{self, Choice, Sections, Value, Values};
use super::State::{Default, Optional, Required};
use super::matching::{MATCH, PATH_FROM};
use super::protocols::{
    ALLOWED, BIND, CONNECT_TIMEOUT, DRAIN_TIMEOUT, MAX_CONNECTIONS, MAX_WAITING, MISSING, MODE, NAME,
    RULE_NAME, TLS,
};
use super::tls::CLIENT_TLS;
use super::token::TOKEN;
use super::{Section, key};

pub(super) static LISTENER: Section = Section {
    what: "a listener",
    keys: &[
        NAME,
        BIND,
        key(
            "protocol",
            Choice(&["http"]),
            Default("http"),
            "what clients speak: HTTP/1.1 and HTTP/2",
        ),
        TLS,
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

static UPSTREAM: Section = Section {
    what: "an upstream",
    keys: &[
        key(
            "url",
            Value("a URL"),
            Required,
            "the backend's address: http://HOST:PORT, https://HOST:PORT or unix:/PATH",
        ),
        CONNECT_TIMEOUT,
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
        MAX_CONNECTIONS,
        key(
            "in_doubt_statuses",
            Values("HTTP statuses"),
            Optional,
            "answers that are an intermediary's word; 502 and 504 if left out",
        ),
    ],
};

static LIMITS: Section = Section {
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

static RULE: Section = Section {
    what: "a rule",
    keys: &[
        RULE_NAME,
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
        ALLOWED,
        MISSING,
        MODE,
        key(
            "reads",
            Choice(&["raise", "ignore"]),
            Default("raise"),
            "whether reads with a token are compared",
        ),
        DRAIN_TIMEOUT,
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

static FENCE: Section = Section {
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
