//! Shows fences and the audit trail. Changes nothing. The ledger is read on a thread that may wait for a disk.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Admin;
use super::problem::Problem;
use super::time::rfc3339;
use crate::keeper::{FenceView, Keeper, Page};
use crate::ledger::{AuditEntry, StoreError};

/// One fence. Tokens are strings: a JSON number above 2^53 is another number to many who read it.
#[derive(Serialize, Debug)]
pub(super) struct Fence {
    resource: String,
    /// The highest token seen.
    highest: Option<String>,
    /// The highest token that is durable; lower while a raise is under way.
    mark: Option<String>,
    format: &'static str,
    in_flight: u64,
    in_doubt: u64,
    waiting: u64,
    raised_at: Option<String>,
    refused: u64,
}

impl From<FenceView> for Fence {
    fn from(view: FenceView) -> Fence {
        let shown = |token| view.format.show(token).to_string();
        Fence {
            highest: view.highest.map(shown),
            mark: view.mark.map(shown),
            format: view.format.as_str(),
            in_flight: view.in_flight,
            in_doubt: view.in_doubt,
            waiting: view.waiting,
            raised_at: view.raised_at_ms.map(rfc3339),
            refused: view.refused,
            resource: view.resource,
        }
    }
}

/// A page of fences.
#[derive(Serialize, Debug)]
pub(super) struct Fences {
    fences: Vec<Fence>,
    /// What to pass as `after` for the next page.
    next: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    prefix: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
    resource: Option<String>,
}

/// `GET /api/v1/fences`.
pub(super) async fn list(
    State(admin): State<Admin>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Fences>, Problem> {
    let query = understood(query)?;
    let limit = limit(query.limit)?;
    let page = match query.resource {
        Some(_) if query.prefix.is_some() || query.after.is_some() => {
            return Err(Problem::bad("resource stands alone: it names one fence"));
        }
        Some(resource) => Page {
            fences: show(&admin, resource).await?.into_iter().collect(),
            next: None,
        },
        None => {
            let (prefix, after) = (query.prefix.unwrap_or_default(), query.after);
            read(&admin, move |keeper| {
                keeper.list(&prefix, after.as_deref(), limit)
            })
            .await?
        }
    };
    Ok(Json(Fences {
        fences: page.fences.into_iter().map(Fence::from).collect(),
        next: page.next,
    }))
}

/// One reset that was done.
#[derive(Serialize, Debug)]
struct AuditLine {
    sequence: u64,
    resource: String,
    /// The highest token seen before; `None` where there was none.
    from: Option<String>,
    to: String,
    at: String,
    reason: String,
    by: String,
}

impl From<AuditEntry> for AuditLine {
    fn from(entry: AuditEntry) -> AuditLine {
        AuditLine {
            sequence: entry.sequence,
            resource: entry.name,
            from: Some(entry.audit.from).filter(|from| !from.is_empty()),
            to: entry.mark.format.show(entry.mark.token).to_string(),
            at: rfc3339(entry.mark.raised_at_ms),
            reason: entry.audit.reason,
            by: entry.audit.by,
        }
    }
}

/// The latest resets, the newest first.
#[derive(Serialize, Debug)]
pub(super) struct AuditTrail {
    audit: Vec<AuditLine>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    limit: Option<usize>,
}

/// `GET /api/v1/audit`.
pub(super) async fn audit(
    State(admin): State<Admin>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<AuditTrail>, Problem> {
    let limit = limit(understood(query)?.limit)?;
    let entries = read(&admin, move |keeper| keeper.audit_trail(limit)).await?;
    Ok(Json(AuditTrail {
        audit: entries.into_iter().map(AuditLine::from).collect(),
    }))
}

/// One fence, if there is something to show of it.
pub(super) async fn show(admin: &Admin, resource: String) -> Result<Option<FenceView>, Problem> {
    read(admin, move |keeper| keeper.show(&resource)).await
}

/// Asks the keeper on a thread that may wait.
async fn read<T: Send + 'static>(
    admin: &Admin,
    ask: impl FnOnce(&Keeper) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let keeper = admin.keeper();
    match tokio::task::spawn_blocking(move || ask(&keeper)).await {
        Ok(answer) => answer.map_err(|error| Problem::unread(&error)),
        Err(error) => Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            error.to_string(),
        )),
    }
}

fn understood<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    query
        .map(|Query(query)| query)
        .map_err(|rejection| Problem::bad(rejection.body_text()))
}

/// Larger pages are cut: `next` tells where they go on.
fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    match asked {
        None => Ok(LIMIT),
        Some(0) => Err(Problem::bad("limit: at least 1")),
        Some(n) => Ok(n.min(LIMIT_MAX)),
    }
}

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;
