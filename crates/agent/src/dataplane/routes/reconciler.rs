// SPDX-License-Identifier: Apache-2.0
//! Keeps devices and routes of a node as the network's plan wants them. A reconciler acts in the
//! network namespace of the thread that opened it, and stays on that thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;
use kernel::events::Event;
use kernel::nexthop::{self, NexthopFilter};
use kernel::wireguard::{PrivateKey, Wireguard};
use kernel::{IfIndex, IfName, Netlink};
use overlay::backend::extension::ExtensionPeer;
use overlay::desired::{DesiredRoute, DesiredState, default_metric};
use overlay::diff::{Change, Conflict, Diff, diff, diff_peer};
use overlay::observed::ObservedState;
use overlay::ownership::{NEXTHOP_IDS, Ownership};
use overlay::plan::{AnyNetwork, Network, PlanChange, PreviousBackendState};
use overlay::routed::RoutedNetwork;

use super::apply::{Applied, Applier};
use super::events::{self, EventImpact, View};
use super::nexthop_ids::NexthopIds;
use super::observe::{self, Observation, Observer, RouteSelection};
use super::on_link;
use super::outcome::{Outcome, Unresolved};
use super::target::{PeerUpdate, Target};
use super::udp_tunnel::{self, UdpTunnel, UdpTunnelSlot};

#[derive(Debug, Clone)]
pub struct Options {
    /// Owner tag, set as the alias of devices. It distinguishes the agents of several networks on
    /// one node.
    pub owner: String,
    /// Networks of earlier configurations, as an earlier process saved them.
    pub earlier_networks: Vec<IpNet>,
    pub secrets: Secrets,
    /// Number of queues of the udp backend.
    pub queues: usize,
    /// The place of its tunnel.
    pub udp: UdpTunnelSlot,
}

/// Values that are in no plan and in no log.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    pub wireguard: Option<PrivateKey>,
}

/// Observes the kernel, compares it with the network's plan, and applies the difference.
#[derive(Debug)]
pub struct Reconciler {
    nl: Netlink,
    wireguard: Option<Wireguard>,
    options: Options,
    /// Networks of the current and of earlier configurations.
    networks: BTreeSet<IpNet>,
    /// `false` for kernels before 5.3.
    has_nexthops: bool,
    /// `None` until there is a network.
    target: Option<Target>,
    /// The routes that the next comparison reads.
    routes: RouteSelection,
    nexthop_ids: NexthopIds,
    /// Peers for which the add command of the extension backend was called.
    extension_peers: BTreeMap<IpNet, ExtensionPeer>,
    udp_tunnel: Option<UdpTunnel>,
    devices: KnownDevices,
    /// Failures and conflicts of the last outcome.
    unresolved: Unresolved,
}

#[derive(Debug, Default)]
struct KnownDevices {
    /// Names of desired devices, of the devices of earlier configurations, and of flannel's
    /// devices.
    names: BTreeSet<IfName>,
    indices: BTreeMap<IfName, IfIndex>,
}

impl Reconciler {
    /// Opens sockets in the calling thread's network namespace, and finds devices with the owner
    /// tag.
    pub fn open(options: Options) -> kernel::Result<Self> {
        let nl = Netlink::open()?;
        let has_nexthops = match nexthop::list(&nl, NexthopFilter::default()) {
            Err(error) if error.is_unsupported() => false,
            listed => listed.map(|_| true)?,
        };
        let names = observe::devices_of(&nl, &options.owner)?;
        Ok(Self {
            nl,
            wireguard: None,
            networks: options.earlier_networks.iter().copied().collect(),
            options,
            has_nexthops,
            target: None,
            routes: RouteSelection::Own,
            nexthop_ids: NexthopIds::default(),
            extension_peers: BTreeMap::new(),
            udp_tunnel: None,
            devices: KnownDevices { names, indices: BTreeMap::new() },
            unresolved: Unresolved::default(),
        })
    }

    /// Returns the network with its current plan, if each node has a subnet.
    pub fn network(&self) -> Option<&Network> {
        self.any_network()?.subnets()
    }

    /// Returns the network with its current plan.
    pub fn any_network(&self) -> Option<&AnyNetwork> {
        self.target.as_ref().map(|target| &target.network)
    }

    /// Sets the secrets for later changes.
    pub fn set_secrets(&mut self, secrets: Secrets) {
        self.options.secrets = secrets;
    }

