// SPDX-License-Identifier: Apache-2.0
//! Kinds of failed calls. The messages are those of etcd's `rpctypes`.

use tonic::{Code, ConnectError, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The call was certainly not carried out. Another server may accept it.
    NotSent,
    /// The call was not carried out, because the login is missing or no longer valid.
    Unauthenticated,
    /// The call may have been carried out.
    Unknown,
    /// The call was not carried out, and every server would refuse it.
    Refused,
}

/// A failed call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure<'a> {
    pub code: Code,
    pub message: &'a str,
    /// Whether a server may have received it.
    pub was_sent: bool,
}

impl<'a> Failure<'a> {
    pub(super) fn of(status: &'a Status) -> Self {
        let (code, message) = (status.code(), status.message());
        Self { code, message, was_sent: !has_connect_error(status) }
    }

    pub(super) fn kind(self) -> FailureKind {
        let contains = |text: &str| self.message.contains(text);
        match self.code {
            _ if !self.was_sent => FailureKind::NotSent,
            Code::Unavailable if contains("no leader") || contains("not capable") => {
                FailureKind::NotSent
            }
            Code::ResourceExhausted if contains("too many requests") => FailureKind::NotSent,
            // The lease of the put has expired.
            Code::NotFound if contains("requested lease not found") => FailureKind::NotSent,
            Code::Unauthenticated => FailureKind::Unauthenticated,
            // Authentication was turned on, or a user was changed.
            Code::InvalidArgument if contains("user name is empty") => FailureKind::Unauthenticated,
            Code::InvalidArgument if contains("auth store is old") => FailureKind::Unauthenticated,
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
    fn messages_map_to_failure_kinds() {
        fn check(code: Code, message: &str, expected: FailureKind) {
            let failure = Failure { code, message, was_sent: true };
            assert_eq!(failure.kind(), expected, "{code:?} {message}");
            let unsent = Failure { was_sent: false, ..failure };
            assert_eq!(unsent.kind(), FailureKind::NotSent, "{code:?} {message}, never sent");
        }
        check(Code::Unavailable, "etcdserver: no leader", FailureKind::NotSent);
        check(Code::Unavailable, "etcdserver: leader changed", FailureKind::Unknown);
        check(Code::Unavailable, "etcdserver: request timed out", FailureKind::Unknown);
        check(Code::Unavailable, "tcp connect error", FailureKind::Unknown);
        check(Code::DeadlineExceeded, "", FailureKind::Unknown);
        check(Code::Unknown, "transport error", FailureKind::Unknown);
        check(Code::Cancelled, "", FailureKind::Unknown);
        check(Code::ResourceExhausted, "etcdserver: too many requests", FailureKind::NotSent);
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
        check(Code::NotFound, "etcdserver: requested lease not found", FailureKind::NotSent);
        check(Code::OutOfRange, "etcdserver: mvcc: required revision…", FailureKind::Refused);
    }

    #[test]
    fn connect_error_means_not_sent() {
        assert!(Failure::of(&Status::unavailable("x")).was_sent);
        let refused = Status::from_error(Box::new(ConnectError("refused".into())));
        assert!(!Failure::of(&refused).was_sent);
    }
}
