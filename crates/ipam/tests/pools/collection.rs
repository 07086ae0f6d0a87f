// SPDX-License-Identifier: Apache-2.0
//! The collector, and how the node carries out its decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::block::Attribute;
use ipam::calico::{Key, Object};
use ipam::collect::{Collected, Collector, Observation};
use ipam::node::{AssignRequest, Content, Event, Stored};

use crate::lab::{Lab, NOW, both_families, pool, request, settings, with_address};
use crate::store::Store;

/// State of the host and the cluster as the collector reads it.
struct Seen<'a> {
    running: &'a [&'a str],
    addresses: &'a [IpAddr],
    nodes: &'a [&'a str],
}

fn observe(collector: &mut Collector, lab: &Lab, seconds: u64, seen: &Seen<'_>) -> Vec<Collected> {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let nodes: BTreeSet<String> = names(seen.nodes);
    let observation = Observation {
        at: NOW + Duration::from_secs(seconds),
        running: &names(seen.running),
        addresses: &seen.addresses.iter().copied().collect(),
        nodes: Some(&nodes),
        handles: None,
    };
    collector.observe(&lab.node, &observation)
}

#[test]
fn address_is_collected_after_two_looks_and_grace() {
    let mut lab = Lab::new(both_families());
    let both = AssignRequest { ipv6: true, ..request("dual") };
    let dual: Vec<IpAddr> =
        lab.assign(both).unwrap().iter().map(|address| address.parse().unwrap()).collect();
    lab.assign(request("leaked")).unwrap();
    lab.assign(request("running")).unwrap();
    let mut collector = Collector::new(Duration::from_secs(900));
    let nobody = Seen { running: &[], addresses: &[], nodes: &["node1"] };
    // One address of the dual-stack container has a route, so both stay.
    let seen = Seen { running: &["net.running"], addresses: &dual[..1], ..nobody };
    assert_eq!(observe(&mut collector, &lab, 0, &nobody), []);
    assert_eq!(observe(&mut collector, &lab, 899, &seen), []);
    let collected = observe(&mut collector, &lab, 900, &seen);
    assert!(
        matches!(collected.as_slice(), [Collected::Assignment { handle, .. }] if handle == "net.leaked"),
        "{collected:?}"
    );
    // An observation that showed a container as running starts the grace period again.
    assert_eq!(observe(&mut collector, &lab, 1000, &nobody).len(), 1);
    lab.run(Event::Collect(collected));
    assert_eq!(lab.node.assignments().count(), 3);
    let collected = observe(&mut collector, &lab, 1900, &nobody);
    assert_eq!(collected.len(), 3, "{collected:?}");
}

#[test]
fn collection_spares_a_reassigned_address() {
    let mut lab = Lab::new(both_families());
    lab.assign(request("a")).unwrap();
    let mut collector = Collector::new(Duration::ZERO);
    let nothing = Seen { running: &[], addresses: &[], nodes: &["node1"] };
    observe(&mut collector, &lab, 0, &nothing);
    let collected = observe(&mut collector, &lab, 1, &nothing);
    assert_eq!(collected.len(), 1);
    lab.release("a");
    lab.now = NOW + Duration::from_secs(1);
    let address = lab.node.own_blocks().next().unwrap().address(0).to_string();
    lab.assign(with_address("a", &address)).unwrap();
    lab.run(Event::Collect(collected));
    assert_eq!(lab.node.assignments().count(), 1);
}

#[test]
fn departed_node_leaves_nothing() {
    let settings = both_families();
    let mut other = Lab::with_store("node2", settings.clone(), Store::default());
    other.assign(request("x")).unwrap();
    let mut lab = Lab::with_store("node1", settings, other.store);
    let mut collector = Collector::new(Duration::from_secs(900));
    let seen = Seen { running: &[], addresses: &[], nodes: &["node1", "node2"] };
    assert_eq!(observe(&mut collector, &lab, 0, &seen), []);
    let alone = Seen { nodes: &["node1"], ..seen };
    for second in 1..3 {
        let collected = observe(&mut collector, &lab, second, &alone);
        lab.run(Event::Collect(collected));
    }
    let left: Vec<_> = lab.store.objects().map(|(key, ..)| key.to_string()).collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn empty_blocks_but_one_are_given_up_after_two_looks() {
    let mut lab = Lab::new(settings([pool("four", "10.0.0.0/24", 30)]));
    for i in 0..9 {
        lab.assign(request(&format!("a{i}"))).unwrap();
    }
    for i in 0..9 {
        lab.release(&format!("a{i}"));
    }
    assert_eq!(lab.own().len(), 3);
    let mut collector = Collector::new(Duration::from_secs(900));
    let seen = Seen { running: &[], addresses: &[], nodes: &["node1"] };
    assert_eq!(observe(&mut collector, &lab, 0, &seen), []);
    let collected = observe(&mut collector, &lab, 60, &seen);
    assert_eq!(collected.len(), 2, "{collected:?}");
    lab.run(Event::Collect(collected));
    assert_eq!(lab.own().len(), 1);
}

#[test]
fn late_collection_spares_a_reassigned_address() {
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
