// SPDX-License-Identifier: Apache-2.0
//! The pools controller: address pools and the blocks of this node. It answers the plugins' requests for
//! addresses, keeps the store in line, and tells the routed controller which node has which block.
//!
//! [`core`] decides, without I/O; this module talks to the store, to the disk and to the requesters.

pub(crate) mod api;
mod block_routes;
mod catalog;
pub(crate) mod change;
mod core;
mod journal;
mod keyvalue;
mod objects;
mod observe;
mod view;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agent_client::pools::{Change, View};
use ipam::Timestamp;
use ipam::calico::{Key, Object};
use ipam::collect::{Collector, Observation};
use ipam::node::{AssignRequest, Event, OpId, Outcome, Reply, StoreOp, Stored, Ticket, Verb};
use ipnet::{Ipv4Net, Ipv6Net};
use kernel::IfIndex;
use overlay::Addresses;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use self::core::{Core, Effect, OwnAddresses};
pub(crate) use self::core::{RoutedMessage, RoutedSnapshot};
use self::journal::Journal;
pub(crate) use self::keyvalue::KeyValueObjects;
pub(crate) use self::objects::ObjectStore;
use self::objects::{Listed, ObjectEvents, ObjectWatch};
use self::observe::Observed;
use crate::lease::OwnNode;
use crate::membership::underlay;
use crate::settings::{Pods, Settings};
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};
use crate::underlay::{Wish, choose_among};

/// Delay before the store is listed again after a failure.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Delay before an underlay is looked for again if no event reports a change.
const UNDERLAY_DELAY: Duration = Duration::from_secs(1);

/// Longest interval between two looks for unused addresses.
const MAX_COLLECT_INTERVAL: Duration = Duration::from_secs(60);

/// Shortest interval between two looks for unused addresses.
const MIN_COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// A request of a plugin.
#[derive(Debug)]
pub(crate) enum Call {
    Assign(Box<AssignRequest>),
    /// Without interface: all interfaces with this handle.
    Release {
        handle: String,
        interface: Option<String>,
    },
    Gc {
        network: String,
        valid: BTreeSet<(String, String)>,
    },
}

/// A request with the sender of its reply. A requester that has given up has dropped the receiver.
#[derive(Debug)]
pub(crate) enum Request {
    Call {
        call: Call,
        reply: oneshot::Sender<Reply>,
    },
    View(oneshot::Sender<View>),
    /// A change of a pool. The reply says why it was refused.
    Change {
        change: Change,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Releases an address of this node, whatever has it.
    ReleaseAddress {
        address: IpAddr,
        reply: oneshot::Sender<Reply>,
    },
}

/// The controller. After a restart it reads the journal and the store again.
#[derive(Debug)]
pub(crate) struct PoolsController {
    settings: Arc<Settings>,
    hub: StatusHub,
    name: String,
    objects: Arc<dyn ObjectStore>,
    underlay_changed: Arc<Notify>,
    requests: UnboundedReceiver<Request>,
    routed: UnboundedSender<RoutedMessage>,
    interface: Option<IfIndex>,
}

/// The result of work in the background.
#[derive(Debug)]
enum Finished {
    Store(OpId, Outcome),
    Journal(OpId, Result<(), String>),
    Published(Object, Outcome),
    Observed(kernel::Result<Observed>),
    Changed(oneshot::Sender<Result<(), String>>, Outcome),
}

/// One run of the controller, once the store has answered.
#[derive(Debug)]
struct Run {
    core: Core,
    work: JoinSet<Finished>,
    /// Requests without a reply yet.
    pending: HashMap<Ticket, Pending>,
    last_ticket: u64,
    /// Requests that wait until this node is in the store.
    waiting: Vec<(Call, oneshot::Sender<Reply>)>,
    collection: Collection,
}

/// A request without a reply yet.
#[derive(Debug)]
struct Pending {
    reply: oneshot::Sender<Reply>,
    /// The handle and the interface of an assignment, which is undone if the requester gives up.
    assigned: Option<(String, String)>,
}

/// The collection of unused addresses.
#[derive(Debug)]
struct Collection {
    collector: Collector,
    interval: Duration,
    /// `None` while the host is observed.
    next: Option<Timestamp>,
    /// Names of the nodes at the last look. A node has departed if it is missing twice.
    nodes: BTreeSet<String>,
}

impl Collection {
    fn new(grace: Duration) -> Self {
        let interval = (grace / 2).clamp(MIN_COLLECT_INTERVAL, MAX_COLLECT_INTERVAL);
        let next = Some(now() + interval);
        Self { collector: Collector::new(grace), interval, next, nodes: BTreeSet::new() }
    }
}

impl PoolsController {
    pub(crate) fn new(
        settings: &Arc<Settings>,
        hub: &StatusHub,
        objects: Arc<dyn ObjectStore>,
        underlay_changed: &Arc<Notify>,
        requests: UnboundedReceiver<Request>,
        routed: UnboundedSender<RoutedMessage>,
    ) -> PoolsController {
        PoolsController {
            settings: Arc::clone(settings),
            hub: hub.clone(),
            name: node_name(settings),
            objects,
            underlay_changed: Arc::clone(underlay_changed),
            requests,
            routed,
            interface: None,
        }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        loop {
            let own = heartbeat.during(self.wait_for_underlay()).await;
            let entries = self.load_journal().await?;
            let mut listed = heartbeat.during(self.list()).await;
            if heartbeat.during(self.create_pools(&listed)).await {
                listed = heartbeat.during(self.list()).await;
            }
            let mut watch = self.objects.watch(&listed);
            let (core, effects) = Core::start(&self.name, own.clone(), entries, listed, now());
            tracing::info!(node = self.name, "address pools ready");
            let pending = HashMap::new();
            let mut run = Run {
                core,
                work: JoinSet::new(),
                pending,
                last_ticket: 0,
                waiting: Vec::new(),
                collection: Collection::new(self.settings.network.leak_grace),
            };
            self.perform(&mut run, effects);
            self.follow(&mut run, &own, &mut *watch, heartbeat).await?;
        }
    }

