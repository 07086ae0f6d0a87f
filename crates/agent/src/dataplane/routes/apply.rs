// SPDX-License-Identifier: Apache-2.0
//! Applies changes in their order, and sends as many as possible at once. A failed change does not
//! stop the others, except those on a device that could not be created.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use ipnet::IpNet;
use kernel::link::{self, Detail, Link};
use kernel::wireguard::{DeviceChange, PeerChange, Wireguard};
use kernel::{IfIndex, IfName, Netlink, Request, sysctl};
use overlay::desired::{DesiredDevice, DeviceKind};
use overlay::diff::Change;

use super::observe;
use super::outcome::Outcome;
use super::reconciler::Secrets;
use super::requests::{self, Step, is_removal};
use super::udp_tunnel::{UdpTunnel, UdpTunnelSlot};

/// Number of requests that are built before they are sent. Larger batches would only use more
/// memory, because the socket sends no more at once.
const BATCH_SIZE: usize = 128;

/// A change to send.
#[derive(Debug, Clone)]
struct Planned {
    change: Change,
    /// The change sets a route to a destination that was not observed, so an existing route to it
    /// is foreign.
    is_exclusive: bool,
}

/// The sockets and values that changes need.
pub(super) struct Applier<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) wireguard: &'a mut Option<Wireguard>,
    pub(super) udp_tunnel: &'a mut Option<UdpTunnel>,
    pub(super) indices: &'a mut BTreeMap<IfName, IfIndex>,
    pub(super) owner: &'a str,
    pub(super) secrets: &'a Secrets,
    /// Address of the udp backend.
    pub(super) listen: Option<SocketAddrV4>,
    /// Queues of the udp backend.
    pub(super) queues: usize,
    pub(super) udp_slot: &'a UdpTunnelSlot,
}

#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    /// IDs of next hops that could not be created.
    pub(super) failed_nexthops: Vec<u32>,
    /// A route was not set because of an existing foreign route that was not observed.
    pub(super) has_unobserved_route: bool,
}

/// Changes whose requests were built but not sent.
#[derive(Default)]
struct Pending {
    /// Each with its number of requests.
    changes: Vec<(Planned, usize)>,
    requests: Vec<Request>,
    /// WireGuard peers of `device`.
    peers: Vec<(Change, PeerChange)>,
    device: Option<IfName>,
}

