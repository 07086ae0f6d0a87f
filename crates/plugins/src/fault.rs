// SPDX-License-Identifier: Apache-2.0
//! From errors of the kernel to errors of the specification.

use cni::{Code, Error};
use kernel::{IfIndex, IfName};

/// Puts what we were doing in front of an error of the kernel.
pub trait OrFault<T> {
    /// The error as the specification has it.
    fn or_fault(self, doing: &str) -> Result<T, Error>;
}

impl<T> OrFault<T> for Result<T, kernel::Error> {
    fn or_fault(self, doing: &str) -> Result<T, Error> {
        self.map_err(|cause| because(doing, &cause))
    }
}

/// The same error with an interface's name in place of its number.
pub fn named(mut error: kernel::Error, index: IfIndex, name: IfName) -> kernel::Error {
    error.object = error.object.replace(&index.to_string(), name.as_str());
    error
}

/// [`Code::INTERNAL`], or [`Code::TRY_LATER`] where others had what we need.
pub fn because(doing: &str, cause: &kernel::Error) -> Error {
    let code = if cause.is_timed_out() { Code::TRY_LATER } else { Code::INTERNAL };
    Error::because(code, doing, cause)
}
