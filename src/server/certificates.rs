//! The files of TLS, looked at about once a second: what changes and fits is in use for new connections, what
//! doesn't fit is told and counted. One task, ended with the process.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::net::{Refreshed, Watched};
use crate::observe::{Metrics, NO_LISTENER, Side, TlsFiles};

/// Read, not notified of: a folder that is swapped as a whole, a file system of a network, and one replaced in place
/// all look the same this way, and the files are small.
const PERIOD: Duration = Duration::from_secs(1);

/// All files of a configuration.
#[derive(Debug)]
pub struct Certificates(Vec<One>);

#[derive(Debug)]
struct One {
    listener: Arc<str>,
    side: Side,
    watched: Arc<dyn Watched>,
    metrics: TlsFiles,
}

impl Certificates {
    /// Those that the configuration names, as they are in use.
    pub fn of(config: &Config, metrics: &Metrics) -> Certificates {
        let mut all = Vec::new();
        let mut add = |listener: &Arc<str>, side, watched: Arc<dyn Watched>| {
            let metrics = metrics.tls.files(listener, side);
            metrics.taken(watched.not_after());
            all.push(One {
                listener: Arc::clone(listener),
                side,
                watched,
                metrics,
            });
        };
        if let Some(tls) = &config.admin.tls {
            add(&NO_LISTENER.into(), Side::Admin, Arc::clone(tls) as _);
        }
        for listener in &config.listeners {
            if let Some(tls) = listener.tls() {
                add(listener.name(), Side::Clients, Arc::clone(tls) as _);
            }
            if let Some(tls) = &listener.upstream().tls {
                add(listener.name(), Side::Backend, Arc::clone(tls) as _);
            }
        }
        Certificates(all)
    }

    /// Looks at them until the task is ended.
    pub async fn watch(mut self) {
        if self.0.is_empty() {
            return;
        }
        loop {
            tokio::time::sleep(PERIOD).await;
            let looked = tokio::task::spawn_blocking(move || {
                self.0.iter().for_each(One::look);
                self
            });
            match looked.await {
                Ok(looked) => self = looked,
                Err(error) => {
                    tracing::error!(%error, "the certificates are not looked at any more: changes need a restart");
                    return;
                }
            }
        }
    }
}

impl One {
    fn look(&self) {
        let (listener, side) = (&*self.listener, self.side.as_str());
        match self.watched.refresh() {
            Refreshed::Same => {}
            Refreshed::Taken => {
                self.metrics.taken(self.watched.not_after());
                tracing::info!(
                    listener,
                    side,
                    "the certificates have changed: new connections use them"
                );
            }
            Refreshed::Refused(unfit) => {
                self.metrics.refused();
                tracing::error!(listener, side, file = unfit.key, problem = %unfit, "the certificates have changed and can't be used: what was there before stays in use");
            }
        }
    }
}
