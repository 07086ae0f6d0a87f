// SPDX-License-Identifier: Apache-2.0
//! IDs of the agent's next-hop objects, by gateway.

use std::collections::{BTreeMap, HashMap};

use overlay::desired::Gateway;
use overlay::diff::Change;
use overlay::observed::ObservedState;
use overlay::ownership::{NEXTHOP_IDS, Ownership, PROTOCOL};

#[derive(Debug, Clone)]
pub(super) struct NexthopIds {
    by_gateway: BTreeMap<Gateway, u32>,
    by_id: HashMap<u32, Gateway>,
    /// Above all IDs in the agent's range that were ever in use, including those of foreign
    /// objects.
    first_free: u32,
}

impl Default for NexthopIds {
    fn default() -> Self {
        let first_free = *NEXTHOP_IDS.start();
        Self { by_gateway: BTreeMap::new(), by_id: HashMap::new(), first_free }
    }
}

impl NexthopIds {
    /// Returns the IDs of existing objects. If a gateway has several objects, it gets one that a
    /// route uses.
    pub(super) fn from_observed(observed: &ObservedState, ownership: &Ownership) -> Self {
        let mut ids = Self::default();
        let Some(range) = &ownership.nexthops else { return ids };
        let is_in_range = |id: &u32| range.contains(id);
        for (id, nexthop) in observed.nexthops.iter().filter(|(id, _)| is_in_range(id)) {
            ids.first_free = ids.first_free.max(id.saturating_add(1));
            if let Some(gateway) = nexthop.gateway.filter(|_| nexthop.protocol == PROTOCOL) {
                ids.insert(gateway, *id);
            }
        }
        for route in observed.routes.iter().filter(|route| route.protocol == PROTOCOL) {
            if let (Some(id), Some(gateway)) = (route.nexthop, Gateway::of(&route.route))
                && ids.by_id.contains_key(&id)
            {
                ids.by_gateway.insert(gateway, id);
            }
        }
        ids
    }

    /// Updates the IDs, assuming that these changes succeed.
    pub(super) fn expect(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::AddNexthop { id, gateway } => self.insert(*gateway, *id),
                Change::RemoveNexthop { id } => self.remove(*id),
                _ => {}
            }
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        let Some(gateway) = self.by_id.remove(&id) else { return };
        if self.by_gateway.get(&gateway) == Some(&id) {
            self.by_gateway.remove(&gateway);
        }
    }

    pub(super) fn by_gateway(&self) -> &BTreeMap<Gateway, u32> {
        &self.by_gateway
    }

    pub(super) fn gateway(&self, id: u32) -> Option<Gateway> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn first_free(&self) -> u32 {
        self.first_free
    }

    fn insert(&mut self, gateway: Gateway, id: u32) {
        self.first_free = self.first_free.max(id.saturating_add(1));
        self.by_id.insert(id, gateway);
        self.by_gateway.insert(gateway, id);
    }
}
