//! The one history of etcd that this instance trusts: a cluster, its revisions, which only grow, and the prefix's
//! adoptions. Pure bookkeeping; called by `cluster.rs` and `standby.rs`.
//!
//! An etcd that was restored from an older copy, or another cluster at the same address, has forgotten marks. Nobody
//! can tell which; so nothing it says is taken, until an operator has adopted it.

use super::values::{IdentityValue, shown_cluster};

/// Where an answer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) cluster: u64,
    pub(super) revision: i64,
}

/// What is known of the history.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    latest: Option<Origin>,
    identity: Option<IdentityValue>,
    /// The known cluster has answered with less than it had acknowledged. What comes after that may look right again,
    /// by its revision, and lacks marks all the same.
    went_back: bool,
}

/// How an identity stands to what is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// The same, or the first that is seen.
    Known,
    /// An operator has adopted the prefix in the cluster that answered.
    Adopted,
    /// It is not to be trusted, because of this.
    Doubtful(String),
}

impl History {
    /// The latest that is known: to be asked before a question is sent, for [`History::allows`].
    pub(super) fn latest(&self) -> Option<Origin> {
        self.latest
    }

    /// Whether an answer can be of this history: `before` is what was known when its question was sent. A linearizable
    /// answer then has no lower revision.
    pub(super) fn allows(before: Option<Origin>, answer: Origin) -> Result<(), String> {
        match before {
            Some(known) if known.cluster != answer.cluster => Err(format!(
                "it is cluster {}, and {} is known",
                shown_cluster(answer.cluster),
                shown_cluster(known.cluster)
            )),
            Some(known) if known.revision > answer.revision => Err(format!(
                "it has revision {}, and {} is known already: an older copy was restored",
                answer.revision, known.revision
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of an answer that was allowed.
    pub(super) fn note(&mut self, answer: Origin) {
        let revision = self.latest.map_or(0, |known| known.revision);
        self.latest = Some(Origin {
            revision: revision.max(answer.revision),
            ..answer
        });
    }

    /// What to make of an identity that came with `answer`, which was allowed or not.
    pub(super) fn standing(
        &self,
        allowed: Result<(), String>,
        answer: Origin,
        found: Option<&IdentityValue>,
    ) -> Standing {
        let Some(found) = found else {
            return match (&self.identity, allowed) {
                (Some(_), _) => Standing::Doubtful(
                    "the keys of the prefix are gone; where that is meant, start all instances again"
                        .to_owned(),
                ),
                (None, Err(why)) => Standing::Doubtful(why),
                (None, Ok(())) => self.as_known(),
            };
        };
        if found.cluster != shown_cluster(answer.cluster) {
            return Standing::Doubtful(format!(
                "the prefix belongs to cluster {}, and cluster {} answers: a copy was restored",
                found.cluster,
                shown_cluster(answer.cluster)
            ));
        }
        let known = self.identity.as_ref();
        match known {
            // One that is known from before shows an older copy.
            Some(known) if known.earlier.contains(&found.adoption) => {
                Standing::Doubtful("the prefix is an older copy of what is known".to_owned())
            }
            Some(known) if known.adoption != found.adoption => Standing::Adopted,
            Some(_) | None => match allowed {
                Ok(()) => self.as_known(),
                Err(why) => Standing::Doubtful(why),
            },
        }
    }

    fn as_known(&self) -> Standing {
        if self.went_back {
            return Standing::Doubtful(
                "it had answered with an older revision than the known one, and only an operator can say that nothing is \
                 missing"
                    .to_owned(),
            );
        }
        Standing::Known
    }

    /// No member answers from the known history: `answer` was the last one's.
    pub(super) fn doubt(&mut self, answer: Origin) {
        let back = |known: Origin| known.cluster == answer.cluster && known.revision > answer.revision;
        self.went_back |= self.latest.is_some_and(back);
    }

    /// Goes on from here: an operator has adopted the prefix.
    pub(super) fn begin_again(&mut self, answer: Origin) {
        *self = History {
            latest: Some(answer),
            ..History::default()
        };
    }

    /// Takes note of the prefix's identity.
    pub(super) fn belongs_to(&mut self, identity: &IdentityValue) {
        if self.identity.as_ref() != Some(identity) {
            self.identity = Some(identity.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Origin, Standing};
    use crate::ledger::etcd::values::IdentityValue;

    fn at(cluster: u64, revision: i64) -> Origin {
        Origin { cluster, revision }
    }

    fn known(origin: Origin, identity: &IdentityValue) -> History {
        let mut history = History::default();
        history.note(origin);
        history.belongs_to(identity);
        history
    }

    #[test]
    fn a_step_back_and_another_cluster_are_not_allowed() {
        assert_eq!(History::allows(None, at(1, 5)), Ok(()));
        assert_eq!(History::allows(Some(at(1, 5)), at(1, 5)), Ok(()));
        assert!(History::allows(Some(at(1, 5)), at(1, 4)).is_err());
        assert!(History::allows(Some(at(1, 5)), at(2, 9)).is_err());
    }

    #[test]
    fn a_history_that_went_back_is_not_trusted_once_its_revision_has_caught_up() {
        let made = IdentityValue::new(1, 0);
        let mut history = known(at(1, 9), &made);
        // Another cluster for a while says nothing of this one.
        history.doubt(at(2, 3));
        assert_eq!(history.standing(Ok(()), at(1, 9), Some(&made)), Standing::Known);
        history.doubt(at(1, 8));
        let caught_up = History::allows(history.latest(), at(1, 20));
        assert_eq!(caught_up, Ok(()));
        assert!(matches!(
            history.standing(caught_up, at(1, 20), Some(&made)),
            Standing::Doubtful(_)
        ));
        history.begin_again(at(1, 21));
        assert_eq!(history.standing(Ok(()), at(1, 22), Some(&made)), Standing::Known);
    }

    #[test]
    fn an_answer_that_comes_late_lowers_nothing() {
        let mut history = History::default();
        history.note(at(1, 9));
        history.note(at(1, 7));
        assert_eq!(history.latest(), Some(at(1, 9)));
    }

    #[test]
    fn only_a_new_adoption_in_the_cluster_that_answers_is_an_operators_word() {
        let made = IdentityValue::new(1, 0);
        let history = known(at(1, 9), &made);
        let back = |answer| History::allows(history.latest(), answer);
        let standing = |answer, found: &IdentityValue| history.standing(back(answer), answer, Some(found));
        assert_eq!(standing(at(1, 9), &made), Standing::Known);
        assert!(matches!(standing(at(1, 5), &made), Standing::Doubtful(_)));
        assert!(matches!(standing(at(2, 10), &made), Standing::Doubtful(_)));
        assert_eq!(standing(at(1, 6), &made.clone().adopted(1, 1)), Standing::Adopted);
        assert_eq!(standing(at(2, 6), &made.clone().adopted(2, 1)), Standing::Adopted);
        assert!(matches!(
            standing(at(2, 6), &made.clone().adopted(1, 1)),
            Standing::Doubtful(_)
        ));
        assert!(matches!(
            history.standing(Ok(()), at(1, 10), None),
            Standing::Doubtful(_)
        ));
    }

    #[test]
    fn an_older_adoption_is_an_older_copy() {
        let made = IdentityValue::new(1, 0);
        let adopted = made.clone().adopted(1, 1);
        let history = known(at(1, 9), &adopted);
        assert!(matches!(
            history.standing(Ok(()), at(1, 10), Some(&made)),
            Standing::Doubtful(_)
        ));
    }

    #[test]
    fn a_prefix_that_was_made_elsewhere_is_refused_also_at_the_start() {
        let history = History::default();
        let made = IdentityValue::new(1, 0);
        assert!(matches!(
            history.standing(Ok(()), at(2, 10), Some(&made)),
            Standing::Doubtful(_)
        ));
        assert_eq!(history.standing(Ok(()), at(1, 10), None), Standing::Known);
    }
}
