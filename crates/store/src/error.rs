// SPDX-License-Identifier: Apache-2.0
//! The error type of this crate.

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The underlying error, for display.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation failed. `store` names the store with its path or addresses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was done. A later attempt may succeed.
    #[error("{store} cannot be reached")]
    Unavailable {
        store: String,
        #[source]
        cause: Cause,
    },
    /// A write was sent and no answer arrived: it may or may not have been carried out.
    #[error("{store} did not confirm the write of {key}")]
    Uncertain {
        store: String,
        key: String,
        #[source]
        cause: Cause,
    },
    /// The store rejected the operation: wrong password, missing permission, no space, or a file of another program. An
    /// administrator has to act.
    #[error("{store} refused the request")]
    Refused {
        store: String,
        #[source]
        cause: Cause,
    },
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
