//! Reads of many keys, a page at a time: the marks at a take-over, a part of them for an operator, the audit trail.
//!
//! What a take-over reads is pinned at one revision, no older than the transaction that made this instance the owner:
//! a member that lags can't answer with less. Called by `life.rs`, `writer.rs` and `reader.rs`.

use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget};

use super::OpenError;
use super::cluster::{Answer, Cluster};
use super::failure::Failure;
use super::pause::Pause;
use super::values::{self, Keys, after_all_that_start_with};
use crate::ledger::{AuditEntry, Mark};

/// Keys from `start` to `end`, in pages.
pub(super) struct Pages<'c> {
    cluster: &'c Cluster,
    start: Vec<u8>,
    end: Vec<u8>,
    /// Zero: the latest at each page.
    revision: i64,
    page_max: i64,
    ended: bool,
}

impl<'c> Pages<'c> {
    pub(super) fn new(cluster: &'c Cluster, start: Vec<u8>, end: Vec<u8>, revision: i64) -> Pages<'c> {
        Pages {
            cluster,
            start,
            end,
            revision,
            page_max: PAGE_MAX,
            ended: false,
        }
    }

    /// The next page; `None` after the last one. Smaller where its keys are so long that the answer would be too large.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Failure> {
        if self.ended {
            return Ok(None);
        }
        let mut page = loop {
            match self.page().await {
                Err(Failure::AnswerTooLarge) if self.page_max > 1 => {
                    self.page_max = (self.page_max / 4).max(1)
                }
                page => break page?,
            }
        };
        self.ended = !page.more();
        let kvs = page.take_kvs();
        match kvs.last() {
            Some(last) => {
                self.start = last.key().to_vec();
                self.start.push(0);
            }
            None => self.ended = true,
        }
        Ok(Some(kvs))
    }

    async fn page(&self) -> Result<GetResponse, Failure> {
        let options = GetOptions::new()
            .with_range(self.end.clone())
            .with_limit(self.page_max)
            .with_revision(self.revision);
        let ask = async |mut client: etcd_client::Client| {
            client.get(self.start.clone(), Some(options.clone())).await
        };
        self.cluster.ask(ask).await
    }
}

/// A mark as it stands in etcd.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) mark: Mark,
    pub(super) revision: i64,
}

/// Why marks can't be read.
#[derive(Debug)]
pub(super) enum Unread {
    Failure(Failure),
    Fatal(OpenError),
}

/// Reads a mark's key and value.
pub(super) fn stored(keys: &Keys, kv: &KeyValue) -> Result<Stored, OpenError> {
    let unreadable = |what: &str| OpenError::Unreadable {
        key: String::from_utf8_lossy(kv.key()).into_owned(),
        what: what.to_owned(),
    };
    let name = keys
        .name(kv.key())
        .ok_or_else(|| unreadable("it is no mark's key"))?;
    let name = std::str::from_utf8(name).map_err(|_| unreadable("the resource's name is not UTF-8"))?;
    let mark = values::read_mark(kv.value()).map_err(|flaw| OpenError::of(kv.key(), flaw))?;
    Ok(Stored {
        name: name.to_owned(),
        mark,
        revision: kv.mod_revision(),
    })
}

/// Reads all marks at the revision `at_least` or later, however long it takes.
///
/// Where that is compacted away meanwhile, the rest is read at a later one: the owner alone writes marks, so they are
/// the same at both.
pub(super) async fn all_marks(
    cluster: &Cluster,
    keys: &Keys,
    at_least: i64,
) -> Result<Vec<Stored>, OpenError> {
    let start = keys.mark("").into_bytes();
    let end = after_all_that_start_with(&start);
    let mut pages = Pages::new(cluster, start, end, at_least);
    let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
    let mut marks = Vec::new();
    loop {
        match pages.next().await {
            Ok(Some(page)) => {
                for kv in &page {
                    marks.push(stored(keys, kv)?);
                }
                pause.reset();
                // Many pages in a row: what else runs on this thread goes on between them.
                tokio::task::yield_now().await;
                continue;
            }
            Ok(None) => return Ok(marks),
            Err(Failure::Compacted) => match latest(cluster, keys).await {
                Ok(latest) => {
                    pages.revision = latest.max(at_least);
                    continue;
                }
                Err(failure) => tracing::debug!(%failure, "the latest revision is asked for once more"),
            },
            Err(failure) => tracing::debug!(%failure, "a page of marks is read once more"),
        }
        tokio::time::sleep(pause.next()).await;
    }
}

