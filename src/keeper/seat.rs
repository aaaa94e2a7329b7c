//! Where everything that admits finds the keeper of the moment. With a store of its own a process has one keeper from
//! start to end; with an owned one each tenure has its own, so that nothing of one reaches into the next.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Keeper;

/// The place that a keeper has while its tenure lasts.
#[derive(Debug)]
pub struct Seat(ArcSwap<Keeper>);

impl Seat {
    /// A seat with a keeper on it.
    #[must_use]
    pub fn new(keeper: Arc<Keeper>) -> Arc<Seat> {
        Arc::new(Seat(ArcSwap::new(keeper)))
    }

    /// The keeper of the moment. What it admits is its own, also when another one has come.
    #[must_use]
    pub fn keeper(&self) -> Arc<Keeper> {
        self.0.load_full()
    }

    /// Puts another keeper on it. The one before lets nothing through from here on.
    pub fn pass_to(&self, keeper: Arc<Keeper>) {
        self.0.swap(keeper).retire();
    }
}
