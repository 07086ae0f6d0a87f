// SPDX-License-Identifier: Apache-2.0
//! One address pool: its configuration, the rules for it, and its blocks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use selector::Selector;

use crate::calico::Preserved;
use crate::range::bits;
use crate::{Timestamp, cidr};

/// A pool as written.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConf {
    pub name: String,
    pub cidr: IpNet,
    /// Prefix length of the blocks.
    pub block_size: Option<u8>,
    pub ipip: Mode,
    pub vxlan: Mode,
    /// Traffic to destinations outside of all pools is masqueraded.
    pub nat_outgoing: bool,
    /// No new addresses are assigned. Existing ones stay.
    pub disabled: bool,
    pub disable_bgp_export: bool,
    /// Empty selects all nodes.
    pub node_selector: String,
    /// Empty selects all namespaces.
    pub namespace_selector: String,
    /// Empty stands for workloads and tunnels.
    pub allowed_uses: Vec<Use>,
    pub assignment: Assignment,
    /// If two pools overlap, the older one is valid.
    pub created: Option<Timestamp>,
    pub preserved: Preserved,
}

/// When packets to addresses of the pool are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Never,
    Always,
    /// Only if the other node is in another subnet.
    CrossSubnet,
}

/// Purpose of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Workload,
    Tunnel,
    LoadBalancer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Assignment {
    #[default]
    Automatic,
    /// Only for requests that name the pool or an address.
    Manual,
}

/// How packets to addresses of a pool reach other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    None,
    Ipip { cross_subnet: bool },
    Vxlan { cross_subnet: bool },
}

/// A valid pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    conf: PoolConf,
    block_size: u8,
    node_selector: Selector,
    namespace_selector: Selector,
}

/// Rule that a pool breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("cidr {cidr} has host bits set; expected {network}")]
    HostBits { cidr: IpNet, network: IpNet },
    #[error("cidr {0} overlaps link-local addresses")]
    LinkLocal(IpNet),
    #[error("blockSize {size} is out of range; {min} to {max} are allowed")]
    BlockSize { size: u8, min: u8, max: u8 },
    #[error("cidr {cidr} is smaller than a block; blockSize is {size}")]
    SmallerThanBlock { cidr: IpNet, size: u8 },
    #[error("ipipMode and vxlanMode are both enabled; one of them must be Never")]
    TwoEncapsulations,
    #[error("ipipMode is enabled for IPv6 addresses {0}; it must be Never")]
    IpipWithIpv6(IpNet),
    #[error("{field} {text:?}: {source}")]
    Selector { field: &'static str, text: String, source: selector::ParseError },
    #[error("{0} contains global(), which has no meaning for pools")]
    GlobalSelector(&'static str),
    #[error("allowedUses LoadBalancer cannot be combined with other uses or with encapsulation")]
    LoadBalancer,
    #[error("allowedUses contains Tunnel, so namespaceSelector must be empty")]
    TunnelWithNamespace,
    #[error("cidr {cidr} overlaps {other_cidr} of IPPool {other}")]
    Overlap { cidr: IpNet, other: String, other_cidr: IpNet },
    #[error("cidr {cidr} contains {address}, which is an address of this node")]
    NodeAddress { cidr: IpNet, address: IpAddr },
}

impl PoolConf {
    /// Creates a configuration with Calico's defaults.
    pub fn new(name: &str, cidr: IpNet) -> Self {
        Self {
            name: name.to_owned(),
            cidr,
            block_size: None,
            ipip: Mode::Never,
            vxlan: Mode::Never,
            nat_outgoing: false,
            disabled: false,
            disable_bgp_export: false,
            node_selector: String::new(),
            namespace_selector: String::new(),
            allowed_uses: Vec::new(),
            assignment: Assignment::Automatic,
            created: None,
            preserved: Preserved::default(),
        }
    }

    pub(crate) fn block_size_or_default(&self) -> u8 {
        self.block_size.unwrap_or(match self.cidr {
            IpNet::V4(_) => 26,
            IpNet::V6(_) => 122,
        })
    }

    pub(crate) fn uses(&self) -> &[Use] {
        match self.allowed_uses.as_slice() {
            [] => &[Use::Workload, Use::Tunnel],
            uses => uses,
        }
    }

    fn check(&self) -> Result<(), PoolError> {
        let (cidr, network) = (self.cidr, self.cidr.trunc());
        if cidr != network {
            return Err(PoolError::HostBits { cidr, network });
        }
        if LINK_LOCAL.iter().any(|range| cidr::overlap(cidr, *range)) {
            return Err(PoolError::LinkLocal(cidr));
        }
        let size = self.block_size_or_default();
        let (min, max) = match cidr {
            IpNet::V4(_) => (20, 32),
            IpNet::V6(_) => (116, 128),
        };
        if !(min..=max).contains(&size) {
            return Err(PoolError::BlockSize { size, min, max });
        }
        // As in Calico: a disabled pool may be smaller, because other IPAM plugins may use it.
        if cidr.prefix_len() > size && !self.disabled {
            return Err(PoolError::SmallerThanBlock { cidr, size });
        }
        let (ipip, vxlan) = (self.ipip != Mode::Never, self.vxlan != Mode::Never);
        if ipip && vxlan {
            return Err(PoolError::TwoEncapsulations);
        }
        if ipip && matches!(cidr, IpNet::V6(_)) {
            return Err(PoolError::IpipWithIpv6(cidr));
        }
        let uses = self.uses();
        if uses.contains(&Use::LoadBalancer) && (uses.len() > 1 || ipip || vxlan) {
            return Err(PoolError::LoadBalancer);
        }
        // Without an explicit list the pool is for workloads only if it selects namespaces.
        if self.allowed_uses.contains(&Use::Tunnel) && !self.namespace_selector.is_empty() {
            return Err(PoolError::TunnelWithNamespace);
        }
        Ok(())
    }
}

const LINK_LOCAL: [IpNet; 2] =
    [cidr::v4([169, 254, 0, 0], 16), cidr::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)];

