// SPDX-License-Identifier: Apache-2.0
//! The plugin's sets and chains in table `inet podwire`. Some sets hold the addresses whose packets
//! are marked and accepted, others implement the ingress policies.

use std::net::IpAddr;

use kernel::Family;
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, MetaKey, Place, Reg, Verdict,
};

use super::conf::{Firewall, Ingress};
use crate::nftables::match_expr::{ifname_key, match_established, match_set, octets};
use crate::nftables::{
    ChainId, ConflictPolicy, DesiredChain, Entry, Feature, IndexEntry, JumpRule, Map, Placement,
    Rules, TABLE, key,
};

const PRIORITY: i32 = -10; // before FORWARD of iptables, which has 0

/// The chain that jumps to the administrators' chains.
pub(super) const ADMIN: &str = "firewall_admin";

/// The chain that jumps to the chains that mark packets.
const MARKS: &str = "firewall_marks";

static PASS4: Map = Map {
    number: 1,
    table: TABLE,
    name: "firewall4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Nothing,
    conflict: ConflictPolicy::LastWins,
    placement: Placement::PerChainAndSingle,
    comment: "containers whose packets are marked, and pass",
};
static PASS6: Map = Map { number: 2, name: "firewall6", key: &[DataType::Ipv6Addr], ..PASS4 };

static INGRESS4: Map = Map {
    number: 3,
    name: "firewall_ingress4",
    placement: Placement::Single,
    comment: "containers with an ingress policy",
    ..PASS4
};
static INGRESS6: Map =
    Map { number: 4, name: "firewall_ingress6", key: &[DataType::Ipv6Addr], ..INGRESS4 };

/// Containers that others on the same bridge may reach.
static SAME4: Map = Map {
    number: 8,
    name: "firewall_same4",
    key: &[DataType::Ipv4Addr, DataType::IfName],
    conflict: ConflictPolicy::FollowsParent(&INGRESS4),
    comment: "container . bridge that reaches it",
    ..INGRESS4
};
static SAME6: Map = Map {
    number: 9,
    name: "firewall_same6",
    key: &[DataType::Ipv6Addr, DataType::IfName],
    conflict: ConflictPolicy::FollowsParent(&INGRESS6),
    ..SAME4
};

/// No rule uses these elements: they record the bridge of each container.
static ISOLATED4: Map = Map {
    number: 10,
    name: "firewall_isolated4",
    comment: "container . bridge that does not reach it",
    ..SAME4
};
static ISOLATED6: Map =
    Map { number: 11, name: "firewall_isolated6", comment: ISOLATED4.comment, ..SAME6 };

/// The maps whose keys end with a bridge.
pub(super) static ON_BRIDGES: [&Map; 4] = [&SAME4, &SAME6, &ISOLATED4, &ISOLATED6];

/// No rule uses these elements: they record which attachment has an address in firewalld or
/// iptables, which do not know owners.
static RECORDED4: Map = Map {
    number: 5,
    name: "firewall_told4",
    comment: "containers with rules in firewalld or iptables",
    ..INGRESS4
};
static RECORDED6: Map =
    Map { number: 6, name: "firewall_told6", key: &[DataType::Ipv6Addr], ..RECORDED4 };

/// The elements belong to no container: they exist as long as a container with a policy is on the
/// bridge.
pub(super) static BRIDGES: Map = Map {
    number: 7,
    name: "firewall_bridges",
    key: &[DataType::IfName],
    comment: "bridges of containers that have an ingress policy",
    ..RECORDED4
};

pub(super) static FEATURE: Feature = Feature {
    number: 3,
    table: TABLE,
    maps: &[
        &PASS4, &PASS6, &INGRESS4, &INGRESS6, &RECORDED4, &RECORDED6, &BRIDGES, &SAME4, &SAME6,
        &ISOLATED4, &ISOLATED6,
    ],
    chains,
    networks_chains: None,
};

/// The entry that marks the packets of an address.
pub(super) fn pass(firewall: &Firewall, address: IpAddr) -> Entry {
    let chain = ChainId::from(firewall.mark_bit);
    let key = key(&[&chain.to_be_bytes(), &octets(address)]);
    Entry { map: of_family(address, [&PASS4, &PASS6]), key, data: None }
}

