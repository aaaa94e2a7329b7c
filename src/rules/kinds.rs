//! Kinds of tokens: a mark that was made of single numbers says nothing about pairs, and the other way round. A
//! rule whose tokens became of another kind would compare the two as numbers, and let through what is stale. This
//! finds the marks that a rule could meet with tokens of another kind. Called by `server/` for the marks that it
//! loads, and by `admin/` before an operator sets one.

use std::fmt::Write;
use std::sync::Arc;

use super::{Mode, Shape};
use crate::base::TokenFormat;

/// The fences of all rules that enforce: those that observe have marks of their own.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    fences: Vec<Fenced>,
}

/// One fence of a rule, of whatever protocol: which names it gives, and how its tokens are written.
#[derive(Clone, Debug)]
pub struct Fenced {
    /// The rule's name.
    pub rule: Arc<str>,
    /// The rule's mode.
    pub mode: Mode,
    /// The names.
    pub shape: Shape,
    /// How its tokens are written.
    pub format: TokenFormat,
    /// Whether names that differ in letter case only are one.
    pub fold_case: bool,
}

/// A rule whose tokens are of another kind than those of a resource that it could name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherKind {
    /// The rule's name.
    pub rule: Arc<str>,
    /// How the rule's tokens are written.
    pub format: TokenFormat,
}

/// Marks that some rule could meet with tokens of another kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Misfits {
    shown: Vec<String>,
    count: usize,
}

impl Kinds {
    /// Those of these.
    #[must_use]
    pub fn of(fences: impl IntoIterator<Item = Fenced>) -> Kinds {
        let enforced = fences.into_iter().filter(|fence| fence.mode == Mode::Enforce);
        Kinds {
            fences: enforced.collect(),
        }
    }

    /// The first rule that could name this resource, and whose tokens are of another kind than `format`. Looks at
    /// names only where some rule's tokens are of another kind at all.
    #[must_use]
    pub fn other(&self, resource: &str, format: TokenFormat) -> Option<OtherKind> {
        let differs = |e: &&Fenced| !e.format.same_kind(format);
        let found = self
            .fences
            .iter()
            .filter(differs)
            .find(|e| e.shape.could_name(resource, e.fold_case))?;
        Some(OtherKind {
            rule: Arc::clone(&found.rule),
            format: found.format,
        })
    }
}

impl Misfits {
    /// Looks at one stored mark.
    pub fn look(&mut self, kinds: &Kinds, resource: &str, format: TokenFormat) {
        let Some(other) = kinds.other(resource, format) else {
            return;
        };
        self.count += 1;
        if self.shown.len() < SHOWN_MAX {
            // A name may be as long as a head, and is a client's text.
            let mut name: String = resource.chars().take(NAME_CHARS_MAX).collect();
            if name.len() < resource.len() {
                name.push('…');
            }
            self.shown.push(format!(
                "{name:?} (its mark is {}, rule {:?} reads {})",
                format.as_str(),
                other.rule,
                other.format.as_str()
            ));
        }
    }

    /// What is wrong and what would be right; `None` where every mark can be compared.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        let mut text = format!(
            "{} of the stored marks can't be compared with the tokens that the rules now read: {}",
            self.count,
            self.shown.join(", ")
        );
        let more = self.count - self.shown.len();
        if more > 0 {
            let _ = write!(text, ", and {more} more");
        }
        text.push_str(
            "; give the new tokens resources of another name, such as a prefix in the rule's resource:, so that they have \
             fences of their own, or keep the old format",
        );
        Some(text)
    }
}

const SHOWN_MAX: usize = 3;
const NAME_CHARS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::{Kinds, Misfits};
    use crate::base::TokenFormat::{Hex, Integer, Pair};
    use crate::rules::{Mode, RuleSet, tests};

    fn set(mode: Mode, fold_case: bool) -> RuleSet {
        let mut rule = tests::rule("/{bucket}/{*key}", "Bucket/{bucket}");
        rule.mode = mode;
        rule.fold_case = fold_case;
        tests::set(vec![rule])
    }

    #[test]
    fn only_names_that_a_rule_could_give_and_only_other_kinds_are_misfits() {
        let set = set(Mode::Enforce, false);
        let kinds = Kinds::of(set.fences());
        assert_eq!(kinds.other("Bucket/a", Integer), None);
        assert_eq!(kinds.other("Bucket/a", Hex), None);
        let other = kinds.other("Bucket/a", Pair).unwrap();
        assert_eq!((&*other.rule, other.format), ("r", Integer));
        for name in ["", "Bucket", "Bucket/", "bucket/a", "Bucket/a/b", "xBucket/a"] {
            assert_eq!(kinds.other(name, Pair), None, "{name}");
        }
    }

    #[test]
    fn names_are_folded_as_the_rule_folds_them_and_observers_have_none() {
        let folding = set(Mode::Enforce, true);
        let kinds = Kinds::of(folding.fences());
        assert!(kinds.other("bucket/a", Pair).is_some());
        assert!(
            kinds.other("Bucket/a", Pair).is_none(),
            "no folding rule gives this name"
        );
        assert!(
            Kinds::of(set(Mode::Observe, false).fences())
                .other("Bucket/a", Pair)
                .is_none()
        );
    }

    #[test]
    fn the_complaint_names_a_few_and_how_many() {
        let set = set(Mode::Enforce, false);
        let kinds = Kinds::of(set.fences());
        let mut misfits = Misfits::default();
        misfits.look(&kinds, "Bucket/fine", Integer);
        assert_eq!(misfits.complaint(), None);
        for n in 0..5 {
            misfits.look(&kinds, &format!("Bucket/{n}{}", "x".repeat(1000)), Pair);
        }
        let text = misfits.complaint().unwrap();
        for words in [
            "5 of the stored marks",
            "\"Bucket/0x",
            "…",
            "Bucket/2",
            "and 2 more",
            "pair",
            "integer",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.len() < 1000 && !text.contains("Bucket/3"), "{text}");
    }
}
