//! Who may present tokens under a rule: by address, by the verified certificate, or by both. Without a token nobody
//! is asked. Built by `config/`, asked by `claims.rs` and `tcp.rs` before anything is compared or raised.

use std::net::IpAddr;

use ipnet::IpNet;

use super::judge::Scratch;
use crate::base::{ClientCert, Reason};

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The peer's address.
    pub ip: IpAddr,
    /// What its certificate says, where the listener has verified one.
    pub cert: Option<&'a ClientCert>,
}

impl Sender<'_> {
    /// Someone who has shown no certificate.
    #[must_use]
    pub fn at(ip: IpAddr) -> Sender<'static> {
        Sender { ip, cert: None }
    }
}

/// Who may present tokens: whoever fits all that is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allow {
    /// The networks; empty where the address doesn't matter.
    pub cidr: Box<[IpNet]>,
    /// The certificate; `None` where none is needed.
    pub client_cert: Option<CertPattern>,
}

/// A pattern for one name of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertPattern {
    text: Box<str>,
    name: Name,
    /// What stands between the `*`: at least one piece.
    pieces: Box<[Box<str>]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Common,
    Dns,
    Uri,
}

/// Whether this client may present the tokens in the scratch, if there are any; else the first of them.
pub(super) fn check(
    allow: Option<&Allow>,
    from: &Sender<'_>,
    scratch: &Scratch,
) -> Result<(), (Reason, &'static str, usize)> {
    let Some(allow) = allow else {
        return Ok(());
    };
    match scratch.claims().position(|claim| claim.token.is_some()) {
        Some(first) if !allow.fits(from) => Err((Reason::NotAllowed, NOT_ALLOWED, first)),
        Some(_) | None => Ok(()),
    }
}

impl Allow {
    /// Whether this client may present tokens.
    #[must_use]
    pub fn fits(&self, from: &Sender<'_>) -> bool {
        // A socket of both families shows an IPv4 address as an IPv6 one.
        let ip = from.ip.to_canonical();
        let near = self.cidr.is_empty() || self.cidr.iter().any(|net| net.contains(&ip));
        let known = self
            .client_cert
            .as_ref()
            .is_none_or(|pattern| from.cert.is_some_and(|cert| pattern.fits(cert)));
        near && known
    }
}

impl CertPattern {
    /// Reads `CN=…`, `SAN=DNS:…` or `SAN=URI:…`, in which `*` stands for any characters.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<CertPattern, String> {
        let kinds = [
            ("CN=", Name::Common),
            ("SAN=DNS:", Name::Dns),
            ("SAN=URI:", Name::Uri),
        ];
        let found = kinds
            .into_iter()
            .find_map(|(start, name)| Some((name, text.strip_prefix(start)?)));
        match found {
            Some((name, pattern)) if !pattern.is_empty() => Ok(CertPattern {
                text: text.into(),
                name,
                pieces: pattern.split('*').map(Box::from).collect(),
            }),
            _ => Err(format!(
                "{text:?} names nothing in a certificate; write CN=NAME, SAN=DNS:NAME or SAN=URI:NAME, with * for any characters"
            )),
        }
    }

    /// As the configuration writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether one of the certificate's names of that kind fits.
    #[must_use]
    pub fn fits(&self, cert: &ClientCert) -> bool {
        match self.name {
            Name::Common => cert.common_name.as_deref().is_some_and(|name| self.takes(name)),
            Name::Uri => cert.uris.iter().any(|uri| self.takes(uri)),
            // DNS names have no letter case.
            Name::Dns => {
                let lower = CertPattern {
                    pieces: self
                        .pieces
                        .iter()
                        .map(|p| p.to_ascii_lowercase().into())
                        .collect(),
                    ..self.clone()
                };
                cert.dns_names
                    .iter()
                    .any(|name| lower.takes(&name.to_ascii_lowercase()))
            }
        }
    }

    /// The first piece stands at the start, the last at the end, those between in their order.
    fn takes(&self, name: &str) -> bool {
        let [first, rest @ ..] = &*self.pieces else {
            return false;
        };
        let Some(mut left) = name.strip_prefix(&**first) else {
            return false;
        };
        let [between @ .., last] = rest else {
            return left.is_empty();
        };
        for piece in between {
            let Some(at) = left.find(&**piece) else {
                return false;
            };
            left = &left[at + piece.len()..];
        }
        left.ends_with(&**last)
    }
}

const NOT_ALLOWED: &str = "this client may not present tokens here";

#[cfg(test)]
mod tests {
    use super::{Allow, CertPattern, Sender};
    use crate::base::ClientCert;

    fn cert(common_name: &str) -> ClientCert {
        ClientCert {
            common_name: Some(common_name.into()),
            dns_names: vec!["a.Orders.example".into()],
            uris: vec!["spiffe://x/ns/orders/sa/a".into()],
        }
    }

    #[test]
    fn a_pattern_takes_whole_names_only() {
        for (pattern, name, takes) in [
            ("CN=orders-*", "orders-1", true),
            ("CN=orders-*", "orders-", true),
            ("CN=orders-*", "x-orders-1", false),
            ("CN=orders-*", "Orders-1", false),
            ("CN=orders", "orders-1", false),
            ("CN=*-a-*-b", "1-a-2-b", true),
            ("CN=*-a-*-b", "1-a-b", false),
            ("CN=a*a", "a", false),
            ("CN=*", "", true),
        ] {
            let read = CertPattern::parse(pattern).unwrap();
            assert_eq!(read.fits(&cert(name)), takes, "{pattern} {name}");
        }
        let dns = |text| CertPattern::parse(text).unwrap().fits(&cert("x"));
        assert!(dns("SAN=DNS:*.orders.EXAMPLE") && !dns("SAN=DNS:orders.example"));
        assert!(dns("SAN=URI:spiffe://x/ns/orders/*") && !dns("SAN=URI:spiffe://x/ns/Orders/*"));
        assert!(!CertPattern::parse("CN=*").unwrap().fits(&ClientCert::default()));
        for bad in ["", "orders", "cn=a", "CN=", "SAN=a", "SAN=DNS:", "O=a", "CN = a"] {
            assert!(CertPattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_must_hold_where_both_are_given() {
        let allow = Allow {
            cidr: ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()].into(),
            client_cert: Some(CertPattern::parse("CN=a").unwrap()),
        };
        let (a, b) = (cert("a"), cert("b"));
        for (ip, cert, fits) in [
            ("10.1.2.3", Some(&a), true),
            ("::ffff:10.1.2.3", Some(&a), true),
            ("fd00::1", Some(&a), true),
            ("10.1.2.3", Some(&b), false),
            ("10.1.2.3", None, false),
            ("11.1.2.3", Some(&a), false),
            ("::ffff:11.1.2.3", Some(&a), false),
            ("fe00::1", Some(&a), false),
        ] {
            let ip = ip.parse().unwrap();
            assert_eq!(allow.fits(&Sender { ip, cert }), fits, "{ip} {cert:?}");
        }
    }
}
