// SPDX-License-Identifier: Apache-2.0
//! Does changes in their order, as many as possible in one send. One that fails stops no other, but for what
//! hangs on a device that could not be made.

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
use super::udp_tunnel::UdpTunnel;

/// How many requests are built before they are sent: a node has four for each of its peers, and more than this
/// the kernel is not sent at once anyway. Their memory is used again for the next.
const AT_ONCE: usize = 128;

/// A change, and whether a route to its destination that is there would be another's.
#[derive(Debug, Clone)]
struct Planned {
    change: Change,
    exclusive: bool,
}

/// What changes are done with.
pub(super) struct Applier<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) wireguard: &'a mut Option<Wireguard>,
    pub(super) carrier: &'a mut Option<UdpTunnel>,
    pub(super) indices: &'a mut BTreeMap<IfName, IfIndex>,
    pub(super) mark: &'a str,
    pub(super) secrets: &'a Secrets,
    /// Of the udp backend.
    pub(super) listen: Option<SocketAddrV4>,
    pub(super) queues: usize,
}

/// What became of changes.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    /// Next hops that could not be made.
    pub(super) lost_nexthops: Vec<u32>,
    /// Some route was not made as there is one of another's, which has not been looked at.
    pub(super) is_contested: bool,
}

/// Changes whose requests have been collected, and not been sent.
#[derive(Default)]
struct Pending {
    changes: Vec<(Planned, usize)>,
    requests: Vec<Request>,
    peers: Vec<(Change, PeerChange)>,
    device: Option<IfName>,
}

