//! The keys that say which requests a rule takes, and where a second place of theirs stands.

use super::Kind::{OneOrMore, Pairs, Value, Values};
use super::State::{Optional, Required};
use super::{Section, key};

pub(super) static MATCH: Section = Section {
    what: "match",
    keys: &[
        key(
            "path",
            Value("a path as \"/{bucket}/{*key}\""),
            Optional,
            "the paths; every path if left out",
        ),
        key(
            "methods",
            Values("HTTP methods"),
            Optional,
            "the writes; every method that isn't safe if left out",
        ),
        key(
            "host",
            OneOrMore("host names"),
            Optional,
            "the hosts: store.test, or *.store.test for all below it",
        ),
        key(
            "headers",
            Pairs("field names and their values"),
            Optional,
            "header fields that must be there; * in a value is any text",
        ),
        key(
            "query",
            Pairs("field names and their values"),
            Optional,
            "query fields that must be there; * in a value is any text",
        ),
    ],
};

pub(super) static PATH_FROM: Section = Section {
    what: "path_from",
    keys: &[key(
        "header",
        Value("the name of a header field"),
        Required,
        "the field that holds a path or a URL, as Destination",
    )],
};
