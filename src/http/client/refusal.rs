//! What a client is told where its request does not go through, and what then becomes of its connection.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::answer::{Answer, Form, RequestId};
use super::super::request::{Facts, skip_body};
use super::{Bearing, Client, Next, Plan, Side};
use crate::base::{Reason, Token};
use crate::config::Errors;
use crate::keeper::{Cut, Refused};
use crate::observe::{Decision, events};
use crate::rules::{self, Scratch};
use crate::wire::http1::{Framing, Version};

/// A request that is refused, and what is known of it.
pub(super) struct Refusal {
    pub(super) answer: Answer,
    pub(super) facts: Option<Facts>,
    pub(super) rule: Option<usize>,
}

/// How long a client may take to accept an answer of the gate's own.
const FLUSH_MAX: Duration = Duration::from_secs(10);

impl<'a> Client<'a> {
    pub(super) fn refused_answer(&self, refused: Refused) -> Answer {
        match refused {
            Refused::Stale { index, highest } => self.stale_answer(index, highest),
            Refused::Missing { index } => self.missing_answer(index),
            Refused::StepTooLarge { index, highest } => self.leap_answer(index, highest),
            Refused::Overloaded => Answer::new(Reason::Overloaded, "max_waiting requests wait already"),
            Refused::Unstored => {
                let mut answer = Answer::new(
                    Reason::StoreUnavailable,
                    "the store can't take the token now; it is tried again by itself",
                );
                self.name(&mut answer, 0);
                answer
            }
            Refused::NotOwner => not_owner(),
        }
    }

    pub(super) fn cut_answer(&self, cut: Cut) -> Answer {
        match cut {
            Cut::Stale { index, highest } => self.stale_answer(index, highest),
            Cut::Fenced { index } => self.missing_answer(index),
            Cut::Reset => Answer::new(Reason::Draining, "an operator resets the mark of this resource"),
            Cut::NotOwner => not_owner(),
        }
    }

    fn stale_answer(&self, index: usize, highest: Token) -> Answer {
        let mut answer = Answer::new(Reason::StaleToken, "");
        self.name(&mut answer, index);
        if let Some(claim) = self.scratch.claim(index) {
            answer.highest = Some(claim.format.show(highest).to_string());
        }
        answer.detail = format!(
            "token {} is lower than {}, the highest seen for {}",
            answer.token.as_deref().unwrap_or_default(),
            answer.highest.as_deref().unwrap_or_default(),
            answer.resource.as_deref().unwrap_or_default()
        );
        answer
    }

    fn leap_answer(&self, index: usize, highest: Token) -> Answer {
        let mut answer = Answer::new(Reason::StepTooLarge, "");
        self.name(&mut answer, index);
        let claim = self.scratch.claim(index);
        if let Some(claim) = claim {
            answer.highest = Some(claim.format.show(highest).to_string());
        }
        answer.detail = format!(
            "token {} is more than max_step ({}) above {}, the highest seen for {}; an operator can raise it",
            answer.token.as_deref().unwrap_or_default(),
            claim.and_then(|claim| claim.max_step).unwrap_or_default(),
            answer.highest.as_deref().unwrap_or_default(),
            answer.resource.as_deref().unwrap_or_default()
        );
        answer
    }

    fn missing_answer(&self, index: usize) -> Answer {
        let mut answer = Answer::new(Reason::MissingToken, "the resource is fenced, and no token came");
        self.name(&mut answer, index);
        answer
    }

    /// Says which resource and token an answer is about.
    pub(super) fn name(&self, answer: &mut Answer, index: usize) {
        if let Some(claim) = self.scratch.claim(index) {
            answer.resource = Some(claim.resource.to_owned());
            answer.token = claim.token.map(|token| claim.format.show(token).to_string());
        }
    }

    /// Refuses a request whose body may be under way already.
    pub(super) async fn refuse_plan(&mut self, plan: &Plan<'a>, mut answer: Answer) -> Next {
        if answer.resource.is_none() && matches!(plan.bearing, Bearing::Fenced) {
            self.name(&mut answer, 0);
        }
        let mut facts = plan.facts;
        self.forget_head(facts);
        facts.head_len = 0;
        if plan.upload.is_done() {
            facts.framing = Framing::None;
        } else {
            // A part of the body was taken already: where it ends can't be told from its framing alone.
            facts.framing = Framing::UntilClose;
        }
        self.refuse(Refusal {
            answer,
            facts: Some(facts),
            rule: plan.rule.map(|rule| rule.index),
        })
        .await
    }

