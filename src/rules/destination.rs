//! The second place of a write: the path in a field, WebDAV's `Destination` above all. A rule fences what the target
//! names, so a write goes through only if its second place is a resource that it claims too (by the target, or by a
//! fence with `path_from`), or a place that anyone may write to; all else would be a way round the fence. Called by
//! `judge.rs` alone.

use super::host::Host;
use super::judge::{Asked, Request, Scratch, Tried, split_target};
use super::path;
use super::template::Sources;
use super::{Policy, Rule, RuleSet};
use crate::base::Reason;
use crate::base::field::same_variable;

/// Why a second place is refused, and the rule that the request then falls under.
pub(super) type Refused<'r> = (Reason, &'static str, Option<&'r Rule>);

impl RuleSet {
    /// Checks the second places of a write that falls under `found`: what the rule's fences take from fields, and
    /// the `Destination`, where there `is_destination`. The scratch holds the claims by the target, and then all.
    pub(super) fn check_places<'r>(
        &'r self,
        asked: &Asked<'_>,
        found: Option<&'r Rule>,
        is_destination: bool,
        scratch: &mut Scratch,
    ) -> Result<(), Refused<'r>> {
        if let Some(rule) = found {
            for (index, fence) in rule.fences.iter().enumerate() {
                if let Some(field) = &fence.path_from {
                    self.name_place(asked, rule, index, field, scratch)?;
                }
            }
            let fields = rule.fences.iter().filter_map(|fence| fence.path_from.as_deref());
            for field in fields.filter(|field| !field.eq_ignore_ascii_case("destination")) {
                self.check_place(asked, found, field, scratch)?;
            }
        }
        match is_destination {
            true => self.check_place(asked, found, "destination", scratch),
            false => Ok(()),
        }
    }

    /// Claims what a fence names by the path in a field.
    fn name_place<'r>(
        &'r self,
        asked: &Asked<'_>,
        rule: &'r Rule,
        index: usize,
        field: &str,
        scratch: &mut Scratch,
    ) -> Result<(), Refused<'r>> {
        let Some(place) = self.read_place(asked, field, scratch)? else {
            let detail = "the rule names a second place by a field, and that field is missing";
            return Err((Reason::BadRequest, detail, Some(rule)));
        };
        match self.rule_of(&place, scratch)? {
            Some(other) if std::ptr::eq(rule, other) => {}
            Some(_) => return Err((Reason::UnmatchedWrite, OTHER_RULE, None)),
            None => return Err((Reason::UnmatchedWrite, NO_RULE, None)),
        }
        let fence = &rule.fences[index];
        let start = scratch.names.len();
        let filled = fence.resource.fill(
            &sources(&place, &scratch.destination),
            rule.fold_case,
            &mut scratch.names,
        );
        if let Err((reason, _)) = filled {
            scratch.names.truncate(start);
            return Err((reason, UNNAMED, Some(rule)));
        }
        scratch.hold(start, index, fence);
        Ok(())
    }

    /// Checks that what a field names is claimed, or free.
    fn check_place<'r>(
        &'r self,
        asked: &Asked<'_>,
        found: Option<&'r Rule>,
        field: &str,
        scratch: &mut Scratch,
    ) -> Result<(), Refused<'r>> {
        let Some(place) = self.read_place(asked, field, scratch)? else {
            return Ok(());
        };
        match (found, self.rule_of(&place, scratch)?) {
            (_, None) if self.unmatched.writes == Policy::Pass => Ok(()),
            (_, None) => Err((Reason::UnmatchedWrite, NO_RULE, None)),
            (Some(rule), Some(other)) if std::ptr::eq(rule, other) => rule.has_claimed(&place, scratch),
            (_, Some(_)) => Err((Reason::UnmatchedWrite, OTHER_RULE, None)),
        }
    }

    /// Reads the path in a field into the scratch: the request as if it were for that place. `None` where there is
    /// no such field.
    fn read_place<'a>(
        &self,
        asked: &Asked<'a>,
        field: &str,
        scratch: &mut Scratch,
    ) -> Result<Option<Asked<'a>>, Refused<'static>> {
        let target = match read(&asked.request, field) {
            Ok(None) => return Ok(None),
            Ok(Some(target)) => target,
            Err(detail) => return Err((Reason::AmbiguousPath, detail, None)),
        };
        let (path, query) = split_target(target);
        if path::read(path, self.paths, &mut scratch.destination).is_err() {
            let detail = "the Destination's path can be read in two ways";
            return Err((Reason::AmbiguousPath, detail, None));
        }
        Ok(Some(Asked { query, ..*asked }))
    }

    fn rule_of<'r>(&'r self, place: &Asked<'_>, scratch: &Scratch) -> Result<Option<&'r Rule>, Refused<'r>> {
        for rule in &self.rules {
            match rule.try_on(place, &scratch.destination) {
                Tried::Matches => return Ok(Some(rule)),
                Tried::OtherPath
                | Tried::OtherMethod
                | Tried::OtherHost
                | Tried::OtherHeader(_)
                | Tried::OtherQuery(_) => {}
                Tried::MethodCase | Tried::Parameters | Tried::Shifted | Tried::Unclear(_) => {
                    let detail = "whether a rule matches the Destination can't be told";
                    return Err((Reason::AmbiguousPath, detail, None));
                }
            }
        }
        Ok(None)
    }
}

