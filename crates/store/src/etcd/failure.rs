// SPDX-License-Identifier: Apache-2.0
//! What a failed call means for the next step. The words are those of etcd's `rpctypes`.

use tonic::{Code, ConnectError, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It was certainly not carried out, and another server may do better.
    NotDone,
    /// It was not carried out, because who we are is not known (any more).
    Unauthenticated,
    /// It may have been carried out.
    Unknown,
    /// It was not carried out, and the same call would not be by any server.
    Refused,
}

/// A call, and why it failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    pub code: Code,
    pub message: &'a str,
    /// Whether a server may have seen it.
    pub was_sent: bool,
}

impl<'a> Failure<'a> {
    pub fn of(status: &'a Status) -> Self {
        let (code, message) = (status.code(), status.message());
        Self { code, message, was_sent: !has_connect_error(status) }
    }

    pub fn kind(self) -> FailureKind {
        let says = |words: &str| self.message.contains(words);
        match self.code {
            _ if !self.was_sent => FailureKind::NotDone,
            Code::Unavailable if says("no leader") || says("not capable") => FailureKind::NotDone,
            Code::ResourceExhausted if says("too many requests") => FailureKind::NotDone,
            // The lease of a put has run out meanwhile.
            Code::NotFound if says("requested lease not found") => FailureKind::NotDone,
            Code::Unauthenticated => FailureKind::Unauthenticated,
            // Somebody has turned authentication on, or changed a user.
            Code::InvalidArgument if says("user name is empty") => FailureKind::Unauthenticated,
            Code::InvalidArgument if says("auth store is old") => FailureKind::Unauthenticated,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => FailureKind::Refused,
            _ => FailureKind::Unknown,
        }
    }
}

fn has_connect_error(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        fn check(code: Code, message: &str, expected: FailureKind) {
            let failure = Failure { code, message, was_sent: true };
            assert_eq!(failure.kind(), expected, "{code:?} {message}");
            let unsent = Failure { was_sent: false, ..failure };
            assert_eq!(unsent.kind(), FailureKind::NotDone, "{code:?} {message}, never sent");
        }
        check(Code::Unavailable, "etcdserver: no leader", FailureKind::NotDone);
        check(Code::Unavailable, "etcdserver: leader changed", FailureKind::Unknown);
        check(Code::Unavailable, "etcdserver: request timed out", FailureKind::Unknown);
        check(Code::Unavailable, "tcp connect error", FailureKind::Unknown);
        check(Code::DeadlineExceeded, "", FailureKind::Unknown);
        check(Code::Unknown, "transport error", FailureKind::Unknown);
        check(Code::Cancelled, "", FailureKind::Unknown);
        check(Code::ResourceExhausted, "etcdserver: too many requests", FailureKind::NotDone);
        let no_space = "etcdserver: mvcc: database space exceeded";
        check(Code::ResourceExhausted, no_space, FailureKind::Refused);
        check(
            Code::Unauthenticated,
            "etcdserver: invalid auth token",
            FailureKind::Unauthenticated,
        );
        check(
            Code::InvalidArgument,
            "etcdserver: user name is empty",
            FailureKind::Unauthenticated,
        );
        let old = "etcdserver: revision of auth store is old";
        check(Code::InvalidArgument, old, FailureKind::Unauthenticated);
        let password = "etcdserver: authentication failed, invalid user ID or password";
        check(Code::InvalidArgument, password, FailureKind::Refused);
        check(Code::PermissionDenied, "etcdserver: permission denied", FailureKind::Refused);
        check(Code::NotFound, "etcdserver: requested lease not found", FailureKind::NotDone);
        check(Code::OutOfRange, "etcdserver: mvcc: required revision…", FailureKind::Refused);
    }

    #[test]
    fn status_of_a_server_was_sent() {
        assert!(Failure::of(&Status::unavailable("x")).was_sent);
        let refused = Status::from_error(Box::new(ConnectError("refused".into())));
        assert!(!Failure::of(&refused).was_sent);
    }
}
