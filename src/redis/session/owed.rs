//! What is owed to a client: an answer for each of its commands, in their order, and what each answer changes.

use std::time::Instant;

use smallvec::SmallVec;

use super::subscribed::Subscription;
use crate::base::Token;
use crate::keeper::Flight;
use crate::rules::redis::{Change, Claimed};
use crate::upstream::Ride;

/// One command on its way, or its answer.
#[derive(Debug)]
pub struct Owed<'k> {
    pub what: What,
    pub ride: Ride<'k>,
    /// When its last byte had been taken by the server's socket.
    pub sent: Option<Instant>,
    /// It stands in a transaction: its reply must say that it is queued.
    pub queued: bool,
    /// The client wants no reply to it.
    pub muted: bool,
    /// What it was compared for, in the order of its flight's fences.
    pub names: Names,
}

/// The resources of a flight, for refusals. Nearly always it is one, and stands where its command is noted.
pub type Names = SmallVec<[Named; 1]>;

/// A resource and the token that was presented for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    name: Name,
    pub token: Option<Token>,
    pub rule: usize,
    pub fence: usize,
}

/// A name in UTF-8, which most often is as short as this.
type Name = SmallVec<[u8; 48]>;

impl Named {
    /// What is claimed.
    pub fn of(claim: &Claimed<'_>) -> Named {
        Named {
            name: Name::from_slice(claim.resource.as_bytes()),
            token: claim.token,
            rule: claim.rule,
            fence: claim.fence,
        }
    }

    /// The same, written where it is to stand.
    #[inline]
    pub fn put(claim: &Claimed<'_>, names: &mut Names) {
        names.push(Named {
            name: Name::new(),
            token: claim.token,
            rule: claim.rule,
            fence: claim.fence,
        });
        if let Some(named) = names.last_mut() {
            named.name.extend_from_slice(claim.resource.as_bytes());
        }
    }

    /// The resource's name.
    pub fn resource(&self) -> &str {
        std::str::from_utf8(&self.name).expect("it was copied from one")
    }

    /// Whether this is what is claimed.
    #[inline]
    pub fn is(&self, claim: &Claimed<'_>) -> bool {
        // Names differ at their ends, most often: that is seen at once.
        let (name, claimed) = (&self.name[..], claim.resource.as_bytes());
        (self.rule, self.fence, self.token) == (claim.rule, claim.fence, claim.token)
            && name.len() == claimed.len()
            && name.last_chunk::<8>() == claimed.last_chunk()
            && name == claimed
    }
}

/// What an answer is, and what it changes.
#[derive(Debug)]
pub enum What {
    /// The server's reply, for the client.
    Reply,
    /// The gate's own.
    Own(Vec<u8>),
    /// The server's reply to something of the gate's own.
    Swallowed,
    /// The same; it is the connection's number.
    ClientId,
    /// The same; it says whether the server has let the client in.
    Welcome,
    /// A transaction begins.
    Multi,
    /// It ends.
    Exec,
    /// It is given up by the client.
    Discard,
    /// The connection's state is thrown away.
    Reset,
    /// The connection ends.
    Quit,
    /// From here on the server tells what it does, unasked.
    Monitor,
    /// From its reply on, unless that is an error, nothing that comes is a reply.
    Sync,
    /// The connection has a name or a user, and perhaps another version of the protocol.
    Named(Box<Naming>),
    /// So many confirmations of this kind, or an error.
    Subscriptions { kind: Subscription, left: u64 },
    /// Confirmations of unknown number, then the reply to a PING of the gate's own.
    Shards { confirmed: bool, failed: bool },
    /// A command that may wait for others; the gate may have had it woken.
    Blocking { woken: bool },
}

/// What a name or a user changes.
#[derive(Debug)]
pub struct Naming {
    pub changes: Vec<Change>,
    pub hello: bool,
}

impl What {
    /// Whether nothing may be sent behind it before its reply has come: what follows hangs on it.
    pub fn is_barrier(&self) -> bool {
        match self {
            What::Reply | What::Own(_) | What::Swallowed | What::ClientId => false,
            What::Welcome
            | What::Multi
            | What::Exec
            | What::Discard
            | What::Reset
            | What::Quit
            | What::Monitor
            | What::Sync
            | What::Named(_)
            | What::Subscriptions { .. }
            | What::Shards { .. }
            | What::Blocking { .. } => true,
        }
    }

    /// Whether the server has to reply.
    pub fn is_the_servers(&self) -> bool {
        !matches!(self, What::Own(_))
    }
}

impl<'k> Owed<'k> {
    /// An answer of the gate's own.
    pub fn own(bytes: Vec<u8>, muted: bool) -> Owed<'k> {
        Owed {
            what: What::Own(bytes),
            ride: Ride {
                flight: Flight::unfenced(),
                begins: 0,
                ends: 0,
            },
            sent: None,
            queued: false,
            muted,
            names: Names::new(),
        }
    }
}