    /// Handles events until the store or the underlay has to be read again.
    async fn follow(
        &mut self,
        run: &mut Run,
        own: &OwnAddresses,
        watch: &mut dyn ObjectWatch,
        heartbeat: &Heartbeat,
    ) -> Result<(), Failure> {
        loop {
            heartbeat.beat();
            self.report(run);
            let effects = tokio::select! {
                events = watch.next() => match events {
                    Ok(ObjectEvents::Changed(changes)) => {
                        self.hub.clear_problem(ConditionKind::Store);
                        run.core.changed(now(), changes)
                    }
                    Ok(ObjectEvents::Lost) => return Ok(()),
                    Err(error) => {
                        self.hub.set_problem(ConditionKind::Store, error);
                        continue;
                    }
                },
                Some(finished) = run.work.join_next() => match finished {
                    Ok(Finished::Store(id, outcome)) => run.core.store_done(now(), id, outcome),
                    Ok(Finished::Journal(id, result)) => run.core.journal_done(now(), id, result),
                    Ok(Finished::Published(object, outcome)) => {
                        let mut effects = run.core.published(now(), object, outcome);
                        effects.extend(run.start_waiting());
                        effects
                    }
                    Ok(Finished::Observed(observed)) => run.collect(observed),
                    Ok(Finished::Changed(reply, outcome)) => {
                        // The requester may have given up.
                        let _ = reply.send(match outcome {
                            Outcome::Done(_) => Ok(()),
                            Outcome::Current(_) => {
                                Err("another program changed the pool: try again".to_owned())
                            }
                            Outcome::Unreachable(error) => Err(format!("store: {error}")),
                        });
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                },
                request = self.requests.recv() => match request {
                    Some(request) => self.request(run, request),
                    None => return Ok(()),
                },
                () = self.underlay_changed.notified() => {
                    self.objects.reconnect();
                    if self.find_underlay().await.as_ref() != Ok(own) {
                        return Ok(());
                    }
                    continue;
                }
                () = at(run.core.next_tick()) => run.core.event(now(), Event::Tick),
                () = at(run.collection.next) => {
                    run.observe();
                    continue;
                }
                () = heartbeat.tick() => continue,
            };
            self.perform(run, effects);
        }
    }

    /// Handles a request. Those for addresses wait until this node is in the store.
    fn request(&self, run: &mut Run, request: Request) -> Vec<Effect> {
        match request {
            Request::View(reply) => {
                // The requester may have given up, here and below.
                let _ = reply.send(view::view(&run.core));
                Vec::new()
            }
            Request::Change { change, reply } => {
                match change::write(&run.core, change) {
                    Ok((key, verb)) => {
                        let objects = Arc::clone(&self.objects);
                        run.work.spawn(async move {
                            Finished::Changed(reply, objects.perform(&key, &verb).await)
                        });
                    }
                    Err(reason) => drop(reply.send(Err(reason))),
                }
                Vec::new()
            }
            Request::ReleaseAddress { address, reply } => {
                let mut assigned = run.core.node().assignments();
                match assigned.find(|entry| entry.address == address) {
                    Some(entry) => {
                        let handle = entry.attachment.handle.clone();
                        let interface = Some(entry.attachment.interface.clone());
                        drop(assigned);
                        run.call(Call::Release { handle, interface }, reply)
                    }
                    None => {
                        let _ = reply.send(Reply::Released(Vec::new()));
                        Vec::new()
                    }
                }
            }
            Request::Call { call, reply } => run.call(call, reply),
        }
    }

    fn perform(&self, run: &mut Run, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Store(StoreOp { id, key, verb }) => {
                    let objects = Arc::clone(&self.objects);
                    run.work.spawn(async move {
                        Finished::Store(id, objects.perform(&key, &verb).await)
                    });
                }
                Effect::Publish(verb) => {
                    let (Verb::Create(object) | Verb::Replace(_, object)) = &verb else { continue };
                    let (objects, object) = (Arc::clone(&self.objects), object.clone());
                    let key = run.core.own_key();
                    run.work.spawn(async move {
                        let outcome = objects.perform(&key, &verb).await;
                        Finished::Published(object, outcome)
                    });
                }
                Effect::Journal(op) => {
                    let journal = self.journal();
                    run.work.spawn(async move {
                        let id = op.id;
                        let applied = spawn_blocking(move || journal.apply(&op)).await;
                        let failed = |error: &dyn std::fmt::Display| error.to_string();
                        Finished::Journal(
                            id,
                            match applied {
                                Ok(result) => result.map_err(|error| failed(&error)),
                                Err(error) => Err(failed(&error)),
                            },
                        )
                    });
                }
                Effect::Reply { ticket, reply } => effects.extend(run.reply(ticket, reply)),
                Effect::Report(problem) => tracing::warn!(%problem, "address pools"),
                Effect::Routed(message) => {
                    // The receiver is gone only while the agent shuts down.
                    let _ = self.routed.send(message);
                }
            }
        }
    }

