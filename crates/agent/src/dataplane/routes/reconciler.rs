// SPDX-License-Identifier: Apache-2.0
//! Keeps a node's kernel as the network wants it. It acts in the network namespace of the thread that opened
//! it, and has to stay on that thread.

use std::collections::{BTreeMap, BTreeSet};

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
use overlay::plan::{Network, PlanChange, PreviousBackendState};

use super::apply::{Applied, Applier};
use super::events::{self, EventImpact, View};
use super::nexthop_ids::NexthopIds;
use super::observe::{self, Reader, Reading, Routes};
use super::on_link;
use super::outcome::{Failure, Outcome};
use super::target::{PeerUpdate, Target};
use super::udp_tunnel::{self, UdpTunnel};

/// What a reconciler needs to know of its user.
#[derive(Debug, Clone)]
pub struct Options {
    /// The alias of our devices. It tells apart agents of several networks on one node.
    pub mark: String,
    /// Networks of an earlier configuration, as an earlier process wrote them down.
    pub previous: Vec<IpNet>,
    /// What is in no plan.
    pub secrets: Secrets,
    /// Flows that the udp backend carries at the same time.
    pub queues: usize,
}

/// What is in no plan and in no log.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// WireGuard's.
    pub wireguard: Option<PrivateKey>,
}

/// Reads, compares and changes.
#[derive(Debug)]
pub struct Reconciler {
    nl: Netlink,
    wireguard: Option<Wireguard>,
    options: Options,
    /// Kernels before 5.3 have none.
    has_nexthops: bool,
    /// None until there is a network.
    wanting: Option<Target>,
    /// What a comparison reads.
    routes: Routes,
    numbers: NexthopIds,
    /// What commands of the administrator's were told.
    told: BTreeMap<IpNet, ExtensionPeer>,
    carrier: Option<UdpTunnel>,
    /// Names that devices of ours have, or had in an earlier configuration.
    names: BTreeSet<IfName>,
    indices: BTreeMap<IfName, IfIndex>,
    /// As found when all was compared last.
    conflicts: Vec<Conflict>,
    /// What failed when it was last tried.
    failures: Vec<Failure>,
}

