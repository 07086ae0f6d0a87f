// SPDX-License-Identifier: Apache-2.0
//! Everything that ever was in etcd, as etcdctl prints it, checked without podwire's parsers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde_json::Value;
use testkit::{Daemon, EtcdServer, wait_for};

const BLOCKS: &str = "/calico/ipam/v2/assignment/ipv4/block/";
const AFFINITIES: &str = "/calico/ipam/v2/host/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// The last key of a recording.
const END: &str = "/calico/end";

/// A recording of all changes.
#[derive(Debug)]
pub(super) struct Recording {
    _watch: Daemon,
    state: State,
    /// Number of lines that were replayed.
    lines: usize,
    replays: usize,
}

const FILE: &str = "/run/lab/history";

impl Recording {
    pub(super) fn start(server: &EtcdServer) -> Recording {
        let words = format!("watch --prefix /calico/ --rev 1 --endpoints {}", server.endpoint());
        let script = format!("exec etcdctl {words} >{FILE}");
        let watch = Daemon::start("sh", &["-c", &script]);
        Recording { _watch: watch, state: State::default(), lines: 0, replays: 0 }
    }

    /// Replays all changes until now. Panics at the first state that is not allowed. Returns the last state.
    pub(super) fn replay(&mut self, server: &EtcdServer) -> &State {
        self.replays += 1;
        let number = self.replays.to_string();
        server.ctl(&["put", END, &number]);
        let mut text = String::new();
        wait_for("all changes", Duration::from_secs(60), || {
            text = fs::read_to_string(FILE).unwrap();
            text.contains(&format!("{END}\n{number}\n"))
        });
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let lines: Vec<&str> = complete.lines().skip(self.lines).collect();
        // etcdctl prints kind, key and value; an empty line in place of the value of a deleted key.
        for change in lines.chunks_exact(3) {
            self.lines += 3;
            self.state.apply(change[1], (change[0] == "PUT").then_some(change[2]));
        }
        &self.state
    }
}

/// An address in a block: its node and its handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub node: Option<String>,
    pub handle: Option<String>,
}

/// A block: its owner and its users by ordinal.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub owner: Option<String>,
    pub users: BTreeMap<u64, User>,
}

/// The content of etcd at one revision.
#[derive(Debug, Default)]
pub(super) struct State {
    pub nodes: BTreeSet<String>,
    pub blocks: BTreeMap<Ipv4Net, Block>,
    /// Node and block of confirmed and of other affinities.
    pub confirmed: BTreeSet<(Ipv4Net, String)>,
    pub unconfirmed: BTreeSet<(Ipv4Net, String)>,
    /// Blocks and numbers of addresses, by handle.
    pub handles: BTreeMap<String, BTreeMap<String, u64>>,
}

impl State {
    fn apply(&mut self, key: &str, value: Option<&str>) {
        let value = value.map(|text| serde_json::from_str(text).unwrap_or(Value::Null));
        if let Some(cidr) = key.strip_prefix(BLOCKS) {
            self.set_block(cidr, value.as_ref());
        } else if let Some(affinity) = key.strip_prefix(AFFINITIES) {
            self.set_affinity(affinity, value.as_ref());
        } else if let Some(handle) = key.strip_prefix(HANDLES) {
            match value {
                Some(value) => {
                    let blocks = value["block"].as_object().expect("blocks of a handle").iter();
                    let blocks = blocks.map(|(cidr, n)| (cidr.clone(), n.as_u64().unwrap()));
                    self.handles.insert(handle.to_owned(), blocks.collect());
                }
                None => drop(self.handles.remove(handle)),
            }
        } else if let Some(node) = key.strip_prefix(NODES) {
            match value {
                Some(_) => drop(self.nodes.insert(node.to_owned())),
                None => drop(self.nodes.remove(node)),
            }
        }
    }

