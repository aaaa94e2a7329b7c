//! The second place of a write: WebDAV's `Destination`. A rule fences what the target names, so a write goes
//! through only if its destination is the very same resource, or a place that anyone may write to; all else
//! would be a way round the fence. Called by `judge.rs` alone.

use httparse::Header;

use super::judge::{Request, Scratch, Tried, split_target};
use super::path;
use super::template::Sources;
use super::{Policy, Rule, RuleSet};
use crate::base::Reason;

/// Why a destination is refused, and the rule that the request then falls under.
pub(super) type Refused<'r> = (Reason, &'static str, Option<&'r Rule>);

impl RuleSet {
    /// Checks the destination of a write that falls under `found`, if it has one. For a write that a rule
    /// takes, the scratch holds its claims, one for each fence.
    pub(super) fn check_destination<'r>(
        &'r self,
        request: &Request<'_>,
        found: Option<&'r Rule>,
        scratch: &mut Scratch,
    ) -> Result<(), Refused<'r>> {
        let target = match read(request) {
            Ok(None) => return Ok(()),
            Ok(Some(target)) => target,
            Err(detail) => return Err((Reason::AmbiguousPath, detail, None)),
        };
        let (path, query) = split_target(target);
        if path::read(path, &mut scratch.destination).is_err() {
            return Err((
                Reason::AmbiguousPath,
                "the Destination's path can be read in two ways",
                None,
            ));
        }
        match (found, self.rule_of(request.method, scratch)?) {
            (_, None) if self.unmatched.writes == Policy::Pass => Ok(()),
            (_, None) => Err((Reason::UnmatchedWrite, "no rule matches the Destination", None)),
            (Some(rule), Some(other)) if std::ptr::eq(rule, other) => {
                rule.same_names(request, query, scratch)
            }
            (_, Some(_)) => Err((
                Reason::UnmatchedWrite,
                "the Destination falls under another rule",
                None,
            )),
        }
    }

    fn rule_of<'r>(&'r self, method: &str, scratch: &Scratch) -> Result<Option<&'r Rule>, Refused<'r>> {
        for rule in &self.rules {
            match rule.try_on(method, true, &scratch.destination) {
                Tried::Matches => return Ok(Some(rule)),
                Tried::OtherPath | Tried::OtherMethod => {}
                Tried::MethodCase | Tried::Parameters => {
                    return Err((
                        Reason::AmbiguousPath,
                        "whether a rule matches the Destination can't be told",
                        None,
                    ));
                }
            }
        }
        Ok(None)
    }
}

impl Rule {
    /// Whether the destination gives each fence the name that the target gave it.
    fn same_names<'r>(
        &'r self,
        request: &Request<'_>,
        query: Option<&str>,
        scratch: &mut Scratch,
    ) -> Result<(), Refused<'r>> {
        let end = scratch.names.len();
        for (index, fence) in self.fences.iter().enumerate() {
            let sources = Sources {
                segments: &scratch.destination,
                query,
                host: request.host,
                fields: request.fields,
            };
            let filled = fence.resource.fill(&sources, self.fold_case, &mut scratch.names);
            let same = scratch.names[end..] == scratch.names[scratch.claims[index].name.clone()];
            scratch.names.truncate(end);
            if let Err((reason, _)) = filled {
                return Err((
                    reason,
                    "the Destination can't be given the name of a resource",
                    Some(self),
                ));
            }
            if !same {
                let detail = "the Destination is another resource than the one that the token is for";
                return Err((Reason::UnmatchedWrite, detail, Some(self)));
            }
        }
        Ok(())
    }
}

/// The destination's target, `path[?query]`; `None` where there is no such field.
fn read<'a>(request: &Request<'a>) -> Result<Option<&'a str>, &'static str> {
    let is_destination = |f: &&Header<'_>| f.name.eq_ignore_ascii_case("destination");
    let mut found = request.fields.iter().filter(is_destination);
    let Some(first) = found.next() else {
        return Ok(None);
    };
    if found.next().is_some() {
        return Err("the Destination was sent twice");
    }
    let text = std::str::from_utf8(first.value).map_err(|_| "the Destination is not UTF-8")?;
    let text = text.trim_matches([' ', '\t']);
    let Some(rest) = without_scheme(text) else {
        return Ok(Some(text));
    };
    let at = rest.find('/').ok_or("the Destination has no path")?;
    let (authority, target) = rest.split_at(at);
    if !without_port(authority).eq_ignore_ascii_case(without_port(request.host)) {
        return Err("the Destination is on another host");
    }
    Ok(Some(target))
}

fn without_scheme(text: &str) -> Option<&str> {
    ["http://", "https://"].into_iter().find_map(|scheme| {
        let head = text.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
    })
}

/// A host without the port that clients leave out.
fn without_port(authority: &str) -> &str {
    let authority = authority.strip_suffix(":443").unwrap_or(authority);
    authority.strip_suffix(":80").unwrap_or(authority)
}
