// SPDX-License-Identifier: Apache-2.0
//! Subnets in use, so that no two nodes are served the same addresses. A lookup takes logarithmic
//! time.

use std::collections::BTreeMap;

use ipnet::IpNet;
use kernel::Family;

use crate::cidr;
use crate::plan::rejected::RejectReason;

/// Subnets that do not overlap, by first address, with the name of the peer that has each. This node's
/// own subnets have no name.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    v4: BTreeMap<u128, (IpNet, Option<String>)>,
    v6: BTreeMap<u128, (IpNet, Option<String>)>,
}

impl Claims {
    /// Starts with this node's own subnets.
    pub(super) fn new(own: impl Iterator<Item = IpNet>) -> Self {
        let mut claims = Self::default();
        for subnet in own {
            claims.insert(subnet, None);
        }
        claims
    }

    /// Returns an error if any address of the subnet is claimed.
    pub(super) fn check(&self, subnet: IpNet) -> Result<(), RejectReason> {
        let map = match cidr::of(subnet) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let (_, last) = cidr::span(subnet);
        // Claims do not overlap, so only the last claim that begins before the end of this subnet can
        // overlap it.
        match map.range(..=last).next_back() {
            Some((_, (other, owner))) if cidr::overlap(*other, subnet) => Err(match owner {
                None => RejectReason::OwnSubnet(*other),
                Some(peer) => RejectReason::Overlap { subnet: *other, peer: peer.clone() },
            }),
            _ => Ok(()),
        }
    }

    /// Claims a subnet for a peer.
    pub(super) fn add(&mut self, subnet: IpNet, peer: &str) {
        self.insert(subnet, Some(peer.to_owned()));
    }

    pub(super) fn remove(&mut self, subnet: IpNet) {
        let map = match cidr::of(subnet) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        map.remove(&cidr::span(subnet).0);
    }

    fn insert(&mut self, subnet: IpNet, owner: Option<String>) {
        let map = match cidr::of(subnet) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        map.insert(cidr::span(subnet).0, (subnet, owner));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn check_equals_pairwise_comparison(nets in vec((any::<u16>(), 16u8..=32), 0..60)) {
            let mut claims = Claims::new(std::iter::empty());
            let mut claimed: Vec<IpNet> = Vec::new();
            for (bits, len) in nets {
                let address = Ipv4Addr::from_bits(u32::from(bits));
                let net = IpNet::new(address.into(), len).unwrap().trunc();
                let is_free = !claimed.iter().any(|other| cidr::overlap(*other, net));
                prop_assert_eq!(claims.check(net).is_ok(), is_free);
                if is_free {
                    claims.add(net, "peer");
                    claimed.push(net);
                }
            }
        }
    }
}
