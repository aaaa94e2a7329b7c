//! What binds a flight to its fences: one berth each. Made by `admission.rs`, held by `flight.rs`.

use std::ops::Deref;
use std::slice;

use super::{Fence, Keeper};
use crate::base::Token;
use crate::fence::{Claim, Key};

/// One fence that a request is bound to.
#[derive(Clone, Debug)]
pub(super) struct Berth {
    pub fence: Fence,
    bond: Bond,
}

/// By what it is bound.
#[derive(Clone, Copy, Debug)]
enum Bond {
    Token(Token),
    /// Without a token, perhaps to a fence that never had a mark: it is forgotten by its key.
    Without {
        until_fenced: bool,
        key: Key,
    },
}

impl Berth {
    #[inline(always)]
    pub fn new(fence: Fence, claim: Claim, key: Key) -> Berth {
        let bond = match claim {
            Claim::Token(token) => Bond::Token(token),
            Claim::Without { until_fenced } => Bond::Without { until_fenced, key },
        };
        Berth { fence, bond }
    }

    /// Whether it could commit at this moment.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.fence.door.admits(self.claim())
    }

    /// What the request has presented.
    #[inline]
    pub fn claim(&self) -> Claim {
        match self.bond {
            Bond::Token(token) => Claim::Token(token),
            Bond::Without { until_fenced, .. } => Claim::Without { until_fenced },
        }
    }

    /// Whether the fence may be bare, and is to be left by [`Berth::leave`].
    #[inline]
    pub fn may_be_bare(&self) -> bool {
        matches!(self.bond, Bond::Without { .. })
    }

    /// Lets go of the fence.
    pub fn leave(self, keeper: &Keeper) {
        let Berth { fence, bond } = self;
        match bond {
            // Its token was let in, and so there is a mark.
            Bond::Token(_) => {}
            Bond::Without { key, .. } => leave(fence, key, keeper),
        }
    }
}

/// Lets go of a fence; one that never had a mark is forgotten with the last one that holds it.
pub(super) fn leave(fence: Fence, key: Key, keeper: &Keeper) {
    let bare = fence.door.is_bare();
    drop(fence);
    if bare {
        keeper.table.forget_bare(key);
    }
}

/// The fences of a flight, in the order of its asks.
#[derive(Debug)]
pub(super) enum Berths {
    None,
    /// Nearly always it is one. Stands by itself, so that a flight is written where it is to be and not moved there.
    One(Berth),
    Several(Vec<Berth>),
}

impl Deref for Berths {
    type Target = [Berth];

    #[inline]
    fn deref(&self) -> &[Berth] {
        match self {
            Berths::None => &[],
            Berths::One(berth) => slice::from_ref(berth),
            Berths::Several(berths) => berths,
        }
    }
}

impl FromIterator<Berth> for Berths {
    fn from_iter<I: IntoIterator<Item = Berth>>(berths: I) -> Berths {
        let mut berths = berths.into_iter();
        let Some(one) = berths.next() else {
            return Berths::None;
        };
        let Some(two) = berths.next() else {
            return Berths::One(one);
        };
        Berths::Several([one, two].into_iter().chain(berths).collect())
    }
}
