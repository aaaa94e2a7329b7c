//! The ledger's one thread: it gathers what is queued into one durable commit, then calls the `done`s; and it
//! brings the store back after a failure, or finds that it can't be brought back.
//!
//! It never acknowledges what is not durable and never trusts a file after a failed write or fsync: pages that
//! the kernel has marked clean may never reach the disk. Such a file is read again from the disk, compared with
//! what was acknowledged, and copied whole into a new one.
//!
//! Nor does it acknowledge where other files than the open ones stand at the path, or none; and it puts nothing
//! there in their place. Called by `file.rs`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::disk::{Disk, forget_cache};
use super::folder::Folder;
use super::record::{Head, ms_up};
use super::store::{Store, Unfinished};
use super::trouble::{Trouble, WAY_OUT};
use crate::ledger::{Change, Done, StoreError};

/// What the callers' threads and the ledger's share.
pub(super) struct Shared {
    queue: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    shelf: RwLock<Shelf>,
}

/// Where readers find the store.
enum Shelf {
    Open(Store),
    Away(StoreError),
}

/// What the thread is asked to do. The queue holds as many as there are raises waiting at once, which the
/// keeper bounds.
pub(super) enum Job {
    Change(Change, Done),
    Settle(Duration, SyncSender<Result<(), StoreError>>),
    Close(bool, SyncSender<Result<(), StoreError>>),
    Stop,
}

impl Shared {
    pub(super) fn new(store: Store) -> Arc<Shared> {
        Arc::new(Shared {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            shelf: RwLock::new(Shelf::Open(store)),
        })
    }

    pub(super) fn push(&self, job: Job) {
        self.queue.lock().push_back(job);
        self.arrived.notify_one();
    }

    /// Reads from the store where it is open. The store is never taken away under a reader.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Store) -> Result<T, Trouble>) -> Result<T, StoreError> {
        match &*self.shelf.read() {
            Shelf::Open(store) => work(store).map_err(|trouble| trouble.told()),
            Shelf::Away(error) => Err(error.clone()),
        }
    }

    fn take(&self, instead: StoreError) -> Option<Store> {
        match std::mem::replace(&mut *self.shelf.write(), Shelf::Away(instead)) {
            Shelf::Open(store) => Some(store),
            Shelf::Away(_) => None,
        }
    }

    /// Waits for work: a run of changes, or one other job. With `restless` a short quiet is work too.
    fn next(&self, restless: bool) -> Work {
        let mut queue = self.queue.lock();
        loop {
            match queue.pop_front() {
                None if !restless => self.arrived.wait(&mut queue),
                None => {
                    let quiet = self.arrived.wait_for(&mut queue, QUIET).timed_out();
                    if quiet && queue.is_empty() {
                        return Work::Quiet;
                    }
                }
                Some(Job::Change(change, done)) => {
                    let mut batch = vec![(change, done)];
                    while batch.len() < BATCH_MAX
                        && let Some(Job::Change(..)) = queue.front()
                        && let Some(Job::Change(change, done)) = queue.pop_front()
                    {
                        batch.push((change, done));
                    }
                    return Work::Batch(batch);
                }
                Some(other) => return Work::Job(other),
            }
        }
    }
}

enum Work {
    Batch(Vec<(Change, Done)>),
    Job(Job),
    Quiet,
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) folder: Folder,
    /// The file that has to stand at the path. Held also while the store is away, so that its lock stays.
    pub(super) disk: Disk,
    /// What was acknowledged: the store must hold exactly this, or this and the one commit that was attempted.
    pub(super) head: Head,
    pub(super) state: State,
    /// True where the latest commit's witness is written and not yet synced.
    pub(super) witness_pending: bool,
    pub(super) on_commit: Arc<dyn Fn(Duration) + Send + Sync>,
}

pub(super) enum State {
    Open,
    Down(Down),
    /// For ever: the file does not hold what was acknowledged.
    Lost(StoreError),
    Closed,
}

/// The store is away and may come back.
pub(super) struct Down {
    error: StoreError,
    attempted: Option<Box<Head>>,
    /// True where the file itself can't be trusted to reach the disk.
    remake: bool,
    /// True while other files stand at the path, or none, which has been said.
    displaced: bool,
    retry_at: Instant,
    pause: Duration,
}

