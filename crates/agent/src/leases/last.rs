// SPDX-License-Identifier: Apache-2.0
//! What was last seen of the store. The network goes by it while the store does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::limit::Budget;
use store::{Entry, Event, Revision, Snapshot};

/// Of one store; clones know the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Last(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    budget: Budget,
    /// None before the first list.
    revision: Option<Revision>,
    /// Since somebody has asked.
    has_changed: bool,
}

impl Last {
    /// This is all there is.
    pub(super) fn listed(&self, snapshot: &Snapshot) {
        let entry = |entry: &Entry| (entry.key.clone(), entry.clone());
        let entries: BTreeMap<_, _> = snapshot.entries.iter().map(entry).collect();
        let mut known = self.lock();
        known.has_changed |= known.entries != entries;
        known.budget = Budget::default();
        entries.values().for_each(|entry| known.budget.add(entry));
        known.entries = entries;
        known.revision = Some(snapshot.revision);
    }

    /// This is new, unless a list has told it.
    pub(super) fn heard(&self, events: &[Event], revision: Revision) {
        let mut known = self.lock();
        for event in events {
            known.change(event);
        }
        known.revision = known.revision.map(|before| before.max(revision));
    }

    /// Explains which limit of the store is exceeded, if one is.
    pub(super) fn exceeded(&self) -> Option<String> {
        self.lock().budget.exceeded()
    }

    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let known = self.lock();
        let entries = known.entries.values().cloned().collect();
        known.revision.map(|revision| Snapshot { entries, revision })
    }

    pub(super) fn has_changed(&self) -> bool {
        std::mem::take(&mut self.lock().has_changed)
    }

    /// Nothing is left half done by whoever panicked.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn change(&mut self, event: &Event) {
        let before = self.entries.get(event.key());
        if before.is_some_and(|before| before.revision >= event.revision()) {
            return;
        }
        // Kubernetes' nodes have a new revision every few minutes, and nothing else that is new.
        self.has_changed |= match event {
            Event::Put(entry) => before.is_none_or(|before| before.value != entry.value),
            Event::Deleted { .. } => before.is_some(),
        };
        let before = match event {
            Event::Put(entry) => {
                self.budget.add(entry);
                self.entries.insert(entry.key.clone(), entry.clone())
            }
            Event::Deleted { key, .. } => self.entries.remove(key),
        };
        if let Some(before) = before {
            self.budget.remove(&before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str, revision: u64) -> Entry {
        let revision = Revision(revision);
        let (key, value, created) = (key.into(), value.into(), revision);
        Entry { key, value, revision, created, expires: true, oversized: None }
    }

    #[test]
    fn what_was_heard_is_known_until_something_newer_is() {
        let last = Last::default();
        assert_eq!(last.snapshot(), None);
        last.listed(&Snapshot { entries: vec![entry("a", "1", 3)], revision: Revision(5) });
        assert!(last.has_changed());
        assert!(!last.has_changed(), "nothing since");
        last.heard(&[Event::Put(entry("a", "1", 6))], Revision(6));
        assert!(!last.has_changed(), "it says the same");
        let gone = |revision| Event::Deleted { key: "a".into(), revision: Revision(revision) };
        last.heard(&[gone(4)], Revision(4));
        let expected = Snapshot { entries: vec![entry("a", "1", 6)], revision: Revision(6) };
        assert_eq!(last.snapshot(), Some(expected), "older than what is known");
        last.heard(&[Event::Put(entry("b", "2", 7)), gone(8)], Revision(8));
        assert!(last.has_changed());
        let expected = Snapshot { entries: vec![entry("b", "2", 7)], revision: Revision(8) };
        assert_eq!(last.snapshot(), Some(expected));
    }

    /// A watch alone must not make it grow beyond what a list may have.
    #[test]
    fn growth_by_changes_is_noticed() {
        let last = Last::default();
        last.listed(&Snapshot { entries: vec![entry("a", "1", 3)], revision: Revision(5) });
        let value = "x".repeat(store::limit::MAX_VALUE);
        for number in 0..store::limit::MAX_TOTAL / value.len() {
            assert_eq!(last.exceeded(), None);
            last.heard(&[Event::Put(entry(&number.to_string(), &value, 6))], Revision(6));
        }
        assert!(last.exceeded().is_some_and(|why| why.contains("32 MiB")));
        let gone = Event::Deleted { key: "7".into(), revision: Revision(8) };
        last.heard(&[gone], Revision(8));
        assert_eq!(last.exceeded(), None);
    }
}
