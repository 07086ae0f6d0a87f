// SPDX-License-Identifier: Apache-2.0
use std::sync::Arc;

use super::*;
use crate::Timestamp;
use crate::block::Attribute;
use crate::calico::{AffinityState, NodeResource};
use crate::node::{Attachment, Pod};
use crate::pool::PoolConf;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// Objects in the store, and the state of the node `n1`.
#[derive(Default)]
struct Fixture {
    pools: Pools,
    objects: Vec<Stored>,
    handles: Vec<(String, Revision)>,
    entries: Vec<JournalEntry>,
    saved: BTreeSet<IpAddr>,
    running: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    pods: BTreeMap<IpAddr, PodInterface>,
}

fn cidr(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn stored(key: Key, object: Object) -> Stored {
    Stored { key, revision: Revision(7), content: Content::Object(object) }
}

fn used(handle: &str, node: &str) -> Arc<Attribute> {
    let secondary = BTreeMap::from([("node".to_owned(), node.to_owned())]);
    Arc::new(Attribute { handle: Some(handle.to_owned()), secondary, ..Attribute::default() })
}

fn tag(container: &str) -> InterfaceTag {
    let (network, interface) = ("net".to_owned(), "eth0".to_owned());
    InterfaceTag { network, container_id: container.to_owned(), interface }
}

impl Fixture {
    /// Two nodes with the pool 10.6.0.0/16.
    fn new() -> Self {
        let pools = Pools::new([PoolConf::new("p", cidr("10.6.0.0/16"))], &[]);
        let node = |name: &str| {
            let resource = NodeResource { name: name.to_owned(), ..NodeResource::default() };
            stored(Key::Node(name.to_owned()), Object::Node(resource))
        };
        Self { pools, objects: vec![node("n1"), node("n2")], ..Self::default() }
    }

    fn affinity(&mut self, node: &str, block: &str, state: AffinityState) -> &mut Self {
        let affinity = BlockAffinity { state, ..BlockAffinity::default() };
        let key = Key::Affinity { node: node.to_owned(), block: cidr(block) };
        self.objects.push(stored(key, Object::Affinity(affinity)));
        self
    }

    fn handle(&mut self, id: &str) -> &mut Self {
        self.handles.push((id.to_owned(), Revision(7)));
        self
    }

    /// A block with its affinity and assigned addresses: ordinal, handle, node.
    fn block(&mut self, text: &str, owner: &str, users: &[(u16, &str, &str)]) -> &mut Self {
        let mut block = Block::new(cidr(text), owner, NOW);
        for (ordinal, handle, node) in users {
            block.assign(*ordinal, &used(handle, node)).unwrap();
            self.handle(handle);
        }
        self.objects.push(stored(Key::Block(cidr(text)), Object::Block(block)));
        self.affinity(owner, text, AffinityState::Confirmed)
    }

    /// An address that the node has assigned, with its file, namespace and route.
    fn assigned(&mut self, address: &str, container: &str) -> &mut Self {
        let attachment = Attachment {
            handle: format!("net.{container}"),
            network: "net".to_owned(),
            container_id: container.to_owned(),
            interface: "eth0".to_owned(),
            netns: Some(format!("/run/netns/{container}")),
            netns_inode: None,
            pod: None,
            tunnel: None,
        };
        self.running.insert(attachment.handle.clone());
        self.route(address, "cali1", Some(tag(container)));
        self.saved.insert(ip(address));
        let (address, block) = (ip(address), cidr("10.6.0.0/26"));
        self.entries.push(JournalEntry { address, block, assigned_at: NOW, attachment });
        self
    }

    fn route(&mut self, address: &str, name: &str, attachment: Option<InterfaceTag>) -> &mut Self {
        self.addresses.insert(ip(address));
        self.pods.insert(ip(address), PodInterface { name: name.to_owned(), attachment });
        self
    }

    fn findings(&self) -> Vec<Finding> {
        let network = Network::new("n1", &self.pools, &self.objects, Some(&self.handles));
        let assigned = self.entries.iter().map(|entry| (entry.address, entry)).collect();
        let host = Host {
            assigned: &assigned,
            saved: &self.saved,
            running: &self.running,
            addresses: &self.addresses,
            pods: &self.pods,
        };
        check(&network, &host)
    }

    /// Compares the findings, each with its repair.
    #[track_caller]
    fn expect(&self, expected: &[&str]) {
        let show = |one: &Finding| {
            let Finding { kind, object, reason, repair } = one;
            format!("{} {object}: {reason} -> {repair}", kind.as_str())
        };
        assert_eq!(self.findings().iter().map(show).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn consistent_network_has_no_findings() {
    let mut fixture = Fixture::new();
    let tunnel = Attribute {
        secondary: BTreeMap::from([
            ("node".to_owned(), "n1".to_owned()),
            ("type".to_owned(), "vxlanTunnelAddress".to_owned()),
        ]),
        ..(*used("vxlan-tunnel-addr-n1", "n1")).clone()
    };
    fixture.block("10.6.0.0/26", "n1", &[(1, "net.c1", "n1"), (2, "net.borrowed", "n2")]);
    fixture.assigned("10.6.0.1", "c1").handle("vxlan-tunnel-addr-n1");
    let Some(Content::Object(Object::Block(block))) =
        fixture.objects.iter_mut().map(|stored| &mut stored.content).nth(2)
    else {
        panic!()
    };
    block.assign(3, &Arc::new(tunnel)).unwrap();
    block.assign(4, &Arc::new(Attribute::reserve("n1"))).unwrap();
    // The store learns the user of an address that was set aside a moment later.
    fixture.assigned("10.6.0.4", "c4");
    fixture.block("10.6.0.64/26", "n2", &[(0, "net.c9", "n2")]);
    fixture.affinity("n2", "10.6.0.128/26", AffinityState::Pending);
    fixture.expect(&[]);
}

#[test]
fn address_without_namespace_and_route_is_leaked() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[(1, "net.c1", "n1"), (2, "net.calico", "n1")]);
    fixture.assigned("10.6.0.1", "c1");
    fixture.running.clear();
    // The route shows that the container runs.
    fixture.expect(&[
        "leaked 10.6.0.2: handle net.calico is gone: no namespace is known and there is no route \
         -> release it",
    ]);
    fixture.addresses.clear();
    fixture.pods.clear();
    fixture.expect(&[
        "leaked 10.6.0.1: container c1 is gone: there is no /run/netns/c1 and no route \
         -> release it",
        "leaked 10.6.0.2: handle net.calico is gone: no namespace is known and there is no route \
         -> release it",
    ]);
}

#[test]
fn pod_whose_address_is_not_assigned_is_missing() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[(3, "net.calico", "n1")]);
    fixture.route("10.6.0.1", "cali1", Some(tag("c1"))).route("10.6.0.2", "dummy0", None);
    // An interface of Calico does not name its container, and a route outside of all pools is no pod's.
    fixture.route("10.6.0.3", "cali3", None).route("192.0.2.9", "dummy0", None);
    fixture.expect(&[
        "missing 10.6.0.1: interface cali1 of container c1 has it, but it is not assigned \
         -> assign it to container c1",
        "missing 10.6.0.2: interface dummy0 has it, but it is not assigned \
         -> delete the pod of interface dummy0, or the route if there is none",
    ]);
}