    fn set_block(&mut self, cidr: &str, value: Option<&Value>) {
        let cidr: Ipv4Net = cidr.replace('-', "/").parse().unwrap();
        let before = self.blocks.remove(&cidr).unwrap_or_default();
        let Some(value) = value else {
            self.check_transfer(cidr, &before, &Block::default());
            return;
        };
        let block = parse(cidr, value);
        self.check_transfer(cidr, &before, &block);
        if let Some(other) = self.blocks.keys().find(|o| o.contains(&cidr) || cidr.contains(*o)) {
            panic!("block {cidr} overlaps {other}");
        }
        self.blocks.insert(cidr, block);
        self.check_affinity(cidr);
    }

    /// A node takes nothing from another node, as long as that one exists.
    fn check_transfer(&self, cidr: Ipv4Net, before: &Block, after: &Block) {
        let exists = |node: &Option<String>| {
            node.as_ref().filter(|node| self.nodes.contains(*node)).cloned()
        };
        if let (Some(old), Some(new)) = (exists(&before.owner), &after.owner) {
            assert_eq!(&old, new, "{cidr} was taken from its owner");
        }
        for (ordinal, user) in &before.users {
            let Some(old) = exists(&user.node) else { continue };
            if let Some(new) = after.users.get(ordinal).and_then(|user| user.node.as_ref()) {
                assert_eq!(&old, new, "address {ordinal} of {cidr} was taken from {user:?}");
            }
        }
    }

    fn set_affinity(&mut self, key: &str, value: Option<&Value>) {
        let (node, cidr) = key.split_once("/ipv4/block/").expect("the key of an affinity");
        let cidr: Ipv4Net = cidr.replace('-', "/").parse().unwrap();
        let affinity = (cidr, node.to_owned());
        self.confirmed.remove(&affinity);
        self.unconfirmed.remove(&affinity);
        match value.map(|value| value["state"] == "confirmed") {
            Some(true) => drop(self.confirmed.insert(affinity)),
            Some(false) => drop(self.unconfirmed.insert(affinity)),
            None => {}
        }
        self.check_affinity(cidr);
    }

    /// At most one node that exists has confirmed that it owns a block.
    fn check_affinity(&self, cidr: Ipv4Net) {
        let owners = self.confirmed.iter().filter(|(other, _)| *other == cidr);
        let owners: Vec<_> = owners.filter(|(_, node)| self.nodes.contains(node)).collect();
        assert!(owners.len() <= 1, "{owners:?} have one block");
    }
}

/// Parses a block, and checks that each address is either free or has one user.
fn parse(cidr: Ipv4Net, value: &Value) -> Block {
    assert_eq!(value["cidr"], cidr.to_string());
    let size = 1_u64 << (32 - cidr.prefix_len());
    let allocations = value["allocations"].as_array().expect("allocations");
    assert_eq!(allocations.len() as u64, size, "{value}");
    let attributes = value["attributes"].as_array().expect("attributes");
    let free = value["unallocated"].as_array().expect("unallocated").iter();
    let free: Vec<u64> = free.map(|ordinal| ordinal.as_u64().unwrap()).collect();
    let mut block = Block::default();
    let owner = value["affinity"].as_str();
    block.owner = owner.map(|owner| owner.strip_prefix("host:").unwrap().to_owned());
    for (ordinal, index) in (0..size).zip(allocations) {
        let times = free.iter().filter(|other| **other == ordinal).count();
        let Some(index) = index.as_u64() else {
            assert_eq!(times, 1, "{ordinal} is not allocated and not free: {value}");
            continue;
        };
        assert_eq!(times, 0, "{ordinal} is allocated and free: {value}");
        let attribute = &attributes[usize::try_from(index).unwrap()];
        let handle = attribute["handle_id"].as_str().map(str::to_owned);
        let reserve = handle.as_deref().and_then(|h| h.strip_prefix("podwire-reserved-"));
        let node = attribute["secondary"]["node"].as_str().or(reserve).map(str::to_owned);
        block.users.insert(ordinal, User { node, handle });
    }
    block
}
