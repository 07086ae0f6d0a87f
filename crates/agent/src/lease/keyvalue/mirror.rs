// SPDX-License-Identifier: Apache-2.0
//! The last known entries of a store. The network runs on them while the store cannot be reached.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::limit::Budget;
use store::{Entry, Event, Revision, Snapshot};

/// The last known entries. Clones share the content.
#[derive(Debug, Clone, Default)]
pub(super) struct Mirror(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    budget: Budget,
    /// `None` before the first list.
    revision: Option<Revision>,
    /// Whether any value has changed since [`Mirror::take_changed`].
    has_changed: bool,
}

impl Mirror {
    /// Replaces all entries.
    pub(super) fn replace(&self, snapshot: &Snapshot) {
        let entry = |entry: &Entry| (entry.key.clone(), entry.clone());
        let entries: BTreeMap<_, _> = snapshot.entries.iter().map(entry).collect();
        let mut state = self.lock();
        state.has_changed |= state.entries != entries;
        state.budget = Budget::default();
        entries.values().for_each(|entry| state.budget.add(entry));
        state.entries = entries;
        state.revision = Some(snapshot.revision);
    }

    /// Applies changes. Changes that are older than the mirrored entry are ignored.
    pub(super) fn apply(&self, events: &[Event], revision: Revision) {
        let mut state = self.lock();
        for event in events {
            state.apply(event);
        }
        state.revision = state.revision.map(|before| before.max(revision));
    }

    /// Returns which limit of the store is exceeded, if one is.
    pub(super) fn exceeded(&self) -> Option<String> {
        self.lock().budget.exceeded()
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.lock().entries.get(key).cloned()
    }

    /// Returns a copy of all entries, or `None` before the first list.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let state = self.lock();
        let revision = state.revision?;
        Some(Snapshot { entries: state.entries.values().cloned().collect(), revision })
    }

    pub(super) fn take_changed(&self) -> bool {
        std::mem::take(&mut self.lock().has_changed)
    }

    /// A panic elsewhere cannot leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn apply(&mut self, event: &Event) {
        let before = self.entries.get(event.key());
        if before.is_some_and(|before| before.revision >= event.revision()) {
            return;
        }
        // An entry may be written again with the same value.
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
    fn mirror_ignores_older_changes() {
        let mirror = Mirror::default();
        assert_eq!(mirror.snapshot(), None);
        mirror.replace(&Snapshot { entries: vec![entry("a", "1", 3)], revision: Revision(5) });
        assert!(mirror.take_changed());
        assert!(!mirror.take_changed(), "nothing since");
        mirror.apply(&[Event::Put(entry("a", "1", 6))], Revision(6));
        assert!(!mirror.take_changed(), "the value is the same");
        let deleted = |revision| Event::Deleted { key: "a".into(), revision: Revision(revision) };
        mirror.apply(&[deleted(4)], Revision(4));
        let expected = Snapshot { entries: vec![entry("a", "1", 6)], revision: Revision(6) };
        assert_eq!(mirror.snapshot(), Some(expected));
        mirror.apply(&[Event::Put(entry("b", "2", 7)), deleted(8)], Revision(8));
        assert!(mirror.take_changed());
        let expected = Snapshot { entries: vec![entry("b", "2", 7)], revision: Revision(8) };
        assert_eq!(mirror.snapshot(), Some(expected));
    }

    /// A watch must not make the mirror larger than a list may be.
    #[test]
    fn mirror_reports_growth_over_the_limit() {
        let mirror = Mirror::default();
        mirror.replace(&Snapshot { entries: vec![entry("a", "1", 3)], revision: Revision(5) });
        let value = "x".repeat(store::limit::MAX_VALUE);
        for number in 0..store::limit::MAX_TOTAL / value.len() {
            assert_eq!(mirror.exceeded(), None);
            mirror.apply(&[Event::Put(entry(&number.to_string(), &value, 6))], Revision(6));
        }
        assert!(mirror.exceeded().is_some_and(|limit| limit.contains("32 MiB")));
        let deleted = Event::Deleted { key: "7".into(), revision: Revision(8) };
        mirror.apply(&[deleted], Revision(8));
        assert_eq!(mirror.exceeded(), None);
    }
}