#[test]
fn assigned_address_without_file_or_block_is_missing() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[(1, "net.c1", "n1")]);
    fixture.assigned("10.6.0.1", "c1").assigned("10.6.0.2", "c2").assigned("10.6.9.1", "c3");
    fixture.saved.remove(&ip("10.6.0.1"));
    fixture.expect(&[
        "missing 10.6.0.1: container c1 has it, but the journal has no file for it \
         -> write the file again",
        "missing 10.6.0.2: container c2 has it, but the store does not know \
         -> the agent of n1 repairs it: start it",
        "missing 10.6.9.1: container c3 has it, but it is in no block \
         -> the agent of n1 repairs it: start it",
    ]);
}

#[test]
fn address_of_another_handle_is_a_conflict() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[(1, "net.other", "n2"), (2, "net.c8", "n1")]);
    fixture.route("10.6.0.1", "cali1", Some(tag("c1"))).route("10.6.0.2", "cali2", None);
    fixture.assigned("10.6.0.2", "c8").route("10.6.0.2", "cali2", Some(tag("c2")));
    fixture.expect(&[
        "conflict 10.6.0.1: interface cali1 of container c1 has it, but it is assigned to handle \
         net.other on node n2 -> delete container c1, so that its pod gets another address",
        "conflict 10.6.0.2: interface cali2 of container c2 has it, but it is assigned to \
         container c8 -> delete container c2, so that its pod gets another address",
    ]);
}

#[test]
fn overlapping_blocks_and_their_common_addresses_are_conflicts() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n2", &[(20, "net.a", "n2")]);
    fixture.block("10.6.0.16/28", "n2", &[(4, "net.b", "n2")]);
    fixture.expect(&[
        "conflict 10.6.0.16/28: this block of node n2 overlaps block 10.6.0.0/26 of node n2 \
         -> delete the pods of 10.6.0.16/28",
        "conflict 10.6.0.20: assigned to handle net.b in block 10.6.0.16/28 and to handle net.a \
         in block 10.6.0.0/26 -> delete one of the pods",
    ]);
}

