// SPDX-License-Identifier: Apache-2.0
//! MAC address of a node's tunnel device, derived from the identity of the node. Therefore a device that
//! is re-created, for example after a reboot, has the address that the peers already know.

use kernel::{Family, MacAddr};
use sha2::{Digest, Sha512};

/// Returns a locally administered unicast address for a node, a VNI and the underlay family of the
/// tunnel.
///
/// `identity` must never change and must be unique to the node, such as its UID or machine ID.
pub(crate) fn of_node(identity: &[u8], vni: u32, carrier: Family) -> MacAddr {
    let mut digest = Sha512::new();
    digest.update(b"podwire vtep");
    // Separates the identity from the bytes that follow.
    digest.update((identity.len() as u64).to_be_bytes());
    digest.update(identity);
    digest.update(vni.to_be_bytes());
    digest.update([if carrier == Family::V4 { 4 } else { 6 }]);
    let digest = digest.finalize();
    let mut octets = [0; 6];
    octets.copy_from_slice(&digest[..6]);
    octets[0] = (octets[0] & 0xfe) | 0x02;
    MacAddr(octets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mac_differs_by_node_vni_and_family() {
        let mac = of_node(b"node-1", 1, Family::V4);
        // The value is fixed: a node must keep its address when podwire is updated.
        assert_eq!(mac.to_string(), "ba:8f:8b:31:92:7e");
        let others = [
            of_node(b"node-2", 1, Family::V4),
            of_node(b"node-1", 2, Family::V4),
            of_node(b"node-1", 1, Family::V6),
            of_node(b"node-1\0", 1, Family::V4),
        ];
        assert!(others.iter().all(|other| *other != mac));
    }

    proptest! {
        #[test]
        fn mac_is_local_and_unicast(identity: Vec<u8>, vni: u32, is_v6: bool) {
            let mac = of_node(&identity, vni, if is_v6 { Family::V6 } else { Family::V4 });
            prop_assert_eq!(mac.0[0] & 3, 2);
            prop_assert!(mac.is_unicast());
        }
    }
}