impl Applier<'_> {
    /// `is_seen`: whether a route to this destination has been looked at. Without that, one that is there is
    /// another's.
    pub(super) fn apply(
        &mut self,
        changes: Vec<Change>,
        is_seen: impl Fn(&IpNet) -> bool,
        applied: &mut Applied,
    ) {
        let mut pending = Pending::default();
        // What hangs on these is not tried: it would only repeat the reason.
        let mut missing = BTreeSet::new();
        applied.outcome.changes.reserve(changes.len());
        for change in changes {
            let exclusive =
                matches!(&change, Change::SetRoute { route, .. } if !is_seen(&route.dst));
            self.collect(Planned { change, exclusive }, &mut pending, applied, &mut missing);
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
        let (mark, exclusive) = (self.mark, planned.exclusive);
        let step = requests::step(&planned.change, mark, exclusive, |name| {
            if missing.contains(&name) { None } else { self.index_of(name) }
        });
        if let Step::Send(request) = step {
            if !pending.peers.is_empty() || pending.requests.len() >= AT_ONCE {
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
        let done = match step {
            Step::Create(device) => match self.create(&device, applied) {
                Ok(requests) => {
                    pending.changes.push((planned, requests.len()));
                    pending.requests.extend(requests);
                    return;
                }
                Err(why) => {
                    missing.insert(device.name);
                    Err(why)
                }
            },
            Step::RemoveDevice(name) => self.remove_device(name, applied),
            Step::SetKeys { device, listen_port } => self.set_keys(device, listen_port, applied),
            Step::NoDevice(name) if missing.contains(&name) => return,
            Step::NoDevice(name) => Err(format!("there is no device {name}")),
            Step::Gone | Step::Leave | Step::Send(_) | Step::Peer { .. } => Ok(()),
        };
        applied.note(planned.change, done);
    }

    /// Sends what has been collected.
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
            applied.note_answer(planned, result);
        }
    }

    /// The device of a name; one that is not known yet is looked for once.
    fn index_of(&mut self, name: IfName) -> Option<IfIndex> {
        if let Some(index) = self.indices.get(&name) {
            return Some(*index);
        }
        let found = link::by_name(self.nl, name).ok().flatten()?;
        self.indices.insert(name, found.index);
        Some(found.index)
    }

    /// Makes a device and returns what is left to do. One that has come in between is another's.
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
                created.map_err(|error| in_the_way(self.nl, device, &error))?;
                find(self.nl, name)?
            }
            None => self.carry(name)?,
        };
        self.indices.insert(name, index);
        if let Err(why) = refuse_routers(name) {
            // Packets of pods do not need it.
            tracing::warn!(device = %name, why, "router advertisements are not refused");
        }
        if let DeviceKind::Wireguard { listen_port, .. } = device.kind {
            self.set_keys(name, listen_port, applied)?;
        }
        Ok(requests::finish(device, self.mark, index))
    }

    fn carry(&mut self, name: IfName) -> Result<IfIndex, String> {
        // The one before has the name.
        *self.carrier = None;
        let listen = self.listen.ok_or("no address to listen on")?;
        let carrier = UdpTunnel::start(name, listen, self.queues, || find(self.nl, name))?;
        *self.carrier = Some(carrier);
        find(self.nl, name)
    }

    fn remove_device(&mut self, name: IfName, applied: &mut Applied) -> Result<(), String> {
        let Some(index) = self.index_of(name) else { return Ok(()) };
        self.indices.remove(&name);
        if self.carrier.as_ref().is_some_and(|carrier| carrier.index() == index) {
            *self.carrier = None;
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

    /// All at once; one by one where that is refused, so that a bad one is found and stops no other.
    fn set_peers(
        &mut self,
        device: IfName,
        peers: Vec<(Change, PeerChange)>,
        applied: &mut Applied,
    ) {
        let all: Vec<PeerChange> = peers.iter().map(|(_, peer)| peer.clone()).collect();
        let change = DeviceChange { peers: &all, ..DeviceChange::default() };
        let together = self.set_wireguard(device, &change, applied);
        for (change, peer) in peers {
            let is_gone = is_removal(&change) && !self.indices.contains_key(&device);
            let done = match &together {
                _ if is_gone => Ok(()),
                Ok(()) => Ok(()),
                Err(why) if all.len() == 1 => Err(why.clone()),
                Err(_) => {
                    let one = DeviceChange { peers: &[peer], ..DeviceChange::default() };
                    self.set_wireguard(device, &one, applied)
                }
            };
            applied.note(change, done);
        }
    }

    fn set_wireguard(
        &mut self,
        device: IfName,
        change: &DeviceChange<'_>,
        applied: &mut Applied,
    ) -> Result<(), String> {
        let index = self.index_of(device).ok_or_else(|| format!("there is no device {device}"))?;
        applied.outcome.requests += 1;
        let set = |socket: &Wireguard| socket.set(index, change);
        observe::open(self.wireguard).and_then(set).map_err(|error| error.to_string())
    }
}

impl Applied {
    fn note(&mut self, change: Change, done: Result<(), String>) {
        match done {
            Ok(()) => self.outcome.changes.push(change),
            Err(why) => self.outcome.fail(&change, why),
        }
    }

    fn note_answer(&mut self, planned: Planned, result: kernel::Result<()>) {
        let Planned { change, exclusive } = planned;
        match result {
            Err(error) if is_removal(&change) && error.is_not_found() => {}
            Err(error) if exclusive && error.already_exists() && is_route(&change) => {
                self.is_contested = true;
                return;
            }
            Err(error) if error.already_exists() && matches!(change, Change::AddAddress(_)) => {}
            Err(error) => {
                if let Change::AddNexthop { id, .. } = change {
                    self.lost_nexthops.push(id);
                }
                self.outcome.fail(&change, error);
                return;
            }
            Ok(()) => {}
        }
        self.outcome.changes.push(change);
    }
}

fn is_route(change: &Change) -> bool {
    matches!(change, Change::SetRoute { .. })
}

fn find(nl: &Netlink, name: IfName) -> Result<IfIndex, String> {
    match link::by_name(nl, name) {
        Ok(Some(link)) => Ok(link.index),
        Ok(None) => Err(format!("{name} has gone again")),
        Err(error) => Err(error.to_string()),
    }
}

/// Why a device could not be made. The kernel does not say which other one has the number of a tunnel.
fn in_the_way(nl: &Netlink, device: &DesiredDevice, error: &kernel::Error) -> String {
    let DeviceKind::Vxlan(wanted) = device.kind else { return error.to_string() };
    if !error.already_exists() {
        return error.to_string();
    }
    let is_like = |link: &Link| match link.detail {
        Detail::Vxlan(vxlan) => (vxlan.id, vxlan.port) == (wanted.vni, wanted.port),
        _ => false,
    };
    let others = link::list_of_kind(nl, "vxlan").unwrap_or_default();
    match others.into_iter().find(is_like) {
        Some(other) => {
            let (vni, port) = (wanted.vni, wanted.port);
            format!(
                "{error}: {} has VNI {vni} and port {port} already; remove it or choose another VNI",
                other.name
            )
        }
        None => error.to_string(),
    }
}

/// Makes the device ignore router advertisements: no peer may give this node addresses or routes. Netlink has no
/// attribute for that. Without IPv6 there is nothing to refuse.
fn refuse_routers(name: IfName) -> Result<(), String> {
    match try_to_refuse_routers(name) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "net.ipv6.conf.{name}.accept_ra is not 0 and /proc/sys is read-only here; set \
             net.ipv6.conf.default.accept_ra to 0 on the node"
        )),
    }
}

/// Whether the device ignores them now.
fn try_to_refuse_routers(name: IfName) -> kernel::Result<bool> {
    let switch = |key: &str| format!("net/ipv6/conf/{name}/{key}");
    let accept = switch("accept_ra");
    let found = sysctl::read(&accept)?;
    if found == "0" {
        return Ok(true);
    }
    if sysctl::is_writable(&accept)? {
        return sysctl::write(&accept, "0").map(|()| true);
    }
    // The kernel ignores them on a device that forwards, unless the value is 2.
    Ok(found == "1" && sysctl::read(&switch("forwarding"))? == "1")
}
