// SPDX-License-Identifier: Apache-2.0
//! Observes what runs on this node, for the collection of unused addresses and for the check.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use ipam::check::{InterfaceTag, PodInterface};
use ipam::node::{JournalEntry, Node};
use ipnet::IpNet;
use kernel::link::{self, Link};
use kernel::route::{self, KIND_UNICAST, PROTOCOL_KERNEL, Route, RouteFilter, TABLE_MAIN};
use kernel::{IfIndex, Netlink};
use overlay::ownership::PROTOCOL;

/// Pods and addresses that exist on this node.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Handles whose network namespace exists.
    pub running: BTreeSet<String>,
    /// Addresses with a route or on an interface of this host.
    pub addresses: BTreeSet<IpAddr>,
}

/// The network namespace of an attachment.
#[derive(Debug)]
pub(super) struct Namespace {
    handle: String,
    path: String,
    /// `None` if it could not be read at the assignment. Then the path alone decides.
    inode: Option<u64>,
}

/// Returns the network namespaces of all attachments.
pub(super) fn namespaces(node: &Node) -> Vec<Namespace> {
    let namespace = |entry: &JournalEntry| {
        let attachment = &entry.attachment;
        let (handle, path) = (attachment.handle.clone(), attachment.netns.clone()?);
        Some(Namespace { handle, path, inode: attachment.netns_inode })
    };
    node.assignments().filter_map(namespace).collect()
}

/// Reads the state of the host. Blocks.
pub(super) fn observe(namespaces: Vec<Namespace>) -> kernel::Result<Observed> {
    let nl = Netlink::open()?;
    let mut addresses: BTreeSet<IpAddr> =
        host_routes(&nl)?.iter().map(|route| route.dst.addr()).collect();
    let own = kernel::addr::list(&nl, None)?;
    addresses.extend(own.iter().map(|address| address.prefix.addr()));
    let running = namespaces.into_iter().filter(exists).map(|namespace| namespace.handle);
    Ok(Observed { running: running.collect(), addresses })
}

/// Reads the routes to single addresses behind interfaces of this host. Blocks.
pub(super) fn pods() -> kernel::Result<BTreeMap<IpAddr, PodInterface>> {
    let nl = Netlink::open()?;
    let mut links: BTreeMap<IfIndex, Link> = BTreeMap::new();
    links.extend(link::list(&nl)?.into_iter().map(|link| (link.index, link)));
    // Routes to addresses of other nodes have a gateway, or they are the agent's. The kernel creates the routes to
    // the host's own addresses.
    let is_pod = |route: &&Route| {
        route.kind == KIND_UNICAST
            && route.gateway.is_none()
            && ![PROTOCOL, PROTOCOL_KERNEL].contains(&route.protocol)
    };
    let routes = host_routes(&nl)?;
    let pods = routes.iter().filter(is_pod).filter_map(|route| {
        let link = links.get(&route.oif?)?;
        let attachment = link.alias.as_deref().and_then(tag);
        Some((route.dst.addr(), PodInterface { name: link.name.to_string(), attachment }))
    });
    Ok(pods.collect())
}

fn host_routes(nl: &Netlink) -> kernel::Result<Vec<Route>> {
    let filter = RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() };
    let is_host = |dst: IpNet| dst.prefix_len() == dst.max_prefix_len();
    let mut routes = route::list(nl, filter)?;
    routes.retain(|route| is_host(route.dst));
    Ok(routes)
}

/// Parses the alias that the plugin calico gives the host end of a pod.
fn tag(alias: &str) -> Option<InterfaceTag> {
    let mut words = alias.strip_prefix("podwire calico ")?.split(' ').map(str::to_owned);
    let (network, container_id, interface) = (words.next()?, words.next()?, words.next()?);
    Some(InterfaceTag { network, container_id, interface })
}

fn exists(namespace: &Namespace) -> bool {
    let Ok(found) = std::fs::metadata(&namespace.path) else { return false };
    namespace.inode.is_none_or(|inode| inode == found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_of_the_plugin_names_the_attachment() {
        let expected = InterfaceTag {
            network: "net".to_owned(),
            container_id: "c1".to_owned(),
            interface: "eth0".to_owned(),
        };
        assert_eq!(tag("podwire calico net c1 eth0"), Some(expected));
        assert_eq!(tag("podwire calico net c1"), None);
        assert_eq!(tag("uplink"), None);
    }
}
