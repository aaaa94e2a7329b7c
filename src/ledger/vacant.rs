//! The ledger of an instance that stands by: it holds nothing, takes nothing, and says that somebody else owns the
//! store. Called like any other [`Ledger`].

use std::time::Duration;

use super::{AuditEntry, Change, Done, Ledger, Mark, StoreError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Vacant;

impl Ledger for Vacant {
    fn submit(&self, _change: Change, done: Done) {
        done(Err(StoreError::NotOwner));
    }

    fn scan(
        &self,
        _prefix: &str,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError> {
        Err(StoreError::NotOwner)
    }

    fn audit_trail(&self, _limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        Err(StoreError::NotOwner)
    }

    fn is_leased(&self) -> bool {
        true
    }

    fn owned(&self) -> bool {
        false
    }

    fn hold_is_over(&self, _settle_after: Duration) -> Result<(), StoreError> {
        Err(StoreError::NotOwner)
    }

    fn close(&self, _clean: bool) -> Result<(), StoreError> {
        Ok(())
    }
}
