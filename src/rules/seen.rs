//! One look at the names of all fields of a request: which of those came that make a judgement harder. Called by
//! `judge.rs`.

use httparse::Header;

use crate::base::field::{Override, overridden_by};

/// What a look at the fields' names alone tells.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) method_override: bool,
    pub(super) path_override: bool,
    pub(super) connection: bool,
    pub(super) destination: bool,
}

/// Looks at all fields once.
pub(super) fn look_at_fields(fields: &[Header<'_>]) -> Seen {
    let mut seen = Seen::default();
    for field in fields {
        match field.name.len() {
            10 => seen.connection |= field.name.eq_ignore_ascii_case("connection"),
            11 => seen.destination |= field.name.eq_ignore_ascii_case("destination"),
            _ => match overridden_by(field.name) {
                Some(Override::Method) => seen.method_override = true,
                Some(Override::Path) => seen.path_override = true,
                None => {}
            },
        }
    }
    seen
}
