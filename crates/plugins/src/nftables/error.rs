// SPDX-License-Identifier: Apache-2.0
//! Errors of operations on elements.

use cni::Error;

use super::element::Entry;
use crate::error::because;

#[derive(Debug)]
pub(crate) enum ElementError {
    Kernel(kernel::Error),
    /// Another container, which is still running, holds a requested element.
    Conflict(Conflict),
    /// This number of elements does not fit into the index.
    TooMany(usize),
    /// CHECK: the kernel's state differs from what ADD made.
    Mismatch(String),
}

/// A requested entry that another attachment holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub entry: Entry,
    /// Container, interface and network of the holder.
    pub holder: String,
}

impl From<kernel::Error> for ElementError {
    fn from(cause: kernel::Error) -> Self {
        ElementError::Kernel(cause)
    }
}

impl ElementError {
    /// Converts to a CNI error. A plugin that reports conflicts to the user handles
    /// [`ElementError::Conflict`] before.
    pub(crate) fn into_error(self, doing: &str) -> Error {
        match self {
            ElementError::Kernel(cause) => because(doing, &cause),
            ElementError::TooMany(count) => {
                Error::internal(format!("{doing}: {count} elements are more than can be listed"))
            }
            ElementError::Mismatch(what) => Error::internal(format!("{doing}: {what}")),
            ElementError::Conflict(conflict) => Error::internal(format!(
                "{doing}: an element of map {:?} belongs to {}",
                conflict.entry.map.name, conflict.holder
            )),
        }
    }
}
