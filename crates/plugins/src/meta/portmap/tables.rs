// SPDX-License-Identifier: Apache-2.0
//! The maps and chains of portmap. The cost of a packet does not grow with the number of mappings,
//! and only the first packet of a connection passes the chains.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use kernel::Family;
use kernel::nft::{BaseChain, ChainKind, DataType, Expr, Hook, MapTo, MetaKey, Op, Reg, Verdict};

use crate::attach::names;
use crate::nftables::match_expr::{
    ifname_key, load_destination_port, match_dnat_status, match_local_destination, match_network,
};
use crate::nftables::{
    ChainId, ConflictPolicy, DesiredChain, Feature, Map, Placement, Rules, TABLE,
};

const DSTNAT: i32 = -100; // NF_IP_PRI_NAT_DST, linux/netfilter_ipv4.h
const SRCNAT: i32 = 100; // NF_IP_PRI_NAT_SRC, same header

/// The chain that jumps to the chains of conditions.
pub(super) const CONDITIONS: &str = "conditions";

const TO4: MapTo<'static> = MapTo::Values(&[DataType::Ipv4Addr, DataType::InetService]);
const TO6: MapTo<'static> = MapTo::Values(&[DataType::Ipv6Addr, DataType::InetService]);

pub(super) static PORTS4: Map = Map {
    number: 1,
    table: TABLE,
    name: "ports4",
    key: &[DataType::InetProto, DataType::InetService],
    data: TO4,
    conflict: ConflictPolicy::FirstWins,
    placement: Placement::Single,
    comment: "port of every address: container",
};
pub(super) static PORTS6: Map = Map { number: 2, name: "ports6", data: TO6, ..PORTS4 };

pub(super) static PORTS_AT4: Map = Map {
    number: 3,
    name: "ports_at4",
    key: &[DataType::Ipv4Addr, DataType::InetProto, DataType::InetService],
    comment: "port of one address: container",
    ..PORTS4
};
pub(super) static PORTS_AT6: Map = Map {
    number: 4,
    name: "ports_at6",
    key: &[DataType::Ipv6Addr, DataType::InetProto, DataType::InetService],
    data: TO6,
    ..PORTS_AT4
};

/// Each network has a chain and a map for its conditions.
pub(super) static PORTS_IF4: Map =
    Map { number: 5, name: "ports_if4", placement: Placement::PerChain, ..PORTS4 };
pub(super) static PORTS_IF6: Map = Map { number: 6, name: "ports_if6", data: TO6, ..PORTS_IF4 };

pub(super) static HAIRPIN4: Map = Map {
    number: 9,
    name: "hairpin4",
    key: &[DataType::IfName, DataType::Ipv4Addr],
    data: MapTo::Nothing,
    conflict: ConflictPolicy::LastWins,
    comment: "interface . container: packet leaves where it arrived",
    ..PORTS4
};
pub(super) static HAIRPIN6: Map =
    Map { number: 10, name: "hairpin6", key: &[DataType::IfName, DataType::Ipv6Addr], ..HAIRPIN4 };

pub(super) static SELF4: Map = Map {
    number: 11,
    name: "self4",
    key: &[DataType::Ipv4Addr, DataType::Ipv4Addr],
    comment: "container . itself",
    ..HAIRPIN4
};
pub(super) static SELF6: Map =
    Map { number: 12, name: "self6", key: &[DataType::Ipv6Addr, DataType::Ipv6Addr], ..SELF4 };

pub(super) static MASQ_ALL4: Map = Map {
    number: 13,
    name: "masq_all4",
    key: &[DataType::Ipv4Addr],
    comment: "containers whose incoming traffic is masqueraded",
    ..HAIRPIN4
};
pub(super) static MASQ_ALL6: Map =
    Map { number: 14, name: "masq_all6", key: &[DataType::Ipv6Addr], ..MASQ_ALL4 };

