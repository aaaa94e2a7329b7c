//! The rules of a listener, checked, and what must hold between all rules: a resource that two rules may name
//! has one token format and one mode, since it has one mark. Called by `build.rs`.

use super::allow;
use super::build::words;
use super::problem::At;
use super::reader::{Map, Placed, Reader, Word};
use super::token;
use super::units;
use crate::base::TokenFormat;
use crate::rules::{
    Action, Conditions, FenceRule, Fenced, HostPattern, Missing, Mode, Pattern, Reads, Rule, Shape, Template,
    ValuePattern,
};

/// A fence and where its resource is named, for comparing it with all others.
pub(super) struct Origin {
    at: At,
    rule: String,
    resource: Shape,
    format: TokenFormat,
    mode: Mode,
    fold_case: bool,
}

impl Origin {
    pub(super) fn of(at: At, fence: Fenced) -> Origin {
        Origin {
            at,
            rule: format!("rule {:?}", fence.rule),
            resource: fence.shape,
            format: fence.format,
            mode: fence.mode,
            fold_case: fence.fold_case,
        }
    }
}

/// Reads a listener's rules; `None` where a problem was reported.
pub(super) fn read(
    reader: &mut Reader,
    listener: &Map<'_>,
    safe_methods: Option<&[Box<str>]>,
    origins: &mut Vec<Origin>,
) -> Option<Box<[Rule]>> {
    if !listener.has("rules") {
        let message = format!("{} has no rules: nothing is fenced", listener.name());
        reader.warn(listener.at, message);
        return Some(Box::default());
    }
    let before = reader.problems.len();
    let maps = reader.sections(listener, "rules");
    let mut rules: Vec<Option<Rule>> = Vec::new();
    let mut names: Vec<Placed<String>> = Vec::new();
    for (index, map) in maps.iter().enumerate() {
        let name = reader.placed(map, "name", units::name);
        if let Some(name) = &name {
            if let Some(first) = names.iter().find(|n| n.value == name.value) {
                let message = format!(
                    "two rules are named {:?}; the first is at {}",
                    name.value, first.at
                );
                reader.problem(name.at, message);
            }
            names.push(name.clone());
        }
        let rule = rule(
            reader,
            listener,
            (index, map),
            name.map(|n| n.value),
            safe_methods,
            origins,
        );
        if let Some(rule) = &rule {
            warn_if_hidden(reader, map, rule, rules.iter().flatten());
            warn_if_all_need_a_field(reader, map, rule);
        }
        rules.push(rule);
    }
    let rules: Option<Vec<Rule>> = rules.into_iter().collect();
    rules.filter(|_| reader.problems.len() == before).map(Into::into)
}

