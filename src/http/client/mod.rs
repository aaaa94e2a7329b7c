//! One client connection: its requests one after the other, each down its line and up again.
//! `refusal.rs` has what it is told where a request does not go through, `observing.rs` what is noted where a rule
//! only observes.

mod observing;
mod refusal;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use smallvec::SmallVec;

use self::observing::sighted;
use self::refusal::{Refusal, judged_answer};
use super::alarm::Alarm;
use super::answer::{Answer, decision};
use super::exchange::{Ended, Exchange};
use super::request::{Facts, Upload};
use super::{Core, Gate, Idle, Peer, linger};
use crate::base::{Buf, Reason};
use crate::config::Listener;
use crate::fence::Claim;
use crate::keeper::{Ask, Flight};
use crate::net::Stream;
use crate::observe::Decision;
use crate::rules::{self, Judgement, Missing, Mode, Rule, Scratch};
use crate::upstream::{Conn, NoConn};
use crate::wire::http1::{
    Forwarded, Framing, HeaderStorage, Upgrade, find_head_end, parse_request, write_request_head,
};

/// A client connection.
pub struct Client<'a> {
    gate: &'a Arc<Gate>,
    core: &'a Core,
    peer: Peer,
    peer_ip: String,
    idle: &'a Idle,
    pub(super) side: Side,
    scratch: Scratch,
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

/// What waiting for a head brought.
enum Head {
    Complete(usize),
    Ended,
    Refused(Box<Answer>),
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

impl<'a> Client<'a> {
    pub fn new(gate: &'a Arc<Gate>, core: &'a Core, stream: Stream, peer: Peer, idle: &'a Idle) -> Self {
        Client {
            gate,
            core,
            peer_ip: peer.address.ip().to_canonical().to_string(),
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
        }
    }

