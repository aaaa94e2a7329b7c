//! What an operator sees of the fences and does to them: list, raise, reset.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::slow::PendingReset;
use super::{Ask, Keeper, Refused, Room, slow};
use crate::base::{Token, TokenFormat};
use crate::fence::Claim;
use crate::ledger::{Audit, AuditEntry, Mark, StoreError};

/// One fence as the admin address shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceView {
    /// The resource's name.
    pub resource: String,
    /// The highest token seen; `None` where only writes without a token were.
    pub highest: Option<Token>,
    /// The durable mark: lower than `highest` while a raise is under way.
    pub mark: Option<Token>,
    /// How the tokens are written.
    pub format: TokenFormat,
    /// Writes past their commit point, and uploads before it that wait for more.
    pub in_flight: u64,
    /// Writes whose answer is lost.
    pub in_doubt: u64,
    /// Requests that wait for a raise.
    pub waiting: u64,
    /// When the durable mark was raised, in milliseconds since 1970; `None` before that.
    pub raised_at_ms: Option<u64>,
    /// Requests refused here since the start.
    pub refused: u64,
}

/// Some fences in the order of their names' bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The fences.
    pub fences: Vec<FenceView>,
    /// What to list `after` for the rest; `None` where there is none.
    pub next: Option<String>,
}

/// An operator's order to set a mark, also down.
#[derive(Clone, Debug)]
pub struct Reset {
    /// The resource's name.
    pub resource: String,
    /// The new mark.
    pub token: Token,
    /// How the resource's tokens are written from now on.
    pub format: TokenFormat,
    /// How they were written so far, for the audit trail.
    pub was: TokenFormat,
    /// The operator's words.
    pub reason: String,
    /// Who asks: the peer's address.
    pub by: String,
}

