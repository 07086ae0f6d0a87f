// SPDX-License-Identifier: Apache-2.0
//! The one error of this crate.

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What lies below an error, for people to read.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store did not do what it was asked for. Each names the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was done. Trying later may help.
    #[error("{store} cannot be reached")]
    Unavailable {
        store: String,
        #[source]
        cause: Cause,
    },
    /// A write was sent and no answer came: it may have been done or not.
    #[error("{store} did not say whether it has written {key}")]
    Uncertain {
        store: String,
        key: String,
        #[source]
        cause: Cause,
    },
    /// The store does not want to: wrong password, no permission, no space, a foreign file. Somebody
    /// must act.
    #[error("{store} refuses")]
    Refused {
        store: String,
        #[source]
        cause: Cause,
    },
    /// What was asked for, or configured, makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Whether the same call may succeed later although nobody has done anything about it.
    pub fn can_retry(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Uncertain { .. })
    }
}
