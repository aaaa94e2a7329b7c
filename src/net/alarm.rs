//! One timer for a connection: armed anew only where a deadline comes before it, so that a request that ends in
//! time costs the timer nothing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

/// A timer that many deadlines share, one after the other.
#[derive(Debug)]
pub struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm {
            sleep: Box::pin(tokio::time::sleep(FAR)),
        }
    }
}

const FAR: Duration = Duration::from_secs(24 * 3600);

impl Alarm {
    /// Ready once `deadline` is over.
    pub fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        if self.sleep.deadline() > deadline.into() {
            self.sleep.as_mut().reset(deadline.into());
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            // It may have been armed for an earlier deadline that did not come to pass.
            if Instant::now() >= deadline {
                self.sleep.as_mut().reset((Instant::now() + FAR).into());
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline.into());
        }
        Poll::Pending
    }
}
