// SPDX-License-Identifier: Apache-2.0
//! The bridge of this node's pods. The plugin creates it with the gateway address of the node's subnet, and never changes
//! that address. When the node gets another subnet, the agent replaces the address as soon as the bridge has no ports.
//! Until then the plugin rejects every pod, so the node is not ready.

mod pods;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::runtime::DEFAULT_CACHE_DIR;
use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::events::{Event, Events, Object, Topic};
use kernel::link::{self, Link};
use kernel::{IfName, Netlink, Received};
use overlay::stale_bridge;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::async_fd::register;
use crate::file_watcher::CHECK_INTERVAL;
use crate::multicast::gateway;
use crate::overlay::Programmed;
use crate::settings::Settings;
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// The plugin's default name, which the agent's configuration does not change.
const NAME: &str = stale_bridge::AGENT_BRIDGE;

/// Delay between an event and the next check, because many pods may be removed at once.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Maximum number of pods that an error names.
const MAX_NAMED_PODS: usize = 10;

/// Why pods cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "{NAME} has {}, but this node's subnet is {}: new pods are refused. {}",
        joined(.stale), joined(.subnets), advice(.pods)
    )]
    Stale {
        /// The bridge's addresses of other subnets.
        stale: Vec<IpNet>,
        subnets: Vec<IpNet>,
        /// Pods or ports on the bridge.
        pods: Vec<String>,
    },
    #[error("inspect {NAME}: {0}")]
    Kernel(#[from] kernel::Error),
}