impl Applier<'_> {
    /// Applies the changes. `is_observed` returns whether a route to a destination was observed.
    /// Without that, an existing route is foreign and is not replaced.
    pub(super) fn apply(
        &mut self,
        changes: Vec<Change>,
        is_observed: impl Fn(&IpNet) -> bool,
        applied: &mut Applied,
    ) {
        let mut pending = Pending::default();
        // Changes on these devices are skipped. They would only repeat the failure.
        let mut missing = BTreeSet::new();
        applied.outcome.changes.reserve(changes.len());
        for change in changes {
            let is_exclusive =
                matches!(&change, Change::SetRoute { route, .. } if !is_observed(&route.dst));
            self.collect(Planned { change, is_exclusive }, &mut pending, applied, &mut missing);
        }
        self.send(&mut pending, applied);
    }

    fn collect(
        &mut self,
        planned: Planned,
        pending: &mut Pending,
        applied: &mut Applied,
        missing: &mut BTreeSet<IfName>,
    ) {
        let (owner, is_exclusive) = (self.owner, planned.is_exclusive);
        let step = requests::step(&planned.change, owner, is_exclusive, |name| {
            if missing.contains(&name) { None } else { self.index_of(name) }
        });
        if let Step::Send(request) = step {
            if !pending.peers.is_empty() || pending.requests.len() >= BATCH_SIZE {
                self.send(pending, applied);
            }
            pending.changes.push((planned, 1));
            pending.requests.push(request);
            return;
        }
        if let Step::Peer { device, peer } = step {
            if !pending.requests.is_empty() || pending.device.is_some_and(|other| other != device) {
                self.send(pending, applied);
            }
            pending.device = Some(device);
            pending.peers.push((planned.change, peer));
            return;
        }
        self.send(pending, applied);
        let result = match step {
            Step::Create(device) => match self.create(&device, applied) {
                Ok(requests) => {
                    pending.changes.push((planned, requests.len()));
                    pending.requests.extend(requests);
                    return;
                }
                Err(reason) => {
                    missing.insert(device.name);
                    Err(reason)
                }
            },
            Step::RemoveDevice(name) => self.remove_device(name, applied),
            Step::SetKeys { device, listen_port } => self.set_keys(device, listen_port, applied),
            Step::NoDevice(name) if missing.contains(&name) => return,
            Step::NoDevice(name) => Err(format!("device {name} does not exist")),
            Step::Gone | Step::ByCaller | Step::Send(_) | Step::Peer { .. } => Ok(()),
        };
        applied.add(planned.change, result);
    }

    /// Sends the pending requests and records their results.
    fn send(&mut self, pending: &mut Pending, applied: &mut Applied) {
        let Pending { changes, requests, peers, device } = std::mem::take(pending);
        if let Some(device) = device {
            self.set_peers(device, peers, applied);
        }
        applied.outcome.requests += requests.len();
        let mut results = self.nl.apply_each(requests).into_iter();
        for (planned, count) in changes {
            let mut result = Ok(());
            for one in results.by_ref().take(count) {
                result = result.and(one);
            }
            applied.add_answer(planned, result);
        }
    }

    /// Returns the index of a device. Asks the kernel if it is not known yet.
    fn index_of(&mut self, name: IfName) -> Option<IfIndex> {
        if let Some(index) = self.indices.get(&name) {
            return Some(*index);
        }
        let link = link::by_name(self.nl, name).ok().flatten()?;
        self.indices.insert(name, link.index);
        Some(link.index)
    }

    /// Creates a device and returns the requests that finish it. Fails if a device of the name
    /// exists: it is foreign, because it was not there when the state was read.
    fn create(
        &mut self,
        device: &DesiredDevice,
        applied: &mut Applied,
    ) -> Result<Vec<Request>, String> {
        let name = device.name;
        self.indices.remove(&name);
        applied.outcome.requests += 1;
        let index = match requests::create(device) {
            Some(request) => {
                let created = self.nl.apply([request]);
                created.map_err(|error| create_failure(self.nl, device, &error))?;
                find(self.nl, name)?
            }
            None => self.start_udp_tunnel(name)?,
        };
        self.indices.insert(name, index);
        if let Err(reason) = ignore_router_advertisements(name) {
            // The device carries packets of pods all the same.
            tracing::warn!(device = %name, reason, "router advertisements are not ignored");
        }
        if let DeviceKind::Wireguard { listen_port, .. } = device.kind {
            self.set_keys(name, listen_port, applied)?;
        }
        Ok(requests::finish(device, self.owner, index))
    }

    fn start_udp_tunnel(&mut self, name: IfName) -> Result<IfIndex, String> {
        // The previous tunnel has a device of the same name.
        *self.udp_tunnel = None;
        let listen = self.listen.ok_or("no address to listen on")?;
        let tunnel =
            UdpTunnel::start(name, listen, self.queues, self.udp_slot, || find(self.nl, name))?;
        *self.udp_tunnel = Some(tunnel);
        find(self.nl, name)
    }

    fn remove_device(&mut self, name: IfName, applied: &mut Applied) -> Result<(), String> {
        let Some(index) = self.index_of(name) else { return Ok(()) };
        self.indices.remove(&name);
        if self.udp_tunnel.as_ref().is_some_and(|tunnel| tunnel.index() == index) {
            *self.udp_tunnel = None;
            return Ok(());
        }
        applied.outcome.requests += 1;
        match self.nl.apply([link::remove(index)]) {
            Err(error) if !error.is_not_found() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn set_keys(
        &mut self,
        device: IfName,
        listen_port: u16,
        applied: &mut Applied,
    ) -> Result<(), String> {
        let private_key = self.secrets.wireguard.as_ref().ok_or("there is no private key")?;
        let listen_port = Some(listen_port);
        let change =
            DeviceChange { private_key: Some(private_key), listen_port, ..DeviceChange::default() };
        self.set_wireguard(device, &change, applied)
    }

    /// Sets all peers at once. If the kernel refuses that, sets them one by one, so that an invalid
    /// peer does not prevent the others.
    fn set_peers(
        &mut self,
        device: IfName,
        peers: Vec<(Change, PeerChange)>,
        applied: &mut Applied,
    ) {
        let all: Vec<PeerChange> = peers.iter().map(|(_, peer)| peer.clone()).collect();
        let change = DeviceChange { peers: &all, ..DeviceChange::default() };
        let all_at_once = self.set_wireguard(device, &change, applied);
        for (change, peer) in peers {
            let is_gone = is_removal(&change) && !self.indices.contains_key(&device);
            let result = match &all_at_once {
                _ if is_gone => Ok(()),
                Ok(()) => Ok(()),
                Err(reason) if all.len() == 1 => Err(reason.clone()),
                Err(_) => {
                    let one = DeviceChange { peers: &[peer], ..DeviceChange::default() };
                    self.set_wireguard(device, &one, applied)
                }
            };
            applied.add(change, result);
        }
    }

    fn set_wireguard(
        &mut self,
        device: IfName,
        change: &DeviceChange<'_>,
        applied: &mut Applied,
    ) -> Result<(), String> {
        let index =
            self.index_of(device).ok_or_else(|| format!("device {device} does not exist"))?;
        applied.outcome.requests += 1;
        let set = |socket: &Wireguard| socket.set(index, change);
        observe::open(self.wireguard).and_then(set).map_err(|error| error.to_string())
    }
}

impl Applied {
    fn add(&mut self, change: Change, result: Result<(), String>) {
        match result {
            Ok(()) => self.outcome.changes.push(change),
            Err(reason) => self.outcome.fail(&change, reason),
        }
    }

    fn add_answer(&mut self, planned: Planned, result: kernel::Result<()>) {
        let Planned { change, is_exclusive } = planned;
        match result {
            Err(error) if is_removal(&change) && error.is_not_found() => {}
            Err(error) if is_exclusive && error.already_exists() => {
                self.has_unobserved_route = true;
                return;
            }
            Err(error) if error.already_exists() && matches!(change, Change::AddAddress(_)) => {}
            Err(error) => {
                if let Change::AddNexthop { id, .. } = change {
                    self.failed_nexthops.push(id);
                }
                self.outcome.fail(&change, error);
                return;
            }
            Ok(()) => {}
        }
        self.outcome.changes.push(change);
    }
}

fn find(nl: &Netlink, name: IfName) -> Result<IfIndex, String> {
    match link::by_name(nl, name) {
        Ok(Some(link)) => Ok(link.index),
        Ok(None) => Err(format!("device {name} was removed meanwhile")),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the reason why a device could not be created. The kernel does not name the other device
/// that has the same VNI and port.
fn create_failure(nl: &Netlink, device: &DesiredDevice, error: &kernel::Error) -> String {
    let DeviceKind::Vxlan(desired) = device.kind else { return error.to_string() };
    if !error.already_exists() {
        return error.to_string();
    }
    let has_same_vni = |link: &Link| match link.detail {
        Detail::Vxlan(vxlan) => (vxlan.id, vxlan.port) == (desired.vni, desired.port),
        _ => false,
    };
    let others = link::list_of_kind(nl, "vxlan").unwrap_or_default();
    match others.into_iter().find(has_same_vni) {
        Some(other) => {
            let (vni, port) = (desired.vni, desired.port);
            format!(
                "{error}: {} already has VNI {vni} and port {port}; remove it or choose another VNI",
                other.name
            )
        }
        None => error.to_string(),
    }
}

/// Makes a device ignore router advertisements, so that no peer can give this node addresses or
/// routes. Netlink has no attribute for that. Nothing has to be done without IPv6.
fn ignore_router_advertisements(name: IfName) -> Result<(), String> {
    match try_ignore_router_advertisements(name) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "net.ipv6.conf.{name}.accept_ra is not 0 and /proc/sys is read-only here; set \
             net.ipv6.conf.default.accept_ra to 0 on the node"
        )),
    }
}

/// Returns whether the device ignores router advertisements now.
fn try_ignore_router_advertisements(name: IfName) -> kernel::Result<bool> {
    let path = |key: &str| format!("net/ipv6/conf/{name}/{key}");
    let accept_ra = path("accept_ra");
    let value = sysctl::read(&accept_ra)?;
    if value == "0" {
        return Ok(true);
    }
    if sysctl::is_writable(&accept_ra)? {
        return sysctl::write(&accept_ra, "0").map(|()| true);
    }
    // On a device that forwards, the kernel ignores them unless accept_ra is 2.
    Ok(value == "1" && sysctl::read(&path("forwarding"))? == "1")
}
