// SPDX-License-Identifier: Apache-2.0
//! Devices: kept and changed where the kernel can, as all that hangs on one goes with it.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Family, IfName};

use super::change::{Change, Conflict, DeviceChange};
use super::found::{Found, FoundDevice, FoundKind, Scope};
use crate::plan::{Device, DeviceKind, VxlanDevice, Wanted};

/// What becomes of devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// To be done first.
    pub(super) changes: Vec<Change>,
    /// Not wanted any more, to be removed last.
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

pub(super) fn compare(wanted: &Wanted, found: &Found, scope: &Scope) -> Devices {
    let by_name: BTreeMap<IfName, &FoundDevice> =
        found.devices.iter().map(|device| (device.name, device)).collect();
    let mut devices = Devices::default();
    for device in wanted.devices.values() {
        devices.ours.insert(device.name);
        match by_name.get(&device.name) {
            None => devices.changes.push(Change::CreateDevice(*device)),
            Some(found) if scope.has_device(found) => devices.adjust(device, found, scope),
            Some(found) => devices.block(device, found),
        }
    }
    for found in found.devices.iter().filter(|found| scope.has_device(found)) {
        devices.ours.insert(found.name);
        if wanted.devices.contains_key(&found.name) {
            continue;
        }
        devices.gone.insert(found.name);
        match devices.changes.iter().any(|change| is_prevented_by(found, change)) {
            true => devices.changes.insert(0, Change::RemoveDevice(found.name)),
            false => devices.surplus.push(found.name),
        }
    }
    devices
}

/// Whether a device has to go before another can be made: the kernel has no two of the same kind. Somebody has
/// given ours another name.
fn is_prevented_by(found: &FoundDevice, change: &Change) -> bool {
    let (Change::CreateDevice(wanted), FoundKind::Known(found)) = (change, &found.kind) else {
        return false;
    };
    match (&wanted.kind, found) {
        (DeviceKind::Vxlan(wanted), DeviceKind::Vxlan(found)) => {
            (wanted.vni, wanted.port) == (found.vni, found.port)
        }
        (DeviceKind::Ipip { local: wanted }, DeviceKind::Ipip { local: found }) => wanted == found,
        _ => false,
    }
}

impl Devices {
    fn block(&mut self, wanted: &Device, found: &FoundDevice) {
        self.ours.remove(&wanted.name);
        self.blocked.insert(wanted.name);
        let kind = found.kind.name();
        let alias = found.alias.as_ref().map(|alias| format!("{kind} with the alias {alias:?}"));
        self.conflicts.push(Conflict::Device {
            name: wanted.name,
            found: alias.unwrap_or_else(|| kind.to_owned()),
            wanted: wanted.kind.name(),
        });
    }

    fn adjust(&mut self, wanted: &Device, found: &FoundDevice, scope: &Scope) {
        let Some(mut changes) = of_kind(&wanted.kind, &found.kind) else {
            self.gone.insert(wanted.name);
            self.changes.push(Change::RemoveDevice(wanted.name));
            self.changes.push(Change::CreateDevice(*wanted));
            return;
        };
        if changes.iter().any(|change| matches!(change, DeviceChange::Mac(_))) {
            self.without_neighbours.insert(wanted.name);
        }
        if found.alias.as_deref() != Some(&scope.mark) {
            changes.push(DeviceChange::Mark);
        }
        if found.mtu != wanted.mtu {
            changes.push(DeviceChange::Mtu(wanted.mtu));
        }
        if !found.is_up {
            changes.push(DeviceChange::Up);
        }
        let name = wanted.name;
        self.changes.extend(changes.into_iter().map(|to| Change::ChangeDevice { name, to }));
    }
}

/// None where only a new device will do.
fn of_kind(wanted: &DeviceKind, found: &FoundKind) -> Option<Vec<DeviceChange>> {
    let FoundKind::Known(found) = found else { return None };
    if wanted == found {
        return Some(Vec::new());
    }
    match (wanted, found) {
        (DeviceKind::Vxlan(wanted), DeviceKind::Vxlan(found)) => of_vxlan(wanted, found),
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
fn of_vxlan(wanted: &VxlanDevice, found: &VxlanDevice) -> Option<Vec<DeviceChange>> {
    let fixed = |vxlan: &VxlanDevice| (vxlan.vni, vxlan.port, vxlan.gbp, Family::of(vxlan.local));
    let live = |vxlan: &VxlanDevice| (vxlan.lower, vxlan.local, vxlan.learning);
    if fixed(wanted) != fixed(found) {
        return None;
    }
    let mut changes = Vec::new();
    if live(wanted) != live(found) {
        changes.push(DeviceChange::Vxlan(*wanted));
    }
    if wanted.mac != found.mac {
        changes.push(DeviceChange::Mac(wanted.mac));
    }
    Some(changes)
}