fn joined(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn advice(pods: &[String]) -> String {
    if pods.is_empty() {
        return format!("No pod is attached to {NAME}, the agent replaces the address");
    }
    let more = match pods.len().saturating_sub(MAX_NAMED_PODS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = pods.iter().take(MAX_NAMED_PODS).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("Attached to {NAME}: {shown}{more}. To fix this, {}", stale_bridge::hint(NAME))
}

/// The subnets that the bridge is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The whole network. Its subnets are those of nodes.
    pub networks: Vec<IpNet>,
    /// This node's part.
    pub subnets: Vec<IpNet>,
    /// Whether the agent writes the CNI configuration. Then pods are certain to use this bridge, and the gateway is
    /// certain to be the subnet's first address.
    pub has_cni_conf: bool,
}

impl Expected {
    /// Returns the addresses to remove. The plugin tolerates no other IPv4 address than its own, and an address of another
    /// node's subnet hides the route to that node.
    fn stale(&self, found: &[IpNet]) -> Vec<IpNet> {
        let is_own = |address: &IpNet| self.subnets.contains(&address.trunc());
        let blocks_ipv4 = self.has_cni_conf
            && self.subnets.iter().any(|subnet| subnet.addr().is_ipv4())
            && !found.iter().any(|address| address.addr().is_ipv4() && is_own(address));
        let is_of_network =
            |address: &IpNet| self.networks.iter().any(|network| network.contains(address));
        let is_stale = |address: &&IpNet| {
            let is_rejected_by_plugin = blocks_ipv4 && address.addr().is_ipv4();
            !is_own(address) && (is_rejected_by_plugin || is_of_network(address))
        };
        found.iter().filter(is_stale).copied().collect()
    }

    /// Returns the gateway addresses that replace stale ones. Without the agent's CNI configuration another address may be
    /// the gateway. The plugin adds it then.
    fn replacements(&self, stale: &[IpNet], found: &[IpNet]) -> Vec<IpNet> {
        let is_replaced = |subnet: &&IpNet| {
            let is_same_family = |other: &IpNet| other.addr().is_ipv4() == subnet.addr().is_ipv4();
            let has_own = found.iter().any(|address| address.trunc() == **subnet);
            self.has_cni_conf && !has_own && stale.iter().any(is_same_family)
        };
        let replaced = self.subnets.iter().filter(is_replaced);
        replaced.filter_map(|one| IpNet::new(gateway(*one)?, one.prefix_len()).ok()).collect()
    }

    fn error(&self, stale: Vec<IpNet>, pods: Vec<String>) -> Error {
        Error::Stale { stale, subnets: self.subnets.clone(), pods }
    }
}

/// The bridge in the kernel.
struct Observed {
    link: Link,
    addresses: Vec<IpNet>,
}

/// Returns `None` if there is no bridge of this name.
fn observe(nl: &Netlink) -> kernel::Result<Option<Observed>> {
    let name: IfName = NAME.parse().expect("a valid interface name");
    let Some(link) = link::by_name(nl, name)?.filter(|link| link.is_kind("bridge")) else {
        return Ok(None);
    };
    let addresses = addr::list(nl, Some(link.index))?;
    Ok(Some(Observed { link, addresses: addresses.iter().map(|one| one.prefix).collect() }))
}

/// Fails if the bridge of this namespace has an address of another subnet, also if it has no ports. A bridge that
/// does not exist yet is fine.
pub(crate) fn check(expected: &Expected) -> Result<(), Error> {
    let nl = Netlink::open()?;
    let Some(Observed { link, addresses }) = observe(&nl)? else { return Ok(()) };
    let stale = expected.stale(&addresses);
    match stale.is_empty() {
        true => Ok(()),
        false => Err(expected.error(stale, pods_on(&nl, &link)?)),
    }
}

/// Replaces addresses of other subnets on a bridge without ports, and returns the changes, a line each. Fails if
/// the bridge has ports.
pub(crate) fn settle(expected: &Expected) -> Result<Vec<String>, Error> {
    change(expected, true)
}

/// Returns the changes that [`settle`] would make.
pub(crate) fn preview(expected: &Expected) -> Result<Vec<String>, Error> {
    change(expected, false)
}

fn change(expected: &Expected, applies: bool) -> Result<Vec<String>, Error> {
    let nl = Netlink::open()?;
    let Some(Observed { link, addresses }) = observe(&nl)? else { return Ok(Vec::new()) };
    let stale = expected.stale(&addresses);
    if stale.is_empty() {
        return Ok(Vec::new());
    }
    let pods = pods_on(&nl, &link)?;
    if !pods.is_empty() {
        return Err(expected.error(stale, pods));
    }
    let added = expected.replacements(&stale, &addresses);
    let options = AddrOptions { nodad: true, ..AddrOptions::default() };
    let removals = stale.iter().map(|one| addr::remove(link.index, *one));
    let additions = added.iter().map(|one| addr::add(link.index, *one, options));
    if applies {
        // A plugin may make the same changes at the same time.
        let is_done = |error: &kernel::Error| error.already_exists() || error.is_not_found();
        let done = nl.apply_each(removals.chain(additions)).into_iter().filter_map(Result::err);
        done.filter(|error| !is_done(error)).try_for_each(Err)?;
    }
    let removed = stale.iter().map(|one| format!("remove address {one} dev {NAME}"));
    Ok(removed.chain(added.iter().map(|one| format!("add address {one} dev {NAME}"))).collect())
}

fn pods_on(nl: &Netlink, bridge: &Link) -> kernel::Result<Vec<String>> {
    let ports = link::list_of_master(nl, bridge.index)?;
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    Ok(pods::on_ports(&names, Path::new(DEFAULT_CACHE_DIR)))
}

/// The bridge's name and address if the address is in one of these networks, for cleanup.
pub fn within(networks: &[IpNet]) -> kernel::Result<Option<(&'static str, IpNet)>> {
    let is_within = |address: &IpNet| networks.iter().any(|network| network.contains(address));
    let observed = observe(&Netlink::open()?)?;
    let addresses = observed.map(|one| one.addresses).unwrap_or_default();
    Ok(addresses.into_iter().find(is_within).map(|address| (NAME, address)))
}

/// Replaces addresses of other subnets, and reports the pods that prevent it.
pub(crate) async fn run(
    settings: &Settings,
    network: &mut watch::Receiver<Option<Arc<Programmed>>>,
    hub: &StatusHub,
    heartbeat: &Heartbeat,
) -> Result<(), Failure> {
    let mut changes = hub.changes();
    let mut events = listen();
    loop {
        heartbeat.beat();
        let current = network.borrow_and_update().clone();
        let current = current
            .map(|one| super::expected_bridge(settings, &one.joined.conf, &one.joined.lease));
        // Plugins must know the new subnet first: one that attaches a pod of the old subnet still needs the address.
        let is_published = |current: &Expected| {
            hub.network().is_some_and(|network| network.lease.subnets == current.subnets)
        };
        let is_stale = match current.filter(is_published) {
            Some(current) => match spawn_blocking(move || settle(&current)).await {
                Ok(settled) => report(hub, settled),
                Err(error) => return Err(format!("checking {NAME} failed: {error}")),
            },
            None => false,
        };
        tokio::select! {
            changed = network.changed() => if changed.is_err() { return Ok(()) },
            () = changes.next() => {}
            () = relevant(&mut events, is_stale) => sleep(DEBOUNCE).await,
            () = heartbeat.during(sleep(CHECK_INTERVAL)) => {}
        }
    }
}

/// Reports the result. Returns whether the bridge still has addresses of other subnets.
fn report(hub: &StatusHub, settled: Result<Vec<String>, Error>) -> bool {
    if let Ok(changes) = &settled {
        for change in changes {
            tracing::info!(%change, "bridge address changed");
        }
    }
    let is_stale = matches!(settled, Err(Error::Stale { .. }));
    hub.report_result(ConditionKind::Bridge, settled.map(drop));
    is_stale
}

/// Returns `None` if the kernel rejects the socket. The bridge is then checked periodically only.
fn listen() -> Option<AsyncFd<Events>> {
    let events = Events::listen(&[Topic::Links, Topic::Addrs]).and_then(register);
    events
        .inspect_err(|error| tracing::warn!(%error, "no link events, checking {NAME} periodically"))
        .ok()
}

/// Waits for an event that may change the result of [`settle`]. While pods prevent a change, every link may belong to one of them.
async fn relevant(events: &mut Option<AsyncFd<Events>>, is_stale: bool) {
    let Some(socket) = events else { return std::future::pending().await };
    loop {
        match next(socket, is_stale).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "no link events, checking {NAME} periodically");
                *events = None;
                return;
            }
        }
    }
}

