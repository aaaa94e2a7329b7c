//! The admin address: health, readiness, metrics, the fences and what an operator does to them, what happens,
//! the effective configuration. On a library's web server: nothing here is on the way of a request to the store.
//!
//! Without a token, and without TLS that asks clients for certificates, it listens on loopback only. `guard.rs` keeps
//! other sites' pages in a browser out of it. Whoever shows the token or the certificate may do everything.
//! Called by `server/`.

mod body;
mod effective;
mod events;
mod fences;
mod guard;
mod operate;
mod problem;
mod serve;
pub(crate) mod time;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

pub use self::effective::Effective;
use self::guard::Guard;
use self::problem::Problem;
pub use self::serve::serve;
use crate::base::Secret;
use crate::keeper::{Keeper, Seat};
use crate::ledger::etcd::{self, Agent, Status};
use crate::net::ServerTls;
use crate::observe::{Levels, Metrics, TextFormat};

/// What the admin address shows and acts on.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The fences.
    pub seat: Arc<Seat>,
    /// What watches over the ownership, where the store is shared.
    pub agent: Option<Arc<Agent>>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether this instance takes writes.
    pub ready: Arc<Ready>,
    /// TLS towards its clients.
    pub tls: Option<Arc<ServerTls>>,
    /// What its clients must show, if anything.
    pub token: Option<Secret>,
    /// The configuration that this process runs with.
    pub effective: Arc<Effective>,
}

impl Admin {
    fn keeper(&self) -> Arc<Keeper> {
        self.seat.keeper()
    }
}

/// Whether this instance takes writes: from the moment that every listener is open until it is told to stop.
#[derive(Debug, Default)]
pub struct Ready(AtomicBool);

impl Ready {
    /// Says whether it does.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::SeqCst);
    }

    /// Whether it does.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn router(admin: Admin) -> Router {
    let guard = Guard {
        token: admin.token.clone(),
        secure: admin.tls.is_some(),
    };
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/v1/fences", get(fences::list))
        .route("/api/v1/fences/raise", post(operate::raise))
        .route("/api/v1/fences/reset", post(operate::reset))
        .route("/api/v1/audit", get(fences::audit))
        .route("/api/v1/config", get(config))
        .route("/api/v1/events", get(events::follow))
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "not-found", "there is nothing here") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "this path does not take this method",
            )
        })
        .layer(axum::middleware::from_fn_with_state(
            Arc::new(guard),
            guard::guard,
        ))
        .with_state(admin)
}

/// 200 as long as writes can be admitted. A store that fails keeps it so: equal tokens go on, and sending the
/// clients elsewhere would not help. So does the wait after a crash, which only raises feel.
async fn readyz(State(admin): State<Admin>) -> Response {
    let keeper = admin.keeper();
    let owner = keeper.is_owner();
    let ready = admin.ready.get() && owner;
    let code = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let status = admin.agent.as_ref().map(|agent| agent.status());
    let trouble = status.as_ref().and_then(|status| match status {
        Status {
            history: Some(why), ..
        } => Some(("doubtful", why.as_str())),
        Status {
            unreachable: Some(why),
            ..
        } => Some(("unreachable", why.as_str())),
        Status {
            role: etcd::Role::Lapsed,
            ..
        } => Some(("unreachable", "the owner's lease could not be renewed in time")),
        _ => None,
    });
    let (store, why) = match trouble {
        Some((word, why)) => (word, Some(why)),
        None if keeper.store_is_failing() => ("failing", None),
        None => ("ok", None),
    };
    let left_ms = keeper.hold_left().as_micros().div_ceil(1000);
    let mut body = json!({
        "ready": ready,
        "role": if owner { "active" } else { "standby" },
        "store": store,
        "crash_wait_ms": u64::try_from(left_ms).unwrap_or(u64::MAX),
    });
    if let Some(status) = &status {
        body["owner"] = json!(status.owner);
        body["store_trouble"] = json!(why);
    }
    (code, Json(body)).into_response()
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let keeper = admin.keeper();
    let levels = Levels {
        in_flight: keeper.in_flight(),
        in_doubt: i64::try_from(keeper.in_doubt()).unwrap_or(i64::MAX),
        fences: i64::try_from(keeper.fences()).unwrap_or(i64::MAX),
        observed: i64::try_from(keeper.observed()).unwrap_or(i64::MAX),
        owner: keeper.is_owner(),
    };
    let format = wanted(&headers);
    let kind = [(header::CONTENT_TYPE, format.content_type())];
    (kind, admin.metrics.text(levels, format)).into_response()
}

/// `OpenMetrics` for those who name it. Everybody else can read the older text.
fn wanted(headers: &HeaderMap) -> TextFormat {
    let names_it = headers.get_all(header::ACCEPT).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|text| text.contains("application/openmetrics-text"))
    });
    if names_it {
        TextFormat::OpenMetrics
    } else {
        TextFormat::Prometheus
    }
}

async fn config(State(admin): State<Admin>) -> Response {
    Json(admin.effective.json()).into_response()
}