impl Pool {
    /// Applies the defaults and checks the rules that concern this pool alone.
    pub fn new(conf: PoolConf) -> Result<Self, PoolError> {
        conf.check()?;
        Ok(Self {
            block_size: conf.block_size_or_default(),
            node_selector: parse_selector("nodeSelector", &conf.node_selector)?,
            namespace_selector: parse_selector("namespaceSelector", &conf.namespace_selector)?,
            conf,
        })
    }

    pub fn name(&self) -> &str {
        &self.conf.name
    }

    pub fn cidr(&self) -> IpNet {
        self.conf.cidr
    }

    pub fn conf(&self) -> &PoolConf {
        &self.conf
    }

    /// Returns the prefix length of the pool's blocks.
    pub fn block_size(&self) -> u8 {
        self.block_size
    }

    pub fn is_ipv6(&self) -> bool {
        matches!(self.conf.cidr, IpNet::V6(_))
    }

    pub fn encapsulation(&self) -> Encapsulation {
        let cross_subnet = |mode| mode == Mode::CrossSubnet;
        match (self.conf.ipip, self.conf.vxlan) {
            (Mode::Never, Mode::Never) => Encapsulation::None,
            (Mode::Never, vxlan) => Encapsulation::Vxlan { cross_subnet: cross_subnet(vxlan) },
            (ipip, _) => Encapsulation::Ipip { cross_subnet: cross_subnet(ipip) },
        }
    }

    /// Returns whether the pool may be used for this purpose if a request names it.
    pub fn allows(&self, purpose: Use) -> bool {
        !self.conf.disabled && self.conf.uses().contains(&purpose)
    }

    /// Returns whether the pool assigns addresses on this node to requests that do not name it.
    pub fn is_eligible(&self, purpose: Use, labels: &Labels<'_>) -> bool {
        self.allows(purpose)
            && self.conf.assignment == Assignment::Automatic
            && self.node_selector.matches(labels.node)
            && self.namespace_selector.matches(labels.namespace)
    }

    /// Returns the block that contains an address of the pool.
    pub fn block_of(&self, address: IpAddr) -> IpNet {
        cidr::block(address, self.block_size)
    }

    /// Returns all blocks, starting with a block that depends on the node: nodes that claim at the same time start
    /// at different places. Calico does the same with its own random numbers.
    pub fn blocks_from(&self, node: &str) -> impl Iterator<Item = IpNet> + use<> {
        let base = self.conf.cidr.network();
        let max = self.conf.cidr.max_prefix_len();
        let (size, shift) = (self.block_size, u32::from(max - self.block_size));
        // There are at most 2^128 / 2^12 blocks.
        let count = 1_u128 << (self.block_size.saturating_sub(self.conf.cidr.prefix_len()));
        let start = u128::from(fnv1(node)) % count;
        (0..count).map(move |i| {
            let index = (start + i) % count;
            cidr::block(cidr::address(base, bits(base) + (index << shift)), size)
        })
    }
}

/// Labels that decide whether a pool is eligible.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    pub node: &'a BTreeMap<String, String>,
    /// Labels of the pod's namespace. Empty if there is none, or it is unknown.
    pub namespace: &'a BTreeMap<String, String>,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "Never",
            Self::Always => "Always",
            Self::CrossSubnet => "CrossSubnet",
        }
    }
}

