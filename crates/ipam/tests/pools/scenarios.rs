// SPDX-License-Identifier: Apache-2.0
//! Assignment and release in single situations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::block::{Attribute, Block};
use ipam::calico::{IpamConfig, Key, Object, etcd};
use ipam::node::{
    Action, AssignRequest, Attachment, Content, Event, Node, Outcome, Reply, Revision, Settings,
    Stored, Ticket, Tunnel,
};
use ipam::pool::{Assignment, PoolConf};

use crate::lab::{Lab, NOW, attachment, both_families, pool, request, settings, with_address};
use crate::store::Store;

#[test]
fn assignment_from_own_block_does_not_await_the_store() {
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
fn assignment_continues_without_the_store() {
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
fn node_claims_blocks_up_to_its_limit_then_borrows() {
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
fn requested_address_is_taken_from_any_block() {
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
fn journaled_address_of_another_user_is_dropped() {
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
fn late_write_of_earlier_process_takes_no_address() {
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
