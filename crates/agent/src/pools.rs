// SPDX-License-Identifier: Apache-2.0
//! The pools controller: address pools and the blocks of this node. It answers the plugins' requests for
//! addresses, keeps the store in line, and tells the routed controller which node has which block.
//!
//! [`core`] decides, without I/O; this module talks to the store, to the disk and to the requesters.

pub(crate) mod api;
mod block_routes;
mod catalog;
pub(crate) mod change;
mod check;
mod choice;
mod collection;
mod commands;
mod core;
mod journal;
mod keyvalue;
mod kubernetes;
mod objects;
mod observe;
mod pods;
mod release;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agent_client::pools::{Change, CheckReport, View};
use ipam::Timestamp;
use ipam::calico::{Key, Object};
use ipam::collect::Collected;
use ipam::node::{
    AssignRequest, Event, JournalOp, OpId, Outcome, Reply, StoreOp, Stored, Ticket, Verb,
};
use ipnet::{Ipv4Net, Ipv6Net};
use kernel::IfIndex;
use overlay::{Addresses, plan};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use self::check::{Check, Look, Next};
use self::collection::Collection;
use self::commands::ToRelease;
use self::core::{Core, Effect, OwnAddresses};
pub(crate) use self::core::{RoutedMessage, RoutedSnapshot};
pub(crate) use self::journal::Journal;
pub(crate) use self::keyvalue::KeyValueObjects;
pub(crate) use self::kubernetes::{KubernetesObjects, network_available};
pub(crate) use self::objects::Listed;
pub(crate) use self::objects::ObjectStore;
use self::objects::{HandleListing, ObjectEvents, ObjectWatch};
use self::observe::Observed;
pub(crate) use self::pods::{KnownPods, PodDirectory};
use crate::membership::underlay;
use crate::settings::{Pods, Settings};
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};
use crate::underlay::{Wish, choose_among};

/// Delay before the store is listed again after a failure.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Delay before an underlay is looked for again if no event reports a change.
const UNDERLAY_DELAY: Duration = Duration::from_secs(1);

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
    /// Releases an address, or says why not.
    ReleaseAddress {
        address: IpAddr,
        force: bool,
        reply: oneshot::Sender<Result<Reply, String>>,
    },
    Check {
        fix: bool,
        reply: oneshot::Sender<Result<CheckReport, String>>,
    },
}

/// The controller. After a restart it reads the journal and the store again.
#[derive(Debug)]
pub(crate) struct PoolsController {
    settings: Arc<Settings>,
    hub: StatusHub,
    /// Empty until it was looked up.
    name: String,
    objects: Arc<dyn ObjectStore>,
    journal: Journal,
    underlay_changed: Arc<Notify>,
    requests: UnboundedReceiver<Request>,
    routed: UnboundedSender<RoutedMessage>,
    interface: Option<IfIndex>,
}

/// The result of work in the background.
#[derive(Debug)]
enum Finished {
    Store(OpId, Outcome),
    /// The operations of one turn, with their results.
    Journal(Vec<(OpId, Result<(), String>)>),
    /// Addresses and blocks of departed nodes, now that the store has confirmed that they do not exist.
    Departed(Vec<Collected>),
    Published(Object, Outcome),
    Observed(kernel::Result<Observed>, Result<Option<HandleListing>, String>),
    Changed(oneshot::Sender<Result<(), String>>, Outcome),
    /// For the release of an address.
    Users(ToRelease, kernel::Result<Observed>),
    Looked(Check, Result<Look, String>),
    /// A reply was passed on.
    Answered,
}

/// One run of the controller, once the store has answered.
#[derive(Debug)]
struct Run {
    core: Core,
    work: JoinSet<Finished>,
    /// Requests without a reply yet.
    pending: HashMap<Ticket, Requester>,
    journal: JournalQueue,
    last_ticket: u64,
    /// Requests that wait until this node is in the store.
    waiting: Vec<(Call, oneshot::Sender<Reply>)>,
    collection: Collection,
}

