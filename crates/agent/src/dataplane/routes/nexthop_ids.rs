// SPDX-License-Identifier: Apache-2.0
//! Which next hop object has which number.

use std::collections::{BTreeMap, HashMap};

use overlay::desired::Gateway;
use overlay::diff::Change;
use overlay::observed::ObservedState;
use overlay::ownership::{NEXTHOP_IDS, Ownership, PROTOCOL};

/// Ours.
#[derive(Debug, Clone)]
pub(super) struct NexthopIds {
    by_gateway: BTreeMap<Gateway, u32>,
    by_id: HashMap<u32, Gateway>,
    /// Above all that were ever in use, as others may have some.
    next: u32,
}

impl Default for NexthopIds {
    fn default() -> Self {
        Self { by_gateway: BTreeMap::new(), by_id: HashMap::new(), next: *NEXTHOP_IDS.start() }
    }
}

impl NexthopIds {
    /// Those that were found. Of several for one gateway, one that a route uses.
    pub(super) fn found(found: &ObservedState, scope: &Ownership) -> Self {
        let mut numbers = Self::default();
        let Some(range) = &scope.nexthops else { return numbers };
        let is_ours = |id: &u32| range.contains(id);
        for (id, nexthop) in found.nexthops.iter().filter(|(id, _)| is_ours(id)) {
            numbers.next = numbers.next.max(id.saturating_add(1));
            if let Some(gateway) = nexthop.gateway.filter(|_| nexthop.protocol == PROTOCOL) {
                numbers.insert(gateway, *id);
            }
        }
        for route in found.routes.iter().filter(|route| route.protocol == PROTOCOL) {
            if let (Some(id), Some(gateway)) = (route.nexthop, Gateway::of(&route.route))
                && numbers.by_id.contains_key(&id)
            {
                numbers.by_gateway.insert(gateway, id);
            }
        }
        numbers
    }

    /// As they will be when these are done.
    pub(super) fn expect(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::AddNexthop { id, gateway } => self.insert(*gateway, *id),
                Change::RemoveNexthop { id } => self.forget(*id),
                _ => {}
            }
        }
    }

    pub(super) fn forget(&mut self, id: u32) {
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

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    fn insert(&mut self, gateway: Gateway, id: u32) {
        self.next = self.next.max(id.saturating_add(1));
        self.by_id.insert(id, gateway);
        self.by_gateway.insert(gateway, id);
    }
}
