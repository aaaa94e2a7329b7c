//! The rule of a raw TCP listener: which resources a session names, and which tokens it presents, by what stands in
//! front of it. Pure, as its neighbours; called by `tcp/` once a session, and by `fencegate explain`.
//!
//! A session that names no resource is refused whatever the rule says of missing tokens: nobody could tell which raise
//! has to wait for it.

use std::sync::Arc;
use std::time::Duration;

use super::claims::{MISSING, malformed, merge};
use super::judge::{Held, Scratch};
use super::{Allow, Fenced, Missing, Mode, Sender, Shape, ShapePart, allow};
use crate::base::{Reason, Token, TokenFormat};

/// The rule that all sessions of a listener fall under.
#[derive(Debug)]
pub struct TcpRule {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// What it compares: at least one.
    pub fences: Box<[TcpFence]>,
    /// Who may present tokens; everybody where there is none.
    pub allow: Option<Allow>,
    /// What happens to sessions without a token.
    pub missing: Missing,
    /// Whether it refuses, or only counts.
    pub mode: Mode,
    /// How long a session may wait for older ones.
    pub drain_timeout: Duration,
}

/// One fence of the rule.
#[derive(Clone, Debug)]
pub struct TcpFence {
    /// What names the resource.
    pub resource: TcpResource,
    /// Where the token stands.
    pub token: TcpToken,
    /// How its tokens are written.
    pub format: TokenFormat,
    /// By how much a token may raise the mark at most; `None` where that is not bounded.
    pub max_step: Option<u64>,
}

/// What names a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpResource {
    /// The rule itself: what the client says of it is not read.
    Fixed(Box<str>),
    /// A TLV of the PROXY header.
    Tlv(u8),
    /// The preface.
    Preface,
}

/// Where a token stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpToken {
    /// In a TLV of the PROXY header.
    Tlv(u8),
    /// In the preface.
    Preface,
}

/// What stands in front of a session.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The TLVs of its PROXY header, in order: their kinds and values.
    pub tlvs: &'a [(u8, &'a [u8])],
    /// The resource of its preface, and the token where there is one.
    pub preface: Option<(&'a str, Option<&'a str>)>,
}

/// Why a session must not reach the backend, whatever the marks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// The reason.
    pub reason: Reason,
    /// In words.
    pub detail: &'static str,
    /// Which claim in the scratch it is about.
    pub claim: Option<usize>,
}

impl TcpRule {
    /// Whether it looks for a preface.
    #[must_use]
    pub fn reads_preface(&self) -> bool {
        let reads = |f: &TcpFence| f.resource == TcpResource::Preface || f.token == TcpToken::Preface;
        self.fences.iter().any(reads)
    }

    /// Whether it looks for a TLV.
    #[must_use]
    pub fn reads_tlvs(&self) -> bool {
        let reads =
            |f: &TcpFence| matches!(f.resource, TcpResource::Tlv(_)) || matches!(f.token, TcpToken::Tlv(_));
        self.fences.iter().any(reads)
    }

    /// Its fences.
    pub fn fences(&self) -> impl Iterator<Item = Fenced> {
        self.fences.iter().map(|fence| Fenced {
            rule: Arc::clone(&self.name),
            mode: self.mode,
            shape: fence.resource.shape(),
            format: fence.format,
            fold_case: false,
        })
    }