impl Writer {
    pub(super) fn run(mut self) {
        loop {
            match self.shared.next(self.witness_pending) {
                Work::Batch(batch) => self.batch(batch),
                Work::Job(Job::Settle(wait, reply)) => {
                    let _ = reply.send(self.set_settle(wait));
                }
                Work::Job(Job::Close(clean, reply)) => {
                    let _ = reply.send(self.close(clean));
                }
                Work::Quiet => self.carry_witness(),
                Work::Job(Job::Change(..) | Job::Stop) => break,
            }
        }
        // Without a close the marker stays dirty; the store is closed in good order all the same.
        if let Some(store) = self.shared.take(StoreError::Closed) {
            let _ = store.close();
        }
    }

    fn batch(&mut self, batch: Vec<(Change, Done)>) {
        let head = self.head;
        let result = self.commit(&head, &batch);
        for (_, done) in batch {
            let result = result.clone();
            if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                tracing::error!("a callback of the ledger panicked; this is a bug");
            }
        }
        // For want of room the store was only closed; open again, it can at least be read. And files that were
        // gone for a moment may stand there again.
        if let State::Down(Down { remake: false, .. }) = self.state {
            let _ = self.come_back(false);
        }
    }

    fn set_settle(&mut self, wait: Duration) -> Result<(), StoreError> {
        let head = Head {
            settle_ms: ms_up(wait),
            ..self.head
        };
        self.commit(&head, &[])
    }

    fn close(&mut self, clean: bool) -> Result<(), StoreError> {
        // Tried at once: there is no later.
        let mut result = self.come_back(true);
        if clean && result.is_ok() {
            let head = Head { clean, ..self.head };
            result = self.commit(&head, &[]);
        }
        if let Some(store) = self.shared.take(StoreError::Closed)
            && let Err(trouble) = store.close()
        {
            tracing::warn!(%trouble, "the store was not closed in good order; the next start repairs it");
        }
        self.state = State::Closed;
        result
    }

    /// One durable transaction: the changes, and the marker as it stands in `head`.
    fn commit(&mut self, head: &Head, batch: &[(Change, Done)]) -> Result<(), StoreError> {
        self.come_back(false)?;
        if let Err(trouble) = self.folder.stands(&self.disk) {
            let attempted = None;
            return Err(self.go_down(Unfinished { trouble, attempted }));
        }
        // What coming back has found counts, not what the caller saw.
        let head = Head {
            clean: head.clean,
            settle_ms: head.settle_ms,
            ..self.head
        };
        let started = Instant::now();
        let result = match &*self.shared.shelf.read() {
            Shelf::Open(store) => store.commit(&head, batch.iter().map(|(change, _)| change)),
            Shelf::Away(error) => return Err(error.clone()),
        };
        // And after the fsync: what was moved away meanwhile is durable where nobody looks for it.
        let result = result.and_then(|next| match self.folder.stands(&self.disk) {
            Ok(()) => Ok(next),
            Err(trouble) => Err(Unfinished {
                trouble,
                attempted: Some(Box::new(next)),
            }),
        });
        match result {
            Ok(next) => {
                (self.on_commit)(started.elapsed());
                self.head = next;
                self.witness_pending = true;
                Ok(())
            }
            Err(unfinished) => Err(self.go_down(unfinished)),
        }
    }

    /// A quiet moment carries the witness to the disk; else the next commit does.
    fn carry_witness(&mut self) {
        self.witness_pending = false;
        let result = match (&self.state, &*self.shared.shelf.read()) {
            (State::Open, Shelf::Open(store)) => store.settle_witness(),
            _ => Ok(()),
        };
        if let Err(trouble) = result {
            self.go_down(Unfinished {
                trouble,
                attempted: None,
            });
        }
    }

    fn go_down(&mut self, unfinished: Unfinished) -> StoreError {
        let Unfinished { trouble, attempted } = unfinished;
        let error = trouble.told();
        let displaced = matches!(trouble, Trouble::Displaced(_));
        if displaced {
            say_displaced(&trouble);
        } else {
            tracing::warn!(file = %self.folder.marks().display(), %trouble, "a commit failed; raises are refused meanwhile");
        }
        if let Some(store) = self.shared.take(error.clone()) {
            store.abandon(&trouble);
        }
        self.state = State::Down(Down {
            error: error.clone(),
            attempted,
            remake: leaves_doubt(&trouble),
            displaced,
            retry_at: Instant::now(),
            pause: PAUSE_MIN,
        });
        error
    }

    /// Makes sure that the store is open. Where a file has to be made anew it is tried at growing intervals,
    /// or at once with `now`.
    fn come_back(&mut self, now: bool) -> Result<(), StoreError> {
        let down = match &mut self.state {
            State::Open => return Ok(()),
            State::Lost(error) => return Err(error.clone()),
            State::Closed => return Err(StoreError::Closed),
            State::Down(down) if down.remake && !now && Instant::now() < down.retry_at => {
                return Err(down.error.clone());
            }
            State::Down(down) => down,
        };
        let known = [Some(self.head), down.attempted.as_deref().copied()];
        match reopen(&self.folder, &mut self.disk, &known, down.remake) {
            Ok((store, head)) => {
                tracing::info!(file = %self.folder.marks().display(), "the store is back");
                self.head = head;
                self.state = State::Open;
                *self.shared.shelf.write() = Shelf::Open(store);
                Ok(())
            }
            Err(trouble @ (Trouble::Damaged(_) | Trouble::Version(_))) => Err(self.give_up(&trouble)),
            Err(trouble) => {
                let displaced = matches!(trouble, Trouble::Displaced(_));
                if displaced && !down.displaced {
                    say_displaced(&trouble);
                }
                down.displaced = displaced;
                down.remake |= leaves_doubt(&trouble);
                down.error = trouble.told();
                down.retry_at = Instant::now() + down.pause;
                down.pause = (down.pause * 2).min(PAUSE_MAX);
                *self.shared.shelf.write() = Shelf::Away(down.error.clone());
                Err(down.error.clone())
            }
        }
    }

    fn give_up(&mut self, trouble: &Trouble) -> StoreError {
        tracing::error!(
            file = %self.folder.marks().display(),
            %trouble,
            "after a failed write the store does not hold what was acknowledged; raises are refused until it is \
             seen to: stop this instance; {WAY_OUT}"
        );
        let error = trouble.told();
        self.state = State::Lost(error.clone());
        *self.shared.shelf.write() = Shelf::Away(error.clone());
        error
    }
}

