// SPDX-License-Identifier: Apache-2.0
//! Nodes, containers and the messages between nodes and store.
//!
//! Everything that can happen between two steps is a method: an action is performed, a message arrives, is lost,
//! repeated or overtaken, an agent dies, a node disappears. A message to the store survives the agent that sent it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::Timestamp;
use ipam::block::{Attribute, Block};
use ipam::calico::{IpamConfig, Key, Object, Reservation};
use ipam::collect::{Collector, HandleList, Observation};
use ipam::node::{
    Action, AssignRequest, Attachment, Event, JournalEntry, Node, OpId, Outcome, Reply, Settings,
    StoreOp, Ticket,
};
use ipam::pool::PoolConf;
use ipam::pools::{Pools, Reservations};

use crate::store::Store;

pub const GRACE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(40);
/// Name of a node that runs Calico and writes to the store directly.
pub const OUTSIDER: &str = "calico";

#[derive(Debug)]
pub struct Cluster {
    pub now: Timestamp,
    pub store: Store,
    pub hosts: Vec<Host>,
    pub pods: Vec<Pod>,
    /// Operations on their way to the store.
    transit: Vec<Transit>,
    pub settings: Settings,
    next_id: u64,
    outsider: u64,
    pub calico_pods: Vec<CalicoPod>,
}

/// A container whose address Calico's own plugin assigned, on a node that podwire took over.
#[derive(Debug)]
pub struct CalicoPod {
    pub host: usize,
    pub handle: String,
    pub address: IpAddr,
}

#[derive(Debug)]
pub struct Host {
    pub name: String,
    pub machine: Option<Node>,
    /// Journal files.
    pub disk: BTreeMap<IpAddr, JournalEntry>,
    actions: VecDeque<Action>,
    inbox: Vec<Event>,
    /// Counts the agents that ran on the host.
    incarnation: u32,
    watched: usize,
    collector: Collector,
    /// The node exists in the cluster.
    pub is_registered: bool,
}

#[derive(Debug)]
struct Transit {
    host: usize,
    incarnation: u32,
    op: StoreOp,
}

#[derive(Debug)]
pub struct Pod {
    pub host: usize,
    pub handle: String,
    pub state: PodState,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PodState {
    Adding(Ticket),
    Running(Vec<IpAddr>),
    Deleting(Ticket),
    Gone,
}

/// Fate of a message to the store.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Answered,
    AnsweredTwice,
    /// Carried out, but the sender gets an error.
    DoneButFailed,
    /// Carried out, but the sender hears nothing.
    DoneButSilent,
    /// The sender gets an error, and the operation may be carried out later.
    FailedButPending,
    Failed,
}

