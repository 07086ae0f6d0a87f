// SPDX-License-Identifier: Apache-2.0
//! What a failed call means for the next step. The words are those of etcd's `rpctypes`.

use tonic::{Code, ConnectError, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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

    pub fn verdict(self) -> Verdict {
        let says = |words: &str| self.message.contains(words);
        match self.code {
            _ if !self.was_sent => Verdict::NotDone,
            Code::Unavailable if says("no leader") || says("not capable") => Verdict::NotDone,
            Code::ResourceExhausted if says("too many requests") => Verdict::NotDone,
            // The lease of a put has run out meanwhile.
            Code::NotFound if says("requested lease not found") => Verdict::NotDone,
            Code::Unauthenticated => Verdict::Unauthenticated,
            // Somebody has turned authentication on, or changed a user.
            Code::InvalidArgument if says("user name is empty") => Verdict::Unauthenticated,
            Code::InvalidArgument if says("auth store is old") => Verdict::Unauthenticated,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => Verdict::Refused,
            _ => Verdict::Unknown,
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
        fn check(code: Code, message: &str, expected: Verdict) {
            let failure = Failure { code, message, was_sent: true };
            assert_eq!(failure.verdict(), expected, "{code:?} {message}");
            let unsent = Failure { was_sent: false, ..failure };
            assert_eq!(unsent.verdict(), Verdict::NotDone, "{code:?} {message}, never sent");
        }
        check(Code::Unavailable, "etcdserver: no leader", Verdict::NotDone);
        check(Code::Unavailable, "etcdserver: leader changed", Verdict::Unknown);
        check(Code::Unavailable, "etcdserver: request timed out", Verdict::Unknown);
        check(Code::Unavailable, "tcp connect error", Verdict::Unknown);
        check(Code::DeadlineExceeded, "", Verdict::Unknown);
        check(Code::Unknown, "transport error", Verdict::Unknown);
        check(Code::Cancelled, "", Verdict::Unknown);
        check(Code::ResourceExhausted, "etcdserver: too many requests", Verdict::NotDone);
        let no_space = "etcdserver: mvcc: database space exceeded";
        check(Code::ResourceExhausted, no_space, Verdict::Refused);
        check(Code::Unauthenticated, "etcdserver: invalid auth token", Verdict::Unauthenticated);
        check(Code::InvalidArgument, "etcdserver: user name is empty", Verdict::Unauthenticated);
        let old = "etcdserver: revision of auth store is old";
        check(Code::InvalidArgument, old, Verdict::Unauthenticated);
        let password = "etcdserver: authentication failed, invalid user ID or password";
        check(Code::InvalidArgument, password, Verdict::Refused);
        check(Code::PermissionDenied, "etcdserver: permission denied", Verdict::Refused);
        check(Code::NotFound, "etcdserver: requested lease not found", Verdict::NotDone);
        check(Code::OutOfRange, "etcdserver: mvcc: required revision…", Verdict::Refused);
    }

    #[test]
    fn status_of_a_server_was_sent() {
        assert!(Failure::of(&Status::unavailable("x")).was_sent);
        let refused = Status::from_error(Box::new(ConnectError("refused".into())));
        assert!(!Failure::of(&refused).was_sent);
    }
}
