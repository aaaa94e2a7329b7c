//! One client connection: its requests one after the other, each down its line and up again.
//! `head.rs` waits for a request, `line.rs` keeps its first line, `refusal.rs` has what the client is told where it does not go through, `observing.rs`
//! what is noted where a rule only observes.

mod head;
mod line;
mod observing;
mod refusal;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use smallvec::SmallVec;

use self::head::Head;
use self::line::Line;
use self::refusal::{Refusal, judged_answer, not_owner, note_path};
use super::answer::Answer;
use super::exchange::{About, Ended, Exchange};
use super::request::{Facts, Upload};
use super::{Core, Gate};
use crate::base::{Buf, ClientCert, Idle, Reason};
use crate::config::HttpListener;
use crate::keeper::{Ask, Flight, Keeper};
use crate::net::{Alarm, Stream, linger};
use crate::rules::{self, Judgement, Mode, Rule, Scratch};
use crate::upstream::{Conn, NoConn};
use crate::wire::http1::{Forwarded, Framing, HeaderStorage, Upgrade, parse_request, write_request_head};

/// A client connection.
pub struct Client<'a> {
    gate: &'a Arc<Gate>,
    core: &'a Core,
    peer: &'a Peer,
    idle: &'a Idle,
    pub(super) side: Side,
    scratch: Scratch,
    /// The backend connection that was authenticated for this client: no other's, from then on.
    own: Option<Conn>,
    /// The path of the request under way; kept only where refusals name it.
    path: String,
    /// Its first line, for those who ask who was refused.
    line: Line,
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address, an IPv4 one as such.
    pub address: IpAddr,
    /// The same, for `X-Forwarded-For`.
    pub ip: String,
    /// Whether TLS protects the connection.
    pub secure: bool,
    /// The version of HTTP that the client speaks, for `Via`.
    pub version: &'static str,
    /// What its verified certificate says; `None` where it showed none.
    pub cert: Option<Arc<ClientCert>>,
}

/// What a connection begins with.
#[derive(Debug)]
pub enum First {
    /// Whatever comes.
    Awaited,
    /// A request of which this has come already, its whole head at least.
    Came(Buf),
    /// A request that could not even be written down.
    Refused(Box<Answer>),
}

/// How serving a connection ended.
#[derive(Debug)]
pub enum End {
    /// With the connection.
    Closed,
    /// The client speaks HTTP/2 from its first byte on.
    SpeaksHttp2 {
        /// The connection.
        stream: Stream,
        /// What has come of it.
        inbox: Buf,
    },
}

/// What an exchange uses of a client connection.
#[derive(Debug)]
pub struct Side {
    pub stream: Stream,
    /// What came from the client and was not taken yet.
    pub inbox: Buf,
    /// What goes to the backend.
    pub outbox: Buf,
    /// What goes to the client.
    pub reply: Buf,
    pub alarm: Alarm,
}

/// What follows a request.
enum Next {
    /// Another one.
    Request,
    /// The end, in order.
    Close,
    /// The end, while the client may still be sending.
    Linger,
    /// The end at once: an answer was broken off.
    Reset,
}

/// A request that goes on.
struct Plan<'a> {
    facts: Facts,
    upload: Upload,
    rule: Option<&'a Rule>,
    bearing: Bearing,
    /// It was the first to present its token.
    raised: bool,
}

/// What the rules make of a request that goes on.
#[derive(Clone, Copy, Debug)]
enum Bearing {
    /// Nothing is compared.
    Free,
    /// Its claims are in the scratch, to be compared.
    Fenced,
    /// It would be refused for this, and its rule only observes.
    Observed(Reason),
}

/// How waiting for an admission ended.
enum Waited<T> {
    /// With the admission's own end.
    Decided(T),
    /// With the client's.
    Alone,
    /// With `drain_timeout`'s.
    Long,
}