/// Why an operator's request was not done.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The token to raise to is lower than the highest seen.
    #[error("the token is lower than {highest:?}, the highest seen")]
    Stale {
        /// That token.
        highest: Token,
    },
    /// Another reset of the resource is under way.
    #[error("another reset of this resource is under way")]
    ResetUnderWay,
    /// The store did not take the change yet; it is tried again by itself.
    #[error("the store can't take the change now; it is tried again by itself")]
    Unstored,
    /// Another instance owns the fences, or nobody does.
    #[error("this instance does not own the fences; ask the one that is active")]
    NotOwner,
    /// The store can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Keeper {
    /// Up to `limit` fences whose names start with `prefix` and come after `after`, in the order of their bytes.
    /// Reads the ledger: not for a thread that has other things to do.
    ///
    /// # Errors
    /// Those of the ledger where it can't be read.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        // Those that are not durable yet are known to the table alone. Before the ledger: a raise that becomes
        // durable in between is then in both, and not in neither.
        let names = self.slow_names(prefix, after, limit + 1);
        let marks = self.ledger.scan(prefix, after, limit + 1)?;
        // The first `limit + 1` of both together are among the first `limit + 1` of each.
        let mut found: BTreeMap<String, Option<Mark>> =
            names.into_iter().map(|name| (name.to_string(), None)).collect();
        found.extend(marks.into_iter().map(|(name, mark)| (name, Some(mark))));
        let more = found.len() > limit;
        let page: Vec<(String, Option<Mark>)> = found.into_iter().take(limit).collect();
        // Of the names that were looked at, not of those that are shown: none is then skipped or shown twice.
        let next = page.last().filter(|_| more).map(|(name, _)| name.clone());
        let fences = page
            .into_iter()
            .map(|(name, mark)| self.view(name, mark))
            .filter(|view| view.highest.is_some() || view.is_busy())
            .collect();
        Ok(Page { fences, next })
    }

    /// The first `limit` names that the table knows.
    fn slow_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> BTreeSet<Arc<str>> {
        let mut names = BTreeSet::new();
        self.table.each_slow(|_, slow| {
            if let Some(name) = &slow.name
                && name.starts_with(prefix)
                && after.is_none_or(|after| &**name > after)
            {
                names.insert(Arc::clone(name));
                if names.len() > limit {
                    names.pop_last();
                }
            }
        });
        names
    }

    /// The latest `limit` resets, the newest first.
    ///
    /// # Errors
    /// Those of the ledger where it can't be read.
    pub fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.ledger.audit_trail(limit)
    }

    /// One fence, if it was ever seen.
    ///
    /// # Errors
    /// Those of the ledger where it can't be read.
    pub fn show(&self, resource: &str) -> Result<Option<FenceView>, StoreError> {
        let mark = self.mark_of(resource)?;
        if mark.is_none() && self.table.get(self.table.key(resource)).is_none() {
            return Ok(None);
        }
        Ok(Some(self.view(resource.to_owned(), mark)))
    }

    /// Raises a fence as a request with this token would: drains, commits, then returns.
    ///
    /// # Errors
    /// [`OperatorError::Stale`], [`OperatorError::Unstored`] and [`OperatorError::NotOwner`].
    pub async fn raise(
        self: &Arc<Self>,
        resource: &str,
        token: Token,
        format: TokenFormat,
    ) -> Result<(), OperatorError> {
        let room = Room::new(1);
        let asks = [Ask {
            name: resource,
            claim: Claim::Token(token),
            format,
            max_step: None, // an operator may leap
        }];
        self.note_operator(resource, token, format);
        let mut admission = self.admit(&asks, &room, false);
        match poll_fn(|cx| admission.poll(cx)).await {
            Ok(_flight) => Ok(()),
            Err(Refused::Stale { highest, .. }) => Err(OperatorError::Stale { highest }),
            Err(Refused::Unstored) => Err(OperatorError::Unstored),
            Err(Refused::NotOwner) => Err(OperatorError::NotOwner),
            Err(Refused::Missing { .. } | Refused::StepTooLarge { .. } | Refused::Overloaded) => {
                unreachable!("it presents a token, may leap, and its room has a place")
            }
        }
    }

    /// So that the raise is told as an operator's. Lost where the fence comes to rest before the raise begins: that
    /// misleads a reader, and nothing else.
    fn note_operator(&self, resource: &str, token: Token, format: TokenFormat) {
        if !self.metrics.events.wanted() {
            return;
        }
        let fence = self.table.get_or_bare(self.table.key(resource));
        let mut slot = fence.slow.lock();
        let slow = slow::open(&mut slot, &fence);
        slow.is_named(resource, format);
        slow.operators = Some(token);
    }

    /// Sets a mark, also down: drains every flight whatever its token, cuts what has not committed, commits with
    /// its audit record, then returns the highest token seen before.
    ///
    /// # Errors
    /// [`OperatorError::ResetUnderWay`] and [`OperatorError::NotOwner`].
    pub async fn reset(self: &Arc<Self>, order: Reset) -> Result<Option<Token>, OperatorError> {
        if !self.is_owner() {
            return Err(OperatorError::NotOwner);
        }
        let mut place = self.roll.enter(self.lapses());
        let fence = self.table.get_or_bare(self.table.key(&order.resource));
        let (done, durable) = oneshot::channel();
        let (before, chores) = {
            let mut slot = fence.slow.lock();
            let slow = slow::open(&mut slot, &fence);
            if slow.reset.is_some() {
                return Err(OperatorError::ResetUnderWay);
            }
            slow.is_named(&order.resource, order.format);
            slow.format = order.format;
            let before = slow.core.highest();
            let from = before.map_or_else(String::new, |t| order.was.show(t).to_string());
            let audit = Audit {
                from,
                reason: order.reason,
                by: order.by,
            };
            slow.reset = Some(PendingReset { audit, done });
            let now = self.clock.now();
            slow.since.get_or_insert(now);
            let effects = slow.core.reset(&fence.door, order.token, now, self.hold);
            (before, slow.chores(effects))
        };
        self.carry_out(&fence, chores);
        tokio::select! {
            done = durable => match done {
                Ok(()) => Ok(before),
                Err(_closed) => Err(OperatorError::Unstored),
            },
            () = poll_fn(|cx| place.poll_lapsed(cx)) => Err(OperatorError::NotOwner),
        }
    }

    /// The durable mark of a resource.
    ///
    /// # Errors
    /// Those of the ledger where it can't be read.
    pub fn mark_of(&self, resource: &str) -> Result<Option<Mark>, StoreError> {
        let page = self.ledger.scan(resource, None, 1)?;
        Ok(page
            .into_iter()
            .find(|(name, _)| name == resource)
            .map(|(_, mark)| mark))
    }

    fn view(&self, resource: String, mark: Option<Mark>) -> FenceView {
        let mut view = FenceView {
            resource,
            highest: mark.map(|m| m.token),
            mark: mark.map(|m| m.token),
            format: mark.map_or(TokenFormat::Integer, |m| m.format),
            in_flight: 0,
            in_doubt: 0,
            waiting: 0,
            raised_at_ms: mark.map(|m| m.raised_at_ms),
            refused: 0,
        };
        let Some(fence) = self.table.get(self.table.key(&view.resource)) else {
            return view;
        };
        view.in_flight = fence.door.committed();
        let slot = fence.slow.lock();
        if let Some(slow) = slot.as_deref() {
            view.highest = slow.core.highest();
            view.mark = slow.core.mark();
            if mark.is_none() {
                view.format = slow.format;
            }
            view.in_flight += slow.uncommitted() as u64;
            view.in_doubt = slow.core.in_doubt(self.clock.now()) as u64;
            view.waiting = slow.waiting() as u64;
            view.refused = slow.refused;
        }
        view
    }
}

impl FenceView {
    fn is_busy(&self) -> bool {
        self.in_flight + self.in_doubt + self.waiting > 0
    }
}
