//! What an error of etcd means for whoever asked, told apart in this one place: by gRPC's code, and by etcd's own words
//! where one code has several meanings.

use etcd_client::Error;

use crate::ledger::StoreError;

/// Why a question has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// No answer, or none that says what has become of it: a write may have been done, or may still be.
    Away(String),
    /// Whoever answered has another history than the one that is known here. What it was asked to write counts for
    /// nothing.
    Foreign(String),
    /// The database is over its quota: only an operator can help. Nothing was written.
    NoSpace,
    /// The server has too much to do: later. Nothing was written.
    Busy,
    /// More operations in one transaction than the server takes. Nothing was written.
    TooManyOperations,
    /// More bytes in one request than the server takes. Nothing was written.
    RequestTooLarge,
    /// More bytes in the answer than are taken here: ask for less.
    AnswerTooLarge,
    /// The revision that was asked for is gone.
    Compacted,
    /// There is no such lease.
    LeaseGone,
    /// The server refuses this user: an operator has to look. Nothing was written.
    Denied(String),
    /// The token of the login has expired, or users were changed since: log in and ask again. Nothing was written.
    LoginOver,
}

impl Failure {
    /// From an error of the client. What is not known to be harmless is taken as [`Failure::Away`].
    pub(super) fn of(error: &Error) -> Failure {
        match error {
            Error::GRpcStatus(status) => of_status(&Words {
                code: code_of(status.code() as i32),
                text: status.message(),
            }),
            Error::LeaseKeepAliveError(text) if text.contains("lease not found") => Failure::LeaseGone,
            other => Failure::Away(chain(other)),
        }
    }

    /// Whether all members would say the same, so that there is no use in asking another one.
    pub(super) fn is_of_the_cluster(&self) -> bool {
        match self {
            Failure::NoSpace
            | Failure::TooManyOperations
            | Failure::RequestTooLarge
            | Failure::AnswerTooLarge
            | Failure::Compacted
            | Failure::LeaseGone
            | Failure::Denied(_) => true,
            Failure::Away(_) | Failure::Foreign(_) | Failure::Busy | Failure::LoginOver => false,
        }
    }

    /// As those see it who use the ledger.
    pub(super) fn told(&self) -> StoreError {
        match self {
            Failure::NoSpace => StoreError::Full(self.to_string()),
            Failure::Away(what) => StoreError::Away(what.clone()),
            other => StoreError::Failed(other.to_string()),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Away(what) => write!(f, "etcd gives no answer: {what}"),
            Failure::Foreign(what) => write!(f, "etcd has another history: {what}"),
            Failure::NoSpace => f.write_str(
                "etcd's database is over its quota; compact and defragment it, then disarm the alarm NOSPACE",
            ),
            Failure::Busy => f.write_str("etcd has too many requests to do"),
            Failure::TooManyOperations => f.write_str(
                "etcd takes too few operations in one transaction; --max-txn-ops must be 4 at least",
            ),
            Failure::RequestTooLarge => f.write_str(
                "the request has more bytes than etcd takes (--max-request-bytes); the resource's name is too long",
            ),
            Failure::AnswerTooLarge => f.write_str("one key of etcd has more bytes than are taken"),
            Failure::Compacted => f.write_str("the revision that was read is compacted already"),
            Failure::LeaseGone => f.write_str("etcd does not know the lease any more"),
            Failure::Denied(what) => write!(f, "etcd refuses this user: {what} (it must be allowed to read and write all keys below store.prefix)"),
            Failure::LoginOver => f.write_str("etcd does not know this login any more"),
        }
    }
}

/// The codes that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    OutOfRange,
    Unauthenticated,
    Other,
}

struct Words<'w> {
    code: Code,
    text: &'w str,
}

/// The numbers are gRPC's.
fn code_of(number: i32) -> Code {
    match number {
        3 => Code::InvalidArgument,
        5 => Code::NotFound,
        7 => Code::PermissionDenied,
        8 => Code::ResourceExhausted,
        11 => Code::OutOfRange,
        16 => Code::Unauthenticated,
        _ => Code::Other,
    }
}

fn of_status(words: &Words<'_>) -> Failure {
    let says = |part: &str| words.text.contains(part);
    match words.code {
        Code::Unauthenticated => Failure::LoginOver,
        Code::PermissionDenied => Failure::Denied(words.text.to_owned()),
        Code::InvalidArgument if says("revision of auth store is old") => Failure::LoginOver,
        // A login is needed, and this request had none: what was started without users has them now.
        Code::InvalidArgument if says("user name is empty") => Failure::LoginOver,
        Code::InvalidArgument if says("too many operations") => Failure::TooManyOperations,
        Code::InvalidArgument if says("request is too large") => Failure::RequestTooLarge,
        Code::InvalidArgument if says("authentication failed") => Failure::Denied(words.text.to_owned()),
        Code::ResourceExhausted if says("database space exceeded") => Failure::NoSpace,
        Code::ResourceExhausted if says("too many requests") => Failure::Busy,
        // The server's own limit on a message, before it has looked into it.
        Code::ResourceExhausted if says("received message larger than") => Failure::RequestTooLarge,
        Code::OutOfRange if says("compacted") => Failure::Compacted,
        Code::OutOfRange if says("decoded message length too large") => Failure::AnswerTooLarge,
        Code::NotFound if says("lease not found") => Failure::LeaseGone,
        Code::InvalidArgument | Code::ResourceExhausted | Code::OutOfRange | Code::NotFound | Code::Other => {
            Failure::Away(words.text.to_owned())
        }
    }
}

/// An error with its causes: the outermost alone often says "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Code, Failure, Words, code_of, of_status};

    fn of(code: Code, text: &str) -> Failure {
        of_status(&Words { code, text })
    }

    #[test]
    fn etcds_words_are_told_apart() {
        let cases = [
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Failure::NoSpace,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Failure::Busy,
            ),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (2 vs. 1)",
                Failure::RequestTooLarge,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
                Failure::TooManyOperations,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                Failure::RequestTooLarge,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                Failure::LoginOver,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                Failure::LoginOver,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Failure::Compacted,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                Failure::LeaseGone,
            ),
        ];
        for (code, text, failure) in cases {
            assert_eq!(of(code, text), failure, "{text}");
        }
    }

    #[test]
    fn what_is_not_known_leaves_the_outcome_open() {
        for (code, text) in [
            (Code::Other, "etcdserver: request timed out"),
            (Code::Other, "etcdserver: no leader"),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (Code::InvalidArgument, "new words"),
            (Code::ResourceExhausted, "new words"),
        ] {
            assert_eq!(of(code, text), Failure::Away(text.to_owned()));
        }
        assert_eq!(code_of(14), Code::Other);
        assert_eq!(code_of(8), Code::ResourceExhausted);
    }
}
