// SPDX-License-Identifier: Apache-2.0
//! A container's port: put into its VLANs, and looked at by CHECK.

use cni::Error;
use kernel::bridge_vlan::{self, Vlans as Range};
use kernel::link::{self, Link};
use kernel::{IfIndex, IfName, Netlink};

use super::Vlans;
use crate::fault::OrFault;

/// Puts a new port into its VLANs. It is out of the default one before its other end comes up, so that
/// no frame gets there.
pub fn enter(host: &Netlink, port: IfName, vlans: &Vlans) -> Result<(), Error> {
    let index = link::index_of(host, port).or_fault("look at the bridge's port")?;
    set(host, index, &vlans.of_port(), vlans.keeps_default)
}

/// Puts a port into these VLANs, and out of all others unless it keeps the default one.
pub fn set(
    host: &Netlink,
    port: IfIndex,
    vlans: &[Range],
    keeps_default: bool,
) -> Result<(), Error> {
    if vlans.is_empty() {
        return Ok(());
    }
    let leave = (!keeps_default).then(|| bridge_vlan::remove_all(port));
    let changes = leave.into_iter().chain([bridge_vlan::add(port, vlans)]);
    host.apply(changes).or_fault("put the bridge's port into its VLANs")
}

/// CHECK: the port must be in all of its VLANs, and in the way that it was put there.
pub fn check(host: &Netlink, port: &Link, vlans: &Vlans) -> Result<(), Error> {
    let found = bridge_vlan::list(host, port.index).or_fault("list VLANs of the bridge's port")?;
    match vlans.of_port().iter().find(|wanted| !covers(&found, wanted)) {
        Some(wanted) => Err(Error::internal(format!(
            "bridge port {} is not in VLAN {}",
            port.name,
            shown(wanted)
        ))),
        None => Ok(()),
    }
}

/// The kernel joins neighbours that are alike, so one range may lie in a longer one.
pub fn covers(found: &[Range], wanted: &Range) -> bool {
    let is_alike = |other: &&Range| (other.pvid, other.untagged) == (wanted.pvid, wanted.untagged);
    let mut next = wanted.first;
    // They are ascending.
    for range in found.iter().filter(is_alike) {
        if range.contains(next) {
            next = range.last + 1;
        }
    }
    next > wanted.last
}

fn shown(range: &Range) -> String {
    let way = if range.untagged { "untagged" } else { "tagged" };
    match (range.first, range.last) {
        (first, last) if first == last => format!("{first}, {way}"),
        (first, last) => format!("{first} to {last}, {way}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_in_longer_ones_and_in_parts() {
        let check = |found: &[Range], wanted: Range, expected: bool| {
            assert_eq!(covers(found, &wanted), expected, "{found:?} {wanted:?}");
        };
        let tagged = Range::tagged;
        check(&[], tagged(5, 9), false);
        check(&[tagged(1, 20)], tagged(5, 9), true);
        check(&[tagged(5, 6), tagged(7, 9)], tagged(5, 9), true);
        check(&[tagged(5, 6), tagged(8, 9)], tagged(5, 9), false);
        check(&[tagged(5, 8)], tagged(5, 9), false);
        check(&[tagged(6, 9)], tagged(5, 9), false);
        check(&[tagged(5, 5)], Range::native(5), false);
        check(&[Range::native(5)], Range::native(5), true);
        check(&[Range { pvid: false, ..Range::native(5) }], Range::native(5), false);
        check(&[Range::native(5), tagged(6, 4094)], tagged(6, 4094), true);
    }
}