impl Use {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::Tunnel => "Tunnel",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

fn parse_selector(field: &'static str, text: &str) -> Result<Selector, PoolError> {
    if text.contains("global(") {
        return Err(PoolError::GlobalSelector(field));
    }
    Selector::parse(text).map_err(|source| PoolError::Selector {
        field,
        text: text.to_owned(),
        source,
    })
}

/// The hash FNV-1 of 32 bits, with which Calico seeds its choice of blocks.
fn fnv1(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(cidr: &str) -> PoolConf {
        PoolConf::new("p", cidr.parse().unwrap())
    }

    fn check(conf: PoolConf, expected: &str) {
        let actual = match Pool::new(conf) {
            Ok(pool) => format!("/{}", pool.block_size()),
            Err(e) => e.to_string(),
        };
        assert_eq!(actual, expected);
    }

    #[test]
    fn pool_has_calicos_defaults() {
        check(conf("10.0.0.0/16"), "/26");
        check(conf("fd00::/64"), "/122");
        let pool = Pool::new(conf("10.0.0.0/16")).unwrap();
        assert!(pool.allows(Use::Workload) && pool.allows(Use::Tunnel));
        assert!(!pool.allows(Use::LoadBalancer));
        assert_eq!(pool.encapsulation(), Encapsulation::None);
    }

    #[test]
    fn invalid_pool_error_names_field_and_rule() {
        let sized = |cidr, size| PoolConf { block_size: Some(size), ..conf(cidr) };
        check(conf("10.0.0.1/16"), "cidr 10.0.0.1/16 has host bits set; expected 10.0.0.0/16");
        check(sized("10.0.0.0/16", 19), "blockSize 19 is out of range; 20 to 32 are allowed");
        check(sized("10.0.0.0/16", 33), "blockSize 33 is out of range; 20 to 32 are allowed");
        check(sized("fd00::/64", 115), "blockSize 115 is out of range; 116 to 128 are allowed");
        check(sized("10.0.0.0/16", 20), "/20");
        check(sized("10.0.0.0/32", 32), "/32");
        check(conf("10.0.0.0/27"), "cidr 10.0.0.0/27 is smaller than a block; blockSize is 26");
        check(PoolConf { disabled: true, ..conf("10.0.0.0/27") }, "/26");
        check(conf("169.254.7.0/24"), "cidr 169.254.7.0/24 overlaps link-local addresses");
        check(conf("::/0"), "cidr ::/0 overlaps link-local addresses");
        let both = PoolConf { ipip: Mode::Always, vxlan: Mode::CrossSubnet, ..conf("10.0.0.0/16") };
        check(both, "ipipMode and vxlanMode are both enabled; one of them must be Never");
        let ipip = PoolConf { ipip: Mode::Always, ..conf("fd00::/64") };
        check(ipip, "ipipMode is enabled for IPv6 addresses fd00::/64; it must be Never");
        let selector = PoolConf { node_selector: "a =".to_owned(), ..conf("10.0.0.0/16") };
        check(selector, "nodeSelector \"a =\": at position 2: expected ==, found \"=\"");
        let global = PoolConf { namespace_selector: "global()".to_owned(), ..conf("10.0.0.0/16") };
        check(global, "namespaceSelector contains global(), which has no meaning for pools");
        let uses =
            PoolConf { allowed_uses: vec![Use::LoadBalancer, Use::Tunnel], ..conf("10.0.0.0/16") };
        check(
            uses,
            "allowedUses LoadBalancer cannot be combined with other uses or with encapsulation",
        );
    }

    #[test]
    fn eligibility_depends_on_labels_mode_and_use() {
        let labels = |name: &str| BTreeMap::from([("zone".to_owned(), name.to_owned())]);
        let (a, b) = (labels("a"), labels("b"));
        let in_a = "zone == 'a'".to_owned();
        let eligible = |conf, purpose, node, namespace| {
            Pool::new(conf).unwrap().is_eligible(purpose, &Labels { node, namespace })
        };
        let base = conf("10.0.0.0/16");
        assert!(eligible(base.clone(), Use::Workload, &a, &a));
        assert!(!eligible(base.clone(), Use::LoadBalancer, &a, &a));
        assert!(!eligible(PoolConf { disabled: true, ..base.clone() }, Use::Workload, &a, &a));
        let manual = PoolConf { assignment: Assignment::Manual, ..base.clone() };
        assert!(!eligible(manual.clone(), Use::Workload, &a, &a));
        assert!(Pool::new(manual).unwrap().allows(Use::Workload));
        let node = PoolConf { node_selector: in_a.clone(), ..base.clone() };
        assert!(eligible(node.clone(), Use::Workload, &a, &b));
        assert!(!eligible(node, Use::Workload, &b, &a));
        let namespace = PoolConf { namespace_selector: in_a, ..base };
        assert!(eligible(namespace.clone(), Use::Workload, &b, &a));
        assert!(!eligible(namespace, Use::Workload, &a, &b));
    }

    #[test]
    fn blocks_start_at_a_place_that_depends_on_the_node() {
        let pool = Pool::new(PoolConf { block_size: Some(26), ..conf("10.0.0.0/24") }).unwrap();
        let blocks = |node: &str| pool.blocks_from(node).map(|b| b.to_string()).collect::<Vec<_>>();
        let mut sorted = blocks("node1");
        assert_eq!(sorted.len(), 4);
        sorted.sort();
        assert_eq!(sorted, ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26", "10.0.0.64/26"]);
        let starts: std::collections::BTreeSet<_> =
            (0..20).map(|i| blocks(&format!("node{i}"))[0].clone()).collect();
        assert_eq!(starts.len(), 4);
        // FNV-1 of "foobar", from the authors' test vectors.
        assert_eq!(fnv1("foobar"), 0x31f0_b262);
        let huge = Pool::new(conf("2001:db8::/32")).unwrap();
        assert!(huge.blocks_from("node1").take(3).all(|b| huge.cidr().contains(&b)));
    }
}