impl<'a> Client<'a> {
    pub fn new(gate: &'a Arc<Gate>, core: &'a Core, stream: Stream, peer: &'a Peer, idle: &'a Idle) -> Self {
        Client {
            gate,
            core,
            peer,
            idle,
            side: Side {
                stream,
                inbox: Buf::default(),
                outbox: Buf::default(),
                reply: Buf::default(),
                alarm: Alarm::default(),
            },
            scratch: Scratch::default(),
            own: None,
            path: String::new(),
            line: Line::default(),
        }
    }

    /// Serves the connection until it ends.
    pub async fn serve(mut self, first: First) -> End {
        let mut at_first_byte = matches!(first, First::Awaited);
        let mut refused = None;
        match first {
            First::Awaited => {}
            First::Came(inbox) => self.side.inbox = inbox,
            First::Refused(answer) => refused = Some(answer),
        }
        let end = loop {
            let head = match refused.take() {
                Some(answer) => Head::Refused(answer),
                None => self.next_head(std::mem::take(&mut at_first_byte)).await,
            };
            let next = match head {
                Head::Complete(len) => self.handle(len).await,
                Head::Ended => break Next::Close,
                Head::SpeaksHttp2 => {
                    let Side { stream, inbox, .. } = self.side;
                    return End::SpeaksHttp2 { stream, inbox };
                }
                Head::Refused(answer) => {
                    self.line.clear();
                    self.refuse(Refusal {
                        answer: *answer,
                        facts: None,
                        rule: None,
                    })
                    .await
                }
            };
            match next {
                Next::Request => {}
                end => break end,
            }
        };
        match end {
            Next::Reset => self.side.stream.reset(),
            Next::Linger => linger::close(self.side.stream, &mut self.side.alarm).await,
            // Bytes that nobody read would turn the close into a reset, and the client might lose its answer.
            Next::Close if !self.side.inbox.is_empty() => {
                linger::close(self.side.stream, &mut self.side.alarm).await
            }
            Next::Request | Next::Close => self.side.stream.close(),
        }
        End::Closed
    }

    /// One request: down the line and up again.
    async fn handle(&mut self, head_len: usize) -> Next {
        let mut plan = match self.read(head_len) {
            Ok(plan) => plan,
            Err(refusal) => return self.refuse(refusal).await,
        };
        let facts = plan.facts;
        let keeper = self.gate.seat.keeper();
        let mut flight = match self.admit(&keeper, &mut plan).await {
            Ok(flight) => flight.settles_after(self.gate.listener.upstream.settle_after),
            Err(answer) => return self.refuse_plan(&plan, answer).await,
        };
        let mut at_hand = match self.own.take() {
            Some(mut own) => own.again().then_some(own),
            None if facts.connection_auth => None,
            None => self.core.pool.take(),
        };
        loop {
            let conn = match at_hand.take() {
                Some(conn) => conn,
                None => match self.connect(&flight, &plan).await {
                    Ok(conn) => conn,
                    Err(answer) => return self.refuse_plan(&plan, answer).await,
                },
            };
            let exchange = Exchange::new(
                self.gate,
                self.core,
                &mut self.side,
                About::of(facts, &self.scratch, plan.rule),
                plan.upload,
                flight,
                conn,
            );
            match exchange.run().await {
                Ended::Answered { keep, own } => {
                    self.own = own;
                    self.forget_head(facts);
                    return if keep { Next::Request } else { Next::Close };
                }
                Ended::AnsweredEarly => return Next::Linger,
                Ended::ClientGone | Ended::Broken => return Next::Reset,
                Ended::Cut { cut, upload } => {
                    plan.upload = upload;
                    let answer = self.cut_answer(cut);
                    return self.refuse_plan(&plan, answer).await;
                }
                Ended::Failed { answer, upload } => {
                    plan.upload = upload;
                    return self.refuse_plan(&plan, answer).await;
                }
                Ended::Unsent {
                    flight: unsent,
                    upload,
                } => (flight, plan.upload) = (unsent, upload),
                Ended::Unanswered { flight: unanswered } => {
                    flight = unanswered;
                    plan = match self.read(head_len) {
                        Ok(plan) => plan,
                        Err(refusal) => return self.refuse(refusal).await,
                    };
                }
            }
        }
    }

