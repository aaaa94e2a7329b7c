//! An upgraded connection: bytes both ways until both sides have ended. Nothing of it is fenced; only a listener with
//! `upgrades: pass` comes here, and only after the backend's own 101.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Instant;

use super::super::client::Side;
use super::{Ended, Exchange};
use crate::base::Buf;
use crate::keeper::Flight;
use crate::net::Stream;
use crate::upstream::{Conn, Sent};

/// The two ways, and whether their ends have been passed on.
struct Ways {
    to_backend: Way,
    to_client: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Its source has ended; what it sent before is still on its way.
    Ending,
    Ended,
}

/// Something broke: nothing can be said about what arrived.
struct Broken;

impl<'k> Exchange<'_, 'k> {
    /// Runs the tunnel to its end. The request was answered by the 101: its flight is settled.
    pub(super) async fn tunnel(&mut self) -> Ended<'k> {
        self.watch = None;
        if let Some(flight) = self.flight.take() {
            flight.settle();
        }
        let Some(mut conn) = self.conn.take() else {
            return Ended::Broken;
        };
        let mut flight = Flight::unfenced();
        let mut ways = Ways {
            to_backend: Way::Open,
            to_client: Way::Open,
        };
        let idle_timeout = self.gate.listener.limits.idle_timeout;
        let mut moved_at = Instant::now();
        while ways.to_backend != Way::Ended || ways.to_client != Way::Ended {
            let moved = ways
                .move_to_backend(self.side, &mut conn, &mut flight)
                .and_then(|up| Ok(up | ways.move_to_client(self.side, &mut conn)?));
            match moved {
                Ok(true) => {
                    moved_at = Instant::now();
                    // A tunnel that is never short of bytes lets others have their turn.
                    tokio::task::yield_now().await;
                }
                Ok(false) => {
                    let deadline = moved_at + idle_timeout;
                    let side = &mut *self.side;
                    let ready = poll_fn(|cx| {
                        let mut ready = ways.to_backend == Way::Open
                            && side.outbox.is_empty()
                            && side.stream.poll_read_ready(cx).is_ready();
                        ready |= !side.outbox.is_empty() && conn.stream().poll_write_ready(cx).is_ready();
                        ready |= ways.to_client == Way::Open
                            && side.reply.is_empty()
                            && conn.stream().poll_read_ready(cx).is_ready();
                        ready |= !side.reply.is_empty() && side.stream.poll_write_ready(cx).is_ready();
                        if ready {
                            return Poll::Ready(true);
                        }
                        side.alarm.poll(cx, deadline).map(|()| false)
                    });
                    if !ready.await {
                        return Ended::Broken;
                    }
                }
                Err(Broken) => return Ended::Broken,
            }
        }
        conn.close();
        Ended::Answered {
            keep: false,
            own: None,
        }
    }
}

impl Ways {
    fn move_to_backend(
        &mut self,
        side: &mut Side,
        conn: &mut Conn,
        flight: &mut Flight<'_>,
    ) -> Result<bool, Broken> {
        let Side {
            stream,
            inbox,
            outbox,
            ..
        } = side;
        if outbox.is_empty() && !inbox.is_empty() {
            std::mem::swap(inbox, outbox);
        }
        let mut moved =
            self.to_backend == Way::Open && outbox.is_empty() && self.to_backend.fill(stream, outbox)?;
        if !outbox.is_empty() {
            // No byte of it is the last one of anything: only the end of the connection is.
            match conn.send(flight, outbox, false, false) {
                Sent::All | Sent::Part => moved = true,
                Sent::Blocked => {}
                Sent::Cut(_) | Sent::Broken(_) => return Err(Broken),
            }
        }
        if self.to_backend == Way::Ending && outbox.is_empty() {
            conn.end_writes().map_err(|_| Broken)?;
            self.to_backend = Way::Ended;
            moved = true;
        }
        Ok(moved)
    }

    fn move_to_client(&mut self, side: &mut Side, conn: &mut Conn) -> Result<bool, Broken> {
        let Side { stream, reply, .. } = side;
        if reply.is_empty() && !conn.inbox.is_empty() {
            std::mem::swap(&mut conn.inbox, reply);
        }
        let mut moved = false;
        if self.to_client == Way::Open && reply.is_empty() {
            moved = match conn.read_into(reply, usize::MAX) {
                Ok(0) => {
                    self.to_client = Way::Ending;
                    true
                }
                Ok(_) => true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                Err(_) => return Err(Broken),
            };
        }
        if !reply.is_empty() {
            match stream.try_write(reply.filled()) {
                Ok(taken) => {
                    reply.consume(taken);
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Broken),
            }
        }
        if self.to_client == Way::Ending && reply.is_empty() {
            stream.end_writes().map_err(|_| Broken)?;
            self.to_client = Way::Ended;
            moved = true;
        }
        Ok(moved)
    }
}

impl Way {
    fn fill(&mut self, stream: &mut Stream, buf: &mut Buf) -> Result<bool, Broken> {
        match stream.try_read(buf, usize::MAX) {
            Ok(0) => {
                *self = Way::Ending;
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Broken),
        }
    }
}
