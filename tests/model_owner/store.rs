//! The store: what a transaction compares and writes when it lands. It may land at any time after it was sent, also
//! when nobody awaits its answer any more, or never.

use fencegate::owner::Revision;

use super::mutants::Mutant;
use super::world::{Outcome, OwnerKey, Rank, State, Store, Transaction, What, World};

impl World {
    /// The transaction at this place reaches the store.
    pub fn land(&self, state: &mut State, place: usize) {
        let transaction = state.network[place].clone();
        let outcome = self.execute(&mut state.store, state.now, &transaction);
        if transaction.given_up {
            state.network.remove(place);
        } else {
            state.network[place].outcome = Some(outcome);
        }
    }

    fn execute(&self, store: &mut Store, now: u8, transaction: &Transaction) -> Outcome {
        if !self.fits(store, now, transaction.what) {
            return Outcome::Refused(store.tenure(), store.held());
        }
        match transaction.what {
            What::TakeOver {
                lease_end, marker, ..
            } => {
                store.tenures += 1;
                let tenure = Revision(i64::from(store.tenures));
                store.owner = Some(OwnerKey {
                    by: transaction.by,
                    tenure,
                    lease_end,
                });
                store.write_marker(marker);
                Outcome::Written(tenure)
            }
            What::Raise { persist, .. } => {
                store.mark = Rank {
                    resets: store.mark.resets + u8::from(persist.reset),
                    token: persist.token,
                };
                store.mark_revision.0 += 1;
                Outcome::Written(store.mark_revision)
            }
            What::End { tenure, marker } => {
                store.owner = None;
                if let Some(marker) = marker {
                    store.write_marker(marker);
                }
                Outcome::Written(tenure)
            }
        }
    }

    /// Whether its comparisons hold.
    fn fits(&self, store: &Store, now: u8, what: What) -> bool {
        match what {
            What::TakeOver { lease_end, found, .. } => {
                let free = store.owner.is_none() || self.breaks(Mutant::TakesOverFromAnOwner);
                let same = store.marker_revision == found || self.breaks(Mutant::TakesOverAnotherMarker);
                free && same && lease_end > now
            }
            What::Raise { tenure, known, .. } => {
                let owned = store.tenure() == Some(tenure) || self.breaks(Mutant::RaisesWithoutOwnerCompare);
                let same = store.mark_revision == known || self.breaks(Mutant::RaisesWithoutRevisionCompare);
                owned && same
            }
            What::End { tenure, .. } => {
                let others = self.breaks(Mutant::EndsAnothersTenure) && store.owner.is_some();
                store.tenure() == Some(tenure) || others
            }
        }
    }

    /// Forgets what nobody awaits and what can't land any more: no revision comes back.
    pub fn forget_what_cannot_land(&self, state: &mut State) {
        let (store, now) = (&state.store, state.now);
        state.network.retain(|transaction| {
            let may_fit = match transaction.what {
                What::TakeOver { lease_end, found, .. } => {
                    let same = store.marker_revision == found || self.breaks(Mutant::TakesOverAnotherMarker);
                    same && lease_end > now
                }
                What::End { .. } if self.breaks(Mutant::EndsAnothersTenure) => true,
                What::Raise { .. } | What::End { .. } => self.fits(store, now, transaction.what),
            };
            !transaction.given_up || may_fit
        });
    }
}

impl Store {
    pub fn write_marker(&mut self, marker: fencegate::owner::Marker) {
        self.marker = marker;
        self.marker_revision.0 += 1;
    }
}
