//! A session on its way to the backend: its resources and tokens, the comparison, the wait, the connection. Whatever
//! ends it here ends it with nothing sent, and with no connection made where it was not admitted.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use smallvec::SmallVec;

use super::opening::Opening;
use super::session::{Ended, Session};
use super::{Core, Gate, Refusal, Who};
use crate::base::{Buf, Reason, Token};
use crate::config::ProxyProtocol;
use crate::keeper::{Admitted, Ask, Cut, Flight, Keeper, Lost, Refused, Sighting};
use crate::net::{Alarm, Stream};
use crate::rules::{Mode, Scratch, Sender, Unfit};
use crate::upstream::{Conn, NoConn};
use crate::wire::proxy;

/// A session that has been opened.
pub struct Entry<'a> {
    pub(super) gate: &'a Arc<Gate>,
    pub(super) core: &'a Core,
    who: Who,
    scratch: Scratch,
    /// It was the first to present its token.
    raised: bool,
}

impl<'a> Entry<'a> {
    pub fn new(gate: &'a Arc<Gate>, core: &'a Core, who: Who) -> Entry<'a> {
        Entry {
            gate,
            core,
            who,
            scratch: Scratch::default(),
            raised: false,
        }
    }

    /// Serves the session to its end.
    pub async fn serve(mut self, opening: Opening) {
        let keeper = self.gate.seat.keeper();
        let admitted = match self.judge(&opening) {
            Ok(fenced) => self.admit(&keeper, fenced, &opening.client).await,
            Err(refusal) => Err(refusal),
        };
        let settle_after = self.gate.listener.upstream.settle_after;
        let (client, addresses, inbox) = opening.begin();
        let flight = match admitted {
            Ok(flight) => flight.settles_after(settle_after),
            Err(refusal) => return self.gate.refuse(Some(client), self.who, &refusal),
        };
        let conn = match self.connect(&flight).await {
            Ok(conn) => conn,
            Err(refusal) => return self.gate.refuse(Some(client), self.who, &refusal),
        };
        let outbox = self.outbox(addresses, inbox);
        match Session::new(&self, client, conn, flight, outbox).run().await {
            Ended::Settled => {}
            Ended::Cut { client, cut } => self.gate.refuse(client, self.who, &self.cut(cut)),
            Ended::Lost {
                client,
                why,
                doubtful,
            } => self.lost(client, &why, doubtful),
        }
    }

    /// Reads what the session names and presents. `Ok(false)`: nothing of it is compared.
    fn judge(&mut self, opening: &Opening) -> Result<bool, Refusal> {
        let rule = &self.gate.listener.rule;
        let from = Sender {
            ip: self.who.peer(),
            cert: opening.cert.as_ref(),
        };
        let scratch = &mut self.scratch;
        match opening.judge(|opening| rule.judge(opening, &from, scratch)) {
            Ok(()) => Ok(true),
            Err(unfit) if rule.mode == Mode::Observe => {
                self.gate.decisions.count_refused(unfit.reason, true);
                self.note(unfit.reason, None, None);
                Ok(false)
            }
            Err(unfit) => Err(self.unfit(unfit)),
        }
    }

    /// Compares the tokens, and waits where that is needed, for as long as the client is there.
    async fn admit<'k>(
        &mut self,
        keeper: &'k Arc<Keeper>,
        fenced: bool,
        client: &Stream,
    ) -> Result<Flight<'k>, Refusal> {
        if !fenced {
            return Ok(Flight::unfenced());
        }
        let (gate, rule) = (self.gate, &self.gate.listener.rule);
        let asks: SmallVec<[Ask<'_>; 2]> = self
            .scratch
            .claims()
            .map(|claim| {
                Ask::new(
                    claim.resource,
                    claim.token,
                    rule.missing,
                    claim.format,
                    claim.max_step,
                )
            })
            .collect();
        if rule.mode == Mode::Observe {
            let sighting = keeper.observe(&asks);
            sighting.count(&asks, &gate.decisions);
            self.note_sighting(sighting);
            return Ok(Flight::unfenced());
        }
        if let Some(flight) = keeper.quick(&asks, true) {
            Ask::count(&asks, false, &gate.decisions);
            return Ok(flight);
        }
        let deadline = Instant::now() + rule.drain_timeout;
        let mut alarm = Alarm::default();
        let mut gone = pin!(client.broken());
        let mut admission = keeper.admit(&asks, &gate.room, true);
        let waited = poll_fn(|cx| match admission.poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Waited::Decided(outcome)),
            Poll::Pending if gone.as_mut().poll(cx).is_ready() => Poll::Ready(Waited::Alone),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| Waited::Long),
        })
        .await;
        match waited {
            Waited::Decided(Ok(found)) => {
                Ask::count(&asks, found.raised, &gate.decisions);
                self.raised = found.raised;
                Ok(found.flight)
            }
            Waited::Decided(Err(refused)) => Err(self.refused(refused)),
            // Its place among those who wait is another's.
            Waited::Alone => Err(self.named(Reason::Draining, GONE, 0)),
            Waited::Long if admission.waits_for_the_store() => Err(self.named(
                Reason::StoreUnavailable,
                "the store has not taken the token yet",
                0,
            )),
            Waited::Long => Err(self.named(
                Reason::Draining,
                "older sessions have not settled yet; the raise goes on by itself",
                0,
            )),
        }
    }

    /// A new connection, unless the flight is cut meanwhile. After a raise, whose older sessions have just ended, it
    /// waits for room as long as for a drain.
    async fn connect(&self, flight: &Flight<'_>) -> Result<Conn, Refusal> {
        let listener = &self.gate.listener;
        let patience = match self.raised {
            true => listener.rule.drain_timeout,
            false => listener.upstream.connect_timeout,
        };
        let mut connecting = pin!(self.core.pool.connect(patience));
        let mut watch = flight.is_fenced_write().then(|| flight.watch());
        let mut place = flight.enroll();
        let outcome = poll_fn(|cx| {
            if let Some(watch) = &mut watch
                && watch.poll_shut(cx).is_ready()
            {
                return Poll::Ready(Err(flight.cut()));
            }
            if let Some(place) = &mut place
                && place.poll_lapsed(cx).is_ready()
            {
                return Poll::Ready(Err(Cut::NotOwner));
            }
            connecting.as_mut().poll(cx).map(Ok)
        })
        .await;
        match outcome {
            Ok(Ok(conn)) => Ok(conn),
            Ok(Err(NoConn::Full)) => Err(Refusal::new(
                // `overloaded` says that nothing was raised.
                if self.raised {
                    Reason::Draining
                } else {
                    Reason::Overloaded
                },
                "max_connections to the backend are in use",
            )),
            Ok(Err(NoConn::Unreachable(error))) => {
                tracing::warn!(listener = &*listener.name, backend = %listener.upstream, %error, "the backend can't be connected");
                Err(Refusal::new(
                    Reason::UpstreamUnreachable,
                    format!("the backend can't be connected: {error}"),
                ))
            }
            Err(cut) => Err(self.cut(cut)),
        }
    }

    /// What goes to the backend first: who the client is, where it is to be told, and what has come.
    fn outbox(&self, addresses: proxy::Addresses, inbox: Buf) -> Buf {
        match self.gate.listener.proxy_protocol {
            ProxyProtocol::None => inbox,
            ProxyProtocol::V2 => {
                let mut outbox = Buf::default();
                proxy::write(outbox.end(), addresses);
                outbox.end().extend_from_slice(inbox.filled());
                outbox
            }
        }
    }

    // ---- what it is told where it ends

    fn unfit(&self, unfit: Unfit) -> Refusal {
        match unfit.claim {
            Some(index) => self.named(unfit.reason, unfit.detail, index),
            None => Refusal::new(unfit.reason, unfit.detail),
        }
    }

    fn refused(&self, refused: Refused) -> Refusal {
        match refused {
            Refused::Stale { index, highest } => self.stale(index, highest),
            Refused::Missing { index } => self.missing(index),
            Refused::StepTooLarge { index, highest } => {
                let detail =
                    "the token is more than max_step above the highest seen; an operator can raise it";
                self.above(Reason::StepTooLarge, detail, index, highest)
            }
            Refused::Overloaded => Refusal::new(Reason::Overloaded, "max_waiting sessions wait already"),
            Refused::Unstored => self.named(
                Reason::StoreUnavailable,
                "the store can't take the token now; it is tried again by itself",
                0,
            ),
            Refused::NotOwner => not_owner(),
        }
    }

    fn cut(&self, cut: Cut) -> Refusal {
        match cut {
            Cut::Stale { index, highest } => self.stale(index, highest),
            Cut::Fenced { index } => self.missing(index),
            Cut::Reset => Refusal::new(Reason::Draining, "an operator resets the mark of this resource"),
            Cut::NotOwner => not_owner(),
        }
    }

    fn stale(&self, index: usize, highest: Token) -> Refusal {
        self.above(
            Reason::StaleToken,
            "a newer holder has taken over",
            index,
            highest,
        )
    }

    fn missing(&self, index: usize) -> Refusal {
        self.named(
            Reason::MissingToken,
            "the resource is fenced, and no token came",
            index,
        )
    }

    fn above(&self, reason: Reason, detail: &str, index: usize, highest: Token) -> Refusal {
        let mut refusal = self.named(reason, detail, index);
        let claim = self.scratch.claim(index);
        refusal.highest = claim.map(|claim| claim.format.show(highest).to_string());
        refusal
    }

    fn named(&self, reason: Reason, detail: &str, index: usize) -> Refusal {
        let mut refusal = Refusal::new(reason, detail);
        if let Some(claim) = self.scratch.claim(index) {
            refusal.resource = Some(claim.resource.to_owned());
            refusal.token = claim.token.map(|token| claim.format.show(token).to_string());
        }
        refusal
    }

    /// A session under way was cut: told at that moment, while the backend is waited for.
    pub(super) fn tell_cut(&self, cut: Cut) {
        self.gate.refuse(None, self.who, &self.cut(cut));
    }

    /// What the session sent may still take effect, if it has sent anything.
    pub(super) fn lose(&self, flight: Flight<'_>, reason: Reason) {
        flight.lose_known(&Lost {
            reason: reason.as_str(),
            listener: &self.gate.listener.name,
            rule: Some(&self.gate.listener.rule.name),
            resource: &|index| {
                self.scratch
                    .claim(index)
                    .map(|claim| (claim.resource, claim.format))
            },
        });
    }

    /// A session that broke on its way: it was counted when it was admitted.
    fn lost(&self, client: Option<Stream>, why: &str, doubtful: bool) {
        let claim = self.scratch.claim(0);
        tracing::info!(
            listener = &*self.gate.listener.name,
            rule = &*self.gate.listener.rule.name,
            client = %self.who.client(),
            peer = self.who.via().map(tracing::field::display),
            resource = claim.map(|claim| claim.resource),
            in_doubt = doubtful,
            why,
            "a session broke"
        );
        if let Some(client) = client {
            client.reset();
        }
    }

    // ---- what a rule that only observes notes

    fn note_sighting(&self, sighting: Sighting) {
        match sighting {
            Sighting::Admitted | Sighting::Raised | Sighting::Passed => {}
            Sighting::Stale { index, highest } => self.note(Reason::StaleToken, Some(index), Some(highest)),
            Sighting::StepTooLarge { index, highest } => {
                self.note(Reason::StepTooLarge, Some(index), Some(highest));
            }
            Sighting::Missing { index } => self.note(Reason::MissingToken, Some(index), None),
        }
    }

    fn note(&self, reason: Reason, index: Option<usize>, highest: Option<Token>) {
        let noted = match (index, highest) {
            (Some(index), Some(highest)) => self.above(reason, "", index, highest),
            (Some(index), None) => self.named(reason, "", index),
            (None, _) => Refusal::new(reason, ""),
        };
        let (resource, token, highest) = noted.shown();
        tracing::info!(
            rule = &*self.gate.listener.rule.name,
            client = %self.who.client(),
            peer = self.who.via().map(tracing::field::display),
            reason = reason.as_str(),
            resource,
            token,
            highest,
            "observed: would be refused"
        );
        self.gate.tell(self.who, &noted, true);
    }
}

/// What ended a wait for the fences.
enum Waited<'k> {
    Decided(Result<Admitted<'k>, Refused>),
    Long,
    /// The client has left.
    Alone,
}

/// Nobody reads it but those who look into the log.
const GONE: &str = "the client left while its session waited";

fn not_owner() -> Refusal {
    Refusal::new(
        Reason::NotOwner,
        "this instance does not own the fences: another one may",
    )
}
