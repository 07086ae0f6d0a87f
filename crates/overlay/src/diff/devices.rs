// SPDX-License-Identifier: Apache-2.0
//! Devices: kept and changed where the kernel can, as all that hangs on one goes with it.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Family, IfName};

use crate::desired::{DesiredDevice, DesiredState, DeviceKind, VxlanDevice};
use crate::diff::change::{Change, Conflict, DeviceChange};
use crate::observed::{ObservedDevice, ObservedKind, ObservedState};
use crate::ownership::Ownership;

/// What becomes of devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// To be done first.
    pub(super) changes: Vec<Change>,
    /// Not desired any more, to be removed last.
    pub(super) surplus: Vec<IfName>,
    /// Those that are ours when all is done or were until now.
    pub(super) ours: BTreeSet<IfName>,
    /// What hangs on these goes by itself.
    pub(super) gone: BTreeSet<IfName>,
    /// What is a neighbour on these goes by itself.
    pub(super) without_neighbours: BTreeSet<IfName>,
    /// Another's device has the name: nothing on it is ours.
    pub(super) blocked: BTreeSet<IfName>,
    pub(super) conflicts: Vec<Conflict>,
}

pub(super) fn compare(
    desired: &DesiredState,
    observed: &ObservedState,
    ownership: &Ownership,
) -> Devices {
    let by_name: BTreeMap<IfName, &ObservedDevice> =
        observed.devices.iter().map(|device| (device.name, device)).collect();
    let mut devices = Devices::default();
    for device in desired.devices.values() {
        devices.ours.insert(device.name);
        match by_name.get(&device.name) {
            None => devices.changes.push(Change::CreateDevice(*device)),
            Some(observed) if ownership.owns_device(observed) => {
                devices.adjust(device, observed, ownership)
            }
            Some(observed) => devices.block(device, observed),
        }
    }
    for observed in observed.devices.iter().filter(|observed| ownership.owns_device(observed)) {
        devices.ours.insert(observed.name);
        if desired.devices.contains_key(&observed.name) {
            continue;
        }
        devices.gone.insert(observed.name);
        match devices.changes.iter().any(|change| is_prevented_by(observed, change)) {
            true => devices.changes.insert(0, Change::RemoveDevice(observed.name)),
            false => devices.surplus.push(observed.name),
        }
    }
    devices
}

/// Whether a device has to go before another can be made: the kernel has no two of the same kind. Somebody has
/// given ours another name.
fn is_prevented_by(observed: &ObservedDevice, change: &Change) -> bool {
    let (Change::CreateDevice(desired), ObservedKind::Known(observed)) = (change, &observed.kind)
    else {
        return false;
    };
    match (&desired.kind, observed) {
        (DeviceKind::Vxlan(desired), DeviceKind::Vxlan(observed)) => {
            (desired.vni, desired.port) == (observed.vni, observed.port)
        }
        (DeviceKind::Ipip { local: desired }, DeviceKind::Ipip { local: observed }) => {
            desired == observed
        }
        _ => false,
    }
}

impl Devices {
    fn block(&mut self, desired: &DesiredDevice, observed: &ObservedDevice) {
        self.ours.remove(&desired.name);
        self.blocked.insert(desired.name);
        let kind = observed.kind.name();
        let alias = observed.alias.as_ref().map(|alias| format!("{kind} with the alias {alias:?}"));
        self.conflicts.push(Conflict::Device {
            name: desired.name,
            observed: alias.unwrap_or_else(|| kind.to_owned()),
            desired: desired.kind.name(),
        });
    }

    fn adjust(
        &mut self,
        desired: &DesiredDevice,
        observed: &ObservedDevice,
        ownership: &Ownership,
    ) {
        let Some(mut changes) = of_kind(&desired.kind, &observed.kind) else {
            self.gone.insert(desired.name);
            self.changes.push(Change::RemoveDevice(desired.name));
            self.changes.push(Change::CreateDevice(*desired));
            return;
        };
        if changes.iter().any(|change| matches!(change, DeviceChange::Mac(_))) {
            self.without_neighbours.insert(desired.name);
        }
        if observed.alias.as_deref() != Some(&ownership.owner) {
            changes.push(DeviceChange::Owner);
        }
        if observed.mtu != desired.mtu {
            changes.push(DeviceChange::Mtu(desired.mtu));
        }
        if !observed.is_up {
            changes.push(DeviceChange::Up);
        }
        let name = desired.name;
        self.changes.extend(changes.into_iter().map(|to| Change::ChangeDevice { name, to }));
    }
}

/// None where only a new device will do.
fn of_kind(desired: &DeviceKind, observed: &ObservedKind) -> Option<Vec<DeviceChange>> {
    let ObservedKind::Known(observed) = observed else { return None };
    if desired == observed {
        return Some(Vec::new());
    }
    match (desired, observed) {
        (DeviceKind::Vxlan(desired), DeviceKind::Vxlan(observed)) => of_vxlan(desired, observed),
        (DeviceKind::Wireguard { public_key, listen_port }, DeviceKind::Wireguard { .. }) => {
            let (public_key, listen_port) = (*public_key, *listen_port);
            Some(vec![DeviceChange::Wireguard { public_key, listen_port }])
        }
        (DeviceKind::Ipip { local }, DeviceKind::Ipip { .. }) => {
            Some(vec![DeviceChange::Ipip { local: *local }])
        }
        _ => None,
    }
}

/// The kernel changes neither number nor port nor groups of a VXLAN, nor the family of its address.
fn of_vxlan(desired: &VxlanDevice, observed: &VxlanDevice) -> Option<Vec<DeviceChange>> {
    let fixed = |vxlan: &VxlanDevice| (vxlan.vni, vxlan.port, vxlan.gbp, Family::of(vxlan.local));
    let live = |vxlan: &VxlanDevice| (vxlan.lower, vxlan.local, vxlan.learning);
    if fixed(desired) != fixed(observed) {
        return None;
    }
    let mut changes = Vec::new();
    if live(desired) != live(observed) {
        changes.push(DeviceChange::Vxlan(*desired));
    }
    if desired.mac != observed.mac {
        changes.push(DeviceChange::Mac(desired.mac));
    }
    Some(changes)
}