/// The value for a port whose packets are all mapped.
pub(super) const ALL: [u8; 4] = 0_u32.to_ne_bytes();
/// The value for a port that is mapped for one address or with conditions.
pub(super) const PART: [u8; 4] = 1_u32.to_ne_bytes();

/// Prevents a mapping for one address and a mapping for all addresses of the same port, which
/// are in different maps.
pub(super) static HELD4: Map = Map {
    number: 15,
    name: "held4",
    data: MapTo::Values(&[DataType::Mark]),
    conflict: ConflictPolicy::SharedGuard(&PART),
    comment: "mapped port: 0 for all packets, 1 for a part",
    ..PORTS4
};
pub(super) static HELD6: Map = Map { number: 16, name: "held6", ..HELD4 };

pub(super) static FEATURE: Feature = Feature {
    number: 2,
    table: TABLE,
    maps: &[
        &PORTS4, &PORTS6, &PORTS_AT4, &PORTS_AT6, &PORTS_IF4, &PORTS_IF6, &HAIRPIN4, &HAIRPIN6,
        &SELF4, &SELF6, &MASQ_ALL4, &MASQ_ALL6, &HELD4, &HELD6,
    ],
    chains,
    networks_chains: Some(chain_prefix),
};

#[derive(Debug)]
pub(super) struct Maps {
    pub ports: &'static Map,
    pub ports_at: &'static Map,
    pub ports_if: &'static Map,
    pub hairpin: &'static Map,
    pub own: &'static Map,
    pub masq_all: &'static Map,
    pub held: &'static Map,
}

impl Maps {
    pub(super) fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self {
                ports: &PORTS4,
                ports_at: &PORTS_AT4,
                ports_if: &PORTS_IF4,
                hairpin: &HAIRPIN4,
                own: &SELF4,
                masq_all: &MASQ_ALL4,
                held: &HELD4,
            },
            Family::V6 => Self {
                ports: &PORTS6,
                ports_at: &PORTS_AT6,
                ports_if: &PORTS_IF6,
                hairpin: &HAIRPIN6,
                own: &SELF6,
                masq_all: &MASQ_ALL6,
                held: &HELD6,
            },
        }
    }
}

/// The name prefix of a network's chains of conditions.
pub(super) fn chain_prefix(network: &str) -> String {
    format!("ports-{:016x}-", names::digest(&[network]))
}

fn chains() -> Vec<DesiredChain> {
    let base = |hook, priority| Some(BaseChain { kind: ChainKind::Nat, hook, priority });
    let to_hostports = || {
        let jump = Expr::Verdict(Verdict::Jump("hostports".to_owned()));
        ([&match_local_destination()[..], &[jump]].concat(), "")
    };
    let chain = |name: &str, base, comment: &str, rules: Rules| DesiredChain {
        base,
        ..DesiredChain::new(name, comment, rules)
    };
    vec![
        chain(
            "portmap_prerouting",
            base(Hook::Prerouting, DSTNAT),
            "packets from outside to this host",
            vec![drop_foreign_to_localhost(), to_hostports()],
        ),
        chain(
            "portmap_output",
            base(Hook::Output, DSTNAT),
            "packets from this host to itself",
            vec![skip_localhost6(), to_hostports()],
        ),
        chain(
            "portmap_postrouting",
            base(Hook::Postrouting, SRCNAT),
            "connections whose replies must return through this host",
            masquerading(),
        ),
        chain("hostports", None, "mapped ports", hostports()),
        chain(CONDITIONS, None, "mapped ports of networks with conditions", Vec::new()),
    ]
}

/// `route_localnet` lets replies return to 127.0.0.1. Without this rule it would also let other
/// hosts reach local services there.
fn drop_foreign_to_localhost() -> (Vec<Expr>, &'static str) {
    let mut exprs = Family::V4.match_nfproto().to_vec();
    exprs.push(Family::V4.load_destination(Reg(0)));
    exprs.extend(match_network(Reg(0), Op::Eq, localhost4()));
    exprs.push(Expr::Meta(MetaKey::IifName, Reg(0)));
    exprs.push(Expr::Cmp(Reg(0), Op::Neq, ifname_key("lo").to_vec()));
    exprs.push(Expr::Verdict(Verdict::Drop));
    (exprs, "protects localhost despite route_localnet")
}

