//! Commands of the server's own: found in its table, their keys judged by the rules, their tokens compared; and what has
//! to be asked of the server for that.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::admit::Compared;
use super::commands::Decided;
use super::owed::{Names, What};
use super::words::{lower, waits};
use super::{End, Session};
use crate::base::Reason;
use crate::keeper::Flight;
use crate::redis::answer::Refusal;
use crate::redis::asker::Unasked;
use crate::redis::found::Kind;
use crate::rules::Sender;
use crate::rules::redis::{Access, Act, Command, Denial, Key, Table, Touched, Verdict};
use crate::upstream::NoConn;

/// The keys of a command.
enum Keys {
    Words(SmallVec<[(usize, Access); 4]>),
    Asked(Vec<(Vec<u8>, bool)>),
    Untold,
}

impl<'k> Session<'_, 'k> {
    pub(super) async fn decide_ordinary(
        &mut self,
        words: &[&[u8]],
        count: usize,
    ) -> Result<Decided<'k>, End> {
        if self.state.monitor {
            self.complain("ERR a connection that monitors takes QUIT and RESET only");
            return Ok(Decided::Answered);
        }
        let table = match self.table().await? {
            Ok(table) => table,
            Err(refusal) => {
                self.refuse(&refusal);
                return Ok(Decided::Answered);
            }
        };
        let whole = words.len() == count;
        let found = table.find(words[0], words.get(1).copied());
        if found.is_none() && !whole {
            return Ok(Decided::Later);
        }
        let newer = match found {
            Some(_) => table,
            None => match self.table_again().await? {
                Ok(table) => table,
                Err(refusal) => {
                    self.refuse(&refusal);
                    return Ok(Decided::Answered);
                }
            },
        };
        let found = newer.find(words[0], words.get(1).copied());
        let touched = found.map_or(Touched::Unclear, |command| command.touched(words, count));
        let keys = match touched {
            Touched::Later if !whole => return Ok(Decided::Later),
            Touched::Unclear if !whole => return Ok(Decided::Later),
            Touched::Keys(keys) => Keys::Words(keys),
            Touched::Later | Touched::Unclear => match self.ask_keys(words).await? {
                Ok(keys) => keys,
                Err(refusal) => {
                    self.refuse(&refusal);
                    return Ok(Decided::Answered);
                }
            },
        };
        self.decide_by_keys(words, found, &keys).await
    }

    async fn decide_by_keys(
        &mut self,
        words: &[&[u8]],
        found: Option<&Command>,
        keys: &Keys,
    ) -> Result<Decided<'k>, End> {
        let first = lower(words[0]);
        let name = found.map_or_else(
            || std::str::from_utf8(&first).unwrap_or_default(),
            |command| &command.name,
        );
        let keyless = match keys {
            Keys::Words(keys) => keys.is_empty(),
            Keys::Asked(keys) => keys.is_empty(),
            Keys::Untold => true,
        };
        if self.state.queued.is_some() && found.is_none() && keyless {
            // Executed, it could be EXEC under another name. A server that knows it as little refuses it too.
            self.abort(&format!("ERR unknown command '{}'", first.escape_ascii()));
            return Ok(Decided::Answered);
        }
        let Kind { write, undeclared } = Kind::of(found, keyless, matches!(keys, Keys::Untold));
        let gate = self.gate;
        let act = Act {
            name,
            write,
            undeclared,
            identity: &self.state.identity,
            from: Sender {
                ip: self.peer.ip,
                cert: self.peer.cert.as_ref(),
            },
        };
        let verdict = match keys {
            Keys::Words(keys) => {
                let keys = keys.iter().map(|(at, access)| Key {
                    name: words[*at],
                    write: write && *access == Access::Write,
                });
                gate.listener.rules.judge(&act, keys, &mut self.notes)
            }
            Keys::Asked(keys) => {
                let keys = keys.iter().map(|(name, changes)| Key {
                    name,
                    write: write && *changes,
                });
                gate.listener.rules.judge(&act, keys, &mut self.notes)
            }
            Keys::Untold => gate
                .listener
                .rules
                .judge(&act, std::iter::empty(), &mut self.notes),
        };
        if let Verdict::Refused(denial) = verdict {
            let refusal = self.denied(denial, name);
            self.note_observed(name);
            self.refuse(&refusal);
            return Ok(Decided::Answered);
        }
        let blocking = found.is_some_and(|command| waits(&command.name, command.flags.blocking, words));
        let compared = self.compare(write).await?;
        if !matches!(compared, Compared::Stranger) {
            self.note_observed(name);
        }
        match compared {
            Compared::Go(flight, names) => Ok(self.go(flight, names, blocking)),
            Compared::Refused(mut refusal) => {
                refusal.command = Some(name.to_ascii_uppercase());
                self.refuse(&refusal);
                Ok(Decided::Answered)
            }
            Compared::Stranger => Ok(Decided::Stranger),
            Compared::Unknown => {
                self.complain("NOAUTH Authentication required.");
                Ok(Decided::Answered)
            }
        }
    }

    fn go(&mut self, flight: Flight<'k>, names: Names, blocking: bool) -> Decided<'k> {
        // Nothing waits in a transaction.
        let what = match blocking && self.state.queued.is_none() {
            true => What::Blocking { woken: false },
            false => What::Reply,
        };
        if matches!(what, What::Blocking { .. }) && flight.is_fenced_write() && !self.state.asked_for_id {
            self.state.asked_for_id = true;
            self.send_own(What::ClientId, &[b"CLIENT", b"ID"]);
        }
        Decided::Go(what, flight, names)
    }

    fn denied(&self, denial: Denial, command: &str) -> Refusal {
        let mut refusal = Refusal::new(denial.reason, denial.detail);
        (refusal.rule, refusal.command) = (denial.rule, Some(command.to_ascii_uppercase()));
        if denial.reason == Reason::UnmatchedWrite {
            refusal.detail = format!("{command}: {}", denial.detail);
        }
        let claim = denial.claim.and_then(|claim| self.notes.claims().nth(claim));
        if let Some(claim) = claim {
            let format = self.gate.listener.rules.format_of(&claim);
            refusal.resource = Some(claim.resource.to_owned());
            refusal.token = claim.token.map(|token| format.show(token).to_string());
        }
        refusal
    }

    // ---- the server

    /// The connection that belongs to this client.
    pub(super) async fn reach(&mut self) -> Result<Result<(), Refusal>, End> {
        if self.conn.is_some() {
            return Ok(Ok(()));
        }
        let core = self.core;
        let patience = self.gate.listener.upstream.connect_timeout;
        let mut connecting = pin!(core.pool.connect(patience));
        match self.drive(far(), |cx| connecting.as_mut().poll(cx)).await? {
            Some(Ok(conn)) => {
                self.conn = Some(conn);
                self.learn().await?;
                Ok(Ok(()))
            }
            Some(Err(error)) => Ok(Err(self.unreachable(&error))),
            None => Ok(Err(Refusal::new(Reason::UpstreamUnreachable, ""))),
        }
    }

    /// The server's commands are asked for as soon as it is connected, so that a client which has had one reply waits for
    /// nobody but the server with its first write. Where that fails, each command that needs them asks again.
    async fn learn(&mut self) -> Result<(), End> {
        let core = self.core;
        if let Ok(table) = self.asked(core.asker.table()).await? {
            self.table = Some(table);
        }
        Ok(())
    }

    fn unreachable(&self, error: &NoConn) -> Refusal {
        match error {
            NoConn::Full => Refusal::new(
                Reason::Overloaded,
                "max_connections to the backend are in use: each client has its own",
            ),
            NoConn::Unreachable(error) => {
                tracing::warn!(listener = &*self.gate.listener.name, backend = %self.gate.listener.upstream, %error, "the backend can't be connected");
                Refusal::new(
                    Reason::UpstreamUnreachable,
                    format!("the backend can't be connected: {error}"),
                )
            }
        }
    }

    /// The server's commands, as they are since this connection stands.
    async fn table(&mut self) -> Result<Result<Arc<Table>, Refusal>, End> {
        if let Err(refusal) = self.reach().await? {
            return Ok(Err(refusal));
        }
        if let Some(table) = &self.table {
            return Ok(Ok(Arc::clone(table)));
        }
        let core = self.core;
        let read = self.asked(core.asker.table()).await?;
        Ok(read.inspect(|table| self.table = Some(Arc::clone(table))))
    }

    async fn table_again(&mut self) -> Result<Result<Arc<Table>, Refusal>, End> {
        let core = self.core;
        let read = self.asked(core.asker.table_again()).await?;
        Ok(read.inspect(|table| self.table = Some(Arc::clone(table))))
    }

    async fn ask_keys(&mut self, words: &[&[u8]]) -> Result<Result<Keys, Refusal>, End> {
        let core = self.core;
        let told = self.asked(core.asker.keys(words)).await?;
        Ok(told.map(|keys| keys.map_or(Keys::Untold, Keys::Asked)))
    }

    /// Waits for an answer to something of the gate's own, while everything else goes on.
    async fn asked<T>(
        &mut self,
        question: impl Future<Output = Result<T, Unasked>>,
    ) -> Result<Result<T, Refusal>, End> {
        let mut question = pin!(question);
        match self.drive(far(), |cx| question.as_mut().poll(cx)).await? {
            Some(Ok(answer)) => Ok(Ok(answer)),
            Some(Err(error)) => {
                tracing::warn!(listener = &*self.gate.listener.name, %error, "the backend can't be asked about its commands");
                Ok(Err(Refusal::new(Reason::UpstreamUnreachable, error.to_string())))
            }
            None => Ok(Err(Refusal::new(Reason::UpstreamUnreachable, ""))),
        }
    }
}

/// What is waited for has bounds of its own.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}
