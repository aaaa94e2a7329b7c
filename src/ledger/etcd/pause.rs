//! Growing pauses with jitter, so that many instances that lost etcd at once don't come back at once, and one alone
//! doesn't spin. Called wherever something is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The next pause: doubled each time, up to a bound.
#[derive(Debug)]
pub(super) struct Pause {
    first: Duration,
    most: Duration,
    next: Duration,
    random: RandomState,
    count: u64,
}

impl Pause {
    pub(super) fn new(first: Duration, most: Duration) -> Pause {
        Pause {
            first,
            most,
            next: first,
            random: RandomState::new(),
            count: 0,
        }
    }

    /// The next time is the first again.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// How long to wait now: between half of the present pause and one and a half of it.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        self.jittered(pause)
    }

    /// A wait of about `wait`.
    pub(super) fn jittered(&mut self, wait: Duration) -> Duration {
        self.count = self.count.wrapping_add(1);
        let part = self.random.hash_one(self.count) % 1000;
        wait / 2 + wait * u32::try_from(part).expect("less than 1000") / 1000
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pause;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_again() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(100), ms(1000));
        let mut bases = vec![];
        for _ in 0..6 {
            bases.push(pause.next);
            let taken = pause.next();
            let base = *bases.last().unwrap();
            assert!(taken >= base / 2 && taken < base * 3 / 2, "{taken:?} of {base:?}");
        }
        assert_eq!(bases, [ms(100), ms(200), ms(400), ms(800), ms(1000), ms(1000)]);
        pause.reset();
        assert_eq!(pause.next, ms(100));
    }
}