impl Cluster {
    pub fn new(hosts: usize, cooldown: Duration, block_size: u8) -> Self {
        let pool = |name, cidr: &str, size| PoolConf {
            block_size: Some(size),
            ..PoolConf::new(name, cidr.parse().unwrap())
        };
        let pools =
            [pool("four", "10.0.0.0/27", block_size), pool("six", "fd00::/123", 96 + block_size)];
        let reserved =
            Reservation { cidrs: vec!["10.0.0.1/32".parse().unwrap()], ..Reservation::default() };
        let settings = Settings {
            pools: Pools::new(pools, &[]),
            config: IpamConfig { cooldown, ..IpamConfig::default() },
            reservations: Reservations::new([&reserved]),
            ..Settings::default()
        };
        let mut cluster = Self {
            now: Timestamp::from_millis(1_000_000_000),
            store: Store::default(),
            hosts: (0..hosts).map(Host::new).collect(),
            pods: Vec::new(),
            transit: Vec::new(),
            settings,
            next_id: 0,
            outsider: 0,
            calico_pods: Vec::new(),
        };
        for host in 0..hosts {
            cluster.start(host);
        }
        cluster
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Starts the agent of a host. The node registers before it reads the store.
    pub fn start(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        if h.machine.is_some() {
            return;
        }
        h.is_registered = true;
        h.machine = Some(Node::with_first_id(&h.name, OpId(u64::from(h.incarnation) << 32)));
        h.collector = Collector::new(GRACE);
        let entries = h.disk.values().cloned().collect();
        self.event(host, Event::Settings(self.settings.clone()));
        self.event(host, Event::Journal(entries));
        self.list(host);
    }

    /// Lists the store. The answer may arrive later than changes that happen afterwards.
    pub fn list(&mut self, host: usize) {
        let event = Event::Listed { at: self.store.revision(), objects: self.store.list() };
        self.hosts[host].watched = self.store.log.len();
        self.hosts[host].inbox.push(event);
    }

    /// Kills the agent. Containers continue to run.
    pub fn crash(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.machine = None;
        h.incarnation += 1;
        h.actions.clear();
        h.inbox.clear();
        for pod in self.pods.iter_mut().filter(|pod| pod.host == host) {
            // The runtime gives up the container and does not call DEL again, which is the worst case.
            if matches!(pod.state, PodState::Adding(_) | PodState::Deleting(_)) {
                pod.state = PodState::Gone;
            }
        }
    }

    /// Removes a node from the cluster, and stops its containers.
    pub fn lose(&mut self, host: usize, wipe: bool) {
        self.crash(host);
        self.hosts[host].is_registered = false;
        if wipe {
            self.hosts[host].disk.clear();
        }
        for pod in self.pods.iter_mut().filter(|pod| pod.host == host) {
            pod.state = PodState::Gone;
        }
        self.calico_pods.retain(|pod| pod.host != host);
    }

    pub fn set_strict(&mut self, host: usize, strict: bool) {
        self.settings.config.strict_affinity = strict;
        self.event(host, Event::Settings(self.settings.clone()));
    }

    /// Starts a container. The runtime may repeat the request.
    pub fn add(&mut self, host: usize, families: (bool, bool), address: Option<u8>, twice: bool) {
        if self.hosts[host].machine.is_none() {
            return;
        }
        let (id, ticket) = (self.new_id(), Ticket(self.new_id()));
        let handle = format!("net.c{id}");
        let attachment = Attachment {
            handle: handle.clone(),
            network: "net".to_owned(),
            container_id: format!("c{id}"),
            interface: "eth0".to_owned(),
            netns: None,
            netns_inode: None,
            pod: None,
            tunnel: None,
        };
        let request = AssignRequest {
            attachment,
            ipv4: families.0,
            ipv6: families.1,
            ipv4_pools: Vec::new(),
            ipv6_pools: Vec::new(),
            addresses: address.map(|n| IpAddr::from([10, 0, 0, n])).into_iter().collect(),
            namespace_labels: BTreeMap::new(),
            deadline: self.now + DEADLINE,
        };
        self.pods.push(Pod { host, handle, state: PodState::Adding(ticket) });
        if twice {
            self.event(host, Event::Assign { ticket: Ticket(0), request: request.clone() });
        }
        self.event(host, Event::Assign { ticket, request });
    }

    /// Stops a container: its namespace disappears, and DEL is called. Without agent, the plugin removes the files.
    pub fn delete(&mut self, pod: usize) {
        let ticket = Ticket(self.new_id());
        let Some(pod) = self.pods.get_mut(pod) else { return };
        let (host, handle) = (pod.host, pod.handle.clone());
        if pod.state == PodState::Gone {
            return;
        }
        if self.hosts[host].machine.is_none() {
            pod.state = PodState::Gone;
            self.hosts[host].disk.retain(|_, entry| entry.attachment.handle != handle);
            return;
        }
        pod.state = PodState::Deleting(ticket);
        self.event(host, Event::Release { ticket, handle, interface: None });
    }

    /// Stops a container without DEL.
    pub fn leak(&mut self, pod: usize) {
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.state = PodState::Gone;
        }
    }

    /// Repeats the DEL of a container that is gone.
    pub fn delete_again(&mut self, pod: usize) {
        let ticket = Ticket(self.new_id());
        let Some(pod) = self.pods.get(pod).filter(|pod| pod.state == PodState::Gone) else {
            return;
        };
        let (host, handle) = (pod.host, pod.handle.clone());
        self.event(host, Event::Release { ticket, handle, interface: None });
    }

    fn event(&mut self, host: usize, event: Event) {
        let h = &mut self.hosts[host];
        if let Some(machine) = &mut h.machine {
            h.actions.extend(machine.step(self.now, event));
        }
    }

    /// Performs the next action of a host.
    pub fn act(&mut self, host: usize, journal_fails: bool) -> bool {
        let h = &mut self.hosts[host];
        let Some(action) = h.actions.pop_front() else { return false };
        match action {
            Action::Store(op) => {
                self.transit.push(Transit { host, incarnation: h.incarnation, op });
            }
            Action::Journal(op) => {
                let result = if journal_fails {
                    Err("disk full".to_owned())
                } else {
                    for entry in op.write {
                        h.disk.insert(entry.address, entry);
                    }
                    for entry in op.remove {
                        h.disk
                            .retain(|address, other| *address != entry.address || *other != entry);
                    }
                    Ok(())
                };
                h.inbox.push(Event::JournalDone { id: op.id, result });
            }
            Action::Reply { ticket, reply } => self.reply(ticket, reply),
            Action::Report(_) => {}
        }
        true
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        let pod = self.pods.iter_mut().find(
            |pod| matches!(pod.state, PodState::Adding(t) | PodState::Deleting(t) if t == ticket),
        );
        let Some(pod) = pod else { return };
        pod.state = match (&pod.state, reply) {
            (PodState::Adding(_), Reply::Assigned(addresses)) => {
                PodState::Running(addresses.into_iter().map(|a| a.address).collect())
            }
            _ => PodState::Gone,
        };
    }

