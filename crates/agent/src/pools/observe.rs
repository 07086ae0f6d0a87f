// SPDX-License-Identifier: Apache-2.0
//! Observes what runs on this node, for the collection of unused addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use ipam::node::{JournalEntry, Node};
use kernel::Netlink;
use kernel::route::{self, RouteFilter, TABLE_MAIN};

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
    let filter = RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() };
    let routes = route::list(&nl, filter)?;
    let hosts = routes.iter().filter(|route| route.dst.prefix_len() == route.dst.max_prefix_len());
    let mut addresses: BTreeSet<IpAddr> = hosts.map(|route| route.dst.addr()).collect();
    let own = kernel::addr::list(&nl, None)?;
    addresses.extend(own.iter().map(|address| address.prefix.addr()));
    let running = namespaces.into_iter().filter(exists).map(|namespace| namespace.handle);
    Ok(Observed { running: running.collect(), addresses })
}

fn exists(namespace: &Namespace) -> bool {
    let Ok(found) = std::fs::metadata(&namespace.path) else { return false };
    namespace.inode.is_none_or(|inode| inode == found.ino())
}
