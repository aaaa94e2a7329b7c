//! The admin address: health, readiness, metrics, the fences. On a library's web server: nothing here is on the
//! way of a request to the store.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::keeper::Keeper;
use crate::observe::{Levels, Metrics};

/// What the admin address shows and acts on.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The fences.
    pub keeper: Arc<Keeper>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether this instance takes writes.
    pub ready: Arc<Ready>,
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

/// Serves the admin address until `stop` is ready.
///
/// # Errors
/// Those of the listening socket.
pub async fn serve(
    listener: tokio::net::TcpListener,
    admin: Admin,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(admin))
        .with_graceful_shutdown(stop)
        .await
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let (status, ready) = if admin.ready.get() {
        (StatusCode::OK, true)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, false)
    };
    let body = serde_json::json!({ "ready": ready, "role": "active" });
    (status, axum::Json(body)).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let levels = Levels {
        in_flight: admin.keeper.in_flight(),
        in_doubt: i64::try_from(admin.keeper.in_doubt()).unwrap_or(i64::MAX),
        fences: i64::try_from(admin.keeper.fences()).unwrap_or(i64::MAX),
    };
    let kind = [(
        header::CONTENT_TYPE,
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
    )];
    (kind, admin.metrics.text(levels)).into_response()
}
