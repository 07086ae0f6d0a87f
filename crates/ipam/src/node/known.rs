// SPDX-License-Identifier: Apache-2.0
//! Last known state of one object in the store.

use std::time::Duration;

use crate::Timestamp;
use crate::node::messages::{OpId, Revision};

/// Time after which a result counts as lost. The operation is repeated; both may have been carried out.
const RESULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Last known state of an object. An older state never replaces a newer one, so that repeated and late reports do no
/// harm.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Known<T> {
    #[default]
    Unknown,
    Missing(Revision),
    Present(Revision, T),
    /// Exists but cannot be read. Nothing is done with it.
    Malformed(Revision),
}

impl<T> Known<T> {
    pub(crate) fn revision(&self) -> Option<Revision> {
        match self {
            Self::Unknown => None,
            Self::Missing(revision) | Self::Present(revision, _) | Self::Malformed(revision) => {
                Some(*revision)
            }
        }
    }

    pub(crate) fn present(&self) -> Option<(Revision, &T)> {
        match self {
            Self::Present(revision, object) => Some((*revision, object)),
            _ => None,
        }
    }

    pub(crate) fn object(&self) -> Option<&T> {
        self.present().map(|(_, object)| object)
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// Takes a state over if it is newer. Returns whether it is.
    pub(crate) fn update(&mut self, new: Self) -> bool {
        let is_newer = new.revision() > self.revision();
        if is_newer {
            *self = new;
        }
        is_newer
    }

    /// Takes over that an operation found no object. The store does not say since which revision it is missing, so the
    /// revision stays: a newer report is still believed.
    pub(crate) fn gone(&mut self, expected: Option<Revision>) -> bool {
        let is_news = self.revision() <= expected && !self.is_missing();
        if is_news {
            *self = Self::Missing(expected.unwrap_or_default());
        }
        is_news
    }
}

/// An operation whose result is awaited.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InFlight<T> {
    pub(crate) id: OpId,
    /// Revision that the write expects, if any.
    pub(crate) expected: Option<Revision>,
    /// State after the write: `None` for a deletion or a read.
    pub(crate) object: Option<T>,
    pub(crate) sent: Timestamp,
}

impl<T> InFlight<T> {
    /// Returns when the result counts as lost.
    pub(crate) fn timeout(&self) -> Timestamp {
        self.sent + RESULT_TIMEOUT
    }

    /// Returns the state of the object after the write was carried out.
    pub(crate) fn written(self, revision: Revision) -> Known<T> {
        match self.object {
            Some(object) => Known::Present(revision, object),
            None => Known::Missing(revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_and_repeated_reports_are_ignored() {
        let mut known = Known::Unknown;
        assert!(known.update(Known::Present(Revision(5), 'a')));
        assert!(!known.update(Known::Present(Revision(5), 'b')));
        assert!(!known.update(Known::Missing(Revision(4))));
        assert_eq!(known.object(), Some(&'a'));
        assert!(!known.gone(Some(Revision(4))));
        assert!(known.gone(Some(Revision(5))));
        assert!(!known.update(Known::Present(Revision(5), 'a')));
        assert!(known.update(Known::Present(Revision(6), 'c')));
    }
}