    /// Sets the network and applies its plan. Looks up which peers are on a link.
    pub fn set_network(&mut self, mut network: Network) -> Outcome {
        if let Some(before) = self.network() {
            network.inherit_served_leases(before);
            network.inherit_path_mtus(before);
        }
        self.set_any_network(network.into())
    }

    /// Sets the network of routed pods and applies its plan.
    pub fn set_routed_network(&mut self, mut network: RoutedNetwork) -> Outcome {
        if let Some(AnyNetwork::Routed(before)) = self.any_network() {
            network.inherit_path_mtus(before);
        }
        self.set_any_network(network.into())
    }

    fn set_any_network(&mut self, network: AnyNetwork) -> Outcome {
        let ownership = self.ownership_for(&network);
        let public_addresses = network.public_addresses().into_iter().collect();
        self.devices.names.extend(ownership.known_devices.keys());
        self.devices.names.extend(network.plan().desired.devices.keys());
        self.networks.extend(network.prefixes());
        self.target = Some(Target { network, ownership, public_addresses });
        if self.routes == RouteSelection::Own {
            self.routes = RouteSelection::OwnAndBlackholes;
        }
        self.compare()
    }

    /// Looks up which peers are on a link, reads the whole state, and repairs the difference.
    pub fn compare(&mut self) -> Outcome {
        let Some(mut target) = self.target.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        if let Err(error) = self.refresh_on_link(&mut target.network) {
            outcome.fail("look up which peers are on a link", error);
        }
        self.reconcile(&mut target, &mut outcome);
        self.finish(target, outcome)
    }

    /// Reads the whole state and repairs the difference. For events after which the peers that are
    /// on a link are the same.
    pub fn repair(&mut self) -> Outcome {
        let Some(mut target) = self.target.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        self.reconcile(&mut target, &mut outcome);
        self.finish(target, outcome)
    }

    /// Returns what [`Reconciler::set_network`] would change. Looks up which peers are on a link,
    /// which may change the peers that the network rejects.
    pub fn dry_run(&mut self, network: &mut AnyNetwork) -> kernel::Result<Diff> {
        self.refresh_on_link(network)?;
        let ownership = self.ownership_for(network);
        let mut names = self.devices.names.clone();
        names.extend(ownership.known_devices.keys());
        names.extend(network.plan().desired.devices.keys());
        let observed = self.observe(&ownership, &names, RouteSelection::All, Some(network))?.state;
        Ok(diff(&network.plan().desired, &observed, &ownership))
    }

    /// Adds, changes and removes peers. Sends all changes at once. The cost does not depend on the
    /// number of other peers.
    pub fn set_peers(&mut self, updates: Vec<PeerUpdate>) -> Outcome {
        let Some(mut target) = self.target.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        let learnt = on_link::learn(&self.nl, &mut target.network, &updates, |name| {
            self.devices.names.contains(&name)
        });
        if let Err(error) = learnt {
            outcome.fail("look up which peers are on a link", error);
        }
        let (mut changes, mut observed) = (Vec::new(), BTreeSet::new());
        let mut udp_subnets = BTreeSet::new();
        // The difference of one peer assumes that everything else is as desired.
        let has_device_conflict = self.unresolved.conflicts.iter().any(Conflict::is_device);
        let mut is_full = !self.is_converged() || has_device_conflict;
        for update in updates {
            match target.update(update) {
                PlanChange::None => {}
                PlanChange::Full => is_full = true,
                PlanChange::Peer(_) if is_full => {}
                PlanChange::Peer(peer) => {
                    udp_subnets.extend(peer.before.udp.keys().chain(peer.after.udp.keys()));
                    target.ownership.first_free_nexthop = self.nexthop_ids.first_free();
                    let devices = &target.network.plan().desired.devices;
                    let nexthops = self.nexthop_ids.by_gateway();
                    let diff = diff_peer(devices, &peer, &target.ownership, nexthops);
                    self.nexthop_ids.expect(&diff.changes);
                    changes.extend(diff.changes);
                    observed.extend(peer.before.routes.into_keys());
                }
            }
        }
        if is_full {
            self.reconcile(&mut target, &mut outcome);
            return self.finish(target, outcome);
        }
        let is_observed = |dst: &IpNet| observed.contains(dst);
        let has_unobserved_route =
            self.apply(changes, is_observed, Some(&target.network), &mut outcome);
        if let Some(tunnel) = &self.udp_tunnel {
            tunnel.change_peers(&udp_subnets, &target.network.plan().desired.udp);
        }
        if has_unobserved_route {
            self.reconcile_all_routes(&mut target, &mut outcome);
        }
        self.finish(target, outcome)
    }

