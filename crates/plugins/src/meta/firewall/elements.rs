// SPDX-License-Identifier: Apache-2.0
//! The plugin's sets and chains in table `inet podwire`: of an address that is in some of them, packets are
//! marked, so that they pass; by others it is known who may reach it.

use std::net::IpAddr;

use kernel::Family;
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, MetaKey, Place, Reg, Verdict,
};

use super::conf::{Firewall, Ingress};
use crate::rules::match_expr::{ifname_key, match_established, match_set, octets};
use crate::rules::{
    Claim, Entrance, Entry, Feature, Located, Map, Number, Rules, Spread, TABLE, WantedChain, key,
};

/// Before the chains of iptables, whose FORWARD has 0.
const PRIORITY: i32 = -10;

/// Jumps to the chains of administrators.
pub const ADMIN: &str = "firewall_admin";

/// The chain whose rules lead to those that mark packets.
const MARKS: &str = "firewall_marks";

static PASS4: Map = Map {
    number: 1,
    table: TABLE,
    name: "firewall4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Nothing,
    claim: Claim::Last,
    spread: Spread::PartsAndWhole,
    comment: "containers whose packets are marked, and pass",
};
static PASS6: Map = Map { number: 2, name: "firewall6", key: &[DataType::Ipv6Addr], ..PASS4 };

static INGRESS4: Map = Map {
    number: 3,
    name: "firewall_ingress4",
    spread: Spread::Whole,
    comment: "containers that not everybody may reach",
    ..PASS4
};
static INGRESS6: Map =
    Map { number: 4, name: "firewall_ingress6", key: &[DataType::Ipv6Addr], ..INGRESS4 };

/// Whom a container on the same bridge may reach.
static SAME4: Map = Map {
    number: 8,
    name: "firewall_same4",
    key: &[DataType::Ipv4Addr, DataType::IfName],
    claim: Claim::With(&INGRESS4),
    comment: "container . bridge that reaches it",
    ..INGRESS4
};
static SAME6: Map = Map {
    number: 9,
    name: "firewall_same6",
    key: &[DataType::Ipv6Addr, DataType::IfName],
    claim: Claim::With(&INGRESS6),
    ..SAME4
};

/// No rule looks at these: they remember which bridge the containers are on.
static ISOLATED4: Map = Map {
    number: 10,
    name: "firewall_isolated4",
    comment: "container . bridge that does not reach it",
    ..SAME4
};
static ISOLATED6: Map =
    Map { number: 11, name: "firewall_isolated6", comment: ISOLATED4.comment, ..SAME6 };

/// Those whose keys end with a bridge.
pub static ON_BRIDGES: [&Map; 4] = [&SAME4, &SAME6, &ISOLATED4, &ISOLATED6];

/// No rule looks at these: they remember what others were told, who do not remember whose it is.
static TOLD4: Map = Map {
    number: 5,
    name: "firewall_told4",
    comment: "containers that firewalld or iptables was told of",
    ..INGRESS4
};
static TOLD6: Map = Map { number: 6, name: "firewall_told6", key: &[DataType::Ipv6Addr], ..TOLD4 };

/// Its elements belong to no container: they stay as long as a container with a policy is on the bridge.
pub static BRIDGES: Map = Map {
    number: 7,
    name: "firewall_bridges",
    key: &[DataType::IfName],
    comment: "bridges of containers that have an ingress policy",
    ..TOLD4
};

pub static FEATURE: Feature = Feature {
    number: 3,
    table: TABLE,
    maps: &[
        &PASS4, &PASS6, &INGRESS4, &INGRESS6, &TOLD4, &TOLD6, &BRIDGES, &SAME4, &SAME6, &ISOLATED4,
        &ISOLATED6,
    ],
    chains,
    networks_chains: None,
};

