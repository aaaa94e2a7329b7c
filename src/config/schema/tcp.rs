//! The keys of a listener of raw TCP.

use super::Kind::{self, Choice, Sections, Value};
use super::State::{Default, Optional, Required};
use super::protocols::{
    ALLOWED, BACKEND_TLS, BIND, CONNECT_TIMEOUT, DRAIN_TIMEOUT, MAX_CONNECTIONS, MAX_WAITING, MISSING, MODE,
    NAME, RULE_NAME, TLS,
};
use super::token::{FORMAT, MAX_STEP};
use super::{Key, Section, key};

pub(super) static LISTENER: Section = Section {
    what: "a listener",
    keys: &[
        NAME,
        BIND,
        key(
            "protocol",
            Choice(&["tcp"]),
            Required,
            "what clients speak: any protocol over TCP, fenced by the session",
        ),
        TLS,
        key(
            "accept_proxy",
            Value("true or false"),
            Optional,
            "whether each connection begins with a PROXY header, version 1 or 2; as the rule needs it if left out",
        ),
        key("upstream", Kind::Section(&UPSTREAM), Required, "the backend"),
        key("limits", Kind::Section(&LIMITS), Optional, "bounds on clients"),
        key(
            "rules",
            Sections(&RULE),
            Required,
            "the one rule that all sessions fall under",
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
            "the backend's address: tcp://HOST:PORT or unix:/PATH",
        ),
        CONNECT_TIMEOUT,
        key(
            "settle_after",
            Value("a duration"),
            Default("60s"),
            "how long what a session sent may still take effect once its connection is lost; a session that is cut waits as long for the backend to close its side",
        ),
        BACKEND_TLS,
        MAX_CONNECTIONS,
        key(
            "proxy_protocol",
            Choice(&["none", "v2"]),
            Default("none"),
            "v2 tells the backend the client's address in a PROXY header",
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
            "how long TLS, a PROXY header and a preface may take to arrive, together",
        ),
        key(
            "max_header_bytes",
            Value("a size"),
            Default("64KiB"),
            "how large a PROXY header or a preface may be",
        ),
        key(
            "idle_timeout",
            Value("a duration"),
            Optional,
            "how long a session may stand idle; for ever if left out",
        ),
        MAX_WAITING,
    ],
};

static RULE: Section = Section {
    what: "a rule",
    keys: &[
        RULE_NAME,
        key(
            "resource",
            Kind::Either("a name as \"db/main\"", &RESOURCE),
            Optional,
            RESOURCE_DOC,
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
        DRAIN_TIMEOUT,
    ],
};

static FENCE: Section = Section {
    what: "a fence",
    keys: &[
        key(
            "resource",
            Kind::Either("a name as \"db/main\"", &RESOURCE),
            Required,
            RESOURCE_DOC,
        ),
        key(
            "token",
            Kind::Section(&TOKEN),
            Required,
            "where the token comes from",
        ),
    ],
};

const RESOURCE_DOC: &str = "the resource's name, or what the client names it by";

static RESOURCE: Section = Section {
    what: "resource",
    keys: &[PROXY_TLV, PREFACE],
};

static TOKEN: Section = Section {
    what: "token",
    keys: &[PROXY_TLV, PREFACE, FORMAT, MAX_STEP],
};

const PROXY_TLV: Key = key(
    "proxy_tlv",
    Value("the kind of a TLV"),
    Optional,
    "the TLV of the PROXY header that holds it, as 0xE0",
);

const PREFACE: Key = key(
    "preface",
    Value("true"),
    Optional,
    "true: it stands in a first line, FENCE RESOURCE TOKEN",
);
