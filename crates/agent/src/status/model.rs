// SPDX-License-Identifier: Apache-2.0
//! The status as JSON: the page `/status`, which `podwire status` and other programs read. Field names never change, so
//! some differ from the names in this file. New fields may be added.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tunnel::{Counts, Dropped, Flow};

use crate::multicast::{Counters, DropReason};

/// The whole status of an agent and its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(flatten)]
    pub agent: AgentInfo,
    /// Whether pods can be attached and can reach each other.
    pub ready: bool,
    /// Whether the agent itself works. If it does not, a restart may help.
    pub healthy: bool,
    /// Why the node is not ready or the agent is not healthy.
    pub reasons: Vec<String>,
    /// Problems that do not affect readiness.
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub membership: MembershipStatus,
    pub store: StoreStatus,
    #[serde(flatten)]
    pub peers: PeersStatus,
    #[serde(flatten)]
    pub kernel: KernelStatus,
    /// `None` if multicast is not forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastStatus>,
    /// The conditions that are not fulfilled.
    pub problems: BTreeMap<ConditionKind, Problem>,
    /// The agent's controllers by name.
    #[serde(default)]
    pub controllers: BTreeMap<String, ControllerStatus>,
}

/// Which agent this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentInfo {
    /// Version of the program.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// When the agent started.
    pub started: Time,
}

/// The node's membership in the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MembershipStatus {
    /// The network that the node has joined.
    #[serde(rename = "session")]
    pub network: Option<NetworkStatus>,
    /// Expiry of the lease unless it is renewed. `None` if there is no lease, or it does not expire.
    pub lease_until: Option<Time>,
    /// How far the agent has followed the changes in the store.
    pub watch: Option<WatchStatus>,
}

/// A controller of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// Number of restarts after failures.
    pub restarts: u64,
    /// Why the controller does not run. `None` while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Multicast and broadcast packets that were forwarded between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MulticastStatus {
    /// Groups that pods of this node have joined.
    pub groups: u64,
    /// Packets of local pods that were forwarded to other nodes.
    pub carried: u64,
    /// Copies of these packets that were sent, one for each receiving node.
    pub sent: u64,
    /// Packets of other nodes that were delivered to local pods.
    pub delivered: u64,
    /// Packets that were dropped, by reason.
    #[serde(rename = "lost")]
    pub dropped: BTreeMap<String, u64>,
}

impl MulticastStatus {
    pub(super) fn of(counts: &Counters) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped =
            DropReason::ALL.map(|reason| (reason.name().to_owned(), counts.dropped(reason)));
        Self {
            groups: read(&counts.groups),
            carried: read(&counts.carried),
            sent: read(&counts.sent),
            delivered: read(&counts.delivered),
            dropped: dropped.into(),
        }
    }
}

/// A network with this node's part in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Owner tag of the agent's kernel objects.
    #[serde(rename = "mark")]
    pub owner: String,
    /// The address ranges of all nodes.
    pub networks: Vec<IpNet>,
    pub backend: String,
    pub pod_mtu: u32,
    pub lease: LeaseStatus,
    pub underlay: UnderlayStatus,
}

/// This node's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseStatus {
    pub subnets: Vec<IpNet>,
    /// Addresses at which other nodes reach this node.
    pub public: Vec<IpAddr>,
}

/// The interface to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderlayStatus {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub mtu: u32,
}

/// The store that the nodes share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// `embedded`, `etcd` or `kubernetes`.
    pub kind: String,
    /// `None` until the first request has succeeded or failed.
    pub reachable: Option<bool>,
    /// When `reachable` last changed.
    pub since: Time,
}

/// How far the agent has followed the changes in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchStatus {
    /// The last revision that the agent has processed.
    pub revision: u64,
    /// Number of later revisions that the store has announced.
    pub behind: u64,
}

/// The other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeersStatus {
    #[serde(rename = "peerCounts")]
    pub counts: PeerCounts,
    /// Sorted by name.
    #[serde(rename = "peers")]
    pub list: Vec<PeerStatus>,
    /// Rejected peers and subnets, at most the first few of `rejected_total`.
    #[serde(rename = "refused")]
    pub rejected: Vec<RejectedPeerStatus>,
    #[serde(default, rename = "refusedTotal")]
    pub rejected_total: usize,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerStatus {
    /// Key of the lease in the store, or name of the Kubernetes node.
    pub name: String,
    pub subnets: Vec<IpNet>,
    /// Addresses at which other nodes reach the peer.
    pub public: Vec<IpAddr>,
    pub backend: String,
    #[serde(rename = "way")]
    pub route: RouteMode,
    #[serde(flatten)]
    pub path: PathStatus,
}

/// How packets reach a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RouteMode {
    /// By a route over a link that both nodes are on.
    Direct,
    Tunnel,
    /// The agent sets no route.
    None,
    /// The lease is invalid or conflicts with another one, so the agent sets no route.
    #[serde(rename = "refused")]
    Rejected,
}

