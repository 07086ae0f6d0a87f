// SPDX-License-Identifier: Apache-2.0
//! The error type of this crate.

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The underlying error, for display.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a request to the API server failed. `server` names the server with its address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request was not carried out. A later attempt may succeed.
    #[error("{server} cannot be reached")]
    Unavailable {
        server: String,
        #[source]
        cause: Cause,
    },
    /// A write was sent and no answer arrived: it may or may not have been carried out.
    #[error("{server} did not confirm the write of {object}")]
    Uncertain {
        server: String,
        object: String,
        #[source]
        cause: Cause,
    },
    /// The server rejected the request, for example because of missing rights. An administrator has to act.
    #[error("{server} refused the request")]
    Refused {
        server: String,
        #[source]
        cause: Cause,
    },
    /// The server does not have this kind of object: its definition is missing.
    #[error("{server} has no resource {path}")]
    UnknownKind { server: String, path: &'static str },
    /// An argument or the configuration is invalid.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Returns whether the same call may succeed later without any action.
    pub fn can_retry(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Uncertain { .. })
    }
}