    fn report(&self, run: &Run) {
        match run.core.problem() {
            Some(problem) => self.hub.set_problem(ConditionKind::Pools, problem),
            None => self.hub.clear_problem(ConditionKind::Pools),
        }
    }

    fn journal(&self) -> Journal {
        Journal::new(&self.settings.node.state_dir)
    }

    async fn load_journal(&self) -> Result<Vec<ipam::node::JournalEntry>, Failure> {
        let journal = self.journal();
        let loaded = spawn_blocking(move || journal.load()).await;
        let loaded = loaded.map_err(|error| error.to_string())?;
        let loaded = loaded.map_err(|error| format!("read the journal of addresses: {error}"))?;
        for problem in &loaded.problems {
            tracing::warn!(problem, "journal file ignored");
        }
        Ok(loaded.entries)
    }

    /// Lists the store, and tries again until it answers.
    async fn list(&self) -> Listed {
        loop {
            match self.objects.list().await {
                Ok(listed) => {
                    self.hub.clear_problem(ConditionKind::Store);
                    return listed;
                }
                Err(error) => self.hub.set_problem(ConditionKind::Store, error),
            }
            tokio::select! {
                () = sleep(RELIST_DELAY) => {}
                () = self.underlay_changed.notified() => self.objects.reconnect(),
            }
        }
    }

    /// Creates the configured pools if the store has none. Returns whether any was created.
    async fn create_pools(&self, listed: &Listed) -> bool {
        let Pods::Routed { pools } = &self.settings.network.pods else { return false };
        let is_pool = |stored: &Stored| matches!(stored.key, Key::Pool(_));
        if listed.objects.iter().any(is_pool) {
            return false;
        }
        for pool in pools {
            let key = Key::Pool(pool.name.clone());
            let verb = Verb::Create(Object::Pool(pool.clone()));
            match self.objects.perform(&key, &verb).await {
                Outcome::Done(_) => {
                    tracing::info!(name = pool.name, cidr = %pool.cidr, "address pool created");
                }
                // Another node was faster.
                Outcome::Current(_) => {}
                Outcome::Unreachable(error) => {
                    tracing::warn!(name = pool.name, error, "address pool not created");
                }
            }
        }
        !pools.is_empty()
    }

    async fn wait_for_underlay(&mut self) -> OwnAddresses {
        loop {
            match self.find_underlay().await {
                Ok(own) => {
                    self.hub.clear_problem(ConditionKind::Underlay);
                    self.interface = Some(own.underlay.index);
                    return own;
                }
                Err(reason) => self.hub.set_problem(ConditionKind::Underlay, reason),
            }
            tokio::select! {
                () = sleep(UNDERLAY_DELAY) => {}
                () = self.underlay_changed.notified() => {}
            }
        }
    }