    /// Removes the devices of the previous backend once no peer uses it:
    /// [`Network::expire_previous`].
    pub fn expire_previous(&mut self) -> (PreviousBackendState, Outcome) {
        let Some(target) = &mut self.target else {
            return (PreviousBackendState::Absent, Outcome::default());
        };
        let AnyNetwork::Subnets(network) = &mut target.network else {
            return (PreviousBackendState::Absent, Outcome::default());
        };
        match network.expire_previous() {
            PreviousBackendState::Dropped => (PreviousBackendState::Dropped, self.compare()),
            state => (state, Outcome::default()),
        }
    }

    /// Returns whether all changes of the last outcome succeeded.
    pub fn is_converged(&self) -> bool {
        self.unresolved.failures.is_empty()
    }

    /// Returns the failures and conflicts of the last outcome.
    pub(super) fn unresolved(&self) -> &Unresolved {
        &self.unresolved
    }

    /// Removes all objects with this owner tag. Lists all links.
    pub fn remove_all(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        match self.preview_removal() {
            Ok(changes) => {
                self.apply(changes, |_| true, None, &mut outcome);
            }
            Err(error) => outcome.fail(READ_STATE, error),
        }
        self.target = None;
        self.nexthop_ids = NexthopIds::default();
        self.unresolved.failures.clear();
        outcome
    }

    /// Returns the changes that [`Reconciler::remove_all`] would make.
    pub fn preview_removal(&mut self) -> kernel::Result<Vec<Change>> {
        let networks = self.networks.iter().copied().collect();
        let mut ownership = Ownership::for_cleanup(&self.options.owner, networks);
        if !self.has_nexthops {
            ownership.nexthops = None;
        }
        let names = observe::devices_of(&self.nl, &self.options.owner)?;
        let observation = self.observe(&ownership, &names, RouteSelection::Own, None)?;
        self.devices.indices = observation.indices;
        Ok(diff(&DesiredState::default(), &observation.state, &ownership).changes)
    }

    /// Returns what has to be done after an event.
    pub fn impact(&self, event: &Event) -> EventImpact {
        let Some(target) = &self.target else { return events::without_network(event) };
        let (nexthop_ids, indices) = (&self.nexthop_ids, &self.devices.indices);
        let view = View { target, nexthop_ids, indices, is_converged: self.is_converged() };
        events::impact(event, &view)
    }

    fn ownership_for(&self, network: &AnyNetwork) -> Ownership {
        let mut ownership = network.ownership(&self.options.owner);
        ownership.networks.extend(&self.networks);
        if !self.has_nexthops {
            ownership.nexthops = None;
        }
        ownership
    }

    /// Compares everything and applies the difference. A foreign route is noticed when the kernel
    /// refuses the agent's route. Then all routes are read, and the foreign route is replaced or
    /// reported.
    fn reconcile(&mut self, target: &mut Target, outcome: &mut Outcome) {
        if self.reconcile_with(self.routes, target, outcome) {
            self.reconcile_all_routes(target, outcome);
        }
    }

    fn reconcile_all_routes(&mut self, target: &mut Target, outcome: &mut Outcome) {
        if self.reconcile_with(RouteSelection::All, target, outcome) {
            outcome.fail("set all routes", "foreign routes to the same subnets were just added");
        }
    }

    /// Returns whether a foreign route that was not read prevented a change.
    fn reconcile_with(
        &mut self,
        routes: RouteSelection,
        target: &mut Target,
        outcome: &mut Outcome,
    ) -> bool {
        target.ownership.first_free_nexthop = *NEXTHOP_IDS.start();
        let Target { network, ownership, .. } = &*target;
        let names = self.devices.names.clone();
        let observation = match self.observe(ownership, &names, routes, Some(network)) {
            Ok(observation) => observation,
            Err(error) => {
                outcome.fail(READ_STATE, error);
                return false;
            }
        };
        let observed = observation.state;
        let Diff { changes, conflicts } = diff(&network.plan().desired, &observed, ownership);
        // With only its own routes read, the agent would try to set a conflicting route each time.
        let is_route = |conflict: &Conflict| matches!(conflict, Conflict::Route { .. });
        self.routes = match conflicts.iter().any(is_route) {
            true => RouteSelection::All,
            false => RouteSelection::Own,
        };
        self.nexthop_ids = NexthopIds::from_observed(&observed, ownership);
        self.devices.indices = observation.indices;
        target.adopt_devices(&conflicts);
        self.unresolved.conflicts = conflicts;
        self.nexthop_ids.expect(&changes);
        let replaced = replaceable_routes(&observed, &target.network.plan().desired);
        let is_observed = |dst: &IpNet| replaced.contains(dst);
        let has_unobserved_route = self.apply(changes, is_observed, Some(&target.network), outcome);
        if let Some(tunnel) = &self.udp_tunnel {
            tunnel.set_peers(&target.network.plan().desired.udp);
        }
        has_unobserved_route
    }

