// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with elements.

use cni::Error;

use super::map::Entry;
use crate::fault::because;

/// What can go wrong.
#[derive(Debug)]
pub enum Fault {
    /// The kernel refused.
    Kernel(kernel::Error),
    /// Somebody alive holds what was asked for.
    Taken(Conflict),
    /// So many elements are more than can be listed.
    TooMany(usize),
    /// CHECK: something is not as it should be.
    Wrong(String),
}

/// An entry that somebody else holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What was asked for.
    pub entry: Entry,
    /// Container, interface and network of its holder.
    pub holder: String,
}

impl From<kernel::Error> for Fault {
    fn from(cause: kernel::Error) -> Self {
        Fault::Kernel(cause)
    }
}

impl Fault {
    /// The error of the specification, for features that nobody else can hold entries of.
    pub fn into_error(self, doing: &str) -> Error {
        match self {
            Fault::Kernel(cause) => because(doing, &cause),
            Fault::TooMany(count) => {
                Error::internal(format!("{doing}: {count} elements are more than can be listed"))
            }
            Fault::Wrong(what) => Error::internal(format!("{doing}: {what}")),
            Fault::Taken(conflict) => Error::internal(format!(
                "{doing}: an element of map {:?} belongs to {}",
                conflict.entry.map.name, conflict.holder
            )),
        }
    }
}
