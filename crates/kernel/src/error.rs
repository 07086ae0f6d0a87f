// SPDX-License-Identifier: Apache-2.0
//! The one error of this crate: what we were doing to what, the errno, the kernel's words.

use std::fmt;

use ::netlink::Errno;

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The kernel refused an operation on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What we were doing: `create link`.
    pub op: &'static str,
    /// To what: `vethab12`.
    pub object: String,
    /// The error number.
    pub errno: Errno,
    /// The kernel's extended acknowledgement, or our own explanation of the errno.
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

    /// An error of the standard library, for what was done to what.
    pub fn from_io(op: &'static str, object: impl Into<String>, cause: &std::io::Error) -> Self {
        let ext = cause.raw_os_error().is_none().then(|| cause.to_string());
        let errno = Errno::from_io_error(cause).unwrap_or(Errno::IO);
        Self { op, object: object.into(), errno, ext }
    }

    /// The object is not there: what a removal wanted.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno, Errno::NODEV | Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL)
    }

    /// The object, or one of its name, is there already.
    pub fn already_exists(&self) -> bool {
        self.errno == Errno::EXIST
    }

    /// Something else holds the object.
    pub fn is_busy(&self) -> bool {
        self.errno == Errno::BUSY
    }

    /// Others have changed what it was to be done to.
    pub fn is_stale_generation(&self) -> bool {
        self.errno == Errno::RESTART
    }

    /// No route leads where it is to go.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno, Errno::NETUNREACH | Errno::HOSTUNREACH)
    }

    /// This kernel does not have it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, Errno::OPNOTSUPP | Errno::AFNOSUPPORT)
    }

    /// Others had the object for too long.
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
    fn display_says_what_was_done_to_what() {
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
