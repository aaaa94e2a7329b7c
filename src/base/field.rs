//! Names of header fields that backends read as one, and fields that make a backend take another request than the
//! one that stands in the head. Used by `rules/` for heads and by `wire/` for trailers.

/// Whether two field names are one to a backend that keeps fields in variables (CGI, WSGI, PHP): letter case is
/// lost there, and all that is neither letter nor digit becomes `_`.
#[must_use]
pub fn same_variable(a: &str, b: &str) -> bool {
    let plain = |byte: u8| match byte.to_ascii_lowercase() {
        byte if byte.is_ascii_alphanumeric() => byte,
        _ => b'_',
    };
    a.len() == b.len() && a.bytes().map(plain).eq(b.bytes().map(plain))
}

/// What a field asks the backend to take instead of what the request line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Override {
    /// Another method.
    Method,
    /// Another path.
    Path,
}

/// What a field of this name overrides, if anything.
#[must_use]
pub fn overridden_by(name: &str) -> Option<Override> {
    // Of all requests' fields: the lengths sort out nearly every one.
    if !matches!(name.len(), 13 | 14 | 17 | 22) {
        return None;
    }
    let is = |known: &&str| same_variable(name, known);
    if METHOD.iter().any(is) {
        Some(Override::Method)
    } else if PATH.iter().any(is) {
        Some(Override::Path)
    } else {
        None
    }
}

const METHOD: [&str; 4] = [
    "x-http-method",
    "x-method-override",
    "x-http-method-override",
    "x-original-method",
];
const PATH: [&str; 2] = ["x-original-url", "x-rewrite-url"];

#[cfg(test)]
mod tests {
    use super::{METHOD, Override, PATH, overridden_by, same_variable};

    #[test]
    fn case_and_signs_make_no_other_variable() {
        assert!(same_variable("X-Res", "x_rES") && same_variable("X.Res", "X-Res"));
        assert!(!same_variable("X-Res", "XRes") && !same_variable("X-Res", "X-Ret"));
    }

    #[test]
    fn every_override_is_known_in_all_spellings() {
        for (names, what) in [(&METHOD[..], Override::Method), (&PATH[..], Override::Path)] {
            for name in names {
                for spelling in [
                    name.to_string(),
                    name.to_ascii_uppercase(),
                    name.replace('-', "_"),
                ] {
                    assert_eq!(overridden_by(&spelling), Some(what), "{spelling}");
                }
            }
        }
        for name in ["x-http-methods", "x-original-host", "content-range", ""] {
            assert_eq!(overridden_by(name), None, "{name}");
        }
    }
}
