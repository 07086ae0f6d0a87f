// SPDX-License-Identifier: Apache-2.0
//! Desired nf_tables rules of a network. Pure.
//!
//! Masquerading has the semantics of flannel's iptables rules. Pods of the network see each other's
//! addresses, and a pod of this node sees the address of a client outside. Two kinds of packets get
//! this node's address, so that the answers come back through it: those that leave the network, and
//! those from outside that this node routes to pods of other nodes.

use std::fmt;

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::{DataType, Expr, MetaKey, Op, Range, Reg, Verdict};

use crate::settings::Masquerade;

/// Bit of the packet mark that kube-proxy sets on packets that it masquerades itself. Its own rule
/// clears the bit, so packets with the bit must not be masqueraded before.
const KUBE_PROXY_MARK: u32 = 0x4000;

/// Multicast and broadcast. They are not masqueraded: the answer has another source address than the request had
/// as destination, so connection tracking would not translate it back.
const MULTICAST_AND_BROADCAST: [&str; 3] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"];

/// Input of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesConf {
    /// The pod network, one prefix per family.
    pub networks: Vec<IpNet>,
    /// The subnets of this node.
    pub subnets: Vec<IpNet>,
    /// Routed pods: the pools whose packets are masqueraded when they leave all pools. Packets from
    /// outside are never masqueraded, because every node has a route to each pod.
    pub sources: Option<Vec<IpNet>>,
    /// `None` if packets are not masqueraded.
    pub masquerade: Option<Masquerade>,
    /// Whether forwarded packets of the network are accepted.
    pub forwards: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DesiredRuleset {
    /// `None` if the agent needs no table.
    pub(super) masquerade: Option<AgentTable>,
    /// Packets that the chain FORWARD of iptables has to accept.
    pub(super) accepts: Vec<Accept>,
}

/// Content of the agent's table. It has one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentTable {
    pub(super) sets: Vec<DesiredSet>,
    /// Rules of the chain, in order.
    pub(super) rules: Vec<DesiredRule>,
}

/// A set of networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredSet {
    pub(super) name: &'static str,
    pub(super) family: Family,
    /// Networks of this family. They may overlap.
    pub(super) networks: Vec<IpNet>,
    pub(super) comment: &'static str,
}

impl DesiredSet {
    pub(super) fn key(&self) -> &'static [DataType] {
        match self.family {
            Family::V4 => &[DataType::Ipv4Addr],
            Family::V6 => &[DataType::Ipv6Addr],
        }
    }

    /// Returns the elements: disjoint ranges.
    pub(super) fn ranges(&self) -> Vec<Range> {
        Range::of(&self.networks)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredRule {
    pub(super) exprs: Vec<Expr>,
    pub(super) comment: &'static str,
}

/// Forwarded packets to accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accept {
    pub(super) direction: Direction,
    pub(super) network: IpNet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    From,
    To,
}

impl Accept {
    pub(super) fn family(&self) -> Family {
        Family::of(self.network.addr())
    }
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::From => "from",
            Direction::To => "to",
        };
        write!(f, "{direction} {}", self.network)
    }
}

pub(super) fn desired(conf: &RulesConf) -> DesiredRuleset {
    let accepts = |network: &IpNet| {
        let network = network.trunc();
        [Direction::From, Direction::To].map(|direction| Accept { direction, network })
    };
    let networks = if conf.forwards { &conf.networks[..] } else { &[] };
    DesiredRuleset {
        masquerade: conf.masquerade.as_ref().and_then(|options| agent_table(conf, options)),
        accepts: networks.iter().flat_map(accepts).collect(),
    }
}

fn agent_table(conf: &RulesConf, options: &Masquerade) -> Option<AgentTable> {
    let has = |family: &Family| conf.networks.iter().any(|one| Family::of(one.addr()) == *family);
    let families: Vec<Family> = [Family::V4, Family::V6].into_iter().filter(has).collect();
    let (mut sets, mut rules) = (Vec::new(), vec![leave_to_kube_proxy()]);
    for family in &families {
        let names = SetNames::of(*family);
        sets.extend(names.sets(*family, conf, options));
        match &conf.sources {
            None => rules.extend(names.rules(*family, options.fully_random)),
            Some(_) => rules.extend(names.routed_rules(*family, options.fully_random)),
        }
    }
    (!families.is_empty()).then_some(AgentTable { sets, rules })
}

/// Names of the sets of one family.
struct SetNames {
    network: &'static str,
    node: &'static str,
    source: &'static str,
    direct: &'static str,
}

impl SetNames {
    fn of(family: Family) -> Self {
        match family {
            Family::V4 => {
                Self { network: "network4", node: "node4", source: "source4", direct: "direct4" }
            }
            Family::V6 => {
                Self { network: "network6", node: "node6", source: "source6", direct: "direct6" }
            }
        }
    }

    fn sets(&self, family: Family, conf: &RulesConf, options: &Masquerade) -> [DesiredSet; 3] {
        let set = |name, networks: &mut dyn Iterator<Item = IpNet>, comment| {
            let networks = networks.filter(|one| Family::of(one.addr()) == family).collect();
            DesiredSet { name, family, networks, comment }
        };
        let direct = MULTICAST_AND_BROADCAST.iter().filter_map(|text| text.parse().ok());
        let direct = &mut direct.chain(options.except.iter().copied());
        let node = match &conf.sources {
            None => set(self.node, &mut conf.subnets.iter().copied(), "pods of this node"),
            Some(sources) => {
                set(self.source, &mut sources.iter().copied(), "pods that are masqueraded")
            }
        };
        [
            set(self.network, &mut conf.networks.iter().copied(), "pods of all nodes"),
            node,
            set(self.direct, direct, "destinations that are not masqueraded"),
        ]
    }

