// SPDX-License-Identifier: Apache-2.0
//! What an agent shows of itself: the JSON of `/status`, which `podwire status` and other programs
//! read. Names of fields stay; new ones may come.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::multicast::{Counters, DropReason};

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// This node's name.
    pub node: String,
    /// When the agent was started.
    pub started: Time,
    /// Whether pods can be connected and reach each other.
    pub ready: bool,
    /// Whether the agent itself works; if not, it should be started again.
    pub healthy: bool,
    /// Why it is not ready or not healthy.
    pub reasons: Vec<String>,
    /// What is wrong and does not make the node unfit.
    pub warnings: Vec<String>,
    /// The network as it is; none before the first lease.
    pub session: Option<Session>,
    /// When the lease ends unless it is renewed; none where it does not.
    pub lease_until: Option<Time>,
    /// Where nodes learn of each other.
    pub store: Store,
    /// How far the news of other nodes have come.
    pub watch: Option<Watch>,
    /// How many peers there are.
    pub peer_counts: PeerCounts,
    /// By name.
    pub peers: Vec<Peer>,
    /// Peers, or subnets of theirs, that are not served.
    /// The first of them, see `refused_total`.
    pub refused: Vec<Refused>,
    /// How many peers, or subnets of theirs, are not served.
    #[serde(default)]
    pub refused_total: usize,
    /// Things of others that are in the way, and stay.
    /// The first of them, see `conflicts_total`.
    pub conflicts: Vec<String>,
    #[serde(default)]
    pub conflicts_total: usize,
    /// What others broke and the agent put right.
    pub repairs: Repairs,
    /// The last full comparison with the kernel.
    pub compare: Option<Compare>,
    /// What of multicast was carried; none where it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<Multicast>,
    /// What is wrong, by part.
    pub problems: BTreeMap<ConditionKind, Problem>,
    /// The agent's controllers by name.
    #[serde(default)]
    pub controllers: BTreeMap<String, ControllerStatus>,
}

/// A controller of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// How often it was restarted after a failure.
    pub restarts: u64,
    /// Why it does not run; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// What of multicast and broadcast was carried between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Multicast {
    /// Groups that this node's pods are in.
    pub groups: u64,
    /// Packets of its pods that were carried to other nodes.
    pub carried: u64,
    /// Copies of them, one for each node.
    pub sent: u64,
    /// Packets of other nodes' pods that were given to its own.
    pub delivered: u64,
    /// Packets that were not carried, by reason.
    pub lost: BTreeMap<String, u64>,
}

impl Multicast {
    pub(super) fn of(counts: &Counters) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lost = DropReason::ALL.map(|why| (why.name().to_owned(), counts.dropped(why)));
        Self {
            groups: read(&counts.groups),
            carried: read(&counts.carried),
            sent: read(&counts.sent),
            delivered: read(&counts.delivered),
            lost: lost.into(),
        }
    }
}

/// One network configuration, one underlay, one lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The mark that the agent's devices bear.
    pub mark: String,
    /// The whole network.
    pub networks: Vec<IpNet>,
    pub backend: String,
    /// What pods may send at once.
    pub pod_mtu: u32,
    pub lease: Lease,
    pub underlay: Underlay,
}

/// What this node has of the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub subnets: Vec<IpNet>,
    /// Where others reach it.
    pub public: Vec<IpAddr>,
}

/// The interface to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Underlay {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub mtu: u32,
}

/// Where nodes learn of each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// `embedded`, `etcd` or `kubernetes`.
    pub kind: String,
    /// None before it has answered, or failed to.
    pub reachable: Option<bool>,
    /// Since when it is so.
    pub since: Time,
}

/// How far the news of other nodes have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    /// All that the store had at this revision is known.
    pub revision: u64,
    /// How many revisions the store is ahead, as far as it has told.
    pub behind: u64,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its key in the store, or the node's name.
    pub name: String,
    pub subnets: Vec<IpNet>,
    pub public: Vec<IpAddr>,
    pub backend: String,
    pub way: Way,
    #[serde(flatten)]
    pub path: Path,
}

/// How packets go to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// By a route over the link that both are on.
    Direct,
    Tunnel,
    /// The agent does not carry them.
    None,
    /// They go nowhere: what the peer says of itself cannot be right, or is in another's way.
    Refused,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Tunnel => "tunnel",
            Way::None => "none",
            Way::Refused => "refused",
        }
    }
}