impl RouteMode {
    pub fn name(self) -> &'static str {
        match self {
            RouteMode::Direct => "direct",
            RouteMode::Tunnel => "tunnel",
            RouteMode::None => "none",
            RouteMode::Rejected => "refused",
        }
    }
}

/// Results of the path check for a peer. Empty if the path is not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// Size of the largest packet that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// When the peer last answered a probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Number of peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerCounts {
    pub total: usize,
    pub direct: usize,
    pub tunnel: usize,
    #[serde(default, rename = "refused")]
    pub rejected: usize,
    pub with_problem: usize,
}

/// A peer, or a subnet of a peer, to which the agent sends no packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedPeerStatus {
    pub peer: String,
    /// `None` if all subnets of the peer are rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<IpNet>,
    pub reason: String,
}

/// The kernel state that the agent maintains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    /// Conflicting objects of other programs, at most the first few of `conflicts_total`.
    pub conflicts: Vec<String>,
    #[serde(default)]
    pub conflicts_total: usize,
    pub repairs: Repairs,
    /// The last full comparison with the kernel.
    #[serde(rename = "compare")]
    pub comparison: Option<Comparison>,
    /// Packets of the udp backend; `None` for other backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpStatus>,
}

/// Packets of the udp backend, which pass through the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UdpStatus {
    /// From pods to other nodes.
    pub sent: UdpFlow,
    /// From other nodes to pods.
    pub received: UdpFlow,
    /// Packets that were dropped, by reason.
    #[serde(rename = "lost")]
    pub dropped: BTreeMap<String, u64>,
}

/// Packets and bytes in one direction, as on the wire without the outer UDP and IP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UdpFlow {
    pub packets: u64,
    pub bytes: u64,
}

impl UdpStatus {
    pub(super) fn of(counts: &Counts) -> Self {
        let flow = |flow: &Flow| UdpFlow { packets: flow.packets, bytes: flow.bytes };
        let Dropped { no_route, multicast, expired, malformed, not_sent, not_taken } =
            counts.dropped;
        let dropped = [
            ("noroute", no_route),
            ("multicast", multicast),
            ("expired", expired),
            ("malformed", malformed),
            ("notsent", not_sent),
            ("nottaken", not_taken),
        ];
        Self {
            sent: flow(&counts.sent),
            received: flow(&counts.received),
            dropped: dropped.map(|(reason, count)| (reason.to_owned(), count)).into(),
        }
    }
}

/// Repairs of kernel state and files that other programs changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repairs {
    /// Number of repairs of each kind.
    pub counts: BTreeMap<RepairKind, u64>,
    /// The last repairs, oldest first.
    pub last: Vec<Repair>,
}

/// One repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub kind: RepairKind,
    /// The change that the agent made.
    pub text: String,
    pub at: Time,
}

/// The kind of object that was repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairKind {
    Device,
    Address,
    Neighbour,
    /// An entry of a device's forwarding database.
    Forwarding,
    Nexthop,
    Route,
    /// A WireGuard peer.
    Peer,
    /// Rules of nf_tables.
    Rules,
    /// A route's MTU or a device's checksum offload, changed because of a path check.
    Path,
    /// A managed file.
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

/// A full comparison of the desired state with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// When the comparison ended.
    pub at: Time,
    pub seconds: f64,
    /// Number of changes that the comparison made.
    pub changes: usize,
}

/// A condition that a part of the agent reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConditionKind {
    /// The store answers.
    Store,
    /// The node holds a lease.
    Lease,
    /// The node has an interface to other nodes.
    Underlay,
    /// Devices, addresses, routes and neighbours are as desired.
    Kernel,
    /// The rules of nf_tables and the forwarding sysctls are as desired.
    Rules,
    /// The kernel reports changes to the agent.
    Watch,
    /// Reserved. Problems of paths are reported per peer, see [`PathStatus`].
    Path,
    /// The stored network configuration is in effect.
    Config,
    /// The managed files have the desired content.
    Files,
    /// The pods' bridge has only addresses of the node's subnets.
    Bridge,
    /// The command that the backend `extension` runs after the start has succeeded.
    Extension,
    /// There are address pools, and all of them are valid. Only with routed pods.
    Pools,
}

impl ConditionKind {
    pub const ALL: [ConditionKind; 12] = [
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
        ConditionKind::Pools,
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
            ConditionKind::Pools => "pools",
        }
    }
}

/// Why a condition is not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub text: String,
    /// When the condition failed. A later text does not change it.
    pub since: Time,
}

/// A wall-clock time, in JSON such as `2026-11-16T07:00:00.123Z`. Only for display, because the clock may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub SystemTime);

impl Time {
    pub fn now() -> Time {
        Time(SystemTime::now())
    }

    /// Returns the seconds since 1970.
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
            de::Error::custom(format_args!(
                "invalid time {text:?}, expected one such as {}: {cause}",
                Time::now()
            ))
        })
    }
}
