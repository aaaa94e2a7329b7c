//! Path patterns: `/{bucket}/{*key}` read once, matched against a request's decoded segments.
//!
//! A pattern matches whole paths. `{name}` takes one segment, `{*rest}` at the end takes one or more. Nothing
//! here decodes or judges a path (`path.rs` does). Called by `config/` (to read) and by `judge.rs` (to match).

use super::fold::folds_to_same;
use super::path::{Segments, Tail};

/// A path pattern as the configuration writes it.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    segments: Box<[Segment]>,
    captures: Box<[Box<str>]>,
    rest: bool,
    any: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Segment {
    Literal(Box<str>),
    Capture,
}

/// How a pattern and a path go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The pattern matches.
    Yes,
    /// It does not.
    No,
    /// It matches only where the backend cuts `;…` off a segment, as some do.
    WithoutParameters,
    /// Whether it matches hangs on what the backend makes of an empty segment or an encoded slash.
    Shifted,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let body = text.strip_prefix('/').ok_or_else(|| {
            format!("the path pattern {text:?} must start with a slash, as in \"/{{bucket}}/{{*key}}\"")
        })?;
        let mut pattern = Pattern {
            text: text.into(),
            segments: Box::default(),
            captures: Box::default(),
            rest: false,
            any: false,
        };
        if body.is_empty() {
            return Ok(pattern);
        }
        let (mut segments, mut captures) = (Vec::new(), Vec::<Box<str>>::new());
        let mut parts = body.split('/').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            match read_segment(part, last)? {
                Part::Literal => segments.push(Segment::Literal(part.into())),
                Part::Capture { name, rest } => {
                    if captures.iter().any(|c| **c == *name) {
                        return Err(format!(
                            "the capture {{{name}}} stands twice in {text:?}: give each its own name"
                        ));
                    }
                    captures.push(name.into());
                    segments.push(Segment::Capture);
                    pattern.rest = rest;
                }
            }
        }
        pattern.segments = segments.into();
        pattern.captures = captures.into();
        Ok(pattern)
    }

    /// The pattern of a rule that names no path: it matches every one.
    #[must_use]
    pub fn any() -> Pattern {
        Pattern {
            text: "(any path)".into(),
            segments: Box::default(),
            captures: Box::default(),
            rest: false,
            any: true,
        }
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of the captures, in the order of the path.
    #[must_use]
    pub fn captures(&self) -> &[Box<str>] {
        &self.captures
    }

    /// Whether the capture of this index takes several segments.
    #[must_use]
    pub fn takes_rest(&self, capture: usize) -> bool {
        self.rest && capture + 1 == self.captures.len()
    }

    /// Whether every path that `other` matches is matched by this one too.
    pub(super) fn covers(&self, other: &Pattern) -> bool {
        if self.any || other.any {
            return self.any;
        }
        let (mine, theirs) = (self.segments.len(), other.segments.len());
        let long_enough = if self.rest {
            theirs >= mine
        } else {
            theirs == mine && !other.rest
        };
        long_enough
            && self
                .segments
                .iter()
                .zip(&other.segments)
                .all(|(m, t)| *m == Segment::Capture || m == t)
    }

    /// Compares the pattern with a path.
    pub(super) fn fit(&self, segments: &Segments, fold_case: bool) -> Fit {
        let at = |i: usize| segments.at(i);
        match segments.tail() {
            None => self.fit_firm(segments.count(), at, fold_case),
            Some(tail) => self.fit_loose(segments.count(), tail, at, fold_case),
        }
    }

    /// Compares the pattern with decoded segments that are all there is.
    pub(super) fn fit_firm<'p>(&self, count: usize, at: impl Fn(usize) -> &'p str, fold_case: bool) -> Fit {
        let wanted = self.segments.len();
        if self.any {
            return Fit::Yes;
        }
        if count < wanted || (count > wanted && !self.rest) {
            return Fit::No;
        }
        self.fit_literals(wanted, at, fold_case)
    }

    /// Compares the pattern with `firm` segments and a tail: see `path.rs` for why each answer is every backend's.
    fn fit_loose<'p>(&self, firm: usize, tail: Tail, at: impl Fn(usize) -> &'p str, fold_case: bool) -> Fit {
        if self.any {
            return Fit::Yes;
        }
        let wanted = self.segments.len();
        let (least, most) = (firm + tail.least, firm + tail.most);
        let fit = self.fit_literals(wanted.min(firm), at, fold_case);
        if fit == Fit::No || most < wanted || (!self.rest && least > wanted) {
            return Fit::No;
        }
        if self.rest && firm + 1 >= wanted && least >= wanted {
            return fit;
        }
        Fit::Shifted
    }

    fn fit_literals<'p>(&self, count: usize, at: impl Fn(usize) -> &'p str, fold_case: bool) -> Fit {
        let mut fit = Fit::Yes;
        for (i, segment) in self.segments[..count].iter().enumerate() {
            let Segment::Literal(literal) = segment else {
                continue;
            };
            let found = at(i);
            if same(literal, found, fold_case) {
                continue;
            }
            match found.split_once(';') {
                Some((stem, _)) if same(literal, stem, fold_case) => fit = Fit::WithoutParameters,
                _ => return Fit::No,
            }
        }
        fit
    }

    /// The index of the segment where a capture starts. The last one of a `{*rest}` pattern goes on to the end.
    pub(super) fn segment_of(&self, capture: usize) -> usize {
        self.segments
            .iter()
            .enumerate()
            .filter(|(_, s)| **s == Segment::Capture)
            .nth(capture)
            .map_or(0, |(i, _)| i)
    }
}

