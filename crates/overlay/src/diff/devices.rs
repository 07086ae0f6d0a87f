// SPDX-License-Identifier: Apache-2.0
//! Compares devices. A device is changed in place if the kernel can do so, because removing it also
//! removes its addresses, routes and neighbours.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Family, IfName};

use crate::desired::{DesiredDevice, DesiredState, DeviceKind, VxlanDevice};
use crate::diff::change::{Change, Conflict, DeviceChange};
use crate::observed::{ObservedDevice, ObservedKind, ObservedState};
use crate::ownership::Ownership;

/// Result of comparing devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Changes to apply before all others.
    pub(super) changes: Vec<Change>,
    /// Devices that are no longer desired, to be removed last.
    pub(super) surplus: Vec<IfName>,
    /// Devices that are the agent's, before or after the changes.
    pub(super) ours: BTreeSet<IfName>,
    /// Devices that are removed or re-created. The kernel removes everything on them.
    pub(super) gone: BTreeSet<IfName>,
    /// Devices whose neighbour entries the kernel deletes.
    pub(super) without_neighbours: BTreeSet<IfName>,
    /// Names that foreign devices have. Nothing desired can exist on them.
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
            Some(existing) if ownership.owns_device(existing) => {
                devices.adjust(device, existing, ownership);
            }
            Some(existing) => devices.block(device, existing),
        }
    }
    for device in observed.devices.iter().filter(|device| ownership.owns_device(device)) {
        devices.ours.insert(device.name);
        if desired.devices.contains_key(&device.name) {
            continue;
        }
        devices.gone.insert(device.name);
        match devices.changes.iter().any(|change| prevents(device, change)) {
            true => devices.changes.insert(0, Change::RemoveDevice(device.name)),
            false => devices.surplus.push(device.name),
        }
    }
    devices
}

/// Returns whether a surplus device has to be removed before the change can be made. The kernel
/// refuses a second VXLAN with the same VNI and port, and a second ipip tunnel with the same address.
/// This happens after another program has renamed the agent's device.
fn prevents(observed: &ObservedDevice, change: &Change) -> bool {
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
        let with_alias = observed.alias.as_ref().map(|alias| format!("{kind}, alias {alias:?}"));
        self.conflicts.push(Conflict::Device {
            name: desired.name,
            observed: with_alias.unwrap_or_else(|| kind.to_owned()),
            desired: desired.kind.name(),
        });
    }

    fn adjust(
        &mut self,
        desired: &DesiredDevice,
        observed: &ObservedDevice,
        ownership: &Ownership,
    ) {
        let Some(mut changes) = kind_changes(&desired.kind, &observed.kind) else {
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

/// Returns `None` if the device has to be re-created.
fn kind_changes(desired: &DeviceKind, observed: &ObservedKind) -> Option<Vec<DeviceChange>> {
    let ObservedKind::Known(observed) = observed else { return None };
    if desired == observed {
        return Some(Vec::new());
    }
    match (desired, observed) {
        (DeviceKind::Vxlan(desired), DeviceKind::Vxlan(observed)) => {
            vxlan_changes(desired, observed)
        }
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

/// The kernel can change neither the VNI, the port and GBP of a VXLAN nor the family of its local
/// address.
fn vxlan_changes(desired: &VxlanDevice, observed: &VxlanDevice) -> Option<Vec<DeviceChange>> {
    let fixed = |vxlan: &VxlanDevice| (vxlan.vni, vxlan.port, vxlan.gbp, Family::of(vxlan.local));
    let changeable = |vxlan: &VxlanDevice| (vxlan.lower, vxlan.local, vxlan.learning);
    if fixed(desired) != fixed(observed) {
        return None;
    }
    let mut changes = Vec::new();
    if changeable(desired) != changeable(observed) {
        changes.push(DeviceChange::Vxlan(*desired));
    }
    if desired.mac != observed.mac {
        changes.push(DeviceChange::Mac(desired.mac));
    }
    Some(changes)
}
