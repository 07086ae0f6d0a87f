// SPDX-License-Identifier: Apache-2.0
//! Why a request failed, and what that means for the caller.

use std::time::Duration;

use kube::core::Status;

use crate::error::Cause;

/// A failed request.
#[derive(Debug)]
pub(crate) struct Failure {
    pub kind: FailureKind,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The object does not exist.
    NotFound,
    /// The object exists already, or has another resource version than expected.
    Conflict,
    /// The server no longer has the history that was asked for.
    Expired,
    /// The request was certainly not carried out. A later attempt may succeed.
    NotSent,
    /// The request may have been carried out.
    Unknown,
    /// The request was not carried out, and another attempt would fail as well.
    Refused,
}

impl Failure {
    pub(crate) fn new(error: kube::Error) -> Self {
        Self { kind: FailureKind::of(&error), cause: cause(error) }
    }

    pub(crate) fn of_status(status: &Status) -> Self {
        Self { kind: FailureKind::of_status(status), cause: message(status) }
    }

    pub(crate) fn timed_out(timeout: Duration) -> Self {
        let cause = format!("no answer within {} s", timeout.as_secs()).into();
        Self { kind: FailureKind::Unknown, cause }
    }
}

impl FailureKind {
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::Auth(_) | kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
                Self::Refused
            }
            kube::Error::Service(cause) if is_connect_error(&**cause) => Self::NotSent,
            _ => Self::Unknown,
        }
    }

    fn of_status(status: &Status) -> Self {
        match status.code {
            404 => Self::NotFound,
            409 => Self::Conflict,
            410 => Self::Expired,
            408 => Self::Unknown,
            429 => Self::NotSent,
            400..500 => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

/// Returns the server's message without the text that kube puts around it.
pub(crate) fn cause(error: kube::Error) -> Cause {
    match error {
        kube::Error::Api(status) => message(&status),
        kube::Error::Service(cause) => cause,
        other => Box::new(other),
    }
}

fn message(status: &Status) -> Cause {
    let message = match status.message.as_str() {
        "" => status.reason.as_str(),
        message => message,
    };
    format!("{message} (status {})", status.code).into()
}

fn is_connect_error(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let client_error = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if client_error.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> Status {
        Status { code, message: message.to_owned(), ..Status::default() }
    }

    #[test]
    fn status_codes_map_to_failure_kinds() {
        let check = |code, expected| {
            let error = kube::Error::Api(Box::new(status(code, "")));
            assert_eq!(FailureKind::of(&error), expected, "{code}");
        };
        check(404, FailureKind::NotFound);
        check(409, FailureKind::Conflict);
        check(410, FailureKind::Expired);
        check(429, FailureKind::NotSent);
        for code in [400, 401, 403, 405, 413, 422] {
            check(code, FailureKind::Refused);
        }
        for code in [0, 408, 500, 502, 503, 504] {
            check(code, FailureKind::Unknown);
        }
    }

    #[test]
    fn cause_is_the_message_of_the_server() {
        let error = kube::Error::Api(Box::new(status(403, "nodes is forbidden")));
        assert_eq!(cause(error).to_string(), "nodes is forbidden (status 403)");
        let bare = Status { reason: "Expired".to_owned(), ..status(410, "") };
        assert_eq!(message(&bare).to_string(), "Expired (status 410)");
    }
}
