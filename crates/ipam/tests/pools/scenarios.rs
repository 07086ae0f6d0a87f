// SPDX-License-Identifier: Apache-2.0
//! Single situations, without faults unless a test makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::Timestamp;
use ipam::block::{Attribute, Block};
use ipam::calico::{IpamConfig, Key, Object, etcd};
use ipam::collect::Collected;
use ipam::node::{
    Action, AssignError, AssignRequest, Attachment, Content, Event, JournalEntry, Node, Outcome,
    Pod, Problem, Reply, Revision, Settings, Stored, Ticket, Tunnel,
};
use ipam::pool::{Assignment, PoolConf};
use ipam::pools::Pools;

use crate::store::Store;

const NOW: Timestamp = Timestamp::from_millis(1_781_524_800_000);

/// A node, its journal and the store. All actions are performed at once.
struct Lab {
    node: Node,
    store: Store,
    disk: BTreeMap<IpAddr, JournalEntry>,
    now: Timestamp,
    is_reachable: bool,
    problems: Vec<Problem>,
    tickets: u64,
}

fn pool(name: &str, cidr: &str, block_size: u8) -> PoolConf {
    PoolConf { block_size: Some(block_size), ..PoolConf::new(name, cidr.parse().unwrap()) }
}

fn settings(pools: impl IntoIterator<Item = PoolConf>) -> Settings {
    Settings { pools: Pools::new(pools, &[]), ..Settings::default() }
}

fn both_families() -> Settings {
    settings([pool("four", "10.0.0.0/24", 28), pool("six", "fd00::/120", 124)])
}

