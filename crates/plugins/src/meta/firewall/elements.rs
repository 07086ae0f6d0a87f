// SPDX-License-Identifier: Apache-2.0
//! The plugin's maps and chains in table `inet podwire`: an element for each address says that its
//! packets pass, another who may reach it.

use std::net::IpAddr;

use kernel::nft::{
    BaseChain, ChainKind, Data, DataType, Expr, Hook, MapTo, MetaKey, Op, REG_VERDICT, Reg, Verdict,
};

use super::conf::{Firewall, Ingress};
use crate::identity;
use crate::rules::phrase::{Ip, ifname, is_answer, octets};
use crate::rules::{Claim, Entry, Feature, Located, Map, TABLE, WantedChain};

/// Before the chains of iptables, whose FORWARD has 0.
const PRIORITY: i32 = -10;

/// Jumps to the chains of administrators.
pub const ADMIN: &str = "firewall_admin";

static PASS4: Map = Map {
    number: 1,
    table: TABLE,
    name: "firewall4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Verdicts,
    claim: Claim::Last,
    comment: "container: its packets are marked, and pass",
};
static PASS6: Map = Map { number: 2, name: "firewall6", key: &[DataType::Ipv6Addr], ..PASS4 };

static INGRESS4: Map = Map {
    number: 3,
    name: "firewall_ingress4",
    comment: "container: who may not reach it",
    ..PASS4
};
static INGRESS6: Map =
    Map { number: 4, name: "firewall_ingress6", key: &[DataType::Ipv6Addr], ..INGRESS4 };

/// No rule looks at these: they remember what others were told, who do not remember whose it is.
static TOLD4: Map = Map {
    number: 5,
    name: "firewall_told4",
    data: MapTo::Nothing,
    comment: "container: firewalld or iptables was told of it",
    ..PASS4
};
static TOLD6: Map = Map { number: 6, name: "firewall_told6", key: &[DataType::Ipv6Addr], ..TOLD4 };

/// Its elements belong to no container: they stay as long as a chain of the bridge does.
pub static BRIDGES: Map = Map {
    number: 7,
    name: "firewall_bridges",
    key: &[DataType::IfName],
    data: MapTo::Nothing,
    comment: "bridges of containers that have an ingress policy",
    ..PASS4
};

pub static FEATURE: Feature = Feature {
    number: 3,
    table: TABLE,
    maps: &[&PASS4, &PASS6, &INGRESS4, &INGRESS6, &TOLD4, &TOLD6, &BRIDGES],
    chains,
    networks_chains: None,
};

/// The element that marks an address's packets, and the chain that does it.
pub fn pass(firewall: &Firewall, address: IpAddr) -> (Entry, WantedChain) {
    let name = format!("firewall_mark_{}", firewall.mark_bit);
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
    let comment = "what passes, also by iptables".to_owned();
    let chain =
        WantedChain { name, base: None, comment, rules: vec![(set, "")], entrances: Vec::new() };
    (jump(address, [&PASS4, &PASS6], &chain), chain)
}

/// The element that says who may not reach an address, and the chain for its bridge.
pub fn ingress(policy: Ingress, bridge: &str, address: IpAddr) -> (Entry, WantedChain) {
    let from = Expr::Meta(MetaKey::IifName, Reg(0));
    let own = Expr::Cmp(Reg(0), Op::Eq, ifname(bridge).to_vec());
    let of_own = if policy == Ingress::Isolated { Verdict::Drop } else { Verdict::Return };
    let is_bridge = Expr::Lookup { set: BRIDGES.name.to_owned(), key: Reg(0), inverted: false };
    let chain = WantedChain {
        name: ingress_chain(policy, bridge),
        base: None,
        comment: bridge.to_owned(),
        rules: vec![
            (vec![from.clone(), own, Expr::Verdict(of_own)], ""),
            (vec![from, is_bridge, Expr::Verdict(Verdict::Drop)], ""),
        ],
        entrances: Vec::new(),
    };
    (jump(address, [&INGRESS4, &INGRESS6], &chain), chain)
}

/// The chain of a bridge and policy.
pub fn ingress_chain(policy: Ingress, bridge: &str) -> String {
    let digest = identity::digest(&[bridge]);
    let shown = if policy == Ingress::Isolated { "isolated" } else { "same" };
    format!("firewall_{shown}_{digest:016x}")
}

/// The element that remembers an address that others were told of.
pub fn told(address: IpAddr) -> Entry {
    Entry { map: of_family(address, [&TOLD4, &TOLD6]), key: octets(address), data: None }
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

fn jump(address: IpAddr, maps: [&'static Map; 2], chain: &WantedChain) -> Entry {
    let data = Some(Data::Verdict(Verdict::Jump(chain.name.clone())));
    Entry { map: of_family(address, maps), key: octets(address), data }
}

fn of_family(address: IpAddr, [v4, v6]: [&'static Map; 2]) -> &'static Map {
    if address.is_ipv4() { v4 } else { v6 }
}

/// Administrators have the first word, then the ingress policies; what is left is marked: all that
/// containers send, and the answers to it.
fn chains() -> Vec<WantedChain> {
    let look = |family: Ip, load: Expr, map: &Map| {
        let map = Expr::Map { set: map.name.to_owned(), key: Reg(0), to: REG_VERDICT };
        [&family.only()[..], &[load, map]].concat()
    };
    let mut rules = vec![(vec![Expr::Verdict(Verdict::Jump(ADMIN.to_owned()))], "")];
    for (family, map) in [(Ip::V4, &INGRESS4), (Ip::V6, &INGRESS6)] {
        rules.push((look(family, family.destination(Reg(0)), map), ""));
    }
    for (family, map) in [(Ip::V4, &PASS4), (Ip::V6, &PASS6)] {
        rules.push((look(family, family.source(Reg(0)), map), ""));
        let answers = look(family, family.destination(Reg(0)), map);
        rules.push(([&is_answer()[..], &answers].concat(), ""));
    }
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: PRIORITY };
    let comment = "what containers send, and who reaches them".to_owned();
    let forward = WantedChain {
        name: "firewall_forward".to_owned(),
        base: Some(base),
        comment,
        rules,
        entrances: Vec::new(),
    };
    let comment = "jumps to the chains of administrators".to_owned();
    let admin = WantedChain {
        name: ADMIN.to_owned(),
        base: None,
        comment,
        rules: Vec::new(),
        entrances: Vec::new(),
    };
    vec![forward, admin]
}
