//! Hosts as backends compare them: without letter case, without the final dot, with a port that may be left out.
//! Used by names (`{host}`), by conditions and for the place that a field names.

use std::net::Ipv6Addr;

use httparse::Header;

use crate::base::field::same_variable;

/// A host, taken apart. Names are as they came, but for the final dot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    name: Name<'a>,
    port: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    Plain(&'a str),
    V6(Ipv6Addr),
}

/// Fields that some backends believe more than Host.
const STANDS_FOR_HOST: [&str; 3] = ["x-forwarded-host", "x-original-host", "x-host"];

impl<'a> Host<'a> {
    /// Reads `NAME` or `[ADDRESS]`, with or without `:PORT`; `None` for anything else.
    pub(super) fn read(text: &'a str) -> Option<Host<'a>> {
        let (name, rest) = match text.strip_prefix('[') {
            Some(inside) => {
                let (address, rest) = inside.split_once(']')?;
                (Name::V6(address.parse().ok()?), rest)
            }
            None => {
                let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
                let name = name.strip_suffix('.').unwrap_or(name);
                let sound = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                // `a..` could be `a` to somebody who cuts all dots off.
                let odd = name.ends_with('.') || name.contains("..");
                if name.is_empty() || odd || !name.bytes().all(sound) {
                    return None;
                }
                (Name::Plain(name), rest)
            }
        };
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        Some(Host { name, port })
    }

    /// The port, where one came.
    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether both are one host, whatever their ports.
    pub(super) fn same_name(&self, other: &Host<'_>) -> bool {
        match (self.name, other.name) {
            (Name::Plain(a), Name::Plain(b)) => a.eq_ignore_ascii_case(b),
            (Name::V6(a), Name::V6(b)) => a == b,
            (Name::Plain(_), Name::V6(_)) | (Name::V6(_), Name::Plain(_)) => false,
        }
    }

    /// Whether both are one place: the ports that clients leave out are none.
    pub(super) fn same_place(&self, other: &Host<'_>) -> bool {
        let port = |host: &Host<'_>| host.port.filter(|port| !is_default(*port));
        self.same_name(other) && port(self) == port(other)
    }

    /// Whether it is a name below `domain`, at whatever depth.
    pub(super) fn is_below(&self, domain: &Host<'_>) -> bool {
        let (Name::Plain(name), Name::Plain(domain)) = (self.name, domain.name) else {
            return false;
        };
        let at = name.len().checked_sub(domain.len());
        at.and_then(|at| name.split_at_checked(at))
            .is_some_and(|(front, end)| {
                front.len() > 1 && front.ends_with('.') && end.eq_ignore_ascii_case(domain)
            })
    }

    /// Appends its one name: in lower case, without its port.
    pub(super) fn push(&self, into: &mut String) {
        match self.name {
            Name::Plain(name) => into.extend(name.chars().map(|c| c.to_ascii_lowercase())),
            Name::V6(address) => into.push_str(&format!("[{address}]")),
        }
    }
}

/// Whether clients leave this port out.
pub(super) fn is_default(port: u16) -> bool {
    matches!(port, 80 | 443)
}

/// What the fields say that some backends take for the host, beside the Host; `None` for what can't be read.
pub(super) fn others<'a>(fields: &'a [Header<'a>]) -> impl Iterator<Item = Option<Host<'a>>> {
    fields
        .iter()
        .filter(|field| STANDS_FOR_HOST.iter().any(|name| same_variable(field.name, name)))
        .map(|field| Host::read(std::str::from_utf8(field.value).ok()?.trim_matches([' ', '\t'])))
}

#[cfg(test)]
mod tests {
    use super::Host;

    fn read(text: &str) -> Host<'_> {
        Host::read(text).unwrap()
    }

    #[test]
    fn one_host_has_one_name() {
        for (text, name) in [
            ("Store.test:8080", "store.test"),
            ("store.test.", "store.test"),
            ("[::1]:80", "[::1]"),
            ("[0:0::1]", "[::1]"),
        ] {
            let mut into = String::new();
            read(text).push(&mut into);
            assert_eq!(into, name);
        }
        for bad in [
            "", ".", "a..", "a..b", ":80", "a b", "a:b", "a:", "[::1", "[x]", "[::1]x", "u@a", "a/b",
        ] {
            assert!(Host::read(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn ports_that_clients_leave_out_make_no_other_place() {
        for (a, b, same) in [
            ("a.test", "A.test.:80", true),
            ("a.test:443", "a.test", true),
            ("a.test:8080", "a.test", false),
            ("a.test", "b.test", false),
            ("[::1]", "[0::1]", true),
        ] {
            assert_eq!(read(a).same_place(&read(b)), same, "{a} {b}");
        }
    }

    #[test]
    fn a_domain_is_not_below_itself_nor_below_a_part_of_a_word() {
        let domain = read("b.test");
        assert!(read("a.B.test").is_below(&domain) && read("x.a.b.test.").is_below(&domain));
        for other in ["b.test", "ab.test", ".b.test", "a.b.test.org", "[::1]"] {
            assert!(!read(other).is_below(&domain), "{other}");
        }
    }
}
