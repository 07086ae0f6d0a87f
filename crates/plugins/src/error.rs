// SPDX-License-Identifier: Apache-2.0
//! Conversion of kernel errors to CNI errors.

use cni::{Code, Error};
use kernel::{IfIndex, IfName};

/// Adds the operation to a kernel error and converts it to a CNI error.
pub(crate) trait Context<T> {
    fn context(self, doing: &str) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, kernel::Error> {
    fn context(self, doing: &str) -> Result<T, Error> {
        self.map_err(|cause| because(doing, &cause))
    }
}

/// Replaces the index of an interface by its name in an error.
pub(crate) fn with_ifname(mut error: kernel::Error, index: IfIndex, name: IfName) -> kernel::Error {
    error.object = error.object.replace(&index.to_string(), name.as_str());
    error
}

/// The code is [`Code::TRY_LATER`] if a lock timed out, otherwise [`Code::INTERNAL`].
pub(crate) fn because(doing: &str, cause: &kernel::Error) -> Error {
    let code = if cause.is_timed_out() { Code::TRY_LATER } else { Code::INTERNAL };
    Error::because(code, doing, cause)
}