async fn latest(cluster: &Cluster, keys: &Keys) -> Result<i64, Failure> {
    let answer = cluster
        .ask(async |mut client| client.get(keys.marker(), None).await)
        .await?;
    Ok(answer.origin()?.revision)
}

/// Marks for people: those that start with `prefix` and come after `after`.
pub(super) async fn scan(
    cluster: &Cluster,
    keys: &Keys,
    (prefix, after): (&str, Option<&str>),
    limit: usize,
    revision: i64,
) -> Result<Vec<(String, Mark)>, Unread> {
    let start = keys.mark(prefix).into_bytes();
    let end = after_all_that_start_with(&start);
    let start = match after {
        Some(after) if after >= prefix => {
            let mut next = keys.mark(after).into_bytes();
            next.push(0);
            next
        }
        Some(_) | None => start,
    };
    let mut found = Vec::new();
    if limit == 0 || start >= end {
        return Ok(found);
    }
    let mut pages = Pages::new(cluster, start, end, revision);
    pages.page_max = i64::try_from(limit).unwrap_or(i64::MAX).min(PAGE_MAX);
    while let Some(page) = pages.next().await.map_err(Unread::Failure)? {
        for kv in page.iter().take(limit - found.len()) {
            let stored = stored(keys, kv).map_err(Unread::Fatal)?;
            found.push((stored.name, stored.mark));
        }
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// The latest `limit` resets, the newest first.
pub(super) async fn audit_trail(
    cluster: &Cluster,
    keys: &Keys,
    limit: usize,
    revision: i64,
) -> Result<Vec<AuditEntry>, Unread> {
    let (start, mut end) = keys.audits();
    let mut found = Vec::new();
    while found.len() < limit {
        let options = GetOptions::new()
            .with_range(end.clone())
            .with_sort(SortTarget::Key, SortOrder::Descend)
            .with_limit(AUDIT_PAGE_MAX)
            .with_revision(revision);
        let page = cluster
            .ask(async |mut client| client.get(start.clone(), Some(options.clone())).await)
            .await
            .map_err(Unread::Failure)?;
        for kv in page.kvs() {
            let sequence = keys.sequence(kv.key()).unwrap_or_default();
            let entry = values::read_audit(sequence, kv.value())
                .map_err(|flaw| Unread::Fatal(OpenError::of(kv.key(), flaw)))?;
            found.extend(entry);
        }
        match page.kvs().last() {
            Some(last) if page.more() => end = last.key().to_vec(),
            Some(_) | None => break,
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// The number that the next entry of the audit trail gets.
pub(super) async fn next_audit(cluster: &Cluster, keys: &Keys) -> Result<u64, Failure> {
    let (start, end) = keys.audits();
    let options = GetOptions::new()
        .with_range(end)
        .with_sort(SortTarget::Key, SortOrder::Descend)
        .with_limit(1)
        .with_keys_only();
    let page = cluster
        .ask(async |mut client| client.get(start.clone(), Some(options.clone())).await)
        .await?;
    let last = page.kvs().first().and_then(|kv| keys.sequence(kv.key()));
    Ok(last.map_or(0, |last| last + 1))
}

/// A mark of a usual name has some 150 bytes: a fraction of the 4 MiB that an answer may have.
const PAGE_MAX: i64 = 2000;
const AUDIT_PAGE_MAX: i64 = 200;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