impl Rule {
    /// Whether all that the target's fences would name at this place is claimed.
    fn has_claimed<'r>(&'r self, place: &Asked<'_>, scratch: &mut Scratch) -> Result<(), Refused<'r>> {
        let end = scratch.names.len();
        for fence in self.fences.iter().filter(|fence| fence.path_from.is_none()) {
            let from = sources(place, &scratch.destination);
            let filled = fence.resource.fill(&from, self.fold_case, &mut scratch.names);
            let name = &scratch.names[end..];
            let claimed = scratch
                .claims
                .iter()
                .any(|held| scratch.names[held.name.clone()] == *name);
            scratch.names.truncate(end);
            if let Err((reason, _)) = filled {
                return Err((reason, UNNAMED, Some(self)));
            }
            if !claimed {
                let detail = "the Destination is another resource than those that the tokens are for";
                return Err((Reason::UnmatchedWrite, detail, Some(self)));
            }
        }
        Ok(())
    }
}

fn sources<'a>(place: &Asked<'a>, segments: &'a path::Segments) -> Sources<'a> {
    Sources {
        segments,
        query: place.query,
        host: place.request.host,
        fields: place.request.fields,
    }
}

/// The target in a field, `path[?query]`; `None` where there is no such field.
fn read<'a>(request: &Request<'a>, field: &str) -> Result<Option<&'a str>, &'static str> {
    let mut found = request.fields.iter().filter(|f| same_variable(f.name, field));
    let Some(first) = found.next() else {
        return Ok(None);
    };
    if found.next().is_some() || !first.name.eq_ignore_ascii_case(field) {
        return Err("the Destination was sent twice, or under a name that some backends take for it");
    }
    let text = std::str::from_utf8(first.value).map_err(|_| "the Destination is not UTF-8")?;
    let text = text.trim_matches([' ', '\t']);
    let Some(rest) = without_scheme(text) else {
        return Ok(Some(text));
    };
    let at = rest.find('/').ok_or("the Destination has no path")?;
    let (authority, target) = rest.split_at(at);
    match (Host::read(authority), Host::read(request.host)) {
        (Some(there), Some(here)) if there.same_place(&here) => Ok(Some(target)),
        _ => Err("the Destination is on another host"),
    }
}

fn without_scheme(text: &str) -> Option<&str> {
    ["http://", "https://"].into_iter().find_map(|scheme| {
        let head = text.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
    })
}

const NO_RULE: &str = "no rule matches the Destination";
const OTHER_RULE: &str = "the Destination falls under another rule";
const UNNAMED: &str = "the Destination can't be given the name of a resource";