    /// Delivers a message to the store.
    pub fn deliver(&mut self, index: usize, fate: Fate) -> bool {
        if self.transit.is_empty() {
            return false;
        }
        let Transit { host, incarnation, op } = self.transit.remove(index % self.transit.len());
        let outcome = match fate {
            Fate::Failed | Fate::FailedButPending => None,
            _ => Some(self.store.apply(&op)),
        };
        let id = op.id;
        if matches!(fate, Fate::FailedButPending) {
            self.transit.push(Transit { host, incarnation, op });
        }
        let h = &mut self.hosts[host];
        if h.incarnation != incarnation || h.machine.is_none() {
            return true;
        }
        let failed = Outcome::Unreachable("timeout".to_owned());
        let answers = match (fate, outcome) {
            (Fate::Answered, Some(outcome)) => vec![outcome],
            (Fate::AnsweredTwice, Some(outcome)) => vec![outcome.clone(), outcome],
            (Fate::DoneButSilent, _) => vec![],
            _ => vec![failed],
        };
        h.inbox.extend(answers.into_iter().map(|outcome| Event::StoreDone { id, outcome }));
        true
    }

    /// Delivers a message to a host: results of the store and the disk, lists, changes.
    pub fn receive(&mut self, host: usize, index: usize) -> bool {
        let h = &mut self.hosts[host];
        if h.inbox.is_empty() || h.machine.is_none() {
            return false;
        }
        let event = h.inbox.remove(index % h.inbox.len());
        self.event(host, event);
        true
    }

    /// Reports the next change of the store to a host, perhaps twice.
    pub fn watch(&mut self, host: usize, twice: bool) -> bool {
        let h = &mut self.hosts[host];
        let Some(stored) = self.store.log.get(h.watched).filter(|_| h.machine.is_some()) else {
            return false;
        };
        h.watched += 1;
        for _ in 0..=usize::from(twice) {
            h.inbox.push(Event::Changed(stored.clone()));
        }
        true
    }

    pub fn tick(&mut self, host: usize) {
        self.event(host, Event::Tick);
    }

    /// Compares what is assigned with what runs. The decision may arrive late.
    pub fn collect(&mut self, host: usize) {
        let running = self.pods.iter().filter(|p| p.host == host && p.state != PodState::Gone);
        let calico = self.calico_pods.iter().filter(|pod| pod.host == host);
        let running: BTreeSet<_> =
            running.map(|pod| &pod.handle).chain(calico.map(|pod| &pod.handle)).cloned().collect();
        let nodes = self.hosts.iter().filter(|h| h.is_registered).map(|h| h.name.clone());
        let nodes: BTreeSet<_> = nodes.chain([OUTSIDER.to_owned()]).collect();
        let handles: Vec<_> = self
            .store
            .objects()
            .filter_map(|(key, revision, object)| match (key, object) {
                (Key::Handle(id), Object::Handle(_)) => Some((id, revision)),
                _ => None,
            })
            .collect();
        let blocks: Vec<_> = self.store.blocks().map(|(_, block)| block).collect();
        let h = &mut self.hosts[host];
        let Some(machine) = &h.machine else { return };
        let observation = Observation {
            at: self.now,
            running: &running,
            addresses: &BTreeSet::new(),
            nodes: Some(&nodes),
            handles: Some(HandleList { handles: &handles, blocks: &blocks }),
        };
        let collected = h.collector.observe(machine, &observation);
        h.inbox.push(Event::Collect(collected));
    }