impl Reconciler {
    /// Opens sockets in the calling thread's namespace and looks for devices with our mark.
    pub fn open(options: Options) -> kernel::Result<Self> {
        let nl = Netlink::open()?;
        let has_nexthops = match nexthop::list(&nl, NexthopFilter::default()) {
            Err(error) if error.is_unsupported() => false,
            listed => listed.map(|_| true)?,
        };
        let names = observe::marked(&nl, &options.mark)?;
        Ok(Self {
            nl,
            wireguard: None,
            options,
            has_nexthops,
            wanting: None,
            routes: Routes::Ours,
            numbers: NexthopIds::default(),
            told: BTreeMap::new(),
            carrier: None,
            names,
            indices: BTreeMap::new(),
            conflicts: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// The network as it is now planned.
    pub fn network(&self) -> Option<&Network> {
        self.wanting.as_ref().map(|wanting| &wanting.network)
    }

    /// What the udp backend has carried.
    pub fn carried(&self) -> Option<tunnel::Counts> {
        self.carrier.as_ref().map(UdpTunnel::counts)
    }

    /// Another private key, for the next change.
    pub fn set_secrets(&mut self, secrets: Secrets) {
        self.options.secrets = secrets;
    }

    /// Another network, or the first: makes the kernel what it wants, by difference. Which peers are on
    /// a link is looked up here.
    pub fn set_network(&mut self, mut network: Network) -> Outcome {
        if let Some(before) = &self.wanting {
            network.inherit_served_leases(&before.network);
            network.inherit_path_mtus(&before.network);
        }
        let scope = self.scope_of(&network);
        let publics = network.public_addresses().collect();
        self.names.extend(scope.known_devices.keys());
        self.names.extend(network.plan().desired.devices.keys());
        self.options.previous.extend(network.conf().networks.iter());
        self.options.previous.sort_unstable();
        self.options.previous.dedup();
        self.wanting = Some(Target { network, scope, publics });
        self.compare()
    }

    /// Reads all that is ours and repairs what differs; also looks up which peers are on a link.
    pub fn compare(&mut self) -> Outcome {
        let Some(mut wanting) = self.wanting.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        if let Err(error) = self.refresh_on_link(&mut wanting.network) {
            outcome.fail("look up which peers are on a link", error);
        }
        self.settle(&mut wanting, &mut outcome);
        self.finish(wanting, outcome)
    }

    /// What [`Reconciler::set_network`] would change. Which peers are on a link is looked up here, too, and with
    /// it which of them the network refuses.
    pub fn dry_run(&mut self, network: &mut Network) -> kernel::Result<Diff> {
        self.refresh_on_link(network)?;
        let scope = self.scope_of(network);
        let mut names = self.names.clone();
        names.extend(scope.known_devices.keys());
        names.extend(network.plan().desired.devices.keys());
        let found = self.read(&scope, &names, Routes::All, Some(network))?.found;
        Ok(diff(&network.plan().desired, &found, &scope))
    }

    /// Peers have come, changed or gone. It costs what they are themselves, however many others there are;
    /// all changes go out in one send.
    pub fn set_peers(&mut self, updates: Vec<PeerUpdate>) -> Outcome {
        let Some(mut wanting) = self.wanting.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        let learnt = on_link::learn(&self.nl, &mut wanting.network, &updates, |name| {
            self.names.contains(&name)
        });
        if let Err(error) = learnt {
            outcome.fail("look up which peers are on a link", error);
        }
        let (mut changes, mut seen, mut carried) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        // A part assumes that all else is as it should be.
        let mut is_whole = !self.is_settled() || self.conflicts.iter().any(Conflict::is_device);
        for update in updates {
            match wanting.update(update) {
                PlanChange::None => {}
                // All is compared at the end.
                PlanChange::Full => is_whole = true,
                PlanChange::Peer(_) if is_whole => {}
                PlanChange::Peer(part) => {
                    carried.extend(part.before.udp.keys().chain(part.after.udp.keys()));
                    wanting.scope.first_free_nexthop = self.numbers.next();
                    let devices = &wanting.network.plan().desired.devices;
                    let numbers = self.numbers.by_gateway();
                    let parted = diff_peer(devices, &part, &wanting.scope, numbers);
                    self.numbers.expect(&parted.changes);
                    changes.extend(parted.changes);
                    seen.extend(part.before.routes.into_keys());
                }
            }
        }
        if is_whole {
            self.settle(&mut wanting, &mut outcome);
            return self.finish(wanting, outcome);
        }
        let is_seen = |dst: &IpNet| seen.contains(dst);
        let is_contested = self.apply(changes, is_seen, Some(&wanting.network), &mut outcome);
        if let Some(carrier) = &self.carrier {
            carrier.tell_of(&carried, &wanting.network.plan().desired.udp);
        }
        if is_contested {
            self.settle_contested(&mut wanting, &mut outcome);
        }
        self.finish(wanting, outcome)
    }

    /// Removes the devices of the previous backend once no peer uses it: [`Network::expire_previous`].
    pub fn age_previous(&mut self) -> (PreviousBackendState, Outcome) {
        let Some(wanting) = &mut self.wanting else {
            return (PreviousBackendState::Absent, Outcome::default());
        };
        match wanting.network.expire_previous() {
            PreviousBackendState::Dropped => (PreviousBackendState::Dropped, self.compare()),
            aged => (aged, Outcome::default()),
        }
    }

    /// The same where no route to a peer has changed.
    pub fn repair(&mut self) -> Outcome {
        let Some(mut wanting) = self.wanting.take() else { return Outcome::default() };
        let mut outcome = Outcome::default();
        self.settle(&mut wanting, &mut outcome);
        self.finish(wanting, outcome)
    }

    /// Whether all that was to be done last has been done.
    pub fn is_settled(&self) -> bool {
        self.failures.is_empty()
    }

    /// Failures and conflicts of the last outcome.
    pub(super) fn wrong(&self) -> (&[Failure], &[Conflict]) {
        (&self.failures, &self.conflicts)
    }

    /// Removes every trace of an agent with this mark. All links are listed.
    pub fn remove_everything(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        match self.everything() {
            Ok(changes) => {
                self.apply(changes, |_| true, None, &mut outcome);
            }
            Err(error) => outcome.fail("read what is there", error),
        }
        self.wanting = None;
        self.numbers = NexthopIds::default();
        self.failures.clear();
        outcome
    }

    /// What [`Reconciler::remove_everything`] would do.
    pub fn everything(&mut self) -> kernel::Result<Vec<Change>> {
        let mut scope = Ownership::for_cleanup(&self.options.mark, self.options.previous.clone());
        if !self.has_nexthops {
            scope.nexthops = None;
        }
        let names = observe::marked(&self.nl, &self.options.mark)?;
        let reading = self.read(&scope, &names, Routes::Ours, None)?;
        self.indices = reading.indices;
        Ok(diff(&DesiredState::default(), &reading.found, &scope).changes)
    }

    /// Whether a change that was heard of is any of our business.
    pub fn interest(&self, event: &Event) -> EventImpact {
        let Some(wanting) = &self.wanting else { return events::without_network(event) };
        let (numbers, indices, is_settled) = (&self.numbers, &self.indices, self.is_settled());
        let view = View { wanting, numbers, indices, is_settled };
        events::of(event, &view)
    }

    fn scope_of(&self, network: &Network) -> Ownership {
        let mut scope = Ownership::new(network.conf(), &self.options.mark);
        let earlier = self.options.previous.iter().copied();
        scope.networks.extend(earlier);
        if !self.has_nexthops {
            scope.nexthops = None;
        }
        scope
    }

    /// Full comparison. A route of others that is in the way is only seen when ours is refused; then all
    /// routes are read, and it is replaced or told of.
    fn settle(&mut self, wanting: &mut Target, outcome: &mut Outcome) {
        if self.settle_among(self.routes, wanting, outcome) {
            self.settle_contested(wanting, outcome);
        }
    }

    fn settle_contested(&mut self, wanting: &mut Target, outcome: &mut Outcome) {
        if self.settle_among(Routes::All, wanting, outcome) {
            outcome.fail("set all routes", "others to the same destinations have come meanwhile");
        }
    }

    /// Whether a route of others that was not read is in the way.
    fn settle_among(
        &mut self,
        routes: Routes,
        wanting: &mut Target,
        outcome: &mut Outcome,
    ) -> bool {
        wanting.scope.first_free_nexthop = *NEXTHOP_IDS.start();
        let Target { network, scope, .. } = &*wanting;
        let reading = match self.read(scope, &self.names.clone(), routes, Some(network)) {
            Ok(reading) => reading,
            Err(error) => {
                outcome.fail("read what is there", error);
                return false;
            }
        };
        let Diff { changes, conflicts } = diff(&network.plan().desired, &reading.found, scope);
        // While there is one, ours would be tried and refused each time.
        let is_route = |conflict: &Conflict| matches!(conflict, Conflict::Route { .. });
        self.routes = if conflicts.iter().any(is_route) { Routes::All } else { Routes::Ours };
        self.conflicts = conflicts;
        self.numbers = NexthopIds::found(&reading.found, scope);
        self.indices = reading.indices;
        wanting.take_devices(&self.conflicts);
        // NexthopIds are taken as used from now on.
        self.numbers.expect(&changes);
        let seen = seen_routes(&reading.found, &wanting.network.plan().desired);
        let is_seen = |dst: &IpNet| seen.contains(dst);
        let is_contested = self.apply(changes, is_seen, Some(&wanting.network), outcome);
        if let Some(carrier) = &self.carrier {
            carrier.tell(&wanting.network.plan().desired.udp);
        }
        is_contested
    }

    fn read(
        &mut self,
        scope: &Ownership,
        names: &BTreeSet<IfName>,
        routes: Routes,
        network: Option<&Network>,
    ) -> kernel::Result<Reading> {
        let listen = network.and_then(udp_tunnel::listen_of);
        let carrier = &self.carrier;
        let carries = |index| carrier.as_ref().is_some_and(|one| one.carries(index, listen));
        let (nl, wireguard) = (&self.nl, &mut self.wireguard);
        let mut reader = Reader { nl, wireguard, scope, routes, carries: &carries };
        let mut reading = reader.read(names)?;
        let mut devices = network.into_iter().flat_map(|one| one.plan().desired.devices.keys());
        if devices.any(|name| !reading.indices.contains_key(name)) {
            // Under another name it would be in the way of its own.
            let marked = observe::marked(nl, &self.options.mark)?;
            reading = reader.read(&(names | &marked))?;
        }
        reading.found.extension.clone_from(&self.told);
        Ok(reading)
    }

    /// Whether a route of others was in the way of one of ours.
    fn apply(
        &mut self,
        changes: Vec<Change>,
        is_seen: impl Fn(&IpNet) -> bool,
        network: Option<&Network>,
        outcome: &mut Outcome,
    ) -> bool {
        let mut applier = Applier {
            nl: &self.nl,
            wireguard: &mut self.wireguard,
            carrier: &mut self.carrier,
            indices: &mut self.indices,
            mark: &self.options.mark,
            secrets: &self.options.secrets,
            listen: network.and_then(udp_tunnel::listen_of),
            queues: self.options.queues,
        };
        let done_before = outcome.changes.len();
        let mut applied = Applied { outcome: std::mem::take(outcome), ..Applied::default() };
        applier.apply(changes, is_seen, &mut applied);
        *outcome = applied.outcome;
        for id in applied.lost_nexthops {
            self.numbers.forget(id);
        }
        for change in &outcome.changes[done_before..] {
            match change {
                Change::CallAdded(peer) => drop(self.told.insert(peer.subnet, peer.clone())),
                Change::CallRemoved(peer) => drop(self.told.remove(&peer.subnet)),
                _ => {}
            }
        }
        applied.is_contested
    }

    fn finish(&mut self, wanting: Target, mut outcome: Outcome) -> Outcome {
        let plan = wanting.network.plan();
        outcome.refused.clone_from(&plan.rejected);
        outcome.conflicts.clone_from(&self.conflicts);
        outcome.pod_mtu = Some(plan.pod_mtu);
        self.wanting = Some(wanting);
        self.failures.clone_from(&outcome.failures);
        outcome
    }

    /// Whether anything has changed.
    fn refresh_on_link(&self, network: &mut Network) -> kernel::Result<bool> {
        on_link::refresh(&self.nl, network, |name| self.names.contains(&name))
    }
}

/// Destinations of routes that ours would be in place of.
fn seen_routes(found: &ObservedState, desired: &DesiredState) -> BTreeSet<IpNet> {
    let metric = |dst| desired.routes.get(&dst).map_or(default_metric(dst), DesiredRoute::metric);
    let same_key = found.routes.iter().filter(|one| one.metric == metric(one.route.dst));
    same_key.map(|one| one.route.dst).chain(found.blocking_routes.keys().copied()).collect()
}