    /// Reads the resources and tokens of a session; the scratch then holds its claims, each resource once.
    ///
    /// # Errors
    /// [`Unfit`]: it must not reach the backend, unless the rule only observes. The scratch has what was read.
    pub fn judge(
        &self,
        opening: &Opening<'_>,
        from: &Sender<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Unfit> {
        scratch.clear();
        for (index, fence) in self.fences.iter().enumerate() {
            let unnamed = |(reason, detail)| Unfit {
                reason,
                detail,
                claim: None,
            };
            let name = fence.resource.name(opening).map_err(unnamed)?;
            let start = scratch.names.len();
            scratch.names.push_str(name);
            scratch.claims.push(Held {
                name: start..scratch.names.len(),
                token: None,
                format: fence.format,
                max_step: fence.max_step,
                fence: index,
            });
        }
        let read = self.read_tokens(opening, scratch);
        read.and_then(|()| allow::check(self.allow.as_ref(), from, scratch))
            .map_err(|(reason, detail, claim)| Unfit {
                reason,
                detail,
                claim: Some(claim),
            })
    }

    fn read_tokens(
        &self,
        opening: &Opening<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), (Reason, &'static str, usize)> {
        for (index, fence) in self.fences.iter().enumerate() {
            let token = fence
                .read_token(opening)
                .map_err(|detail| (Reason::MalformedToken, detail, index))?;
            if token.is_none() && self.missing == Missing::Deny {
                return Err((Reason::MissingToken, MISSING, index));
            }
            scratch.claims[index].token = token;
        }
        match scratch.claims.len() {
            1 => Ok(()),
            _ => merge(self.missing, scratch),
        }
    }
}

impl TcpFence {
    /// `None` where none came.
    fn read_token(&self, opening: &Opening<'_>) -> Result<Option<Token>, &'static str> {
        let text = match self.token {
            TcpToken::Tlv(kind) => only(opening.tlvs, kind).ok_or("the token's TLV is there twice")?,
            TcpToken::Preface => match opening.preface {
                // Somebody meant a token, and it would be taken for a resource's name.
                Some((_, None)) if self.resource != TcpResource::Preface => {
                    return Err("the first line has one word: it is FENCE, the resource and the token");
                }
                Some((_, token)) => token.map(str::as_bytes),
                None => None,
            },
        };
        let read = |text| self.format.parse(text).map_err(|_| malformed(self.format));
        text.map(read).transpose()
    }
}

impl TcpResource {
    /// The names that it can give.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match self {
            TcpResource::Fixed(name) => Shape::new(name, [ShapePart::Text(name.clone())]),
            TcpResource::Tlv(kind) => Shape::new(&format!("{{proxy_tlv {kind:#04x}}}"), [ShapePart::Any]),
            TcpResource::Preface => Shape::new("{preface}", [ShapePart::Any]),
        }
    }

    fn name<'n>(&'n self, opening: &Opening<'n>) -> Result<&'n str, (Reason, &'static str)> {
        const UNNAMED: (Reason, &str) = (
            Reason::MissingToken,
            "the session names no resource, and so nothing can be compared",
        );
        match self {
            TcpResource::Fixed(name) => Ok(name),
            TcpResource::Preface => opening.preface.map(|(resource, _)| resource).ok_or(UNNAMED),
            TcpResource::Tlv(kind) => {
                let twice = (Reason::BadRequest, "the resource's TLV is there twice");
                let value = only(opening.tlvs, *kind).ok_or(twice)?.ok_or(UNNAMED)?;
                match std::str::from_utf8(value) {
                    Ok("") => Err((Reason::BadRequest, "the resource's TLV is empty")),
                    Ok(name) => Ok(name),
                    Err(_) => Err((Reason::BadRequest, "the resource's TLV is not UTF-8")),
                }
            }
        }
    }
}

