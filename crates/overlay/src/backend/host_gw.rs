// SPDX-License-Identifier: Apache-2.0
//! host-gw: a route to each peer on the link, and nothing else.

use ipnet::IpNet;

use crate::cidr;
use crate::desired::DesiredState;
use crate::plan::{Node, Peer, RejectReason, direct};

pub(crate) fn carry(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    let Some(route) = direct(node, peer, subnet) else {
        let family = cidr::of(subnet);
        let public = peer.lease.attributes.public.get(family);
        return Err(public.map_or(RejectReason::NoCommonUnderlay, RejectReason::NotOnLink));
    };
    desired.routes.insert(subnet, route);
    Ok(())
}