fn rule(
    reader: &mut Reader,
    listener: &Map<'_>,
    (index, map): (usize, &Map<'_>),
    name: Option<String>,
    safe_methods: Option<&[Box<str>]>,
    origins: &mut Vec<Origin>,
) -> Option<Rule> {
    let matches = reader.section(map, "match");
    let path = matches.as_ref().and_then(|m| path(reader, m));
    let methods = matches.as_ref().map(|m| methods(reader, m, safe_methods));
    let allow = allow::allow(reader, listener, map);
    let conditions = matches.as_ref().map(|m| conditions(reader, m));
    let action = reader.choice(map, "action");
    let missing = reader.choice(map, "missing");
    let mode = reader.choice(map, "mode");
    let reads = reader.choice(map, "reads");
    let drain_timeout = reader.value(map, "drain_timeout", units::duration);
    let fold_case = reader.value(map, "fold_case", units::flag);
    let fences = match action? {
        Action::Fence => fences(reader, map, &mut |reader, map| fence(reader, map, path.as_ref())),
        Action::Deny => no_fences(reader, map),
    };
    let rule = Rule {
        name: name?.into(),
        index,
        path: path?,
        methods: methods??,
        conditions: conditions??,
        action: action?,
        fences: fences.iter().flatten().map(|f| f.value.clone()).collect(),
        allow: allow?,
        missing: missing?,
        mode: mode?,
        reads: reads?,
        drain_timeout: drain_timeout?,
        fold_case: fold_case?,
    };
    let placed = fences?;
    let fenced = placed.iter().zip(rule.fences());
    origins.extend(fenced.map(|(placed, fence)| Origin::of(placed.at, fence)));
    Some(rule)
}

fn path(reader: &mut Reader, map: &Map<'_>) -> Option<Pattern> {
    if map.has("path") {
        reader.value(map, "path", Pattern::parse)
    } else {
        Some(Pattern::any())
    }
}

/// The outer `None` says that a problem was reported, the inner one that the rule takes every write.
#[allow(clippy::option_option)]
fn methods(
    reader: &mut Reader,
    map: &Map<'_>,
    safe_methods: Option<&[Box<str>]>,
) -> Option<Option<Box<[Box<str>]>>> {
    if !map.has("methods") {
        return Some(None);
    }
    let methods = reader.values(map, "methods", units::method)?;
    for method in &methods {
        if safe_methods.is_some_and(|safe| safe.contains(&method.value)) {
            let message = format!(
                "{}: {} is a safe method, and those are matched by the path alone; if it writes here, take it out of the listener's safe_methods",
                map.path_to("methods"),
                method.value
            );
            reader.warn(method.at, message);
        }
    }
    Some(Some(methods.into_iter().map(|m| m.value).collect()))
}

/// What a request must have beside its path. The outer `None` says that a problem was reported.
#[allow(clippy::option_option)]
fn conditions(reader: &mut Reader, map: &Map<'_>) -> Option<Option<Box<Conditions>>> {
    let before = reader.problems.len();
    let hosts = reader.one_or_more(map, "host", HostPattern::parse);
    let headers = reader.pairs(map, "headers", units::matched_header, ValuePattern::parse);
    let query = reader.pairs(map, "query", units::query_name, ValuePattern::parse);
    check_twins(reader, headers.as_deref().unwrap_or_default());
    let pairs = |pairs: Option<Vec<(Placed<Box<str>>, ValuePattern)>>| -> Box<[_]> {
        let pairs = pairs.into_iter().flatten();
        pairs.map(|(name, value)| (name.value, value)).collect()
    };
    let conditions = Conditions {
        hosts: hosts.into_iter().flatten().map(|host| host.value).collect(),
        headers: pairs(headers),
        query: pairs(query),
    };
    let some = (!conditions.is_empty()).then(|| Box::new(conditions));
    (reader.problems.len() == before).then_some(some)
}

/// Names of header fields know no letter case.
fn check_twins(reader: &mut Reader, headers: &[(Placed<Box<str>>, ValuePattern)]) {
    for (index, (second, _)) in headers.iter().enumerate() {
        let twin = headers[..index]
            .iter()
            .find(|(first, _)| first.value.eq_ignore_ascii_case(&second.value));
        if let Some((first, _)) = twin {
            let message = format!(
                "{} stands here again; it is at {} already",
                second.value, first.at
            );
            reader.problem(second.at, message);
        }
    }
}

/// A rule that denies compares nothing.
fn no_fences(reader: &mut Reader, map: &Map<'_>) -> Option<Vec<Placed<FenceRule>>> {
    let useless = ["resource", "token", "fences", "missing", "reads", "drain_timeout"];
    match useless.into_iter().find(|key| map.has(key)) {
        None => Some(Vec::new()),
        Some(key) => {
            let message = format!(
                "{} says nothing beside action: deny; leave it out",
                map.path_to(key)
            );
            reader.problem(map.place_of(key), message);
            None
        }
    }
}

/// Reads a rule's one fence, or its list of them, each by `fence`.
pub(super) fn fences<F>(
    reader: &mut Reader,
    map: &Map<'_>,
    fence: &mut dyn FnMut(&mut Reader, &Map<'_>) -> Option<Placed<F>>,
) -> Option<Vec<Placed<F>>> {
    let single = ["resource", "token"].into_iter().find(|key| map.has(key));
    let several = map.has("fences");
    match single {
        Some(key) if several => {
            let message = format!("{} stands beside fences; move it into the list", map.path_to(key));
            reader.problem(map.place_of(key), message);
            None
        }
        None if !several => {
            reader.problem(
                map.at,
                format!(
                    "{} names nothing to fence; give it resource and token, or fences",
                    map.name()
                ),
            );
            None
        }
        Some(_) => fence(reader, map).map(|f| vec![f]),
        None => {
            let maps = reader.sections(map, "fences");
            let read: Vec<_> = maps.iter().map(|m| fence(reader, m)).collect();
            read.into_iter()
                .collect::<Option<Vec<_>>>()
                .filter(|f| !f.is_empty())
        }
    }
}

/// Reads `resource` and `token`, of a rule or of one of its fences.
fn fence(reader: &mut Reader, map: &Map<'_>, path: Option<&Pattern>) -> Option<Placed<FenceRule>> {
    let resource = resource(reader, map, path);
    if !map.has("token") {
        reader.missing(map, "token");
        return None;
    }
    let section = reader.section(map, "token")?;
    let format = reader.choice(&section, "format");
    let max_step = allow::max_step(reader, &section, format);
    let token = token::source(reader, &section);
    let path_from = path_from(reader, map);
    let resource = resource?;
    Some(Placed {
        at: resource.at,
        value: FenceRule {
            resource: resource.value,
            path_from: path_from?,
            token: token?,
            format: format?,
            max_step: max_step?,
        },
    })
}

/// The field whose path a fence is named by. The outer `None` says that a problem was reported. A rule's own
/// `resource` has none.
#[allow(clippy::option_option)]
fn path_from(reader: &mut Reader, map: &Map<'_>) -> Option<Option<Box<str>>> {
    if !map.knows("path_from") || !map.has("path_from") {
        return Some(None);
    }
    let section = reader.section(map, "path_from")?;
    reader.value(&section, "header", units::path_header).map(Some)
}

fn resource(reader: &mut Reader, map: &Map<'_>, path: Option<&Pattern>) -> Option<Placed<Template>> {
    if !map.has("resource") {
        reader.missing(map, "resource");
        return None;
    }
    let text = reader.placed(map, "resource", |text| Ok(text.to_string()))?;
    match Template::parse(&text.value, path?) {
        Ok(value) => Some(Placed { at: text.at, value }),
        Err(message) => {
            reader.problem(text.at, format!("{}: {message}", map.path_to("resource")));
            None
        }
    }
}

fn warn_if_hidden<'a>(
    reader: &mut Reader,
    map: &Map<'_>,
    rule: &Rule,
    mut earlier: impl Iterator<Item = &'a Rule>,
) {
    if let Some(first) = earlier.find(|e| e.covers(rule)) {
        let message = format!(
            "rule {:?} never matches: rule {:?} before it takes all of its requests",
            rule.name, first.name
        );
        reader.warn(map.at, message);
    }
}

/// A fence named by a field that only some methods carry refuses all others.
fn warn_if_all_need_a_field(reader: &mut Reader, map: &Map<'_>, rule: &Rule) {
    if rule.methods.is_some() {
        return;
    }
    let asks_for = |field: &str| {
        let headers = rule.conditions.iter().flat_map(|conditions| &conditions.headers);
        headers
            .into_iter()
            .any(|(name, _)| name.eq_ignore_ascii_case(field))
    };
    let fields = rule.fences.iter().filter_map(|fence| fence.path_from.as_deref());
    if let Some(field) = fields.into_iter().find(|field| !asks_for(field)) {
        let message = format!(
            "{}: a fence has path_from: {field}, so every write without that field is refused, a PUT too; list the methods that carry it, as methods: [MOVE, COPY]",
            map.path_to("match")
        );
        reader.warn(map.place_of("match"), message);
    }
}

/// Compares all fences of all listeners with each other.
pub(super) fn check_across(reader: &mut Reader, origins: &[Origin]) {
    for (index, second) in origins.iter().enumerate() {
        for first in &origins[..index] {
            check_pair(reader, first, second);
        }
    }
}

fn check_pair(reader: &mut Reader, first: &Origin, second: &Origin) {
    let differ = (
        first.format != second.format,
        first.mode != second.mode,
        first.fold_case != second.fold_case,
    );
    let fold_case = first.fold_case || second.fold_case;
    if differ == (false, false, false) || !first.resource.overlaps(&second.resource, fold_case) {
        return;
    }
    let both = format!(
        "the resource {:?} of {} can be {:?} of {} ({})",
        second.resource.as_str(),
        second.rule,
        first.resource.as_str(),
        first.rule,
        first.at
    );
    if differ.0 {
        let formats = (second.format.as_str(), first.format.as_str());
        reader.problem(second.at, format!("{both}, with another token format ({} and {}): a resource has one mark; use one format, or names that differ", formats.0, formats.1));
    }
    if differ.1 {
        reader.problem(
            second.at,
            format!("{both}, and one enforces while the other observes; use one mode, or names that differ"),
        );
    }
    if differ.2 {
        reader.warn(
            second.at,
            format!("{both}, and only one has fold_case: the backend's name would then have two fences"),
        );
    }
}

words!(TokenFormat: "integer" => TokenFormat::Integer, "hex" => TokenFormat::Hex, "pair" => TokenFormat::Pair);
words!(Missing: "deny" => Missing::Deny, "pass" => Missing::Pass, "pass_until_fenced" => Missing::PassUntilFenced);
words!(Mode: "enforce" => Mode::Enforce, "observe" => Mode::Observe);
words!(Action: "fence" => Action::Fence, "deny" => Action::Deny);
words!(Reads: "raise" => Reads::Raise, "ignore" => Reads::Ignore);