/// The value of the TLV of this kind, if there is one; the outer `None` where there are several.
#[allow(clippy::option_option)]
fn only<'a>(tlvs: &[(u8, &'a [u8])], kind: u8) -> Option<Option<&'a [u8]>> {
    let mut found = tlvs.iter().filter(|(other, _)| *other == kind);
    let first = found.next().map(|(_, value)| *value);
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::{Opening, TcpFence, TcpResource, TcpRule, TcpToken};
    use crate::base::{Reason, TokenFormat};
    use crate::rules::{Allow, Missing, Mode, Scratch, Sender};

    fn fence(resource: TcpResource, token: TcpToken) -> TcpFence {
        TcpFence {
            resource,
            token,
            format: TokenFormat::Integer,
            max_step: None,
        }
    }

    fn rule(missing: Missing, fences: &[TcpFence]) -> TcpRule {
        TcpRule {
            name: "r".into(),
            fences: fences.into(),
            allow: None,
            missing,
            mode: Mode::Enforce,
            drain_timeout: Duration::ZERO,
        }
    }

    fn by_tlv() -> TcpFence {
        fence(TcpResource::Tlv(0xe0), TcpToken::Tlv(0xe1))
    }

    /// `RESOURCE=TOKEN …`, or the reason.
    fn ask(rule: &TcpRule, tlvs: &[(u8, &[u8])], preface: Option<(&str, Option<&str>)>) -> String {
        let mut scratch = Scratch::default();
        let from = Sender::at(Ipv4Addr::LOCALHOST.into());
        match rule.judge(&Opening { tlvs, preface }, &from, &mut scratch) {
            Ok(()) => scratch
                .claims()
                .map(|claim| {
                    let token = claim.token.map(|t| claim.format.show(t).to_string());
                    format!("{}={} ", claim.resource, token.as_deref().unwrap_or("none"))
                })
                .collect(),
            Err(unfit) => unfit.reason.as_str().into(),
        }
    }

    #[test]
    fn a_session_is_named_by_its_header_alone() {
        let deny = rule(Missing::Deny, &[by_tlv()]);
        for (tlvs, told) in [
            (&[(0xe0, &b"a"[..]), (0xe1, b"7")][..], "a=7 "),
            (&[(0xe1, b" 7\t"), (4, b""), (0xe0, "ö".as_bytes())], "ö=7 "),
            (&[(0xe0, b"a")], "missing-token"),
            (&[(0xe1, b"7")], "missing-token"),
            (&[], "missing-token"),
            (&[(0xe0, b"a"), (0xe1, b"")], "malformed-token"),
            (&[(0xe0, b"a"), (0xe1, b"07")], "malformed-token"),
            (&[(0xe0, b"a"), (0xe1, b"7"), (0xe1, b"7")], "malformed-token"),
            (&[(0xe0, b"a"), (0xe0, b"a"), (0xe1, b"7")], "bad-request"),
            (&[(0xe0, b""), (0xe1, b"7")], "bad-request"),
            (&[(0xe0, b"\xff"), (0xe1, b"7")], "bad-request"),
        ] {
            assert_eq!(ask(&deny, tlvs, Some(("b", Some("9")))), told, "{tlvs:?}");
        }
    }

    #[test]
    fn a_fixed_resource_leaves_the_clients_unread() {
        let fixed = rule(
            Missing::Pass,
            &[fence(TcpResource::Fixed("db".into()), TcpToken::Tlv(0xe1))],
        );
        assert_eq!(
            ask(&fixed, &[(0xe0, b"\xff"), (0xe0, b""), (0xe1, b"7")], None),
            "db=7 "
        );
        assert_eq!(ask(&fixed, &[], None), "db=none ");
        let lines = rule(
            Missing::Pass,
            &[fence(TcpResource::Fixed("db".into()), TcpToken::Preface)],
        );
        assert_eq!(ask(&lines, &[], Some(("other", Some("7")))), "db=7 ");
        assert_eq!(ask(&lines, &[], None), "db=none ");
        assert_eq!(
            ask(&lines, &[], Some(("7", None))),
            "malformed-token",
            "whoever wrote it meant a token"
        );
    }

    #[test]
    fn without_a_token_only_a_session_that_names_its_resource_passes() {
        let pass = rule(Missing::Pass, &[by_tlv()]);
        assert_eq!(ask(&pass, &[(0xe0, b"a")], None), "a=none ");
        assert_eq!(ask(&pass, &[], None), "missing-token");
        let preface = rule(Missing::Pass, &[fence(TcpResource::Preface, TcpToken::Preface)]);
        assert_eq!(ask(&preface, &[], Some(("a", None))), "a=none ");
        assert_eq!(ask(&preface, &[], Some(("a", Some("7")))), "a=7 ");
        assert_eq!(ask(&preface, &[], None), "missing-token");
    }

    #[test]
    fn a_resource_named_twice_counts_once_and_with_one_token() {
        let other = fence(TcpResource::Tlv(0xe2), TcpToken::Tlv(0xe3));
        let two = rule(Missing::Deny, &[by_tlv(), other]);
        let with = |name: &'static [u8], token: &'static [u8]| {
            ask(
                &two,
                &[(0xe0, b"a"), (0xe1, b"7"), (0xe2, name), (0xe3, token)],
                None,
            )
        };
        assert_eq!(with(b"b", b"8"), "a=7 b=8 ");
        assert_eq!(with(b"a", b"7"), "a=7 ");
        assert_eq!(with(b"a", b"8"), "bad-request");
    }

    #[test]
    fn whoever_may_not_present_tokens_is_told_so() {
        let mut rule = rule(Missing::Pass, &[by_tlv()]);
        rule.allow = Some(Allow {
            cidr: ["10.0.0.0/8".parse().unwrap()].into(),
            client_cert: None,
        });
        assert_eq!(
            ask(&rule, &[(0xe0, b"a"), (0xe1, b"7")], None),
            Reason::NotAllowed.as_str()
        );
        assert_eq!(ask(&rule, &[(0xe0, b"a")], None), "a=none ");
    }
}
