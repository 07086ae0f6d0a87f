// SPDX-License-Identifier: Apache-2.0
//! What a failed request means for the next step.

use kube::core::Status;

use crate::error::Cause;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no such node.
    Absent,
    /// Somebody was quicker.
    Conflict,
    /// What was asked for is history that is forgotten.
    Gone,
    /// It was certainly not carried out, and may be later.
    NotDone,
    /// It may have been carried out.
    Unknown,
    /// It was not carried out, and would not be again.
    Refused,
}

impl Verdict {
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::Auth(_) | kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
                Verdict::Refused
            }
            kube::Error::Service(cause) if is_connect_error(&**cause) => Verdict::NotDone,
            _ => Verdict::Unknown,
        }
    }

    pub fn of_status(status: &Status) -> Self {
        match status.code {
            404 => Verdict::Absent,
            409 => Verdict::Conflict,
            410 => Verdict::Gone,
            408 => Verdict::Unknown,
            429 => Verdict::NotDone,
            400..500 => Verdict::Refused,
            _ => Verdict::Unknown,
        }
    }
}

/// In the server's words, without those that kube puts around them.
pub fn cause(error: kube::Error) -> Cause {
    match error {
        kube::Error::Api(status) => said(&status),
        kube::Error::Service(cause) => cause,
        other => Box::new(other),
    }
}

/// A status in words.
pub fn said(status: &Status) -> Cause {
    let message = match status.message.as_str() {
        "" => status.reason.as_str(),
        message => message,
    };
    format!("{message} (status {})", status.code).into()
}

fn is_connect_error(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_client = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if of_client.is_some_and(hyper_util::client::legacy::Error::is_connect) {
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
    fn verdicts() {
        let check = |code, expected| {
            let error = kube::Error::Api(Box::new(status(code, "")));
            assert_eq!(Verdict::of(&error), expected, "{code}");
        };
        check(404, Verdict::Absent);
        check(409, Verdict::Conflict);
        check(410, Verdict::Gone);
        check(429, Verdict::NotDone);
        for code in [400, 401, 403, 405, 413, 422] {
            check(code, Verdict::Refused);
        }
        for code in [0, 408, 500, 502, 503, 504] {
            check(code, Verdict::Unknown);
        }
    }

    #[test]
    fn words_are_those_of_the_server() {
        let error = kube::Error::Api(Box::new(status(403, "nodes is forbidden")));
        assert_eq!(cause(error).to_string(), "nodes is forbidden (status 403)");
        let bare = Status { reason: "Expired".to_owned(), ..status(410, "") };
        assert_eq!(said(&bare).to_string(), "Expired (status 410)");
    }
}
