// SPDX-License-Identifier: Apache-2.0
//! host-gw: a route to each peer on the link, and nothing else.

use ipnet::IpNet;

use super::wanted::Wanted;
use super::{Node, Peer, Reason, direct};
use crate::family;

pub(super) fn carry(
    node: &Node<'_>,
    peer: &Peer<'_>,
    subnet: IpNet,
    wanted: &mut Wanted,
) -> Result<(), Reason> {
    let Some(route) = direct(node, peer, subnet) else {
        let family = family::of(subnet);
        let public = peer.lease.attributes.public.get(family);
        return Err(public.map_or(Reason::NoCommonUnderlay, Reason::NotOnLink));
    };
    wanted.routes.insert(subnet, route);
    Ok(())
}
