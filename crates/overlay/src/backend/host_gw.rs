// SPDX-License-Identifier: Apache-2.0
//! host-gw: a route to each peer on the same link. The backend needs no configuration and publishes no data.

use ipnet::IpNet;

use crate::cidr;
use crate::desired::DesiredState;
use crate::plan::{Node, Peer, RejectReason, direct_route};

pub(crate) fn add_subnet(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    let Some(route) = direct_route(node, peer, subnet) else {
        let public = peer.lease.attributes.public.get(cidr::of(subnet));
        return Err(public.map_or(RejectReason::NoCommonUnderlay, RejectReason::NotOnLink));
    };
    desired.routes.insert(subnet, route);
    Ok(())
}
