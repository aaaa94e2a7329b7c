//! The signals that stop the process: SIGTERM and SIGINT. SIGHUP, which would end it without a word, is noted.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// All three, heard from the start on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Begins to listen for them.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next that stops the process.
    pub async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP: the configuration is read at the start alone; restart to change it");
                }
            }
        }
    }
}