    fn observe(
        &mut self,
        ownership: &Ownership,
        names: &BTreeSet<IfName>,
        routes: RouteSelection,
        network: Option<&AnyNetwork>,
    ) -> kernel::Result<Observation> {
        let listen = network.and_then(udp_tunnel::listen_address);
        let tunnel = &self.udp_tunnel;
        let is_served = |index| tunnel.as_ref().is_some_and(|one| one.serves(index, listen));
        let (nl, wireguard) = (&self.nl, &mut self.wireguard);
        let mut observer = Observer { nl, wireguard, ownership, routes, is_served: &is_served };
        let mut observation = observer.observe(names)?;
        let mut devices = network.into_iter().flat_map(|one| one.plan().desired.devices.keys());
        if devices.any(|name| !observation.indices.contains_key(name)) {
            // The missing device may have been renamed. It would conflict with its replacement.
            let own = observe::devices_of(nl, &self.options.owner)?;
            observation = observer.observe(&(names | &own))?;
        }
        observation.state.extension.clone_from(&self.extension_peers);
        Ok(observation)
    }

    /// Applies changes. Returns whether a foreign route that was not observed prevented one of
    /// them.
    fn apply(
        &mut self,
        changes: Vec<Change>,
        is_observed: impl Fn(&IpNet) -> bool,
        network: Option<&AnyNetwork>,
        outcome: &mut Outcome,
    ) -> bool {
        let mut applier = Applier {
            nl: &self.nl,
            wireguard: &mut self.wireguard,
            udp_tunnel: &mut self.udp_tunnel,
            indices: &mut self.devices.indices,
            owner: &self.options.owner,
            secrets: &self.options.secrets,
            listen: network.and_then(udp_tunnel::listen_address),
            queues: self.options.queues,
            udp_slot: &self.options.udp,
        };
        let earlier_changes = outcome.changes.len();
        let mut applied = Applied { outcome: std::mem::take(outcome), ..Applied::default() };
        applier.apply(changes, is_observed, &mut applied);
        *outcome = applied.outcome;
        for id in applied.failed_nexthops {
            self.nexthop_ids.remove(id);
        }
        for change in &outcome.changes[earlier_changes..] {
            match change {
                Change::CallAdded(peer) => {
                    self.extension_peers.insert(peer.subnet, peer.clone());
                }
                Change::CallRemoved(peer) => drop(self.extension_peers.remove(&peer.subnet)),
                _ => {}
            }
        }
        applied.has_unobserved_route
    }

    fn finish(&mut self, target: Target, mut outcome: Outcome) -> Outcome {
        let plan = target.network.plan();
        outcome.rejected.clone_from(&plan.rejected);
        outcome.conflicts.clone_from(&self.unresolved.conflicts);
        outcome.pod_mtu = Some(plan.pod_mtu);
        outcome.at = Some(Instant::now());
        self.target = Some(target);
        self.unresolved.failures.clone_from(&outcome.failures);
        outcome
    }

    /// Returns whether anything has changed.
    fn refresh_on_link(&self, network: &mut AnyNetwork) -> kernel::Result<bool> {
        on_link::refresh(&self.nl, network, |name| self.devices.names.contains(&name))
    }
}

/// The operation in a failure to observe the state.
const READ_STATE: &str = "read the kernel state";

/// Returns the destinations of observed routes that a desired route replaces: routes with its
/// metric.
fn replaceable_routes(observed: &ObservedState, desired: &DesiredState) -> BTreeSet<IpNet> {
    let metric = |dst| desired.routes.get(&dst).map_or(default_metric(dst), DesiredRoute::metric);
    let same_key = observed.routes.iter().filter(|one| one.metric == metric(one.route.dst));
    same_key.map(|one| one.route.dst).chain(observed.blocking_routes.keys().copied()).collect()
}
