//! From the client: each command is read, found in the server's table, judged, compared, and put on its way, or
//! answered in its place.

use std::io;

use smallvec::SmallVec;

use super::admit::Compared;
use super::down::REPLY_BYTES_MAX;
use super::owed::{Names, Naming, What};
use super::words::{Special, lower, special};
use super::{Course, End, Ending, OWED_MAX, Session};
use crate::base::Reason;
use crate::keeper::Flight;
use crate::redis::answer::Refusal;
use crate::rules::Policy;
use crate::rules::redis::{Carrier, NoToken};
use crate::wire::resp::{Read, write_command};

/// From here on a command is not waited for if what has come of it tells its keys.
const STREAM_AT: usize = 64 * 1024;
/// One whose keys stand further behind is refused.
const HELD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// So much waits for a server that takes nothing.
pub(super) const OUTBOX_BYTES_MAX: usize = 256 * 1024;

/// What becomes of a command.
pub(super) enum Decided<'k> {
    /// It can't be told yet: its keys have not come.
    Later,
    /// It can be told once the server has said whether it knows the client.
    Stranger,
    /// It was answered.
    Answered,
    /// It goes to the server.
    Go(What, Flight<'k>, Names),
}

impl<'k> Session<'_, 'k> {
    /// Takes what the client has sent; true where something moved.
    pub(super) async fn take_commands(&mut self) -> Result<bool, End> {
        let fresh = self.inbox.is_empty();
        let mut moved = fresh && self.read_input()?;
        while !self.inbox.is_empty() && self.may_take() {
            let went = match self.course {
                Course::Commands => self.take_quickly() || self.next_command().await?,
                Course::Streaming | Course::Skipping => self.pass()?,
            };
            if !went {
                break;
            }
            moved = true;
        }
        // Nobody waits for the end of a command that never comes whole, or for one that waits for others.
        let cut_off = self.course != Course::Commands && self.may_take() && !moved;
        if self.client_ended && !self.client_gone && (cut_off || self.is_blocked()) {
            self.client_left()?;
            return Ok(true);
        }
        // What has come since is for the next round.
        Ok(moved || !fresh && self.read_input()?)
    }

    /// Whether another command may be taken: nothing that is owed decides what it means.
    fn may_take(&self) -> bool {
        // The rest of a command that is on its way hangs on nothing.
        let free =
            self.course != Course::Commands || !self.owed.back().is_some_and(|owed| owed.what.is_barrier());
        free && self.ending.is_none()
            && !self.client_gone
            && self.owed.len() < OWED_MAX
            && self.outbox.len() < OUTBOX_BYTES_MAX
            // Also the gate's own answers wait for a client that doesn't read.
            && self.reply.len() < REPLY_BYTES_MAX
    }

    /// Whether a whole command has come that was not taken yet.
    pub(super) fn has_command(&self) -> bool {
        !self.hungry && !self.inbox.is_empty()
    }

    pub(super) fn wants_input(&self) -> bool {
        let room = self.inbox.len() < STREAM_AT || self.hungry;
        room && !self.client_ended && !self.client_gone && self.ending.is_none()
    }

    fn read_input(&mut self) -> Result<bool, End> {
        if !self.wants_input() {
            return Ok(false);
        }
        if self.inbox.len() >= STREAM_AT {
            // Doubled, so that what is held is copied a few times at most.
            let more = self.inbox.len();
            self.inbox.end().reserve(more);
        }
        match self.stream.try_read(&mut self.inbox, usize::MAX) {
            Ok(0) => {
                self.client_ended = true;
                Ok(true)
            }
            Ok(_) => {
                self.hungry = false;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => self.client_left().map(|()| true),
        }
    }

    /// Nobody waits for replies any more; writes that have gone to the server are followed to theirs.
    fn client_left(&mut self) -> Result<(), End> {
        self.client_gone = true;
        self.push_replies().map(drop)
    }

    /// The next command, if it has come so far that it can be decided.
    async fn next_command(&mut self) -> Result<bool, End> {
        match self.requests.read(self.inbox.filled()) {
            Ok(Read::Nothing(len)) => {
                self.inbox.consume(len);
                Ok(true)
            }
            Ok(Read::Command(len)) => self.decide_whole(len).await,
            Ok(Read::More) if self.inbox.len() >= STREAM_AT && self.requests.known().is_some() => {
                self.decide_part().await
            }
            Ok(Read::More) => {
                self.hungry = true;
                Ok(false)
            }
            Err(error) => {
                self.complain(&format!("ERR Protocol error: {error}"));
                self.inbox.clear();
                self.ending = Some(Ending::Order);
                Ok(true)
            }
        }
    }

    /// False where it stays in the inbox.
    async fn decide_whole(&mut self, len: usize) -> Result<bool, End> {
        // Out of the session, so that it can go on with everything else while the command waits.
        let mut inbox = std::mem::take(&mut self.inbox);
        let requests = std::mem::take(&mut self.requests);
        let words: SmallVec<[&[u8]; 8]> = requests.words(inbox.filled()).collect();
        self.deciding = true;
        let decided = self.decide(&words, words.len()).await?;
        let stays = matches!(decided, Decided::Stranger);
        match decided {
            Decided::Later | Decided::Answered | Decided::Stranger => {}
            Decided::Go(what, flight, names) => {
                let muted = self.take_mute_of(&what);
                let with_ping = matches!(what, What::Shards { .. });
                let owed = self.send(what, flight, |out| match requests.is_line() {
                    true => write_command(out, words.iter().copied()),
                    false => out.extend_from_slice(&inbox.filled()[..len]),
                });
                (owed.names, owed.muted) = (names, muted);
                if with_ping {
                    // Its reply says that all confirmations have come.
                    write_command(self.outbox.tail(), [&b"PING"[..]].into_iter());
                    let end = self.outbox_end();
                    self.owed.back_mut().expect("sent above").ride.ends = end;
                }
            }
        }
        drop(words);
        self.deciding = false;
        if !stays {
            inbox.consume(len);
        }
        (self.requests, self.inbox) = (requests, inbox);
        if stays {
            self.ask_for_welcome().await?;
        }
        Ok(!stays)
    }

    /// A large command is decided by what has come of it, or waits for more; true where it is decided.
    async fn decide_part(&mut self) -> Result<bool, End> {
        let inbox = std::mem::take(&mut self.inbox);
        let requests = std::mem::take(&mut self.requests);
        let count = requests.known().map_or(0, |known| known.count);
        let words: SmallVec<[&[u8]; 8]> = requests.words(inbox.filled()).collect();
        let held = inbox.len();
        self.deciding = true;
        let decided = self.decide(&words, count).await?;
        self.deciding = false;
        drop(words);
        self.inbox = inbox;
        self.requests = requests;
        match decided {
            // Nothing more is read before it is clear that the server knows this client.
            Decided::Later if self.state.welcome == Some(false) => {
                // As Redis says it.
                self.complain("ERR Protocol error: unauthenticated multibulk length");
                self.ending = self.ending.or(Some(Ending::Order));
            }
            Decided::Stranger => {
                self.ask_for_welcome().await?;
                return Ok(false);
            }
            Decided::Later if self.state.welcome.is_none() => {
                self.ask_for_welcome().await?;
                return Ok(false);
            }
            Decided::Later if held < HELD_BYTES_MAX => {
                self.hungry = true;
                return Ok(false);
            }
            Decided::Later => {
                let detail = "its keys stand behind more than 32 MiB of other words";
                self.refuse(&Refusal::new(Reason::BadRequest, detail));
                self.course = Course::Skipping;
            }
            Decided::Answered => self.course = Course::Skipping,
            Decided::Go(what, flight, names) => {
                let muted = self.take_mute_of(&what);
                let owed = self.send(what, flight, |_| {});
                (owed.names, owed.muted, owed.ride.ends) = (names, muted, u64::MAX);
                self.course = Course::Streaming;
            }
        }
        Ok(true)
    }

    /// Somebody whom the server does not know must not make the gate keep much: a reply tells.
    async fn ask_for_welcome(&mut self) -> Result<(), End> {
        if self.owed.iter().any(|owed| owed.what.is_the_servers()) {
            return Ok(());
        }
        match self.reach().await? {
            Ok(()) => self.send_own(What::Welcome, &[b"PING"]),
            Err(refusal) => {
                self.refuse(&refusal);
                self.ending = self.ending.or(Some(Ending::Order));
            }
        }
        Ok(())
    }

    /// More of a large command: on its way, or to nowhere.
    fn pass(&mut self) -> Result<bool, End> {
        if self.course == Course::Streaming {
            self.cut_if_stale();
        }
        let Ok(passed) = self.requests.pass(self.inbox.filled()) else {
            // A part of it may be at the server, which waits for the rest.
            self.ending = Some(Ending::Cut);
            self.owed.retain(|owed| owed.ride.ends != u64::MAX);
            self.gone = self.gone.min(self.owed.len());
            self.complain("ERR Protocol error: a word of a command does not end where it should");
            return Ok(true);
        };
        if self.course == Course::Streaming {
            self.outbox
                .tail()
                .extend_from_slice(&self.inbox.filled()[..passed.len]);
        }
        self.inbox.consume(passed.len);
        if passed.ends {
            if self.course == Course::Streaming {
                let ends = self.outbox_end();
                self.owed.back_mut().expect("it is being sent").ride.ends = ends;
            }
            self.course = Course::Commands;
        }
        self.hungry = passed.len == 0;
        Ok(passed.len > 0)
    }

    /// What becomes of a command of `count` words, of which these have come.
    async fn decide(&mut self, words: &[&[u8]], count: usize) -> Result<Decided<'k>, End> {
        let whole = words.len() == count;
        if self.state.replica {
            return self.hear_replica(words, whole);
        }
        let Some(special) = special(words) else {
            return match words.is_empty() {
                true => Ok(Decided::Later),
                false => self.decide_ordinary(words, count).await,
            };
        };
        if !whole {
            return Ok(Decided::Later);
        }
        self.decide_special(special).await
    }

    /// A replica says nothing but how far it has come.
    fn hear_replica(&mut self, words: &[&[u8]], whole: bool) -> Result<Decided<'k>, End> {
        if !whole || special(words) != Some(Special::Acknowledged) {
            tracing::info!(
                listener = &*self.gate.listener.name,
                client = %self.peer.ip,
                "a replica sent a command; its connection ends"
            );
            return Err(End::Gone);
        }
        write_command(self.outbox.tail(), words.iter().copied());
        Ok(Decided::Answered)
    }

    async fn decide_special(&mut self, special: Special<'_>) -> Result<Decided<'k>, End> {
        if self.state.monitor && !matches!(special, Special::Quit | Special::Reset) {
            self.complain("ERR a connection that monitors takes QUIT and RESET only");
            return Ok(Decided::Answered);
        }
        if self.state.queued.is_some() && !fits_a_transaction(special) {
            self.abort("ERR the gate does not take this command inside a transaction");
            return Ok(Decided::Answered);
        }
        let what = match special {
            Special::Fence(text) => {
                self.fence(text);
                return Ok(Decided::Answered);
            }
            Special::Reply(how) => {
                self.set_mute(how);
                return Ok(Decided::Answered);
            }
            Special::Acknowledged => return Ok(Decided::Answered),
            Special::Sync if self.gate.listener.rules.unmatched.reads == Policy::Deny => {
                let detail = "a replica reads every key, and unmatched.reads is deny";
                self.refuse(&Refusal::new(Reason::UnmatchedWrite, detail));
                return Ok(Decided::Answered);
            }
            Special::Sync => What::Sync,
            Special::Exec => return self.decide_exec().await,
            Special::Name(name) => match self.named(None, Some(name), false) {
                Some(what) => what,
                None => return Ok(Decided::Answered),
            },
            Special::Auth(user) => match self.named(Some(user), None, false) {
                Some(what) => what,
                None => return Ok(Decided::Answered),
            },
            Special::Hello { user, name } => match self.named(user, name, true) {
                Some(what) => what,
                None => return Ok(Decided::Answered),
            },
            Special::Multi => What::Multi,
            Special::Discard => What::Discard,
            Special::Reset => What::Reset,
            Special::Quit => What::Quit,
            Special::Monitor => What::Monitor,
            Special::Subscriptions(kind, names) => match self.state.subscribed.confirmations(kind, names) {
                Some(left) => What::Subscriptions { kind, left },
                None => What::Shards {
                    confirmed: false,
                    failed: false,
                },
            },
            Special::Harmless => What::Reply,
        };
        if let Err(refusal) = self.reach().await? {
            self.refuse(&refusal);
            // What follows was meant for a transaction, a database or a user that the connection does not have: it must
            // not reach a server that is back by then.
            self.ending = self.ending.or(Some(Ending::Order));
            return Ok(Decided::Answered);
        }
        Ok(Decided::Go(what, Flight::unfenced(), Names::new()))
    }

    /// `FENCE token`: the latest counts, a malformed one is none.
    fn fence(&mut self, text: Option<&[u8]>) {
        let Some(text) = text else {
            return self.complain("ERR wrong number of arguments for 'fence' command");
        };
        match self.gate.listener.rules.read_token(Carrier::Fence, text) {
            Ok(change) => {
                self.state.identity.apply(&change);
                self.answer(b"+OK\r\n".to_vec());
            }
            Err(NoToken) => self.refuse_token(text),
        }
    }

    fn refuse_token(&mut self, text: &[u8]) {
        self.state.identity.clear();
        let shown: String = text.escape_ascii().map(char::from).take(60).collect();
        let detail = format!(
            "{shown:?} is or has no token that a rule of this listener reads; the connection has none now"
        );
        self.refuse(&Refusal::new(Reason::MalformedToken, detail));
    }

    /// What a name and a user say of tokens; counts once the server has taken them.
    fn named(&mut self, user: Option<&[u8]>, name: Option<&[u8]>, hello: bool) -> Option<What> {
        let mut changes = Vec::new();
        for (carrier, text) in [(Carrier::User, user), (Carrier::Name, name)] {
            let Some(text) = text else { continue };
            match self.gate.listener.rules.read_token(carrier, text) {
                Ok(change) => changes.push(change),
                Err(NoToken) => {
                    self.refuse_token(text);
                    return None;
                }
            }
        }
        Some(What::Named(Box::new(Naming { changes, hello })))
    }

    /// `CLIENT REPLY`: the server always replies, the gate drops what the client doesn't want.
    fn set_mute(&mut self, how: &[u8]) {
        match &lower(how)[..] {
            b"on" => {
                (self.state.mute, self.state.mute_next) = (false, false);
                self.answer(b"+OK\r\n".to_vec());
            }
            b"off" => self.state.mute = true,
            b"skip" => self.state.mute_next = !self.state.mute,
            _ => self.complain("ERR syntax error"),
        }
    }

    async fn decide_exec(&mut self) -> Result<Decided<'k>, End> {
        let Some(queued) = &self.state.queued else {
            self.complain("ERR EXEC without MULTI");
            return Ok(Decided::Answered);
        };
        if queued.aborted {
            self.discard(b"-EXECABORT Transaction discarded because of previous errors.\r\n".to_vec());
            return Ok(Decided::Answered);
        }
        match self.compare_queued().await? {
            Compared::Go(flight, names) => return Ok(Decided::Go(What::Exec, flight, names)),
            Compared::Refused(mut refusal) => {
                refusal.command = Some("EXEC".to_owned());
                let bytes = self.written(&refusal);
                self.discard(bytes);
            }
            // The server has answered its MULTI.
            Compared::Stranger | Compared::Unknown => {
                self.discard(b"-NOAUTH Authentication required.\r\n".to_vec());
            }
        }
        Ok(Decided::Answered)
    }

    /// Throws the queue at the server away and answers EXEC.
    fn discard(&mut self, answer: Vec<u8>) {
        self.state.queued = None;
        self.send_own(What::Swallowed, &[b"DISCARD"]);
        self.answer(answer);
    }

    pub(super) fn abort(&mut self, text: &str) {
        if let Some(queued) = &mut self.state.queued {
            queued.aborted = true;
        }
        self.complain(text);
    }
}

/// In a transaction a name, a user or a subscription would count only from EXEC on, or break its reply.
fn fits_a_transaction(special: Special<'_>) -> bool {
    match special {
        Special::Fence(_)
        | Special::Multi
        | Special::Exec
        | Special::Discard
        | Special::Reset
        | Special::Quit
        | Special::Harmless
        | Special::Acknowledged => true,
        Special::Monitor
        | Special::Sync
        | Special::Name(_)
        | Special::Hello { .. }
        | Special::Auth(_)
        | Special::Reply(_)
        | Special::Subscriptions(..) => false,
    }
}
