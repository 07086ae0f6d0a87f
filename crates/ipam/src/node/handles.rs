// SPDX-License-Identifier: Apache-2.0
//! Handles: for each attachment, the number of addresses in each block.
//!
//! podwire itself does not need them; other programs find the addresses of a container with them. So they are written
//! after the blocks, and not waited for.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::calico::{Handle, Object};
use crate::node::known::{InFlight, Known};
use crate::node::messages::{Outcome, Revision};
use crate::node::objects::to_known;

/// Operations on handles at the same time.
const MAX_IN_FLIGHT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct HandleWork {
    pub(crate) known: Known<Handle>,
    pub(crate) in_flight: Option<InFlight<Handle>>,
    /// Addresses of this node's attachment.
    desired: BTreeMap<IpNet, u32>,
}

/// Handles that differ from the store, or may differ.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    all: BTreeMap<String, HandleWork>,
    dirty: BTreeSet<String>,
    /// Handles that wait for the write of a block. A collector deletes handles without allocation.
    waiting: BTreeMap<IpNet, BTreeSet<String>>,
    in_flight: usize,
}

/// The next operation on a handle.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Read,
    Create(Handle),
    Replace(Revision, Handle),
    Delete(Revision),
}

impl Handles {
    /// Sets what a handle should have. Without addresses it is deleted.
    pub(crate) fn set(&mut self, id: &str, blocks: BTreeMap<IpNet, u32>) {
        self.all.entry(id.to_owned()).or_default().desired = blocks;
        self.dirty.insert(id.to_owned());
    }

    /// Plans the deletion of a handle that no allocation has, if it has not changed.
    pub(crate) fn plan_delete(&mut self, id: &str, revision: Revision) {
        let work = self.all.entry(id.to_owned()).or_default();
        if work.desired.is_empty() {
            work.known.update(Known::Present(revision, Handle::default()));
            self.dirty.insert(id.to_owned());
        }
    }

    /// Returns the addresses that a handle should have in each block.
    pub(crate) fn desired(&self, id: &str) -> impl Iterator<Item = (IpNet, u32)> {
        let work = self.all.get(id).into_iter();
        work.flat_map(|work| work.desired.iter().map(|(cidr, count)| (*cidr, *count)))
    }

    /// Compares the handle again after the next change of a block.
    pub(crate) fn wait_for(&mut self, block: IpNet, id: String) {
        self.waiting.entry(block).or_default().insert(id);
    }

    /// Compares the handles that waited for a block.
    pub(crate) fn block_changed(&mut self, block: IpNet) {
        self.dirty.extend(self.waiting.remove(&block).into_iter().flatten());
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() && self.in_flight < MAX_IN_FLIGHT
    }

    /// Returns handles that need an operation, as many as may be in flight.
    pub(crate) fn take_dirty(&mut self) -> Vec<String> {
        let room = MAX_IN_FLIGHT.saturating_sub(self.in_flight);
        let idle = |id: &&String| self.all.get(*id).is_some_and(|work| work.in_flight.is_none());
        let ids: Vec<_> = self.dirty.iter().filter(idle).take(room).cloned().collect();
        for id in &ids {
            self.dirty.remove(id);
        }
        ids
    }

    pub(crate) fn start(&mut self, id: &str, in_flight: InFlight<Handle>) {
        if let Some(work) = self.all.get_mut(id) {
            work.in_flight = Some(in_flight);
            self.in_flight += 1;
        }
    }

    /// Takes over the result of the operation in flight. The handle is compared again.
    pub(crate) fn done(&mut self, id: &str, outcome: Outcome) {
        let Some(work) = self.all.get_mut(id) else { return };
        let Some(in_flight) = work.in_flight.take() else { return };
        self.in_flight -= 1;
        self.dirty.insert(id.to_owned());
        match outcome {
            Outcome::Done(revision) => {
                work.known.update(in_flight.written(revision));
            }
            // Handles are not watched, so no newer report can come.
            Outcome::Current(None) => {
                work.known = Known::Missing(in_flight.expected.unwrap_or_default());
            }
            Outcome::Current(Some(stored)) => {
                work.known.update(to_known(
                    stored.revision,
                    stored.content,
                    |object| match object {
                        Object::Handle(handle) => Some(handle),
                        _ => None,
                    },
                ));
            }
            Outcome::Unreachable(_) => {}
        }
    }

    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (&String, &InFlight<Handle>)> {
        self.all.iter().filter_map(|(id, work)| Some((id, work.in_flight.as_ref()?)))
    }

    /// Returns the next operation, or `None` if the store has what it should have. A handle that should not exist and
    /// does not exist is forgotten.
    pub(crate) fn next_write(&mut self, id: &str) -> Option<Write> {
        let work = self.all.get(id)?;
        let desired = Handle { blocks: work.desired.clone(), ..Handle::default() };
        match (&work.known, work.desired.is_empty()) {
            (Known::Unknown, true) => Some(Write::Read),
            (Known::Unknown | Known::Missing(_), false) => Some(Write::Create(desired)),
            (Known::Present(revision, _), true) => Some(Write::Delete(*revision)),
            (Known::Present(revision, stored), false) => {
                let is_same = stored.blocks == work.desired && !stored.deleted;
                let handle = Handle { preserved: stored.preserved.clone(), ..desired };
                (!is_same).then_some(Write::Replace(*revision, handle))
            }
            (Known::Missing(_), true) => {
                self.all.remove(id);
                None
            }
            (Known::Malformed(_), _) => None,
        }
    }
}
