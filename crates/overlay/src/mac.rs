// SPDX-License-Identifier: Apache-2.0
//! The hardware address of a node's tunnel device. It follows from who the node is, so that a
//! device that was made anew, by us or after a reboot, is the one its peers already know.

use kernel::{Family, MacAddr};
use sha2::{Digest, Sha512};

/// The address for a node, a network number and the family of the tunnel: unicast and locally
/// administered.
///
/// `identity` is what the node never changes and no other node has, such as its UID or machine id.
pub fn of_node(identity: &[u8], vni: u32, carrier: Family) -> MacAddr {
    let mut digest = Sha512::new();
    digest.update(b"podwire vtep");
    // Its length keeps an identity from running into what follows.
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
    fn it_stays_and_tells_nodes_networks_and_tunnels_apart() {
        let mac = of_node(b"node-1", 1, Family::V4);
        // Written down: nodes of different versions must agree with themselves after an update.
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
        fn it_is_local_and_unicast(identity: Vec<u8>, vni: u32, is_v6: bool) {
            let mac = of_node(&identity, vni, if is_v6 { Family::V6 } else { Family::V4 });
            prop_assert_eq!(mac.0[0] & 3, 2);
            prop_assert!(mac.is_unicast());
        }
    }
}
