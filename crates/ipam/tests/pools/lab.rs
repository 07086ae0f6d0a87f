// SPDX-License-Identifier: Apache-2.0
//! A node with its journal and a store. All actions are performed at once, so no message is lost.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipam::Timestamp;
use ipam::block::Block;
use ipam::calico::{Key, Object};
use ipam::node::{
    Action, AssignError, AssignRequest, Attachment, Content, Event, JournalEntry, Node, Outcome,
    Pod, Problem, Reply, Settings, Ticket,
};
use ipam::pool::PoolConf;
use ipam::pools::Pools;

use crate::store::Store;

pub const NOW: Timestamp = Timestamp::from_millis(1_781_524_800_000);

/// A node, its journal and the store. All actions are performed at once.
pub struct Lab {
    pub node: Node,
    pub store: Store,
    pub disk: BTreeMap<IpAddr, JournalEntry>,
    pub now: Timestamp,
    pub is_reachable: bool,
    pub problems: Vec<Problem>,
    pub tickets: u64,
}

pub fn pool(name: &str, cidr: &str, block_size: u8) -> PoolConf {
    PoolConf { block_size: Some(block_size), ..PoolConf::new(name, cidr.parse().unwrap()) }
}

pub fn settings(pools: impl IntoIterator<Item = PoolConf>) -> Settings {
    Settings { pools: Pools::new(pools, &[]), ..Settings::default() }
}

pub fn both_families() -> Settings {
    settings([pool("four", "10.0.0.0/24", 28), pool("six", "fd00::/120", 124)])
}

pub fn attachment(container: &str) -> Attachment {
    Attachment {
        handle: format!("net.{container}"),
        network: "net".to_owned(),
        container_id: container.to_owned(),
        interface: "eth0".to_owned(),
        netns: None,
        netns_inode: None,
        pod: Some(Pod { namespace: "default".to_owned(), name: container.to_owned() }),
        tunnel: None,
    }
}

pub fn request(container: &str) -> AssignRequest {
    AssignRequest {
        attachment: attachment(container),
        ipv4: true,
        ipv6: false,
        ipv4_pools: Vec::new(),
        ipv6_pools: Vec::new(),
        addresses: Vec::new(),
        namespace_labels: BTreeMap::new(),
        deadline: NOW + Duration::from_secs(90),
    }
}

pub fn with_address(container: &str, address: &str) -> AssignRequest {
    AssignRequest { addresses: vec![address.parse().unwrap()], ..request(container) }
}

impl Lab {
    pub fn new(settings: Settings) -> Self {
        Self::with_store("node1", settings, Store::default())
    }

    pub fn with_store(name: &str, settings: Settings, store: Store) -> Self {
        let mut lab = Self {
            node: Node::new(name),
            store,
            disk: BTreeMap::new(),
            now: NOW,
            is_reachable: true,
            problems: Vec::new(),
            tickets: 0,
        };
        lab.start(settings);
        lab
    }

    pub fn start(&mut self, settings: Settings) {
        self.run(Event::Settings(settings));
        self.run(Event::Journal(self.disk.values().cloned().collect()));
        let event = Event::Listed { at: self.store.revision(), objects: self.store.list() };
        self.run(event);
    }

    pub fn run(&mut self, event: Event) -> Vec<Reply> {
        let mut actions = self.node.step(self.now, event);
        let mut replies = Vec::new();
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                let event = match action {
                    Action::Reply { reply, .. } => {
                        replies.push(reply);
                        continue;
                    }
                    Action::Report(problem) => {
                        self.problems.push(problem);
                        continue;
                    }
                    Action::Journal(op) => {
                        self.disk.extend(op.write.into_iter().map(|entry| (entry.address, entry)));
                        self.disk.retain(|_, entry| !op.remove.contains(entry));
                        Event::JournalDone { id: op.id, result: Ok(()) }
                    }
                    Action::Store(op) => {
                        let outcome = match self.is_reachable {
                            true => self.store.apply(&op),
                            false => Outcome::Unreachable("connection refused".to_owned()),
                        };
                        Event::StoreDone { id: op.id, outcome }
                    }
                };
                actions.extend(self.node.step(self.now, event));
            }
        }
        replies
    }

    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub fn assign(&mut self, request: AssignRequest) -> Result<Vec<String>, AssignError> {
        let ticket = self.ticket();
        let mut replies = self.run(Event::Assign { ticket, request });
        match replies.pop() {
            Some(Reply::Assigned(all)) => Ok(all.iter().map(|a| a.address.to_string()).collect()),
            Some(Reply::Failed(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, container: &str) -> usize {
        let (ticket, handle) = (self.ticket(), format!("net.{container}"));
        match self.run(Event::Release { ticket, handle, interface: None }).pop() {
            Some(Reply::Released(addresses)) => addresses.len(),
            other => panic!("{other:?}"),
        }
    }

    pub fn error(&mut self, request: AssignRequest) -> String {
        self.assign(request).unwrap_err().to_string()
    }

    pub fn block(&self, cidr: &str) -> Block {
        let key = Key::Block(cidr.parse().unwrap());
        match self.store.read(&key).map(|stored| stored.content) {
            Some(Content::Object(Object::Block(block))) => block,
            other => panic!("{other:?}"),
        }
    }

    pub fn own(&self) -> Vec<String> {
        self.node.own_blocks().map(|block| block.cidr().to_string()).collect()
    }
}
