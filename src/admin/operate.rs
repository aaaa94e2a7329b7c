//! Raises and resets fences on an operator's word. Whoever stops waiting for either does not stop it.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;

use super::Admin;
use super::body::{self, FormatName, RaiseOrder, ResetOrder, check_reason, check_resource, patience};
use super::fences::{Fence, show};
use super::problem::Problem;
use super::serve::Peer;
use crate::base::{Reason, Token, TokenFormat};
use crate::keeper::{FenceView, OperatorError, Reset};
use crate::ledger::StoreError;

/// `POST /api/v1/fences/raise`: as a request with this token would, drains, commits, then answers.
pub(super) async fn raise(State(admin): State<Admin>, request: Request) -> Result<Json<Fence>, Problem> {
    let order: RaiseOrder = body::read(request).await?;
    check_resource(&order.resource)?;
    let patience = patience(order.timeout.as_deref())?;
    let resource = order.resource;
    let known = known_format(&admin, &resource).await?;
    let format = match (known, order.format.map(TokenFormat::from)) {
        (Some(known), Some(asked)) if known != asked => {
            let detail = format!(
                "format: this resource's tokens are {}; only a reset changes that",
                known.as_str()
            );
            return Err(Problem::bad(detail).about(&resource));
        }
        (known, asked) => chosen(&admin, known.or(asked))?,
    };
    check_kind(&admin, &resource, format)?;
    let token = order
        .token
        .read(format)
        .map_err(|problem| problem.about(&resource))?;
    let keeper = admin.keeper();
    let raising = keeper.raise(&resource, token, format);
    match tokio::time::timeout(patience, raising).await {
        Ok(Ok(())) => Ok(Json(after(&admin, resource, token, format).await)),
        Ok(Err(error)) => Err(refused(&error, &resource, format).with_token(format.show(token).to_string())),
        Err(_late) => Err(still_waits(&admin, &resource)),
    }
}

/// What a reset did.
#[derive(Serialize, Debug)]
pub(super) struct Done {
    resource: String,
    /// The highest token seen before; `None` where there was none.
    before: Option<String>,
    after: String,
    fence: Fence,
}

/// `POST /api/v1/fences/reset`: the only way down. Drains every flight, cuts what has not committed, commits the
/// mark together with its line of the audit trail, then answers.
pub(super) async fn reset(
    State(admin): State<Admin>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Result<Json<Done>, Problem> {
    let order: ResetOrder = body::read(request).await?;
    check_resource(&order.resource)?;
    let reason = check_reason(&order.reason)?.to_owned();
    let patience = patience(order.timeout.as_deref())?;
    let resource = order.resource;
    let known = known_format(&admin, &resource).await?;
    let format = chosen(&admin, order.format.map(FormatName::into).or(known))?;
    check_kind(&admin, &resource, format)?;
    let token = order
        .token
        .read(format)
        .map_err(|problem| problem.about(&resource))?;
    let was = known.unwrap_or(format);
    tracing::warn!(?resource, to = %format.show(token), ?reason, %peer, "an operator resets a fence");
    let keeper = admin.keeper();
    let resetting = keeper.reset(Reset {
        resource: resource.clone(),
        token,
        format,
        was,
        reason,
        by: peer.to_string(),
    });
    match tokio::time::timeout(patience, resetting).await {
        Ok(Ok(before)) => Ok(Json(Done {
            before: before.map(|token| was.show(token).to_string()),
            after: format.show(token).to_string(),
            fence: after(&admin, resource.clone(), token, format).await,
            resource,
        })),
        Ok(Err(error)) => Err(refused(&error, &resource, format)),
        Err(_late) => Err(still_waits(&admin, &resource)),
    }
}

/// How this resource's tokens are written, if one was ever seen. Nothing is changed while that can't be known.
async fn known_format(admin: &Admin, resource: &str) -> Result<Option<TokenFormat>, Problem> {
    let view = show(admin, resource.to_owned()).await?;
    Ok(view
        .filter(|view| view.highest.is_some() || view.mark.is_some())
        .map(|view| view.format))
}

/// The format, or else the one that all rules agree on.
fn chosen(admin: &Admin, format: Option<TokenFormat>) -> Result<TokenFormat, Problem> {
    format.or(admin.effective.format()).ok_or_else(|| {
        Problem::bad(
            "format: no token of this resource was seen, and the rules' formats differ; say integer, hex or pair",
        )
    })
}

/// Refuses a mark that the rules' own tokens could not be compared with.
fn check_kind(admin: &Admin, resource: &str, format: TokenFormat) -> Result<(), Problem> {
    let Some(other) = admin.effective.kinds().other(resource, format) else {
        return Ok(());
    };
    let detail = format!(
        "format: rule {:?} can name this resource, its tokens are {}, and {} can't be compared with that",
        other.rule,
        other.format.as_str(),
        format.as_str()
    );
    Err(Problem::bad(detail).about(resource))
}

/// The fence as it stands now. What was asked for is done, also where the store can't be read at this moment.
async fn after(admin: &Admin, resource: String, token: Token, format: TokenFormat) -> Fence {
    match show(admin, resource.clone()).await {
        Ok(Some(view)) => view.into(),
        Ok(None) | Err(_) => Fence::from(FenceView {
            resource,
            highest: Some(token),
            mark: Some(token),
            format,
            in_flight: 0,
            in_doubt: 0,
            waiting: 0,
            raised_at_ms: None,
            refused: 0,
        }),
    }
}

fn refused(error: &OperatorError, resource: &str, format: TokenFormat) -> Problem {
    let problem = match error {
        OperatorError::Stale { highest } => {
            let highest = format.show(*highest).to_string();
            let detail = format!("the token is lower than {highest}, the highest seen; only a reset lowers");
            Problem::new(
                StatusCode::PRECONDITION_FAILED,
                Reason::StaleToken.as_str(),
                detail,
            )
            .with_highest(highest)
        }
        OperatorError::ResetUnderWay => {
            Problem::new(StatusCode::CONFLICT, "reset-under-way", error.to_string())
        }
        OperatorError::NotOwner | OperatorError::Store(StoreError::NotOwner) => {
            Problem::later(Reason::NotOwner, error.to_string())
        }
        OperatorError::Unstored | OperatorError::Store(_) => {
            Problem::later(Reason::StoreUnavailable, error.to_string())
        }
    };
    problem.about(resource)
}

/// The operator waits no longer; what was asked for goes on.
fn still_waits(admin: &Admin, resource: &str) -> Problem {
    let keeper = admin.keeper();
    let left = keeper.hold_left();
    let problem = if keeper.store_is_failing() {
        Problem::later(
            Reason::StoreUnavailable,
            "the store can't take the mark now; it is tried again by itself",
        )
    } else if left.is_zero() {
        Problem::later(
            Reason::Draining,
            "older writes have not settled yet; it is done as soon as they have",
        )
    } else {
        Problem::later(
            Reason::Draining,
            format!(
                "the wait after a crash lasts {} ms more; it is done after that",
                left.as_millis()
            ),
        )
    };
    problem.about(resource)
}
