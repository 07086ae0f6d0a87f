// SPDX-License-Identifier: Apache-2.0
//! What should be in nf_tables for a network. Pure.
//!
//! Masquerading does what flannel does with iptables: pods of one network see each other's addresses, and
//! so do clients that come straight to this node's pods; what leaves the network, or comes to pods
//! elsewhere by way of this node, gets the node's address, so that answers find the way back.

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::{DataType, Expr, MetaKey, Op, Range, Reg, Verdict};

use crate::settings::Masquerade;

/// kube-proxy masquerades what has this bit, and takes the bit away by that.
const KUBE_PROXYS: u32 = 0x4000;

/// To everybody, or to many: answers do not come back to the address that was asked.
const TO_MANY: [&str; 3] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"];

/// What the rules are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesConf {
    /// The whole network, one or both families.
    pub networks: Vec<IpNet>,
    /// This node's part of it.
    pub subnets: Vec<IpNet>,
    /// What is done to what leaves the network, if anything.
    pub masquerade: Option<Masquerade>,
    /// Whether the network's packets are let through.
    pub forwards: bool,
}

/// Everything that should be there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// What is in our own table, if it is needed.
    pub masquerade: Option<OwnTable>,
    /// Packets that iptables' own chain must let pass.
    pub passes: Vec<Pass>,
}

/// Sets, and the rules of the one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnTable {
    /// Networks by name.
    pub sets: Vec<WantedSet>,
    /// In order.
    pub rules: Vec<WantedRule>,
}

/// Networks of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSet {
    /// Its name.
    pub name: &'static str,
    /// IPv4 or IPv6.
    pub family: Family,
    /// As they were told; they may overlap.
    pub networks: Vec<IpNet>,
    /// For people.
    pub comment: &'static str,
}

impl WantedSet {
    /// What its keys are.
    pub fn key(&self) -> &'static [DataType] {
        match self.family {
            Family::V4 => &[DataType::Ipv4Addr],
            Family::V6 => &[DataType::Ipv6Addr],
        }
    }

    /// What it holds.
    pub fn ranges(&self) -> Vec<Range> {
        Range::of(&self.networks)
    }
}

/// A rule with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRule {
    /// What it does.
    pub exprs: Vec<Expr>,
    /// For people.
    pub comment: &'static str,
}

/// Packets to let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Whether they come from the network or go to it.
    pub direction: Direction,
    /// The network.
    pub network: IpNet,
}

/// Which address of a packet counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Its source.
    From,
    /// Its destination.
    To,
}

/// What should be there.
pub fn wanted(conf: &RulesConf) -> Ruleset {
    let passes = |network: &IpNet| {
        let network = network.trunc();
        [Direction::From, Direction::To].map(|direction| Pass { direction, network })
    };
    let networks = if conf.forwards { &conf.networks[..] } else { &[] };
    Ruleset {
        masquerade: conf.masquerade.as_ref().and_then(|how| own_table(conf, how)),
        passes: networks.iter().flat_map(passes).collect(),
    }
}

fn own_table(conf: &RulesConf, how: &Masquerade) -> Option<OwnTable> {
    let has = |family: &Family| conf.networks.iter().any(|one| Family::of(one.addr()) == *family);
    let families: Vec<Family> = [Family::V4, Family::V6].into_iter().filter(has).collect();
    let (mut sets, mut rules) = (Vec::new(), vec![leave_to_kube_proxy()]);
    for family in &families {
        let names = Names::of(*family);
        sets.extend(names.sets(*family, conf, how));
        rules.extend(names.rules(*family, how.fully_random));
    }
    (!families.is_empty()).then_some(OwnTable { sets, rules })
}

/// The names of a family's sets.
struct Names {
    network: &'static str,
    node: &'static str,
    direct: &'static str,
}

