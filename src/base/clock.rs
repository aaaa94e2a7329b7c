//! Time for decisions: nanoseconds on the monotonic clock since the process asked for it first.
//!
//! The monotonic clock stops while the machine is suspended. For the waits that end a doubt that is the safe
//! side: they last longer, never shorter. The wall clock decides nothing; it only stamps records for people.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on the monotonic clock, in nanoseconds since the [`Clock`]'s start. Pure code gets it passed in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// This moment plus `wait`, saturating at the far end.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Moment {
        Moment(
            self.0
                .saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// How long from `earlier` to this moment; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Reads the monotonic clock as [`Moment`]s.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose zero is now.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Clock {
        Clock {
            start: Instant::now(),
        }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The same moment for interfaces that take an [`Instant`].
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.start + Duration::from_nanos(moment.0)
    }
}

/// The present moment on the clock that goes on while the machine is suspended: nanoseconds since it was started. For
/// leases, which somebody else ends meanwhile. Not to be mixed with the moments of a [`Clock`].
#[must_use]
pub fn boot_now() -> Moment {
    let mut time = std::mem::MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is good for one timespec, which is read only where the call has filled it.
    let time = unsafe {
        let failed = libc::clock_gettime(libc::CLOCK_BOOTTIME, time.as_mut_ptr());
        assert_eq!(failed, 0, "Linux has had this clock since 2.6.39");
        time.assume_init()
    };
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Milliseconds since 1970 on the wall clock: for records that people read, never for a decision.
#[must_use]
pub fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0))
}