fn attachment(container: &str) -> Attachment {
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

fn request(container: &str) -> AssignRequest {
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

fn with_address(container: &str, address: &str) -> AssignRequest {
    AssignRequest { addresses: vec![address.parse().unwrap()], ..request(container) }
}

impl Lab {
    fn new(settings: Settings) -> Self {
        Self::with_store("node1", settings, Store::default())
    }

    fn with_store(name: &str, settings: Settings, store: Store) -> Self {
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

    fn start(&mut self, settings: Settings) {
        self.run(Event::Settings(settings));
        self.run(Event::Journal(self.disk.values().cloned().collect()));
        let event = Event::Listed { at: self.store.revision(), objects: self.store.list() };
        self.run(event);
    }

    fn run(&mut self, event: Event) -> Vec<Reply> {
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

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn assign(&mut self, request: AssignRequest) -> Result<Vec<String>, AssignError> {
        let ticket = self.ticket();
        let mut replies = self.run(Event::Assign { ticket, request });
        match replies.pop() {
            Some(Reply::Assigned(all)) => Ok(all.iter().map(|a| a.address.to_string()).collect()),
            Some(Reply::Failed(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, container: &str) -> usize {
        let (ticket, handle) = (self.ticket(), format!("net.{container}"));
        match self.run(Event::Release { ticket, handle, interface: None }).pop() {
            Some(Reply::Released(addresses)) => addresses.len(),
            other => panic!("{other:?}"),
        }
    }

    fn error(&mut self, request: AssignRequest) -> String {
        self.assign(request).unwrap_err().to_string()
    }

    fn block(&self, cidr: &str) -> Block {
        let key = Key::Block(cidr.parse().unwrap());
        match self.store.read(&key).map(|stored| stored.content) {
            Some(Content::Object(Object::Block(block))) => block,
            other => panic!("{other:?}"),
        }
    }

    fn own(&self) -> Vec<String> {
        self.node.own_blocks().map(|block| block.cidr().to_string()).collect()
    }
}

#[test]
fn assignment_from_own_block_asks_the_store_only_afterwards() {
    let mut lab = Lab::new(both_families());
    lab.assign(request("a")).unwrap();
    let mut actions =
        lab.node.step(NOW, Event::Assign { ticket: Ticket(7), request: request("b") });
    let Some(Action::Journal(op)) = actions.pop() else { panic!("{actions:?}") };
    assert_eq!(actions, []);
    let actions = lab.node.step(NOW, Event::JournalDone { id: op.id, result: Ok(()) });
    assert!(matches!(actions[0], Action::Reply { reply: Reply::Assigned(_), .. }));
    assert!(matches!(actions[1], Action::Store(_)));
}

#[test]
fn block_is_stored_as_calico_reads_it() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/28", 28)]));
    assert_eq!(lab.assign(request("web-0")).unwrap(), ["10.0.0.0"]);
    let block = lab.block("10.0.0.0/28");
    assert_eq!(block.owner(), Some("node1"));
    // A quarter stays free for other nodes.
    let counts = block.counts();
    assert_eq!((counts.used, counts.reserved, counts.free), (1, 11, 4));
    let attribute = &block.allocation(0).unwrap().attribute;
    assert_eq!(attribute.handle(), Some("net.web-0"));
    let secondary: Vec<_> =
        attribute.secondary.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        secondary,
        [
            ("namespace", "default"),
            ("node", "node1"),
            ("pod", "web-0"),
            ("podwire", "eth0"),
            ("timestamp", "2026-06-15 12:00:00.000 +0000 UTC"),
        ]
    );
    let objects: Vec<_> = lab
        .store
        .objects()
        .map(|(key, _, object)| {
            let value = String::from_utf8(etcd::value(&key, &object)).unwrap();
            (key.to_string(), value)
        })
        .filter(|(key, _)| !key.starts_with("IPAMBlock"))
        .collect();
    let expected = [
        ("IPAMHandle net.web-0", r#"{"block":{"10.0.0.0/28":1},"deleted":false}"#),
        ("BlockAffinity 10.0.0.0/28 of node node1", r#"{"deleted":false,"state":"confirmed"}"#),
    ];
    assert_eq!(objects, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn assignment_continues_while_the_store_is_unreachable() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/28", 28)]));
    lab.assign(request("a")).unwrap();
    lab.is_reachable = false;
    for i in 0..11 {
        lab.assign(request(&format!("b{i}"))).unwrap();
    }
    assert_eq!(lab.block("10.0.0.0/28").counts().used, 1);
    // A released address can be used again.
    lab.release("b3");
    lab.assign(request("b11")).unwrap();
    // The rest is not set aside, so it needs the store.
    let ticket = lab.ticket();
    assert_eq!(lab.run(Event::Assign { ticket, request: request("c") }), []);
    lab.now = NOW + Duration::from_secs(90);
    let replies = lab.run(Event::Tick);
    let [Reply::Failed(error)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!(
        error.to_string(),
        "waiting for the store: the write of a block: connection refused"
    );
    assert!(error.is_temporary());
    lab.is_reachable = true;
    lab.now = lab.now + Duration::from_secs(1);
    lab.run(Event::Tick);
    assert_eq!(lab.block("10.0.0.0/28").counts().used, 12);
    assert_eq!(lab.node.store_error(), None);
}

#[test]
fn repeated_request_gets_the_same_addresses() {
    let mut lab = Lab::new(both_families());
    let both = AssignRequest { ipv6: true, ..request("a") };
    let first = lab.assign(both.clone()).unwrap();
    assert_eq!(first.len(), 2);
    assert_eq!(lab.assign(both).unwrap(), first);
    let mut other = request("a");
    other.attachment.interface = "eth1".to_owned();
    assert_ne!(lab.assign(other).unwrap()[0], first[0]);
    assert_eq!(lab.release("a"), 3);
    assert_eq!(lab.release("a"), 0);
    assert_eq!(lab.disk, BTreeMap::new());
}

#[test]
fn dual_stack_request_gets_all_or_nothing() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/28", 28)]));
    lab.assign(request("a")).unwrap();
    let ready = lab.node.ready_addresses(NOW);
    let both = AssignRequest { ipv6: true, ..request("b") };
    assert_eq!(lab.error(both), "there is no pool with IPv6 addresses");
    assert_eq!(lab.node.ready_addresses(NOW), ready);
    assert_eq!(lab.disk.len(), 1);
}

#[test]
fn released_address_is_the_last_to_be_assigned_again() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/30", 30)]));
    let first = lab.assign(request("a")).unwrap();
    lab.release("a");
    let others: Vec<_> =
        (0..3).map(|i| lab.assign(request(&format!("b{i}"))).unwrap().remove(0)).collect();
    assert!(!others.contains(&first[0]), "{first:?} {others:?}");
    assert_eq!(lab.assign(request("c")).unwrap(), first);
}

#[test]
fn cooldown_delays_the_next_assignment() {
    let config = IpamConfig { cooldown: Duration::from_secs(60), ..IpamConfig::default() };
    let mut lab = Lab::new(Settings { config, ..settings([pool("four", "10.0.0.0/32", 32)]) });
    lab.assign(request("a")).unwrap();
    lab.release("a");
    let error = lab.error(with_address("b", "10.0.0.0"));
    assert_eq!(
        error,
        "address 10.0.0.0 was released 0 s ago and may be assigned again after its cool-down"
    );
    assert!(lab.error(request("b")).contains("no free IPv4 address in pools four"));
    lab.now = NOW + Duration::from_secs(60);
    assert_eq!(lab.assign(request("b")).unwrap(), ["10.0.0.0"]);
}

#[test]
fn node_claims_blocks_up_to_its_limit_and_then_borrows() {
    let config = IpamConfig { max_blocks_per_host: 1, ..IpamConfig::default() };
    let settings = Settings { config, ..settings([pool("four", "10.0.0.0/29", 30)]) };
    let mut other = Lab::with_store("node2", settings.clone(), Store::default());
    other.assign(request("x")).unwrap();
    let foreign = other.own().remove(0);
    let mut lab = Lab::with_store("node1", settings, other.store);
    for i in 0..4 {
        lab.assign(request(&format!("a{i}"))).unwrap();
    }
    assert_eq!(lab.own().len(), 1);
    let borrowed = lab.assign(request("b")).unwrap().remove(0);
    let borrowed_in: Vec<_> =
        lab.block(&foreign).borrowed().map(|(a, node)| (a.to_string(), node.to_owned())).collect();
    assert_eq!(borrowed_in, [(borrowed, "node1".to_owned())]);
    assert_eq!(
        lab.error(request("c")),
        "no free IPv4 address in pools four: this node has as many blocks as allowed, and all others are full"
    );
    assert_eq!(lab.release("b"), 1);
    assert_eq!(lab.block(&foreign).borrowed().count(), 0);
}

#[test]
fn strict_affinity_forbids_to_borrow() {
    let config = IpamConfig { strict_affinity: true, ..IpamConfig::default() };
    let settings = Settings { config, ..settings([pool("four", "10.0.0.0/30", 30)]) };
    let mut other = Lab::with_store("node2", settings.clone(), Store::default());
    other.assign(request("x")).unwrap();
    assert_eq!(other.block("10.0.0.0/30").counts().free, 0);
    let mut lab = Lab::with_store("node1", settings, other.store);
    assert!(lab.error(request("a")).contains("strictAffinity forbids to borrow"));
}

#[test]
fn requested_address_is_taken_from_own_unclaimed_and_foreign_blocks() {
    let settings = settings([
        pool("four", "10.0.0.0/24", 28),
        PoolConf { assignment: Assignment::Manual, ..pool("manual", "10.1.0.0/24", 28) },
    ]);
    let mut other = Lab::with_store("node2", settings.clone(), Store::default());
    assert_eq!(other.assign(with_address("x", "10.1.0.5")).unwrap(), ["10.1.0.5"]);
    assert_eq!(other.assign(with_address("y", "10.0.0.5")).unwrap(), ["10.0.0.5"]);
    let mut lab = Lab::with_store("node1", settings, other.store);
    // In a manual pool nothing is set aside, so any node can have any free address.
    assert_eq!(lab.assign(with_address("a", "10.1.0.6")).unwrap(), ["10.1.0.6"]);
    assert_eq!(lab.assign(with_address("b", "10.0.0.21")).unwrap(), ["10.0.0.21"]);
    assert_eq!(lab.assign(with_address("c", "10.0.0.22")).unwrap(), ["10.0.0.22"]);
    assert_eq!(lab.own(), ["10.0.0.16/28"]);
    assert_eq!(
        lab.error(with_address("d", "10.1.0.5")),
        "address 10.1.0.5 is in use by pod default/x"
    );
    assert_eq!(
        lab.error(with_address("d", "10.0.0.21")),
        "address 10.0.0.21 is in use by pod default/b"
    );
    assert_eq!(
        lab.error(with_address("d", "10.0.0.1")),
        "address 10.0.0.1 is in use by node node2, which has set it aside for its pods"
    );
    assert_eq!(
        lab.error(with_address("d", "10.2.0.1")),
        "address 10.2.0.1 is in no pool that is enabled"
    );
}

#[test]
fn restarted_node_continues_with_journal_and_store() {
    let mut lab = Lab::new(both_families());
    let kept = lab.assign(request("kept")).unwrap();
    let gone = lab.assign(request("gone")).unwrap();
    // The agent died, and the plugin removed the file of a container.
    lab.disk.remove(&gone[0].parse().unwrap());
    let before = lab.block(&lab.own()[0]);
    lab.node = Node::new("node1");
    lab.start(both_families());
    assert_eq!(lab.assign(request("kept")).unwrap(), kept);
    let block = lab.block(&lab.own()[0]);
    assert!(block.sequence > before.sequence, "the block was not written after the start");
    let ordinal = |address: &str| block.ordinal(address.parse().unwrap()).unwrap();
    let attribute = &block.allocation(ordinal(&kept[0])).unwrap().attribute;
    assert_eq!(attribute, &before.allocation(ordinal(&kept[0])).unwrap().attribute);
    assert_eq!(block.free().last(), Some(ordinal(&gone[0])));
}

#[test]
fn journaled_address_of_another_user_is_reported_and_dropped() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/30", 30)]));
    lab.assign(request("a")).unwrap();
    let mut block = lab.block("10.0.0.0/30");
    let secondary = BTreeMap::from([("node".to_owned(), "node2".to_owned())]);
    let attribute =
        Attribute { handle: Some("other".to_owned()), secondary, ..Attribute::default() };
    block.hand_over(0, &Arc::new(attribute));
    lab.store.put(&Key::Block(block.cidr()), Some(&Object::Block(block)));
    lab.node = Node::new("node1");
    lab.start(settings([pool("four", "10.0.0.0/30", 30)]));
    let problems: Vec<_> = lab.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "address 10.0.0.0 of net.a is also assigned to handle other; delete the pod net.a belongs to"
        ]
    );
    assert_eq!(lab.disk, BTreeMap::new());
}

#[test]
fn tunnel_address_of_calico_is_kept() {
    let mut store = Store::default();
    let mut block = Block::new("10.0.0.0/28".parse().unwrap(), "node1", NOW);
    let handle = Tunnel::Vxlan.handle("node1");
    let secondary = [("node", "node1"), ("type", "vxlanTunnelAddress")];
    let secondary = secondary.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let attribute = Attribute { handle: Some(handle.clone()), secondary, ..Attribute::default() };
    block.assign(9, &Arc::new(attribute)).unwrap();
    store.put(&Key::Block(block.cidr()), Some(&Object::Block(block)));
    let mut lab = Lab::with_store("node1", both_families(), store);
    let mut request = request("");
    request.attachment = Attachment {
        handle: handle.clone(),
        interface: "vxlan.calico".to_owned(),
        pod: None,
        tunnel: Some(Tunnel::Vxlan),
        ..attachment("")
    };
    assert_eq!(lab.assign(request).unwrap(), ["10.0.0.9"]);
    let block = lab.block("10.0.0.0/28");
    let attribute = &block.allocation(9).unwrap().attribute;
    assert_eq!(attribute.user(), "vxlanTunnelAddress of node node1");
    assert_eq!(attribute.handle(), Some(handle.as_str()));
    assert!(!attribute.secondary.contains_key("timestamp"));
}

#[test]
fn gc_releases_what_is_not_valid() {
    let mut lab = Lab::new(both_families());
    for container in ["a", "b", "c"] {
        lab.assign(request(container)).unwrap();
    }
    let valid = BTreeSet::from([("b".to_owned(), "eth0".to_owned())]);
    let ticket = lab.ticket();
    let replies = lab.run(Event::Gc { ticket, network: "net".to_owned(), valid: valid.clone() });
    assert!(matches!(replies.as_slice(), [Reply::Released(all)] if all.len() == 2));
    assert_eq!(lab.node.assignments().count(), 1);
    let replies =
        lab.run(Event::Gc { ticket, network: "other".to_owned(), valid: BTreeSet::new() });
    assert_eq!(replies, [Reply::Released(Vec::new())]);
}

#[test]
fn malformed_block_is_reported_and_others_are_used() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/29", 30)]));
    let malformed = Stored {
        key: Key::Block("10.0.0.0/30".parse().unwrap()),
        revision: Revision(1),
        content: Content::Malformed("allocations: missing".to_owned()),
    };
    lab.run(Event::Changed(malformed));
    assert_eq!(
        lab.problems[0].to_string(),
        "IPAMBlock 10.0.0.0/30 is ignored: allocations: missing"
    );
    assert_eq!(lab.assign(request("a")).unwrap(), ["10.0.0.4"]);
    assert_eq!(
        lab.error(with_address("b", "10.0.0.1")),
        "address 10.0.0.1: block 10.0.0.0/30 cannot be claimed: its object in the store cannot be read"
    );
}

#[test]
fn block_of_another_size_is_never_overlapped() {
    let mut store = Store::default();
    let old = Block::new("10.0.0.0/29".parse().unwrap(), "node2", NOW);
    store.put(&Key::Block(old.cidr()), Some(&Object::Block(old)));
    let mut lab = Lab::with_store("node1", settings([pool("four", "10.0.0.0/28", 30)]), store);
    for i in 0..8 {
        let address = lab.assign(request(&format!("a{i}"))).unwrap().remove(0);
        let last: u8 = address.rsplit('.').next().unwrap().parse().unwrap();
        assert!(last >= 8, "{address}");
    }
}

#[test]
fn late_write_of_an_earlier_process_cannot_take_an_address_away() {
    let settings = settings([pool("four", "10.0.0.0/30", 30)]);
    let mut lab = Lab::new(settings.clone());
    lab.assign(request("a")).unwrap();
    // The agent dies after it sent a write that gives 10.0.0.0 back.
    let ticket = lab.ticket();
    let release = Event::Release { ticket, handle: "net.a".to_owned(), interface: None };
    let mut actions = lab.node.step(NOW, release);
    let Some(Action::Journal(op)) = actions.pop() else { panic!("{actions:?}") };
    lab.disk.clear();
    let actions = lab.node.step(NOW, Event::JournalDone { id: op.id, result: Ok(()) });
    let is_block = |action: &Action| match action {
        Action::Store(op) if matches!(op.key, Key::Block(_)) => Some(op.clone()),
        _ => None,
    };
    let late = actions.iter().find_map(is_block).unwrap();
    // The next process reads the block before the late write arrives.
    let mut node = Node::with_first_id("node1", late.id);
    node.step(NOW, Event::Settings(settings));
    node.step(NOW, Event::Journal(Vec::new()));
    let listed = Event::Listed { at: lab.store.revision(), objects: lab.store.list() };
    let actions = node.step(NOW, listed);
    let fence = actions.iter().find_map(is_block).unwrap();
    assert_eq!(node.ready_addresses(NOW), Vec::<IpAddr>::new());
    assert!(matches!(lab.store.apply(&late), Outcome::Done(_)));
    let outcome = lab.store.apply(&fence);
    assert!(matches!(outcome, Outcome::Current(Some(_))));
    lab.node = node;
    lab.run(Event::StoreDone { id: fence.id, outcome });
    assert_eq!(lab.block("10.0.0.0/30").free().count(), 1);
    assert_eq!(lab.node.ready_addresses(NOW).len(), 3);
}

#[test]
fn late_collection_spares_an_address_that_was_assigned_again() {
    let mut lab = Lab::new(both_families());
    lab.assign(request("a")).unwrap();
    let cidr = lab.own().remove(0);
    let mut block = lab.block(&cidr);
    let ordinal = block.free().next().unwrap();
    let secondary = BTreeMap::from([("node".to_owned(), "node1".to_owned())]);
    let handle = "k8s-pod-network.1".to_owned();
    let attribute =
        Arc::new(Attribute { handle: Some(handle.clone()), secondary, ..Attribute::default() });
    // Calico's plugin on this node assigns the address, releases it, and assigns it again.
    let mut sequences = Vec::new();
    for _ in 0..2 {
        block.release(ordinal, NOW, Duration::ZERO);
        block.assign(ordinal, &attribute).unwrap();
        sequences.push(block.allocation(ordinal).unwrap().sequence);
        block.sequence += 1;
        let revision =
            lab.store.put(&Key::Block(block.cidr()), Some(&Object::Block(block.clone())));
        let key = Key::Block(block.cidr());
        let content = Content::Object(Object::Block(block.clone()));
        lab.run(Event::Changed(Stored { key, revision, content }));
    }
    let (address, block) = (block.address(ordinal), block.cidr());
    for (sequence, is_released) in [(sequences[0], false), (sequences[1], true)] {
        let handle = handle.clone();
        lab.run(Event::Collect(vec![Collected::Allocation { block, address, handle, sequence }]));
        let stored = lab.block(&cidr);
        let is_left = stored.allocation(ordinal).is_some_and(|a| a.attribute == attribute);
        assert_eq!(is_left, !is_released);
    }
}

#[test]
fn block_that_is_given_up_assigns_nothing_more() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/24", 30)]));
    for i in 0..5 {
        lab.assign(request(&format!("a{i}"))).unwrap();
    }
    let blocks = lab.own();
    assert_eq!(blocks.len(), 2);
    let second = lab.node.own_blocks().find(|block| block.counts().used == 1).unwrap().cidr();
    lab.release("a4");
    lab.is_reachable = false;
    lab.run(Event::Collect(vec![Collected::EmptyBlock { block: second }]));
    let ready = lab.node.ready_addresses(NOW);
    assert!(!ready.iter().any(|address| second.contains(address)), "{ready:?}");
    lab.is_reachable = true;
    lab.now = NOW + Duration::from_secs(1);
    lab.run(Event::Tick);
    assert_eq!(lab.own().len(), 1);
    assert_eq!(lab.store.read(&Key::Block(second)), None);
    let affinity = Key::Affinity { node: "node1".to_owned(), block: second };
    assert_eq!(lab.store.read(&affinity), None);
}