/// True where a call has failed other than for want of room: from then on the file can't be trusted.
fn leaves_doubt(trouble: &Trouble) -> bool {
    !matches!(trouble, Trouble::Full(_) | Trouble::Displaced(_))
}

/// Once for each time that it happens: a person has to put the files back, or to stop this instance.
fn say_displaced(trouble: &Trouble) {
    tracing::error!(
        %trouble,
        "the store is not where it was; raises are refused until the same files stand there again. Put them back, \
         or stop this instance (where the lock file alone is gone, start it again then); if the marks are lost: \
         {WAY_OUT}"
    );
}

/// Reads all of the store again, and compares. With `remake` it goes on in a new file, and `disk` becomes that.
fn reopen(
    folder: &Folder,
    disk: &mut Disk,
    known: &[Option<Head>],
    remake: bool,
) -> Result<(Store, Head), Trouble> {
    folder.stands(disk)?;
    if remake {
        forget_cache(&folder.marks());
    }
    let again = disk.again()?;
    *disk = again.clone();
    let (store, found) = Store::read(again, &mut |_, _| ())?;
    if !known.contains(&Some(found)) {
        return Err(Trouble::Damaged(format!(
            "it holds commit {}, which is not the one that was acknowledged",
            found.sequence
        )));
    }
    if !remake {
        return Ok((store, found));
    }
    let made = remade(folder, disk, &store, &found);
    store.abandon(&Trouble::Broken("replaced by a new file".into()));
    made.map(|made| (made, found))
}

fn remade(folder: &Folder, disk: &mut Disk, store: &Store, head: &Head) -> Result<Store, Trouble> {
    let failed = |e: std::io::Error| Trouble::from_write("put a new file in its place", &e);
    folder.discard_unfinished().map_err(failed)?;
    let made = store.copy_to(&folder.unfinished(), head)?;
    // Again, because the copy took its time: a store must never appear where this one is gone.
    folder.stands(disk)?;
    folder.replace().map_err(failed)?;
    // From here on it is the one that has to stand there, also if the folder's fsync fails.
    *disk = made.disk();
    folder.sync().map_err(failed)?;
    Ok(made)
}

/// One transaction's share; more waits for the next.
const BATCH_MAX: usize = 4096;
/// So long after a commit nothing else came: the next raise will not have to wait for the witness's fsync.
const QUIET: Duration = Duration::from_millis(20);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