    /// A repeatable read's head stays in the inbox until it is answered.
    fn forget_head(&mut self, facts: Facts) {
        if facts.is_repeatable() {
            self.side.inbox.consume(facts.head_len);
        }
    }

    /// Reads a head: what it asks for, and which rule it falls under. Leaves what goes to the backend, as far as
    /// it has come, in the outbox.
    fn read(&mut self, head_len: usize) -> Result<Plan<'a>, Refusal> {
        let gate: &'a Arc<Gate> = self.gate;
        let listener: &'a HttpListener = &gate.listener;
        let mut storage = HeaderStorage::new();
        self.line.clear();
        let Side { inbox, outbox, .. } = &mut self.side;
        let head = parse_request(&inbox.filled()[..head_len], &mut storage).map_err(|error| {
            let mut answer = Answer::new(Reason::BadRequest, error.detail);
            answer.status = Some(error.status());
            Refusal {
                answer,
                facts: None,
                rule: None,
            }
        })?;
        let facts = Facts::of(&head, head_len, &listener.rules);
        note_path(listener.errors, head.target, &mut self.path);
        self.line.note(head.method, head.target);
        let refuse = |answer, rule: Option<&Rule>| Refusal {
            answer,
            facts: Some(facts),
            rule: rule.map(|rule| rule.index),
        };
        let upgrade = head.upgrade == Upgrade::Other;
        if upgrade && !listener.upgrades {
            let answer = Answer::new(Reason::UpgradeRefused, "an upgraded connection can't be fenced");
            return Err(refuse(answer, None));
        }
        let request = rules::Request {
            method: head.method,
            target: head.target,
            host: head.host,
            fields: head.fields,
            from: rules::Sender {
                ip: self.peer.address,
                cert: self.peer.cert.as_deref(),
            },
        };
        let (rule, bearing) = match listener.rules.judge(&request, &mut self.scratch) {
            Judgement::Pass { rule, .. } => (rule, Bearing::Free),
            Judgement::Fenced { rule, .. } => (Some(rule), Bearing::Fenced),
            Judgement::Refused(refusal) if refusal.binds() => {
                // Whoever stands by judges nobody: the one that is active does.
                let answer = match refusal.rule {
                    Some(_) if !gate.seat.keeper().is_owner() => not_owner(),
                    _ => judged_answer(&refusal, &self.scratch),
                };
                return Err(refuse(answer, refusal.rule));
            }
            Judgement::Refused(refusal) => (refusal.rule, Bearing::Observed(refusal.reason)),
        };
        outbox.clear();
        self.core.lend(outbox);
        let forwarded = Forwarded {
            client_ip: &self.peer.ip,
            proto: if self.peer.secure { "https" } else { "http" },
            via: self.peer.version,
        };
        write_request_head(
            outbox.end(),
            &head,
            listener.forwarded.then_some(&forwarded),
            facts.upgrade,
        );
        drop(head);
        let mut upload = Upload::new(facts.framing, listener.limits.max_header_bytes);
        if !facts.is_repeatable() {
            inbox.consume(head_len);
            // As much as is there, before anything is raised or sent: what is malformed must do neither.
            upload
                .feed(inbox, outbox, &listener.rules)
                .map_err(|mut answer| {
                    answer.rule = rule.map(|rule| rule.name.to_string());
                    let mut refusal = refuse(answer, rule);
                    if let Some(facts) = &mut refusal.facts {
                        // Its head has been taken already, and where its body ends nobody can tell.
                        (facts.head_len, facts.framing) = (0, Framing::UntilClose);
                    }
                    refusal
                })?;
        }
        Ok(Plan {
            facts,
            upload,
            rule,
            bearing,
            raised: false,
        })
    }

    /// Compares the tokens and waits where that is needed.
    async fn admit<'k>(
        &mut self,
        keeper: &'k Arc<Keeper>,
        plan: &mut Plan<'a>,
    ) -> Result<Flight<'k>, Answer> {
        let decisions = self.gate.decisions(plan.rule);
        let rule = match (plan.bearing, plan.rule) {
            (Bearing::Fenced, Some(rule)) => rule,
            (Bearing::Observed(reason), _) => {
                self.note_refusal(reason, plan.rule);
                return Ok(Flight::unfenced());
            }
            (Bearing::Free | Bearing::Fenced, _) => {
                decisions.count_free(plan.rule.is_none() && plan.facts.write);
                return Ok(Flight::unfenced());
            }
        };
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
            self.note_sighting(keeper.observe(&asks), &asks, rule);
            return Ok(Flight::unfenced());
        }
        if let Some(flight) = keeper.quick(&asks, plan.facts.write) {
            Ask::count(&asks, false, decisions);
            return Ok(flight);
        }
        let deadline = Instant::now() + rule.drain_timeout;
        let mut admission = keeper.admit(&asks, &self.gate.room, plan.facts.write);
        let Side { alarm, stream, .. } = &mut self.side;
        let waited = poll_fn(|cx| match admission.poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Waited::Decided(outcome)),
            Poll::Pending if stream.poll_gone(cx).is_ready() => Poll::Ready(Waited::Alone),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| Waited::Long),
        })
        .await;
        match waited {
            Waited::Decided(Ok(found)) => {
                Ask::count(&asks, found.raised, decisions);
                plan.raised = found.raised;
                Ok(found.flight)
            }
            Waited::Decided(Err(refused)) => Err(self.refused_answer(refused)),
            // Its place among those who wait is another's. Nobody reads this.
            Waited::Alone => Err(Answer::new(
                Reason::Draining,
                "the client left while its request waited",
            )),
            Waited::Long if admission.waits_for_the_store() => Err(Answer::new(
                Reason::StoreUnavailable,
                "the store has not taken the token yet",
            )),
            Waited::Long => {
                let mut answer = Answer::new(
                    Reason::Draining,
                    "older writes have not settled yet; the raise goes on by itself",
                );
                self.name(&mut answer, 0);
                Err(answer)
            }
        }
    }

    /// A new connection, unless the flight is cut meanwhile.
    ///
    /// Where all are in use it waits for one. A raise comes first and cuts the uploads of older holders, so that
    /// those can't keep a new holder out by holding every connection; and since it has raised, it waits as long as
    /// it would for a drain.
    async fn connect(&mut self, flight: &Flight<'_>, plan: &Plan<'a>) -> Result<Conn, Answer> {
        let patience = match plan.rule {
            Some(rule) if plan.raised => rule.drain_timeout,
            _ => self.gate.listener.upstream.connect_timeout,
        };
        let mut connecting = std::pin::pin!(self.core.pool.connect(patience));
        let mut watch = flight.is_fenced_write().then(|| flight.watch());
        let outcome = poll_fn(|cx| {
            if let Some(watch) = &mut watch
                && watch.poll_shut(cx).is_ready()
            {
                return Poll::Ready(None);
            }
            connecting.as_mut().poll(cx).map(Some)
        })
        .await;
        match outcome {
            Some(Ok(conn)) => Ok(conn),
            // `overloaded` says that nothing was raised.
            Some(Err(NoConn::Full)) => Err(Answer::new(
                if plan.raised {
                    Reason::Draining
                } else {
                    Reason::Overloaded
                },
                "max_connections to the backend are in use",
            )),
            Some(Err(NoConn::Unreachable(error))) => {
                tracing::warn!(listener = &*self.gate.listener.name, backend = %self.gate.listener.upstream, %error, "the backend can't be connected");
                Err(Answer::new(
                    Reason::UpstreamUnreachable,
                    format!("the backend can't be connected: {error}"),
                ))
            }
            None => Err(self.cut_answer(flight.cut())),
        }
    }
}