/// What is known of the way to a peer by trying it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Path {
    /// The largest packet that pods can send there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// When it was heard of through the network itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How many peers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerCounts {
    pub total: usize,
    pub direct: usize,
    pub tunnel: usize,
    #[serde(default)]
    pub refused: usize,
    pub with_problem: usize,
}

/// A peer, or a subnet of it, that is not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    pub peer: String,
    /// None where it is about all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<IpNet>,
    pub reason: String,
}

/// What others broke and the agent put right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repairs {
    /// How often, by kind; each kind is there.
    pub counts: BTreeMap<RepairKind, u64>,
    /// The last ones, the oldest first.
    pub last: Vec<Repair>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub kind: RepairKind,
    /// What was done.
    pub text: String,
    pub at: Time,
}

/// What was repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairKind {
    Device,
    Address,
    /// Which hardware address an address on a tunnel has.
    Neighbour,
    /// Behind which node a hardware address is.
    Forwarding,
    Nexthop,
    Route,
    /// Of WireGuard.
    Peer,
    /// Of nf_tables.
    Rules,
    /// An MTU or an offload that the way to a peer did not stand.
    Path,
    /// That plugins and commands look for.
    File,
}

impl RepairKind {
    pub const ALL: [RepairKind; 10] = [
        RepairKind::Device,
        RepairKind::Address,
        RepairKind::Neighbour,
        RepairKind::Forwarding,
        RepairKind::Nexthop,
        RepairKind::Route,
        RepairKind::Peer,
        RepairKind::Rules,
        RepairKind::Path,
        RepairKind::File,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RepairKind::Device => "device",
            RepairKind::Address => "address",
            RepairKind::Neighbour => "neighbour",
            RepairKind::Forwarding => "forwarding",
            RepairKind::Nexthop => "nexthop",
            RepairKind::Route => "route",
            RepairKind::Peer => "peer",
            RepairKind::Rules => "rules",
            RepairKind::Path => "path",
            RepairKind::File => "file",
        }
    }
}

/// A full comparison with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Compare {
    pub at: Time,
    pub seconds: f64,
    /// What had to be changed.
    pub changes: usize,
}

/// Of the agent's work, what can go wrong by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConditionKind {
    /// It cannot be reached.
    Store,
    /// There is none, it was lost, or it cannot be renewed.
    Lease,
    /// No interface to other nodes, or not the right one.
    Underlay,
    /// Devices, addresses, routes and the like cannot be made as they should be.
    Kernel,
    /// Nor can those of nf_tables.
    Rules,
    /// The news of other nodes do not come.
    Watch,
    /// The way to peers is not as it should be.
    Path,
    /// The network's configuration is missing or wrong.
    Config,
    /// A file for plugins cannot be written.
    Files,
    /// The pods' bridge is one of another subnet.
    Bridge,
    /// The command that the backend `extension` runs after the start has failed.
    Extension,
}

impl ConditionKind {
    pub const ALL: [ConditionKind; 11] = [
        ConditionKind::Store,
        ConditionKind::Lease,
        ConditionKind::Underlay,
        ConditionKind::Kernel,
        ConditionKind::Rules,
        ConditionKind::Watch,
        ConditionKind::Path,
        ConditionKind::Config,
        ConditionKind::Files,
        ConditionKind::Bridge,
        ConditionKind::Extension,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ConditionKind::Store => "store",
            ConditionKind::Lease => "lease",
            ConditionKind::Underlay => "underlay",
            ConditionKind::Kernel => "kernel",
            ConditionKind::Rules => "rules",
            ConditionKind::Watch => "watch",
            ConditionKind::Path => "path",
            ConditionKind::Config => "config",
            ConditionKind::Files => "files",
            ConditionKind::Bridge => "bridge",
            ConditionKind::Extension => "extension",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub text: String,
    pub since: Time,
}

/// A time of the day, in JSON such as `2026-11-16T07:00:00.123Z`. Only to be shown: clocks are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub SystemTime);

impl Time {
    pub fn now() -> Time {
        Time(SystemTime::now())
    }

    /// In seconds since 1970.
    pub fn unix(self) -> f64 {
        self.0.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(self.0).fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Time).map_err(|cause| {
            de::Error::custom(format_args!("{text:?} is no time such as {}: {cause}", Time::now()))
        })
    }
}