async fn next(socket: &mut AsyncFd<Events>, is_stale: bool) -> io::Result<bool> {
    socket.readable().await?.clear_ready();
    let mut is_relevant = false;
    loop {
        let received = socket
            .get_mut()
            .receive(Instant::now(), |event| is_relevant |= concerns(&event, is_stale))
            .map_err(io::Error::other)?;
        match received {
            Received::Events => {}
            Received::Overrun => is_relevant = true,
            Received::Deadline => return Ok(is_relevant),
        }
    }
}

fn concerns(event: &Event, is_stale: bool) -> bool {
    match &event.object {
        Object::Link(link) => is_stale || link.name.as_str() == NAME,
        // Addresses of interfaces in this namespace change rarely.
        Object::Addr(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn expected(subnets: &[&str], has_cni_conf: bool) -> Expected {
        let networks = nets(&["10.5.0.0/16", "fd05::/48"]);
        Expected { networks, subnets: nets(subnets), has_cni_conf }
    }

    #[test]
    fn addresses_of_other_subnets_are_stale() {
        let check = |found: &[&str], subnets: &[&str], has_cni_conf: bool, stale: &[&str]| {
            let expected = expected(subnets, has_cni_conf);
            assert_eq!(expected.stale(&nets(found)), nets(stale), "{found:?} {expected:?}");
        };
        let (v4, both) = (["10.5.2.0/24"], ["10.5.2.0/24", "fd05:0:0:2::/64"]);
        for has_cni_conf in [true, false] {
            check(&["10.5.1.1/24"], &v4, has_cni_conf, &["10.5.1.1/24"]);
            check(&["10.5.2.1/24"], &v4, has_cni_conf, &[]);
            check(&[], &v4, has_cni_conf, &[]);
            check(&["10.5.2.1/24", "192.0.2.1/24"], &v4, has_cni_conf, &[]);
            // Both are allowed for the plugin, but the first hides the route to another node.
            check(&["10.5.1.1/24", "10.5.2.1/24"], &v4, has_cni_conf, &["10.5.1.1/24"]);
            let old = ["fe80::1/64", "10.5.1.1/24", "fd05:0:0:1::1/64"];
            check(&old, &both, has_cni_conf, &["10.5.1.1/24", "fd05:0:0:1::1/64"]);
            check(&["fd05:0:0:1::1/64"], &["fd05:0:0:2::/64"], has_cni_conf, &["fd05:0:0:1::1/64"]);
            // The plugin compares the prefix length as well.
            check(&["10.5.2.1/25"], &v4, has_cni_conf, &["10.5.2.1/25"]);
            check(&["10.5.2.1/16"], &v4, has_cni_conf, &["10.5.2.1/16"]);
        }
        check(&["10.77.1.1/24"], &v4, true, &["10.77.1.1/24"]);
        check(&["10.77.1.1/24"], &v4, false, &[]);
        check(&["10.77.1.1/24"], &["fd05:0:0:2::/64"], true, &[]);
    }

    #[test]
    fn stale_address_is_replaced_by_gateway_of_its_family() {
        let check = |found: &[&str], has_cni_conf: bool, added: &[&str]| {
            let expected = expected(&["10.5.2.0/24", "fd05:0:0:2::/64"], has_cni_conf);
            let (found, added) = (nets(found), nets(added));
            let stale = expected.stale(&found);
            assert_eq!(expected.replacements(&stale, &found), added, "{found:?}");
        };
        check(&["10.5.1.1/24"], true, &["10.5.2.1/24"]);
        check(&["10.5.1.1/24"], false, &[]);
        check(&["10.5.1.1/24", "10.5.2.1/24"], true, &[]);
        check(&["fd05:0:0:1::1/64"], true, &["fd05:0:0:2::1/64"]);
        check(&["10.77.1.1/24", "fd05:0:0:1::1/64"], true, &["10.5.2.1/24", "fd05:0:0:2::1/64"]);
    }

    #[test]
    fn error_names_a_limited_number_of_pods() {
        let pods = |count: usize| (0..count).map(|one| format!("default/p{one}")).collect();
        let text = |pods: Vec<String>| {
            expected(&["10.5.2.0/24"], true).error(nets(&["10.5.1.1/24"]), pods).to_string()
        };
        let start =
            "cni0 has 10.5.1.1/24, but this node's subnet is 10.5.2.0/24: new pods are refused. ";
        assert!(text(pods(2)).starts_with(&format!(
            "{start}Attached to cni0: default/p0, default/p1. To fix this, delete the pods"
        )));
        assert!(text(pods(13)).contains("default/p9 and 3 more. To fix"), "{}", text(pods(13)));
        assert!(text(pods(0)).ends_with("the agent replaces the address"));
    }
}