impl Names {
    fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { network: "network4", node: "node4", direct: "direct4" },
            Family::V6 => Self { network: "network6", node: "node6", direct: "direct6" },
        }
    }

    fn sets(&self, family: Family, conf: &RulesConf, how: &Masquerade) -> [WantedSet; 3] {
        let set = |name, networks: &mut dyn Iterator<Item = IpNet>, comment| {
            let networks = networks.filter(|one| Family::of(one.addr()) == family).collect();
            WantedSet { name, family, networks, comment }
        };
        let direct = TO_MANY.iter().filter_map(|text| text.parse().ok());
        let direct = &mut direct.chain(how.except.iter().copied());
        [
            set(self.network, &mut conf.networks.iter().copied(), "pods of all nodes"),
            set(self.node, &mut conf.subnets.iter().copied(), "pods of this node"),
            set(self.direct, direct, "pods reach it under their own addresses"),
        ]
    }

    fn rules(&self, family: Family, fully_random: bool) -> [WantedRule; 4] {
        let from = |set, inverted| [family.load_source(Reg(0)), look_up(set, inverted)];
        let to = |set, inverted| [family.load_destination(Reg(0)), look_up(set, inverted)];
        let rule = |conditions: &[Expr], last: Expr, comment| WantedRule {
            exprs: [&family.match_nfproto()[..], conditions, &[last]].concat(),
            comment,
        };
        let back = || Expr::Verdict(Verdict::Return);
        let masquerade = || Expr::Masquerade { fully_random };
        [
            rule(&to(self.node, false), back(), "pods here see who asks"),
            rule(
                &[from(self.node, false), to(self.network, false)].concat(),
                back(),
                "pods see each other",
            ),
            rule(
                &[from(self.network, false), to(self.direct, true)].concat(),
                masquerade(),
                "pods to the world",
            ),
            rule(
                &[from(self.network, true), to(self.network, false)].concat(),
                masquerade(),
                "others to pods elsewhere: answers come back here",
            ),
        ]
    }
}

fn look_up(set: &str, inverted: bool) -> Expr {
    Expr::Lookup { set: set.to_owned(), key: Reg(0), inverted }
}

/// `meta mark & 0x4000 == 0x4000 return`
fn leave_to_kube_proxy() -> WantedRule {
    let bits = KUBE_PROXYS.to_ne_bytes().to_vec();
    let exprs = vec![
        Expr::Meta(MetaKey::Mark, Reg(0)),
        Expr::Bitwise { reg: Reg(0), mask: bits.clone(), xor: vec![0; 4] },
        Expr::Cmp(Reg(0), Op::Eq, bits),
        Expr::Verdict(Verdict::Return),
    ];
    WantedRule { exprs, comment: "kube-proxy masquerades it" }
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
            masquerade: Some(Masquerade { fully_random: true, except }),
            forwards: true,
        }
    }

    #[test]
    fn sets_hold_networks_of_their_family() {
        let table = wanted(&conf()).masquerade.unwrap();
        let found: Vec<(&str, Vec<String>)> = table
            .sets
            .iter()
            .map(|set| (set.name, set.networks.iter().map(ToString::to_string).collect()))
            .collect();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            found,
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
    fn nothing_is_wanted_where_nothing_is_asked_for() {
        assert_eq!(wanted(&RulesConf::default()), Ruleset::default());
        let silent = RulesConf { masquerade: None, forwards: false, ..conf() };
        assert_eq!(wanted(&silent), Ruleset::default());
        let one = RulesConf { networks: nets(&["10.5.0.0/16"]), ..conf() };
        assert_eq!(wanted(&one).masquerade.unwrap().sets.len(), 3);
    }

    #[test]
    fn both_directions_pass() {
        let passes = wanted(&conf()).passes;
        let told: Vec<_> = passes.iter().map(|one| (one.direction, one.network)).collect();
        let [v4, v6] = nets(&["10.5.0.0/16", "fd05::/48"])[..] else { unreachable!() };
        assert_eq!(
            told,
            [
                (Direction::From, v4),
                (Direction::To, v4),
                (Direction::From, v6),
                (Direction::To, v6),
            ]
        );
    }
}
