// SPDX-License-Identifier: Apache-2.0
//! The last known objects of one kind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::object::Budget;
use crate::watch::Event;
use crate::{Object, Resource, Revision, Snapshot};

/// The last known objects of one kind, which stay available while the server cannot be reached. Clones share the
/// content.
#[derive(Clone, Debug)]
pub struct Mirror<R>(Arc<Mutex<State<R>>>);

#[derive(Debug)]
struct State<R> {
    objects: BTreeMap<String, Object<R>>,
    budget: Budget,
    /// `None` before the first list.
    revision: Option<Revision>,
    /// Whether any content has changed since [`Mirror::take_changed`].
    has_changed: bool,
}

impl<R> Default for Mirror<R> {
    fn default() -> Self {
        let state = State {
            objects: BTreeMap::new(),
            budget: Budget::default(),
            revision: None,
            has_changed: false,
        };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl<R: Resource> Mirror<R> {
    /// Returns a copy of all objects, or `None` before the first list.
    pub fn snapshot(&self) -> Option<Snapshot<R>> {
        let state = self.lock();
        let revision = state.revision?;
        Some(Snapshot { objects: state.objects.values().cloned().collect(), revision })
    }

    /// Returns the revision up to which the mirror is known to be complete, or `None` before the first list.
    pub fn revision(&self) -> Option<Revision> {
        self.lock().revision
    }

    /// Converts all objects, without copying them.
    pub fn map<T>(&self, convert: impl FnMut(&Object<R>) -> T) -> Vec<T> {
        self.lock().objects.values().map(convert).collect()
    }

    pub fn get(&self, name: &str) -> Option<Object<R>> {
        self.lock().objects.get(name).cloned()
    }

    /// Returns whether any content has changed since the last call.
    pub fn take_changed(&self) -> bool {
        std::mem::take(&mut self.lock().has_changed)
    }

    /// Replaces all objects.
    pub fn replace(&self, Snapshot { objects, revision }: Snapshot<R>) {
        let objects: BTreeMap<_, _> =
            objects.into_iter().map(|object| (object.name.clone(), object)).collect();
        let mut budget = Budget::default();
        objects.values().for_each(|object| budget.add(object));
        let mut state = self.lock();
        state.has_changed |= state.objects != objects;
        state.objects = objects;
        state.budget = budget;
        state.revision = Some(revision);
    }

    /// Applies changes. Changes that are older than the mirrored object are ignored.
    pub(crate) fn apply(&self, events: &[Event<R>], revision: Revision) {
        let mut state = self.lock();
        for event in events {
            state.apply(event);
        }
        state.revision = state.revision.map(|before| before.max(revision));
    }

    /// Returns which limit the objects exceed, if they do.
    pub(crate) fn exceeded(&self) -> Option<String> {
        self.lock().budget.exceeded::<R>()
    }

    /// A panic elsewhere cannot leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Resource> State<R> {
    fn apply(&mut self, event: &Event<R>) {
        let before = self.objects.get(event.name());
        if before.is_some_and(|before| before.revision >= event.revision()) {
            return;
        }
        // A node gets a new revision every few minutes without any change that matters here.
        self.has_changed |= match event {
            Event::Applied(object) => before.is_none_or(|before| before.content != object.content),
            Event::Deleted { .. } => before.is_some(),
        };
        let before = match event {
            Event::Applied(object) => {
                self.budget.add(object);
                self.objects.insert(object.name.clone(), object.clone())
            }
            Event::Deleted { name, .. } => self.objects.remove(name),
        };
        if let Some(before) = before {
            self.budget.remove(&before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    fn object(name: &str, cidr: &str, revision: u64) -> Object<Node> {
        let node = Node { pod_cidr: Some(cidr.to_owned()), ..Node::default() };
        Object {
            name: name.to_owned(),
            revision: Revision(revision),
            created: 1,
            content: Ok(node),
        }
    }

    fn deleted(name: &str, revision: u64) -> Event<Node> {
        Event::Deleted { name: name.to_owned(), revision: Revision(revision) }
    }

    #[test]
    fn mirror_ignores_older_changes() {
        let mirror = Mirror::default();
        assert_eq!(mirror.snapshot(), None);
        mirror.replace(Snapshot { objects: vec![object("a", "1", 3)], revision: Revision(5) });
        assert!(mirror.take_changed());
        assert!(!mirror.take_changed(), "nothing since");
        mirror.apply(&[Event::Applied(object("a", "1", 6))], Revision(6));
        assert!(!mirror.take_changed(), "the content is the same");
        mirror.apply(&[deleted("a", 4)], Revision(4));
        let expected = Snapshot { objects: vec![object("a", "1", 6)], revision: Revision(6) };
        assert_eq!(mirror.snapshot(), Some(expected));
        mirror.apply(&[Event::Applied(object("b", "2", 7)), deleted("a", 8)], Revision(8));
        assert!(mirror.take_changed());
        let expected = Snapshot { objects: vec![object("b", "2", 7)], revision: Revision(8) };
        assert_eq!(mirror.snapshot(), Some(expected));
        assert_eq!((mirror.get("a"), mirror.get("b")), (None, Some(object("b", "2", 7))));
    }

    /// A watch must not make the mirror larger than a list may be.
    #[test]
    fn mirror_reports_growth_over_the_limit() {
        let mirror = Mirror::default();
        mirror.replace(Snapshot { objects: Vec::new(), revision: Revision(5) });
        let large = "x".repeat(Node::MAX_SIZE);
        for number in 0..Node::MAX_TOTAL / large.len() {
            assert_eq!(mirror.exceeded(), None);
            mirror.apply(&[Event::Applied(object(&number.to_string(), &large, 6))], Revision(6));
        }
        assert!(mirror.exceeded().is_some_and(|limit| limit.contains("32 MiB")));
        mirror.apply(&[deleted("7", 8)], Revision(8));
        assert_eq!(mirror.exceeded(), None);
    }
}