    /// A Calico node assigns or releases a single address with a compare-and-swap of its own.
    pub fn outsider(&mut self, n: usize) {
        let cooldown = self.settings.config.cooldown;
        let blocks: Vec<_> = self.store.blocks().collect();
        let Some((_, mut block)) = blocks.get(n % blocks.len().max(1)).cloned() else { return };
        block.end_cooldowns(self.now, cooldown);
        let is_outsiders = |attribute: &Attribute| attribute.node() == Some(OUTSIDER);
        let own = block.allocations().find(|(_, a)| is_outsiders(&a.attribute)).map(|(o, _)| o);
        match own.filter(|_| n.is_multiple_of(2)) {
            Some(ordinal) => block.release(ordinal, self.now, cooldown),
            None => {
                self.outsider += 1;
                let attribute = Attribute {
                    handle: Some(format!("outsider.{}", self.outsider)),
                    secondary: [("node".to_owned(), OUTSIDER.to_owned())].into(),
                    ..Attribute::default()
                };
                // As a request that names the address.
                let free: Vec<_> = block.free().collect();
                let Some(ordinal) = free.get(n % free.len().max(1)) else { return };
                block.assign(*ordinal, &Arc::new(attribute)).unwrap();
            }
        }
        block.sequence += 1;
        self.store.put(&Key::Block(block.cidr()), Some(&Object::Block(block)));
    }

    /// Calico's own plugin on a host assigns an address, releases one, or its container dies without DEL. There are few
    /// handles, so that a handle returns to the same address.
    pub fn calico(&mut self, host: usize, n: usize) {
        let cooldown = self.settings.config.cooldown;
        let handle = format!("calico.{host}.{}", n % 2);
        let blocks: Vec<_> = self.store.blocks().map(|(_, block)| block).collect();
        let has_handle = |block: &Block| {
            let mut allocations = block.allocations();
            allocations.find(|(_, a)| a.attribute.handle() == Some(&handle)).map(|(o, _)| o)
        };
        let existing = blocks.iter().find_map(|block| Some((block, has_handle(block)?)));
        let mut block = match existing {
            Some(_) if n.is_multiple_of(5) => {
                return self.calico_pods.retain(|pod| pod.handle != handle);
            }
            // The address is released and assigned again to the same handle, with another sequence number.
            Some((block, ordinal)) if n % 5 < 3 && self.hosts[host].is_registered => {
                let mut block = block.clone();
                let attribute = block.allocation(ordinal).unwrap().attribute.clone();
                block.release(ordinal, self.now, Duration::ZERO);
                block.assign(ordinal, &attribute).unwrap();
                let address = block.address(ordinal);
                self.calico_pods.retain(|pod| pod.handle != handle);
                self.calico_pods.push(CalicoPod { host, handle, address });
                block
            }
            Some((block, ordinal)) => {
                let mut block = block.clone();
                block.release(ordinal, self.now, cooldown);
                self.calico_pods.retain(|pod| pod.handle != handle);
                block
            }
            None if !self.hosts[host].is_registered => return,
            None => {
                let Some(block) = blocks.get(n % blocks.len().max(1)) else { return };
                let mut block = block.clone();
                let attribute = Attribute {
                    handle: Some(handle.clone()),
                    secondary: [("node".to_owned(), self.hosts[host].name.clone())].into(),
                    ..Attribute::default()
                };
                let assigned = block.assign_next(&Arc::new(attribute), &self.settings.reservations);
                let Some(ordinal) = assigned else { return };
                let address = block.address(ordinal);
                self.calico_pods.push(CalicoPod { host, handle, address });
                block
            }
        };
        block.sequence += 1;
        self.store.put(&Key::Block(block.cidr()), Some(&Object::Block(block)));
    }

    /// Does for one host what is due, without faults.
    pub fn run_host(&mut self, host: usize) {
        for _ in 0..200 {
            let mut progress = self.act(host, false);
            while let Some(index) = self.transit.iter().position(|t| t.host == host) {
                self.deliver(index, Fate::Answered);
                progress = true;
            }
            progress |= self.receive(host, 0);
            progress |= self.watch(host, false);
            if !progress {
                return;
            }
        }
    }

    /// Lets everything finish without faults, and collects until nothing is left.
    pub fn settle(&mut self) {
        if self.hosts.iter().all(|host| !host.is_registered) {
            self.start(0);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_registered {
                self.start(host);
                self.list(host);
            }
        }
        for _ in 0..12 {
            self.now = self.now + GRACE;
            for _ in 0..2 {
                for host in 0..self.hosts.len() {
                    self.tick(host);
                    self.run_host(host);
                }
            }
            for host in 0..self.hosts.len() {
                self.collect(host);
                self.run_host(host);
            }
        }
    }
}

impl Host {
    fn new(index: usize) -> Self {
        Self {
            name: format!("node{index}"),
            machine: None,
            disk: BTreeMap::new(),
            actions: VecDeque::new(),
            inbox: Vec::new(),
            incarnation: 0,
            watched: 0,
            collector: Collector::new(GRACE),
            is_registered: true,
        }
    }
}