/// The chain that marks packets from containers and the replies to them.
pub(super) fn mark_chain(firewall: &Firewall) -> DesiredChain {
    let bit = 1_u32 << firewall.mark_bit;
    let set = vec![
        Expr::Meta(MetaKey::Mark, Reg(0)),
        Expr::Bitwise {
            reg: Reg(0),
            mask: (!bit).to_ne_bytes().to_vec(),
            xor: bit.to_ne_bytes().to_vec(),
        },
        Expr::SetMeta(MetaKey::Mark, Reg(0)),
    ];
    let chain = ChainId::from(firewall.mark_bit);
    let mut jump_rules = Vec::new();
    for (family, map) in [(Family::V4, &PASS4), (Family::V6, &PASS6)] {
        let sent = match_set(family, family.load_source(Reg(0)), &map.part(chain));
        let replies = match_set(family, family.load_destination(Reg(0)), &map.part(chain));
        for exprs in [sent, [&match_established()[..], &replies].concat()] {
            jump_rules.push(JumpRule { from: MARKS, place: Place::Last, exprs });
        }
    }
    let name = format!("firewall_mark_{}", firewall.mark_bit);
    DesiredChain {
        parts: vec![(&PASS4, chain), (&PASS6, chain)],
        jump_rules,
        ..DesiredChain::new(name, "marks packets that iptables accepts", vec![(set, "")])
    }
}

/// The entries of the ingress policy for an address on a bridge.
pub(super) fn ingress(policy: Ingress, bridge: &str, address: IpAddr) -> [Entry; 2] {
    let (own, bridge) = (octets(address), ifname_key(bridge));
    let on_bridge = match policy {
        Ingress::Isolated => [&ISOLATED4, &ISOLATED6],
        Ingress::SameBridge | Ingress::Open => [&SAME4, &SAME6],
    };
    let key = key(&[&own, &bridge]);
    [
        Entry { map: of_family(address, [&INGRESS4, &INGRESS6]), key: own, data: None },
        Entry { map: of_family(address, on_bridge), key, data: None },
    ]
}

/// `iifname @firewall_bridges ip daddr @firewall_ingress4 ip daddr . iifname != @firewall_same4
/// drop`
fn drop_others(family: Family, ingress: &Map, same: &Map) -> Vec<Expr> {
    let lookup = |map: &Map, inverted| {
        let (set, key) = (map.name.to_owned(), Reg(0));
        Expr::Lookup { set, key, inverted }
    };
    let mut exprs = vec![Expr::Meta(MetaKey::IifName, Reg(0)), lookup(&BRIDGES, false)];
    exprs.extend(match_set(family, family.load_destination(Reg(0)), ingress.name));
    exprs.push(family.load_destination(Reg(0)));
    exprs.push(Expr::Meta(MetaKey::IifName, Reg(family.address_registers())));
    exprs.extend([lookup(same, true), Expr::Verdict(Verdict::Drop)]);
    exprs
}

/// The entry that records an address of firewalld or iptables.
pub(super) fn recorded(address: IpAddr) -> Entry {
    Entry { map: of_family(address, [&RECORDED4, &RECORDED6]), key: octets(address), data: None }
}

/// Whether no rule uses an entry.
pub(super) fn is_record(entry: &Entry) -> bool {
    [&RECORDED4, &RECORDED6].contains(&entry.map)
}

/// The addresses that these entries record.
pub(super) fn recorded_addresses(entries: &[IndexEntry]) -> Vec<IpAddr> {
    let address = |IndexEntry { map, key }: &IndexEntry| match *map {
        5 => Some(IpAddr::from(*key.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*key.first_chunk::<16>()?)),
        _ => None,
    };
    entries.iter().filter_map(address).collect()
}

fn of_family(address: IpAddr, [v4, v6]: [&'static Map; 2]) -> &'static Map {
    if address.is_ipv4() { v4 } else { v6 }
}

/// The administrators' rules come first, then the ingress policies; the remaining packets are
/// marked.
fn chains() -> Vec<DesiredChain> {
    let jump = |to: &str| vec![Expr::Verdict(Verdict::Jump(to.to_owned()))];
    let rules: Rules = vec![
        (jump(ADMIN), ""),
        (drop_others(Family::V4, &INGRESS4, &SAME4), ""),
        (drop_others(Family::V6, &INGRESS6, &SAME6), ""),
        (jump(MARKS), ""),
    ];
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: PRIORITY };
    let comment = "packets from containers, and access to containers";
    let forward = DesiredChain::new("firewall_forward", comment, rules);
    let empty = |name: &str, comment| DesiredChain::new(name, comment, Rules::new());
    vec![
        DesiredChain { base: Some(base), ..forward },
        empty(ADMIN, "jumps to the administrators' chains"),
        empty(MARKS, "packets from containers, and replies"),
    ]
}