#[test]
fn remains_of_a_departed_node_are_released() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "gone", &[(1, "net.a", "gone"), (2, "net.b", "n2")]);
    let users = [(0, "net.c", "gone"), (1, "net.d", "gone"), (2, "net.e", "n2")];
    fixture.block("10.6.0.64/26", "n2", &users);
    fixture.expect(&[
        "leaked 10.6.0.64, 10.6.0.65: assigned on node gone, which does not exist \
         -> release what the node had in the block",
        "stale 10.6.0.0/26: block of node gone, which does not exist; addresses in use: 1 \
         -> release what the node had in the block",
    ]);
    // The affinity can be deleted when the block has no owner any more.
    fixture.objects.retain(|stored| !matches!(stored.key, Key::Block(_)));
    fixture.handles.clear();
    fixture.expect(&[
        "stale BlockAffinity 10.6.0.0/26 of node gone: the node does not exist -> delete it",
        "stale BlockAffinity 10.6.0.64/26 of node n2: the block does not exist \
         -> the agent of n2 repairs it: start it",
    ]);
}

#[test]
fn contradicting_affinities_are_found() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[]).affinity("n2", "10.6.0.0/26", AffinityState::Pending);
    fixture.block("10.6.0.64/26", "n2", &[]);
    fixture.objects.pop();
    fixture.expect(&[
        "missing BlockAffinity 10.6.0.64/26 of node n2: it does not exist, but the block belongs \
         to the node -> the agent of n2 repairs it: start it",
        "conflict BlockAffinity 10.6.0.0/26 of node n2: the block belongs to node n1 \
         -> the agent of n2 repairs it: start it",
    ]);
}

#[test]
fn handles_are_compared_with_addresses() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.64/26", "n2", &[(1, "net.a", "n2"), (2, "net.b", "n2")]);
    fixture.handles.pop();
    fixture.handle("net.orphan");
    fixture.expect(&[
        "missing IPAMHandle net.b: it does not exist, but addresses have it \
         -> the agent of n2 repairs it: start it",
        "stale IPAMHandle net.orphan: no address has it -> delete it",
    ]);
    // Nothing is said about handles that were not read.
    let network = Network::new("n1", &fixture.pools, &fixture.objects, None);
    assert_eq!(network::check(&network), []);
}

#[test]
fn blocks_outside_of_pools_and_invalid_objects_are_found() {
    let mut fixture = Fixture::new();
    let overlapping = PoolConf::new("q", cidr("10.6.0.0/24"));
    fixture.pools = Pools::new([PoolConf::new("p", cidr("10.6.0.0/16")), overlapping], &[]);
    fixture.block("10.9.0.0/26", "n1", &[]).block("10.9.0.64/26", "n2", &[(1, "net.a", "n2")]);
    fixture.objects.push(Stored {
        key: Key::Pool("bad".to_owned()),
        revision: Revision(1),
        content: Content::Malformed("cidr: no text".to_owned()),
    });
    fixture.expect(&[
        "outside 10.9.0.0/26: block of node n1 is in no pool; addresses in use: 0 -> give it back",
        "outside 10.9.0.64/26: block of node n2 is in no pool; addresses in use: 1 \
         -> create a pool that contains it, or delete its pods",
        "invalid IPPool bad: cidr: no text -> correct or delete the object",
        "invalid IPPool q: cidr 10.6.0.0/24 overlaps 10.6.0.0/16 of IPPool p \
         -> correct or delete the object",
    ]);
}

#[test]
fn pod_is_named_if_it_is_known() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.0/26", "n1", &[(1, "net.c1", "n1")]).assigned("10.6.0.1", "c1");
    let pod = Pod { namespace: "default".to_owned(), name: "web".to_owned() };
    fixture.entries[0].attachment.pod = Some(pod);
    fixture.running.clear();
    fixture.addresses.clear();
    fixture.pods.clear();
    assert!(fixture.findings()[0].reason.starts_with("pod default/web is gone"));
}

#[test]
fn only_findings_of_both_looks_are_confirmed() {
    let mut fixture = Fixture::new();
    fixture.block("10.6.0.64/26", "n2", &[(1, "net.a", "n2")]);
    fixture.handle("net.orphan");
    let first = fixture.findings();
    fixture.handle("net.new");
    let now = confirmed(&first, fixture.findings());
    assert_eq!(now.len(), 1);
    assert_eq!(now[0].object, "IPAMHandle net.orphan");
}
