//! The keys that say where a token comes from and how it is written.

use super::Kind::{Choice, OneOrMore, Value};
use super::State::{Default, Optional};
use super::{Key, Section, key};

pub(super) static TOKEN: Section = Section {
    what: "token",
    keys: &[
        key(
            "header",
            OneOrMore("names of header fields"),
            Optional,
            "the field that carries the token, or several of which one may come",
        ),
        key(
            "query",
            Value("the name of a query field"),
            Optional,
            "the query field that carries the token",
        ),
        key(
            "cookie",
            Value("the name of a cookie"),
            Optional,
            "the cookie that carries the token",
        ),
        key(
            "pattern",
            Value("a regular expression"),
            Optional,
            "takes the token out of a longer value",
        ),
        FORMAT,
        MAX_STEP,
    ],
};

pub(super) const FORMAT: Key = key(
    "format",
    Choice(&["integer", "hex", "pair"]),
    Default("integer"),
    "how tokens are written",
);

pub(super) const MAX_STEP: Key = key(
    "max_step",
    Value("a number"),
    Optional,
    "refuses a raise by more than this, but for a resource's first; for format integer",
);
