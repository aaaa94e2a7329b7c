//! What was made of files, replaced as a whole when they change and fit.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::files::Contents;
use super::{Refreshed, Unfit};

/// A configuration of rustls, as the files made it.
pub struct Held<C> {
    now: RwLock<(Arc<C>, Option<i64>)>,
    seen: Mutex<Seen>,
}

/// Which contents were looked at.
struct Seen {
    /// Those that were judged last: taken, or refused.
    judged: u64,
    /// Those that did not fit at the last look. Perhaps they are only half replaced.
    suspect: Option<u64>,
}

impl<C> Held<C> {
    pub fn new(
        contents: &Contents,
        make: impl FnOnce(&Contents) -> Result<(C, Option<i64>), Unfit>,
    ) -> Result<Held<C>, Unfit> {
        let (config, not_after) = make(contents)?;
        Ok(Held {
            now: RwLock::new((Arc::new(config), not_after)),
            seen: Mutex::new(Seen {
                judged: contents.print(),
                suspect: None,
            }),
        })
    }

    pub fn get(&self) -> Arc<C> {
        Arc::clone(&self.now.read().0)
    }

    pub fn not_after(&self) -> Option<i64> {
        self.now.read().1
    }

    /// Takes changed contents that fit at once. Those that don't are refused only if they are the same at a second
    /// look: a certificate and its key are replaced one after the other.
    pub fn refresh(
        &self,
        contents: &Contents,
        make: impl FnOnce(&Contents) -> Result<(C, Option<i64>), Unfit>,
    ) -> Refreshed {
        let mut seen = self.seen.lock();
        let print = contents.print();
        if print == seen.judged {
            seen.suspect = None;
            return Refreshed::Same;
        }
        match make(contents) {
            Ok((config, not_after)) => {
                *self.now.write() = (Arc::new(config), not_after);
                *seen = Seen {
                    judged: print,
                    suspect: None,
                };
                Refreshed::Taken
            }
            Err(_) if seen.suspect != Some(print) => {
                seen.suspect = Some(print);
                Refreshed::Same
            }
            Err(unfit) => {
                *seen = Seen {
                    judged: print,
                    suspect: None,
                };
                Refreshed::Refused(unfit)
            }
        }
    }
}