    /// Serves the connection until it ends.
    pub async fn serve(mut self) {
        let end = loop {
            let next = match self.next_head().await {
                Head::Complete(len) => self.handle(len).await,
                Head::Ended => break Next::Close,
                Head::Refused(answer) => {
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
    }

    /// Waits for a whole head in the inbox.
    async fn next_head(&mut self) -> Head {
        let limits = self.gate.listener.limits;
        let since = Instant::now();
        let mut begun = (!self.side.inbox.is_empty()).then_some(since);
        let mut searched = 0;
        loop {
            if matches!(self.side.inbox.filled(), b"\r\n") {
                // Some old clients send an empty line after a body: that begins nothing.
                self.side.inbox.clear();
                (begun, searched) = (None, 0);
            }
            if let Some(end) = find_head_end(self.side.inbox.filled(), searched) {
                return if end > limits.max_header_bytes {
                    too_large()
                } else {
                    Head::Complete(end)
                };
            }
            searched = self.side.inbox.len();
            if searched > limits.max_header_bytes {
                return too_large();
            }
            let deadline = begun.map_or(since + limits.idle_timeout, |begun| begun + limits.header_timeout);
            if begun.is_none() && !self.rest() {
                return Head::Ended;
            }
            let ready = self.readable(deadline).await;
            if begun.is_none() {
                if !self.idle.wake() {
                    return Head::Ended;
                }
                self.side.stream.rest(false);
            }
            if !ready {
                return match begun {
                    Some(_) => timed_out("the head did not come within header_timeout"),
                    None => Head::Ended,
                };
            }
            self.core.lend(&mut self.side.inbox);
            match self.side.stream.try_read(&mut self.side.inbox, usize::MAX) {
                Ok(0) => return Head::Ended,
                Ok(_) => begun = begun.or_else(|| Some(Instant::now())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Head::Ended,
            }
        }
    }

    /// Between two requests: gives the room away. False where the gate closes.
    fn rest(&mut self) -> bool {
        for buf in [&mut self.side.inbox, &mut self.side.outbox, &mut self.side.reply] {
            self.core.take_back(buf);
        }
        // A stop that finds the connection here ends its task.
        self.side.stream.rest(true);
        self.idle.rest();
        !self.gate.is_closing()
    }

    async fn readable(&mut self, deadline: Instant) -> bool {
        let Side { stream, alarm, .. } = &mut self.side;
        poll_fn(|cx| match stream.poll_read_ready(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| false),
        })
        .await
    }

    /// One request: down the line and up again.
    async fn handle(&mut self, head_len: usize) -> Next {
        let mut plan = match self.read(head_len) {
            Ok(plan) => plan,
            Err(refusal) => return self.refuse(refusal).await,
        };
        let facts = plan.facts;
        let mut flight = match self.admit(&mut plan).await {
            Ok(flight) => flight.settles_after(self.gate.listener.upstream.settle_after),
            Err(answer) => return self.refuse_plan(&plan, answer).await,
        };
        let mut pooled = if facts.connection_auth {
            None
        } else {
            self.core.pool.take()
        };
        loop {
            let conn = match pooled.take() {
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
                facts,
                plan.upload,
                flight,
                conn,
            );
            match exchange.run().await {
                Ended::Answered { keep } => {
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
        let listener: &'a Listener = &gate.listener;
        let mut storage = HeaderStorage::new();
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
        let refuse = |answer, rule: Option<&Rule>| Refusal {
            answer,
            facts: Some(facts),
            rule: rule.map(|rule| rule.index),
        };
        if head.upgrade == Upgrade::Other {
            let answer = Answer::new(Reason::UpgradeRefused, "an upgraded connection can't be fenced");
            return Err(refuse(answer, None));
        }
        let request = rules::Request {
            method: head.method,
            target: head.target,
            host: head.host,
            fields: head.fields,
        };
        let (rule, bearing) = match listener.rules.judge(&request, &mut self.scratch) {
            Judgement::Pass { rule, .. } => (rule, Bearing::Free),
            Judgement::Fenced { rule, .. } => (Some(rule), Bearing::Fenced),
            Judgement::Refused(refusal) if refusal.binds() => {
                let answer = judged_answer(&refusal, &self.scratch);
                return Err(refuse(answer, refusal.rule));
            }
            Judgement::Refused(refusal) => (refusal.rule, Bearing::Observed(refusal.reason)),
        };
        outbox.clear();
        self.core.lend(outbox);
        let forwarded = Forwarded {
            client_ip: &self.peer_ip,
            proto: if self.peer.secure { "https" } else { "http" },
            via: true,
        };
        write_request_head(
            outbox.end(),
            &head,
            listener.forwarded.then_some(&forwarded),
            false,
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
    async fn admit(&mut self, plan: &mut Plan<'a>) -> Result<Flight<'a>, Answer> {
        let keeper = &self.gate.keeper;
        let decisions = self.gate.decisions(plan.rule);
        let rule = match (plan.bearing, plan.rule) {
            (Bearing::Fenced, Some(rule)) => rule,
            (Bearing::Observed(reason), _) => {
                decision(reason)
                    .into_iter()
                    .for_each(|decision| decisions.count(decision));
                let rule = plan.rule.map_or("", |rule| &rule.name);
                tracing::info!(rule, reason = reason.as_str(), "observed: would be refused");
                return Ok(Flight::unfenced(keeper));
            }
            (Bearing::Free | Bearing::Fenced, _) => {
                decisions.count(Decision::Passed);
                return Ok(Flight::unfenced(keeper));
            }
        };
        let until_fenced = rule.missing == Missing::PassUntilFenced;
        let asks: SmallVec<[Ask<'_>; 2]> = self
            .scratch
            .claims()
            .map(|claim| Ask {
                name: claim.resource,
                claim: claim.token.map_or(Claim::Without { until_fenced }, Claim::Token),
                format: claim.format,
            })
            .collect();
        let admitted = match asks.iter().any(|ask| matches!(ask.claim, Claim::Token(_))) {
            true => Decision::Admitted,
            false => Decision::Passed,
        };
        if rule.mode == Mode::Observe {
            let sighting = keeper.observed().see(&asks);
            decisions.count(sighted(sighting));
            self.note_sighting(sighting, rule);
            return Ok(Flight::unfenced(keeper));
        }
        if let Some(flight) = keeper.quick(&asks, plan.facts.write) {
            decisions.count(admitted);
            return Ok(flight);
        }
        let deadline = Instant::now() + rule.drain_timeout;
        let mut admission = keeper.admit(&asks, &self.gate.room, plan.facts.write);
        let alarm = &mut self.side.alarm;
        let outcome = poll_fn(|cx| match admission.poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| None),
        })
        .await;
        match outcome {
            Some(Ok(found)) => {
                decisions.count(if found.raised { Decision::Raised } else { admitted });
                plan.raised = found.raised;
                Ok(found.flight)
            }
            Some(Err(refused)) => Err(self.refused_answer(refused)),
            None if admission.waits_for_the_store() => Err(Answer::new(
                Reason::StoreUnavailable,
                "the store has not taken the token yet",
            )),
            None => {
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
    async fn connect(&mut self, flight: &Flight<'a>, plan: &Plan<'a>) -> Result<Conn, Answer> {
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

fn too_large() -> Head {
    let mut answer = Answer::new(Reason::BadRequest, "the head is larger than max_header_bytes");
    answer.status = Some(431);
    Head::Refused(Box::new(answer))
}

fn timed_out(detail: &str) -> Head {
    let mut answer = Answer::new(Reason::BadRequest, detail);
    answer.status = Some(408);
    Head::Refused(Box::new(answer))
}