/// Packets from ::1 never leave the host. If they are not mapped, a connection is refused at once,
/// and a client that uses `localhost` tries 127.0.0.1 next.
fn skip_localhost6() -> (Vec<Expr>, &'static str) {
    let mut exprs = Family::V6.match_nfproto().to_vec();
    exprs.push(Family::V6.load_destination(Reg(0)));
    exprs.extend(match_network(Reg(0), Op::Eq, IpAddr::from(Ipv6Addr::LOCALHOST).into()));
    exprs.push(Expr::Verdict(Verdict::Return));
    (exprs, "cannot be forwarded")
}

fn localhost4() -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8))
}

fn hostports() -> Rules {
    let mut rules: Rules = vec![(vec![Expr::Verdict(Verdict::Jump(CONDITIONS.to_owned()))], "")];
    for family in [Family::V4, Family::V6] {
        let key = [family.load_destination(Reg(0))];
        let map = Maps::of(family).ports_at.name;
        rules.push((dnat(family, &key, family.address_registers(), map), ""));
    }
    for family in [Family::V4, Family::V6] {
        rules.push((dnat(family, &[], 0, Maps::of(family).ports.name), ""));
    }
    rules
}

/// `dnat ip to … . meta l4proto . th dport map @…`; the first part of the key fills `filled`
/// registers.
fn dnat(family: Family, first: &[Expr], filled: u32, map: &str) -> Vec<Expr> {
    let mut exprs = family.match_nfproto().to_vec();
    exprs.extend_from_slice(first);
    exprs.push(Expr::Meta(MetaKey::L4Proto, Reg(filled)));
    exprs.push(load_destination_port(Reg(filled + 1)));
    exprs.push(Expr::Map { set: map.to_owned(), key: Reg(0), to: Reg(0) });
    let port = Reg(family.address_registers());
    exprs.push(Expr::Dnat { family: family.table_family(), address: Reg(0), port });
    exprs
}

/// The rule of a chain of conditions.
pub(super) fn condition_rule(family: Family, chain: ChainId) -> Vec<Expr> {
    dnat(family, &[], 0, &Maps::of(family).ports_if.part(chain))
}

fn masquerading() -> Rules {
    let mut rules: Rules = Vec::new();
    for family in [Family::V4, Family::V6] {
        let maps = Maps::of(family);
        let in_by = [Expr::Meta(MetaKey::IifName, Reg(0)), family.load_destination(Reg(4))];
        let own =
            [family.load_source(Reg(0)), family.load_destination(Reg(family.address_registers()))];
        let mut rule = |exprs: Vec<Expr>, map: &Map, comment| {
            let set = map.name.to_owned();
            let lookup = Expr::Lookup { set, key: Reg(0), inverted: false };
            let masquerade = Expr::Masquerade { fully_random: false };
            let mut all = family.match_nfproto().to_vec();
            all.extend(match_dnat_status());
            all.extend(exprs);
            all.extend([lookup, masquerade]);
            rules.push((all, comment));
        };
        rule(in_by.to_vec(), maps.hairpin, "container on the same interface");
        // With bridge netfilter, the input interface of a packet is the bridge and not the port.
        rule(own.to_vec(), maps.own, "the container itself");
        if family == Family::V4 {
            let mut exprs = vec![family.load_source(Reg(0))];
            exprs.extend(match_network(Reg(0), Op::Eq, localhost4()));
            exprs.extend([Expr::Meta(MetaKey::OifName, Reg(0)), family.load_destination(Reg(4))]);
            rule(exprs, maps.hairpin, "localhost");
        }
        rule(vec![family.load_destination(Reg(0))], maps.masq_all, "all traffic");
    }
    rules
}