    /// Chooses the interface to other nodes: one with addresses of both families, if there is one.
    async fn find_underlay(&self) -> Result<OwnAddresses, String> {
        let settings = &self.settings.underlay;
        let facts = underlay::observe(&self.settings, &OwnNode::default()).await?;
        let wish = Wish {
            interfaces: &settings.interfaces,
            patterns: &settings.patterns,
            can_reach: settings.can_reach,
            before: self.interface,
            public_v4: settings.public_ipv4,
            public_v6: settings.public_ipv6,
            ..Wish::default()
        };
        let carriers = [(true, true), (true, false), (false, true)];
        let chosen = choose_among(&carriers, &wish, &facts, Addresses::default());
        let chosen = chosen.map_err(|why| format!("no interface to other nodes: {why}"))?;
        let prefix_len = |address: IpAddr| {
            let interface = facts.interfaces.iter().find(|one| one.index == chosen.index);
            let found = interface?.addresses.iter().find(|one| one.ip == address)?;
            Some(found.prefix_len)
        };
        let ipv4 = chosen.public_v4.and_then(|address| {
            let length = chosen.local_v4.and_then(|local| prefix_len(local.into())).unwrap_or(32);
            Ipv4Net::new(address, length).ok()
        });
        let ipv6 = chosen.public_v6.and_then(|address| {
            let length = chosen.local_v6.and_then(|local| prefix_len(local.into())).unwrap_or(128);
            Ipv6Net::new(address, length).ok()
        });
        let mut underlay = underlay::planned(&chosen);
        underlay.mtu = facts.smallest_mtu(chosen.index).unwrap_or(underlay.mtu);
        Ok(OwnAddresses { underlay, ipv4, ipv6 })
    }
}

impl Run {
    /// Starts to observe the host.
    fn observe(&mut self) {
        self.collection.next = None;
        let namespaces = observe::namespaces(self.core.node());
        self.work.spawn(async move {
            let observed = spawn_blocking(move || observe::observe(namespaces)).await;
            // A panic ends the task, and the controller is restarted.
            Finished::Observed(observed.expect("observing the host does not panic"))
        });
    }

    /// Releases what nothing on this host and no node uses.
    fn collect(&mut self, observed: kernel::Result<Observed>) -> Vec<Effect> {
        self.collection.next = Some(now() + self.collection.interval);
        let Observed { running, addresses } = match observed {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(%error, "unused addresses not looked for");
                return Vec::new();
            }
        };
        let nodes = self.core.node_names();
        let before = std::mem::replace(&mut self.collection.nodes, nodes.clone());
        let nodes = nodes.union(&before).cloned().collect();
        let observation = Observation {
            at: now(),
            running: &running,
            addresses: &addresses,
            nodes: Some(&nodes).filter(|_| !before.is_empty()),
            handles: None,
        };
        let collected = self.collection.collector.observe(self.core.node(), &observation);
        if collected.is_empty() {
            return Vec::new();
        }
        for one in &collected {
            tracing::info!(?one, "unused address or block released");
        }
        self.core.event(now(), Event::Collect(collected))
    }

    /// Starts the requests that waited until this node is in the store.
    fn start_waiting(&mut self) -> Vec<Effect> {
        if !self.core.is_published() {
            return Vec::new();
        }
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().flat_map(|(call, reply)| self.call(call, reply)).collect()
    }

    /// Passes a request to the state machine.
    fn call(&mut self, call: Call, reply: oneshot::Sender<Reply>) -> Vec<Effect> {
        if !self.core.is_published() {
            self.waiting.push((call, reply));
            return Vec::new();
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let (event, assigned) = match call {
            Call::Assign(request) => {
                let attachment = &request.attachment;
                let assigned = (attachment.handle.clone(), attachment.interface.clone());
                (Event::Assign { ticket, request: *request }, Some(assigned))
            }
            Call::Release { handle, interface } => {
                (Event::Release { ticket, handle, interface }, None)
            }
            Call::Gc { network, valid } => (Event::Gc { ticket, network, valid }, None),
        };
        self.pending.insert(ticket, Pending { reply, assigned });
        self.core.event(now(), event)
    }

    /// Sends a reply. Releases addresses again if the requester has given up.
    fn reply(&mut self, ticket: Ticket, reply: Reply) -> Vec<Effect> {
        let Some(pending) = self.pending.remove(&ticket) else { return Vec::new() };
        let is_assigned = matches!(reply, Reply::Assigned(_));
        match (pending.reply.send(reply), pending.assigned) {
            (Err(_), Some((handle, interface))) if is_assigned => {
                self.last_ticket += 1;
                let (ticket, interface) = (Ticket(self.last_ticket), Some(interface));
                self.core.event(now(), Event::Release { ticket, handle, interface })
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the name under which this node is in the store: the configured one, or the host name in lower case,
/// as with Calico.
fn node_name(settings: &Settings) -> String {
    settings.node.name.clone().unwrap_or_else(|| {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().to_lowercase()
    })
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Waits until a point in time, or forever.
async fn at(time: Option<Timestamp>) {
    match time {
        Some(time) => sleep(time.since(now())).await,
        None => std::future::pending().await,
    }
}
