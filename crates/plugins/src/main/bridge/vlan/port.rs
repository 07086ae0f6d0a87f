// SPDX-License-Identifier: Apache-2.0
//! The VLANs of a container's port.

use cni::Error;
use kernel::bridge_vlan::{self, Vlans as Range};
use kernel::link::{self, Link};
use kernel::{IfIndex, IfName, Netlink};

use super::Vlans;
use crate::error::Context;

/// Adds a new port to its VLANs. The container end is still down, so that no frame enters the
/// default VLAN.
pub(crate) fn configure(host: &Netlink, port: IfName, vlans: &Vlans) -> Result<(), Error> {
    let index = link::index_of(host, port).context("look at the bridge's port")?;
    set(host, index, &vlans.of_port(), vlans.keeps_default)
}

/// Adds a port to these VLANs, and removes it from all others unless it keeps the default VLAN.
pub(crate) fn set(
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
    host.apply(changes).context("add the bridge's port to its VLANs")
}

/// CHECK: the port must be in all of its VLANs, tagged or untagged as configured.
pub(crate) fn check(host: &Netlink, port: &Link, vlans: &Vlans) -> Result<(), Error> {
    let found = bridge_vlan::list(host, port.index).context("list VLANs of the bridge's port")?;
    match vlans.of_port().iter().find(|expected| !covers(&found, expected)) {
        Some(expected) => Err(Error::internal(format!(
            "bridge port {} is not in VLAN {}",
            port.name,
            shown(expected)
        ))),
        None => Ok(()),
    }
}

/// The kernel joins adjacent ranges with equal flags, so the expected range may be part of a longer
/// one.
pub(crate) fn covers(found: &[Range], expected: &Range) -> bool {
    let has_same_flags =
        |other: &&Range| (other.pvid, other.untagged) == (expected.pvid, expected.untagged);
    let mut next = expected.first;
    // The kernel lists ranges in ascending order.
    for range in found.iter().filter(has_same_flags) {
        if range.contains(next) {
            next = range.last + 1;
        }
    }
    next > expected.last
}

fn shown(range: &Range) -> String {
    let tagging = if range.untagged { "untagged" } else { "tagged" };
    match (range.first, range.last) {
        (first, last) if first == last => format!("{first}, {tagging}"),
        (first, last) => format!("{first} to {last}, {tagging}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_accepts_joined_and_split_ranges() {
        let check = |found: &[Range], range: Range, expected: bool| {
            assert_eq!(covers(found, &range), expected, "{found:?} {range:?}");
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
