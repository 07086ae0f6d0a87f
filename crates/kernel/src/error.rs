// SPDX-License-Identifier: Apache-2.0
//! The error of this crate: operation, object, error number, and the kernel's explanation.

use std::fmt;

use ::netlink::Errno;

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The kernel refused an operation on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Operation, such as `create link`.
    pub op: &'static str,
    /// Object of the operation, such as `vethab12`.
    pub object: String,
    /// Error number.
    pub errno: Errno,
    /// Explanation by the kernel (extended acknowledgement) or by this crate.
    pub ext: Option<String>,
}

impl Error {
    pub(crate) fn new(
        op: &'static str,
        object: impl Into<String>,
        cause: ::netlink::Error,
    ) -> Self {
        Self { op, object: object.into(), errno: cause.errno, ext: cause.ext }
    }

    pub(crate) fn from_errno(op: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Self::new(op, object, errno.into())
    }

    /// Creates an error from one of the standard library.
    pub fn from_io(op: &'static str, object: impl Into<String>, cause: &std::io::Error) -> Self {
        let ext = cause.raw_os_error().is_none().then(|| cause.to_string());
        let errno = Errno::from_io_error(cause).unwrap_or(Errno::IO);
        Self { op, object: object.into(), errno, ext }
    }

    /// The object does not exist; a removal treats this as success.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno, Errno::NODEV | Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL)
    }

    /// The object, or another one of its name, already exists.
    pub fn already_exists(&self) -> bool {
        self.errno == Errno::EXIST
    }

    /// The object is in use.
    pub fn is_busy(&self) -> bool {
        self.errno == Errno::BUSY
    }

    /// The ruleset changed since its generation was read.
    pub fn is_stale_generation(&self) -> bool {
        self.errno == Errno::RESTART
    }

    /// There is no route to the destination.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno, Errno::NETUNREACH | Errno::HOSTUNREACH)
    }

    /// The kernel does not support the operation.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, Errno::OPNOTSUPP | Errno::AFNOSUPPORT)
    }

    /// Another process held the object for too long.
    pub fn is_timed_out(&self) -> bool {
        self.errno == Errno::TIMEDOUT
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = ::netlink::Error { errno: self.errno, ext: self.ext.clone() };
        match self.object.as_str() {
            "" => write!(f, "{}: {cause}", self.op),
            object => write!(f, "{} {object}: {cause}", self.op),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_operation_object_and_explanation() {
        let plain = Error::from_errno("create link", "vethab12", Errno::EXIST);
        assert_eq!(plain.to_string(), "create link vethab12: File exists");
        assert!(plain.already_exists() && !plain.is_not_found());
        let explained = Error { ext: Some("Unknown device type".into()), ..plain };
        assert_eq!(
            explained.to_string(),
            "create link vethab12: File exists (Unknown device type)"
        );
    }
}