/// The entry that has an address's packets marked.
pub fn pass(firewall: &Firewall, address: IpAddr) -> Entry {
    let number = Number::from(firewall.mark_bit);
    let key = key(&[&number.to_be_bytes(), &octets(address)]);
    Entry { map: of_family(address, [&PASS4, &PASS6]), key, data: None }
}

/// The chain that marks them: all that containers send, and the answers to it.
pub fn mark_chain(firewall: &Firewall) -> WantedChain {
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
    let number = Number::from(firewall.mark_bit);
    let mut entrances = Vec::new();
    for (family, map) in [(Family::V4, &PASS4), (Family::V6, &PASS6)] {
        let sent = match_set(family, family.load_source(Reg(0)), &map.part(number));
        let answers = match_set(family, family.load_destination(Reg(0)), &map.part(number));
        for exprs in [sent, [&match_established()[..], &answers].concat()] {
            entrances.push(Entrance { from: MARKS, place: Place::Last, exprs });
        }
    }
    let name = format!("firewall_mark_{}", firewall.mark_bit);
    WantedChain {
        parts: vec![(&PASS4, number), (&PASS6, number)],
        entrances,
        ..WantedChain::new(name, "what passes, also by iptables", vec![(set, "")])
    }
}

/// The entries that say who may not reach an address on a bridge.
pub fn ingress(policy: Ingress, bridge: &str, address: IpAddr) -> [Entry; 2] {
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

/// `iifname @firewall_bridges ip daddr @firewall_ingress4 ip daddr . iifname != @firewall_same4 drop`
fn drop_others(family: Family, policed: &Map, same: &Map) -> Vec<Expr> {
    let lookup = |map: &Map, inverted| {
        let (set, key) = (map.name.to_owned(), Reg(0));
        Expr::Lookup { set, key, inverted }
    };
    let mut exprs = vec![Expr::Meta(MetaKey::IifName, Reg(0)), lookup(&BRIDGES, false)];
    exprs.extend(match_set(family, family.load_destination(Reg(0)), policed.name));
    exprs.push(family.load_destination(Reg(0)));
    exprs.push(Expr::Meta(MetaKey::IifName, Reg(family.address_registers())));
    exprs.extend([lookup(same, true), Expr::Verdict(Verdict::Drop)]);
    exprs
}

/// The element that remembers an address that others were told of.
pub fn told(address: IpAddr) -> Entry {
    Entry { map: of_family(address, [&TOLD4, &TOLD6]), key: octets(address), data: None }
}

/// Whether an entry is for remembering only.
pub fn is_told(entry: &Entry) -> bool {
    [&TOLD4, &TOLD6].contains(&entry.map)
}

/// The addresses that elements at these places remember.
pub fn told_addresses(places: &[Located]) -> Vec<IpAddr> {
    let address = |Located { map, key }: &Located| match *map {
        5 => Some(IpAddr::from(*key.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*key.first_chunk::<16>()?)),
        _ => None,
    };
    places.iter().filter_map(address).collect()
}

fn of_family(address: IpAddr, [v4, v6]: [&'static Map; 2]) -> &'static Map {
    if address.is_ipv4() { v4 } else { v6 }
}

/// Administrators have the first word, then the ingress policies; what is left is marked.
fn chains() -> Vec<WantedChain> {
    let jump = |to: &str| vec![Expr::Verdict(Verdict::Jump(to.to_owned()))];
    let rules: Rules = vec![
        (jump(ADMIN), ""),
        (drop_others(Family::V4, &INGRESS4, &SAME4), ""),
        (drop_others(Family::V6, &INGRESS6, &SAME6), ""),
        (jump(MARKS), ""),
    ];
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: PRIORITY };
    let comment = "what containers send, and who reaches them";
    let forward = WantedChain::new("firewall_forward", comment, rules);
    let empty = |name: &str, comment| WantedChain::new(name, comment, Rules::new());
    vec![
        WantedChain { base: Some(base), ..forward },
        empty(ADMIN, "jumps to the chains of administrators"),
        empty(MARKS, "from containers, and back to them"),
    ]
}