    /// Gives the gate's own answer. A body that is still to come closes the connection after it.
    pub(super) async fn refuse(&mut self, refusal: Refusal) -> Next {
        let Refusal {
            mut answer,
            facts,
            rule,
        } = refusal;
        let gate = self.gate;
        let rule = rule.map(|index| &gate.listener.rules.rules[index]);
        let decision = Decision::of(answer.reason);
        if let Some(decision) = decision {
            gate.decisions(rule).count(decision);
        }
        if answer.rule.is_none() {
            answer.rule = rule.map(|rule| rule.name.to_string());
        }
        let (version, head_only) =
            facts.map_or((Version::V11, false), |facts| (facts.version, facts.head_only));
        let whole = facts.is_some_and(|facts| {
            if facts.head_len > 0 {
                self.side.inbox.consume(facts.head_len);
            }
            skip_body(
                facts.framing,
                gate.listener.limits.max_header_bytes,
                &mut self.side.inbox,
            )
        });
        answer.conditional = facts.is_some_and(|facts| facts.conditional);
        let keep = whole && facts.is_some_and(|facts| facts.keep_alive) && !gate.is_closing();
        let form = match gate.listener.errors {
            Errors::Problem => Form::Problem,
            Errors::S3 => Form::S3 {
                path: facts.map_or("", |_| &self.path),
                id: RequestId::next(),
            },
        };
        if decision.is_some() {
            self.tell_refusal(&answer);
        }
        tracing::info!(
            listener = &*gate.listener.name,
            client = self.peer.ip,
            method = self.line.method(),
            path = self.line.path(),
            request_id = form.request_id(),
            reason = answer.reason.as_str(),
            status = answer.status(),
            resource = answer.resource.as_deref().unwrap_or_default(),
            token = answer.token.as_deref().unwrap_or_default(),
            highest = answer.highest.as_deref().unwrap_or_default(),
            detail = answer.detail,
            "refused"
        );
        let Side { reply, outbox, .. } = &mut self.side;
        outbox.clear();
        reply.clear();
        self.core.lend(reply);
        answer.write(reply.end(), form, version, head_only, !keep);
        if !self.flush().await {
            return Next::Reset;
        }
        match (keep, whole) {
            (true, _) => Next::Request,
            (false, true) => Next::Close,
            (false, false) => Next::Linger,
        }
    }

    /// For those who listen.
    fn tell_refusal(&self, answer: &Answer) {
        self.gate.metrics.events.refusal(events::Refusal {
            listener: &self.gate.listener.name,
            rule: answer.rule.as_deref(),
            reason: answer.reason,
            observed: false,
            status: Some(answer.status()),
            resource: answer.resource.as_deref(),
            token: answer.token.as_deref(),
            highest: answer.highest.as_deref(),
            client: self.peer.address,
            method: self.line.method(),
            path: self.line.path(),
        });
    }

    /// Sends what is in the reply. False where the client does not take it.
    async fn flush(&mut self) -> bool {
        let Side {
            stream, reply, alarm, ..
        } = &mut self.side;
        let deadline = Instant::now() + FLUSH_MAX;
        while !reply.is_empty() {
            match stream.try_write(reply.filled()) {
                Ok(taken) => reply.consume(taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = poll_fn(|cx| match stream.poll_write_ready(cx) {
                        Poll::Ready(()) => Poll::Ready(true),
                        Poll::Pending => alarm.poll(cx, deadline).map(|()| false),
                    });
                    if !ready.await {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }
}

/// Keeps the path that a refusal in S3's form names; its query can hold a signature.
pub(super) fn note_path(errors: Errors, target: &str, path: &mut String) {
    if errors == Errors::S3 {
        path.clear();
        path.push_str(target.split('?').next().unwrap_or_default());
    }
}

pub(super) fn judged_answer(refusal: &rules::Refusal<'_>, scratch: &Scratch) -> Answer {
    let mut answer = Answer::new(refusal.reason, refusal.detail);
    if let Some(claim) = refusal.claim.and_then(|index| scratch.claim(index)) {
        answer.resource = Some(claim.resource.to_owned());
        answer.token = claim.token.map(|token| claim.format.show(token).to_string());
    }
    answer
}

/// Where this instance stands by.
pub(super) fn not_owner() -> Answer {
    Answer::new(
        Reason::NotOwner,
        "this instance does not own the fences: another one may",
    )
}