enum Part<'t> {
    Literal,
    Capture { name: &'t str, rest: bool },
}

fn read_segment(part: &str, last: bool) -> Result<Part<'_>, String> {
    if let Some(inside) = part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
        let (name, rest) = match inside.strip_prefix('*') {
            Some(name) => (name, true),
            None => (inside, false),
        };
        check_capture_name(name)?;
        if rest && !last {
            return Err(format!(
                "{{*{name}}} takes the rest of the path, so it must come last"
            ));
        }
        return Ok(Part::Capture { name, rest });
    }
    check_literal(part, last)?;
    Ok(Part::Literal)
}

fn check_capture_name(name: &str) -> Result<(), String> {
    let sound = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !sound {
        return Err(format!(
            "{{{name}}} is not a capture: its name is a letter, then letters, digits, _ or -, as in {{bucket}} or {{*key}}"
        ));
    }
    if name == "host" {
        return Err("{host} is the request's host; give the capture another name".into());
    }
    Ok(())
}

fn check_literal(part: &str, last: bool) -> Result<(), String> {
    if part.is_empty() && last {
        return Err("a trailing slash is ignored when paths are matched; leave it out of the pattern".into());
    }
    if part.is_empty() || part == "." || part == ".." {
        return Err("empty segments, . and .. are refused in paths, so no pattern can have them".into());
    }
    if part == "*" || part == "**" {
        return Err(format!(
            "{part} is not a pattern here: {{name}} takes one segment, {{*rest}} the rest"
        ));
    }
    if part.contains(['{', '}']) {
        return Err(format!(
            "a capture takes a whole segment: {part:?} mixes it with text"
        ));
    }
    if part.contains('%') {
        return Err(format!(
            "patterns match the decoded path: write {part:?} without percent-encoding"
        ));
    }
    if let Some(c) = part
        .chars()
        .find(|c| c.is_control() || matches!(c, '\\' | '?' | '#'))
    {
        return Err(format!("{c:?} can't be in a path pattern"));
    }
    Ok(())
}

fn same(literal: &str, found: &str, fold_case: bool) -> bool {
    literal == found || (fold_case && folds_to_same(literal, found))
}