/// The requester of a call.
#[derive(Debug)]
struct Requester {
    reply: oneshot::Sender<Reply>,
    /// Only for an assignment.
    attachment: Option<AttachmentId>,
    /// The attachment had no address and no other request when this one came.
    is_first: bool,
}

/// Handle and interface.
type AttachmentId = (String, String);

/// Journal operations, in the order in which the state machine needs them. One task at a time carries them out.
#[derive(Debug, Default)]
struct JournalQueue {
    waiting: Vec<JournalOp>,
    is_running: bool,
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
            name: String::new(),
            objects,
            journal: Journal::new(&settings.node.state_dir),
            underlay_changed: Arc::clone(underlay_changed),
            requests,
            routed,
            interface: None,
        }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        heartbeat.during(self.look_up_name()).await;
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
            let collection = Collection::new(self.settings.network.leak_grace, core.node_names());
            let mut run = Run {
                core,
                work: JoinSet::new(),
                pending: HashMap::new(),
                journal: JournalQueue::default(),
                last_ticket: 0,
                waiting: Vec::new(),
                collection,
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
                        run.collection.changed(&changes);
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
                    Ok(Finished::Journal(done)) => {
                        run.journal.is_running = false;
                        let done = done.into_iter();
                        done.flat_map(|(id, result)| run.core.journal_done(now(), id, result)).collect()
                    }
                    Ok(Finished::Departed(departed)) => run.release_collected(departed),
                    Ok(Finished::Published(object, outcome)) => {
                        let mut effects = run.core.published(now(), object, outcome);
                        effects.extend(run.start_waiting());
                        effects
                    }
                    Ok(Finished::Observed(observed, handles)) => {
                        run.collect(observed, handles, &self.objects)
                    }
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
                    Ok(Finished::Users(wanted, observed)) => run.release(wanted, observed),
                    Ok(Finished::Looked(check, look)) => match check.next(&run.core, look) {
                        Next::Done => continue,
                        Next::Look(check, repairs) => {
                            let effects = run.repair(repairs);
                            run.look(&self.objects, &self.journal, check);
                            effects
                        }
                    },
                    Ok(Finished::Answered) => continue,
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
                    run.observe(&self.objects);
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
            Request::ReleaseAddress { address, force, reply } => {
                run.look_for_users(ToRelease { address, force, reply });
                Vec::new()
            }
            Request::Check { fix, reply } => {
                run.look(&self.objects, &self.journal, Check::new(fix, reply));
                Vec::new()
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
                Effect::Journal(op) => run.journal.waiting.push(op),
                Effect::Reply { ticket, reply } => effects.extend(run.reply(ticket, reply)),
                Effect::Report(problem) => tracing::warn!(%problem, "address pools"),
                Effect::Routed(message) => {
                    // The receiver is gone only while the agent shuts down.
                    let _ = self.routed.send(message);
                }
            }
        }
        self.write_journal(run);
    }

    /// Carries out the waiting journal operations, unless others are being carried out.
    fn write_journal(&self, run: &mut Run) {
        if run.journal.is_running || run.journal.waiting.is_empty() {
            return;
        }
        run.journal.is_running = true;
        let (ops, journal) = (std::mem::take(&mut run.journal.waiting), self.journal.clone());
        run.work.spawn(async move {
            let turn = journal.turn().await;
            let apply = move || {
                let _turn = turn;
                let apply = |op: &JournalOp| journal.apply(op).map_err(|error| error.to_string());
                ops.iter().map(|op| (op.id, apply(op))).collect()
            };
            // A panic ends the task, and the controller is restarted.
            let done = spawn_blocking(apply).await;
            Finished::Journal(done.expect("writing the journal does not panic"))
        });
    }

    fn report(&self, run: &Run) {
        match run.core.problem() {
            Some(problem) => self.hub.set_problem(ConditionKind::Pools, problem),
            None => self.hub.clear_problem(ConditionKind::Pools),
        }
        match run.core.unpublished() {
            Some(problem) => self.hub.set_problem(ConditionKind::Lease, problem),
            None => self.hub.clear_problem(ConditionKind::Lease),
        }
    }

    async fn load_journal(&self) -> Result<Vec<ipam::node::JournalEntry>, Failure> {
        let (journal, turn) = (self.journal.clone(), self.journal.turn().await);
        let load = move || {
            let _turn = turn;
            journal.load()
        };
        let loaded = spawn_blocking(load).await;
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

    /// Asks the store for the name of this node, and tries again until it answers.
    async fn look_up_name(&mut self) {
        loop {
            match self.objects.node_name().await {
                Ok(name) => {
                    self.hub.clear_problem(ConditionKind::Store);
                    self.name = name.unwrap_or_else(|| node_name(&self.settings));
                    self.hub.set_node(&self.name);
                    return;
                }
                Err(error) => self.hub.set_problem(ConditionKind::Store, error),
            }
            tokio::select! {
                () = sleep(RELIST_DELAY) => {}
                () = self.underlay_changed.notified() => self.objects.reconnect(),
            }
        }
    }

    async fn wait_for_underlay(&mut self) -> OwnAddresses {
        loop {
            match self.find_underlay().await {
                Ok(own) => {
                    self.hub.clear_problem(ConditionKind::Underlay);
                    self.interface = Some(own.underlay.index);
                    let plan::Underlay { name, mtu, addresses, .. } = &own.underlay;
                    let addresses: Vec<String> =
                        addresses.iter().map(|one| one.to_string()).collect();
                    tracing::info!(
                        interface = %name, addresses = addresses.join(" "), mtu,
                        "underlay selected"
                    );
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
        let own = self.objects.own_node().await?;
        let facts = underlay::observe(&self.settings, &own).await?;
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
        let (event, attachment) = match call {
            Call::Assign(request) => {
                let attachment = &request.attachment;
                let attachment = (attachment.handle.clone(), attachment.interface.clone());
                (Event::Assign { ticket, request: *request }, Some(attachment))
            }
            Call::Release { handle, interface } => {
                (Event::Release { ticket, handle, interface }, None)
            }
            Call::Gc { network, valid } => (Event::Gc { ticket, network, valid }, None),
        };
        let is_first = attachment.as_ref().is_some_and(|id| !self.is_known(id));
        self.pending.insert(ticket, Requester { reply, attachment, is_first });
        self.core.event(now(), event)
    }

    /// Returns whether an attachment has addresses or asks for some.
    fn is_known(&self, id: &AttachmentId) -> bool {
        self.core.node().has_addresses(&id.0, &id.1) || self.is_asking(id)
    }

    fn is_asking(&self, id: &AttachmentId) -> bool {
        self.pending.values().any(|requester| requester.attachment.as_ref() == Some(id))
    }

    /// Sends a reply. If the requester has given up, the addresses are released again: nothing else may release them.
    /// A repeated request has the addresses of the first one, so they stay if any of them is answered.
    fn reply(&mut self, ticket: Ticket, reply: Reply) -> Vec<Effect> {
        let Some(requester) = self.pending.remove(&ticket) else { return Vec::new() };
        let is_assigned = matches!(reply, Reply::Assigned(_));
        match (requester.reply.send(reply), requester.attachment) {
            (Err(_), Some(id)) if is_assigned && requester.is_first && !self.is_asking(&id) => {
                self.last_ticket += 1;
                let (handle, interface) = id;
                let (ticket, interface) = (Ticket(self.last_ticket), Some(interface));
                self.core.event(now(), Event::Release { ticket, handle, interface })
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the name under which this node is in the store: the configured one, or the host name in lower case,
/// as with Calico.
pub(crate) fn node_name(settings: &Settings) -> String {
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