    /// The rules for routed pods.
    fn routed_rules(&self, family: Family, fully_random: bool) -> [DesiredRule; 2] {
        let from = |set| [family.load_source(Reg(0)), look_up(set, false)];
        let to = |set, inverted| [family.load_destination(Reg(0)), look_up(set, inverted)];
        let rule = |conditions: &[Expr], last: Expr, comment| DesiredRule {
            exprs: [&family.match_nfproto()[..], conditions, &[last]].concat(),
            comment,
        };
        [
            rule(
                &to(self.network, false),
                Expr::Verdict(Verdict::Return),
                "to pods: they see the client's address",
            ),
            rule(
                &[from(self.source), to(self.direct, true)].concat(),
                Expr::Masquerade { fully_random },
                "from pods to outside all pools",
            ),
        ]
    }

    fn rules(&self, family: Family, fully_random: bool) -> [DesiredRule; 4] {
        let from = |set, inverted| [family.load_source(Reg(0)), look_up(set, inverted)];
        let to = |set, inverted| [family.load_destination(Reg(0)), look_up(set, inverted)];
        let rule = |conditions: &[Expr], last: Expr, comment| DesiredRule {
            exprs: [&family.match_nfproto()[..], conditions, &[last]].concat(),
            comment,
        };
        let return_verdict = || Expr::Verdict(Verdict::Return);
        let masquerade = || Expr::Masquerade { fully_random };
        [
            rule(
                &to(self.node, false),
                return_verdict(),
                "to pods of this node: they see the client's address",
            ),
            rule(
                &[from(self.node, false), to(self.network, false)].concat(),
                return_verdict(),
                "between pods: they see each other's addresses",
            ),
            rule(
                &[from(self.network, false), to(self.direct, true)].concat(),
                masquerade(),
                "from pods to outside the network",
            ),
            rule(
                &[from(self.network, true), to(self.network, false)].concat(),
                masquerade(),
                "from outside to pods of other nodes: answers return here",
            ),
        ]
    }
}

fn look_up(set: &str, inverted: bool) -> Expr {
    Expr::Lookup { set: set.to_owned(), key: Reg(0), inverted }
}

/// `meta mark & 0x4000 == 0x4000 return`
fn leave_to_kube_proxy() -> DesiredRule {
    let bits = KUBE_PROXY_MARK.to_ne_bytes().to_vec();
    let exprs = vec![
        Expr::Meta(MetaKey::Mark, Reg(0)),
        Expr::Bitwise { reg: Reg(0), mask: bits.clone(), xor: vec![0; 4] },
        Expr::Cmp(Reg(0), Op::Eq, bits),
        Expr::Verdict(Verdict::Return),
    ];
    DesiredRule { exprs, comment: "masqueraded by kube-proxy" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn conf() -> RulesConf {
        let except = nets(&["192.168.0.0/16", "fd99::/16"]);
        RulesConf {
            networks: nets(&["10.5.0.0/16", "fd05::/48"]),
            subnets: nets(&["10.5.1.0/24", "fd05:0:0:1::/64"]),
            sources: None,
            masquerade: Some(Masquerade { fully_random: true, except }),
            forwards: true,
        }
    }

    #[test]
    fn sets_hold_networks_of_their_family() {
        let table = desired(&conf()).masquerade.unwrap();
        let sets: Vec<(&str, Vec<String>)> = table
            .sets
            .iter()
            .map(|set| (set.name, set.networks.iter().map(ToString::to_string).collect()))
            .collect();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            sets,
            [
                ("network4", texts(&["10.5.0.0/16"])),
                ("node4", texts(&["10.5.1.0/24"])),
                ("direct4", texts(&["224.0.0.0/4", "255.255.255.255/32", "192.168.0.0/16"])),
                ("network6", texts(&["fd05::/48"])),
                ("node6", texts(&["fd05:0:0:1::/64"])),
                ("direct6", texts(&["ff00::/8", "fd99::/16"])),
            ]
        );
        assert_eq!(table.rules.len(), 9);
    }

    #[test]
    fn ruleset_without_any_feature_is_empty() {
        assert_eq!(desired(&RulesConf::default()), DesiredRuleset::default());
        let none = RulesConf { masquerade: None, forwards: false, ..conf() };
        assert_eq!(desired(&none), DesiredRuleset::default());
    }

    #[test]
    fn network_of_one_family_has_no_sets_of_the_other() {
        let conf = RulesConf { networks: nets(&["10.5.0.0/16"]), ..conf() };
        assert_eq!(desired(&conf).masquerade.unwrap().sets.len(), 3);
    }

    #[test]
    fn packets_of_both_directions_are_accepted() {
        let accepts: Vec<String> =
            desired(&conf()).accepts.iter().map(ToString::to_string).collect();
        let expected = ["from 10.5.0.0/16", "to 10.5.0.0/16", "from fd05::/48", "to fd05::/48"];
        assert_eq!(accepts, expected);
    }
}
