// SPDX-License-Identifier: Apache-2.0
//! From a configuration and a container's addresses to elements of maps, and back from elements to
//! ports. Pure.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use cni::{CniResult, Request};
use ipnet::IpNet;
use kernel::Family;
use kernel::IfName;
use kernel::conntrack::SentTo;
use kernel::nft::{Data, Op, Place, Reg};

use super::conditions::Conditions;
use super::conf::{HostPort, Mapping, Portmap, Protocol};
use super::tables::{self, CONDITIONS, FEATURE, Maps, chain_prefix};
use crate::attach::{names, prev_result};
use crate::nftables::match_expr::{ifname_key, match_network, octets};
use crate::nftables::{ChainId, DesiredChain, Entry, IndexEntry, JumpRule, key};

/// An address of the container, with the host's interface that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub address: IpAddr,
    pub reached_by: Option<IfName>,
}

/// What an attachment needs.
#[derive(Debug, Default)]
pub struct Plan {
    pub entries: Vec<Entry>,
    pub chains: Vec<DesiredChain>,
}

/// The first address of each family on the container's interface, as far as the result says.
pub fn addresses(result: &CniResult, request: &Request) -> Vec<IpNet> {
    let mut first: Vec<IpNet> = Vec::new();
    for ip in prev_result::addresses(result, request) {
        let family = Family::of(ip.address.addr());
        if first.iter().all(|other| Family::of(other.addr()) != family) {
            first.push(ip.address);
        }
    }
    first
}

impl Plan {
    pub fn new(portmap: &Portmap, network: &str, pods: &[Pod]) -> Self {
        let mut plan = Self::default();
        for pod in pods {
            let family = Family::of(pod.address);
            let mine = portmap.mappings.iter().filter(|mapping| mapping.from.family == family);
            let before = plan.entries.len();
            let mut held: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
            for mapping in mine {
                let conditions = portmap.conditions(family);
                plan.map(conditions, network, mapping, pod.address);
                let HostPort { protocol, port, address, .. } = mapping.from;
                let key = key(&[&[protocol.number()], &port.to_be_bytes()]);
                *held.entry(key).or_default() |= conditions.is_none() && address.is_none();
            }
            plan.hold(family, held);
            if portmap.snat && plan.entries.len() > before {
                plan.masquerade(portmap.masq_all, pod);
            }
        }
        plan
    }

    fn map(
        &mut self,
        conditions: Option<&Conditions>,
        network: &str,
        mapping: &Mapping,
        pod: IpAddr,
    ) {
        let HostPort { family, address, protocol, port } = mapping.from;
        let maps = Maps::of(family);
        let host = address.map(octets);
        let (protocol, port) = ([protocol.number()], port.to_be_bytes());
        let data = Some(Data::Value(key(&[&octets(pod), &mapping.to.to_be_bytes()])));
        let (map, key) = match (conditions, host) {
            (None, None) => (maps.ports, key(&[&protocol, &port])),
            (None, Some(host)) => (maps.ports_at, key(&[&host, &protocol, &port])),
            (Some(conditions), _) => {
                let number = self.meet(conditions, network, family, address).to_be_bytes();
                (maps.ports_if, key(&[&number, &protocol, &port]))
            }
        };
        self.entries.push(Entry { map, key, data });
    }

    /// Ports, and whether each is mapped for everything that is sent to it. They come last, so that one
    /// who asks for exactly what another has is told so.
    fn hold(&mut self, family: Family, ports: BTreeMap<Vec<u8>, bool>) {
        let map = Maps::of(family).held;
        self.entries.extend(ports.into_iter().map(|(key, is_whole)| {
            let value = if is_whole { tables::WHOLE } else { tables::PART };
            Entry { map, key, data: Some(Data::Value(value.to_vec())) }
        }));
    }

    /// The number of a network's conditions, to which the host's address belongs where there is one.
    fn meet(
        &mut self,
        conditions: &Conditions,
        network: &str,
        family: Family,
        host: Option<IpAddr>,
    ) -> ChainId {
        let shown = host.map(|host| host.to_string()).unwrap_or_default();
        let twin = if family == Family::V4 { "4" } else { "6" };
        let number = names::digest(&[network, twin, &shown, &conditions.text]) as ChainId;
        let name = format!("{}{number:08x}", chain_prefix(network));
        if self.chains.iter().any(|chain| chain.name == name) {
            return number;
        }
        // What is for one address of the host comes before what is for all.
        let place = if host.is_some() { Place::First } else { Place::Last };
        let to_host = host.map(|host| {
            let mut exprs = vec![family.load_destination(Reg(0))];
            exprs.extend(match_network(Reg(0), Op::Eq, host.into()));
            exprs
        });
        let jump_rule = |exprs: Vec<_>| JumpRule {
            from: CONDITIONS,
            place,
            exprs: [exprs, to_host.clone().unwrap_or_default()].concat(),
        };
        let rules = vec![(tables::condition_rule(family, number), "")];
        self.chains.push(DesiredChain {
            parts: vec![(Maps::of(family).ports_if, number)],
            jump_rules: conditions.exprs().into_iter().map(jump_rule).collect(),
            ..DesiredChain::new(name, network, rules)
        });
        number
    }

    /// Whoever must see the host's address in place of another.
    fn masquerade(&mut self, everybody: bool, pod: &Pod) {
        let maps = Maps::of(Family::of(pod.address));
        let own = octets(pod.address);
        let mut add = |map, key| self.entries.push(Entry { map, key, data: None });
        if everybody {
            add(maps.masq_all, own);
            return;
        }
        add(maps.own, key(&[&own, &own]));
        if let Some(name) = pod.reached_by {
            add(maps.hairpin, key(&[&ifname_key(name.as_str()), &own]));
        }
    }
}

/// What another has of a port, where one of them asks for all of it and the other for a part.
pub fn overlap(entry: &Entry) -> Option<String> {
    let family =
        [Family::V4, Family::V6].into_iter().find(|one| entry.map == Maps::of(*one).held)?;
    let whole = IndexEntry { map: Maps::of(family).ports.number, key: entry.key.clone() };
    let port = host_port(&whole)?;
    if entry.data == Some(Data::Value(tables::PART.to_vec())) {
        return Some(port.to_string());
    }
    let HostPort { protocol, port, .. } = port;
    Some(format!("{} port {port} of one address, or under conditions,", protocol.as_str()))
}

/// The port of the host that an element is about; `None` for elements about other things. Of one under
/// conditions the address is not known.
pub fn host_port(place: &IndexEntry) -> Option<HostPort> {
    let map = FEATURE.maps.iter().find(|map| map.number == place.map)?;
    for family in [Family::V4, Family::V6] {
        let maps = Maps::of(family);
        let len = usize::try_from(family.address_registers() * 4).ok()?;
        let (address, rest) = match *map {
            map if *map == *maps.ports => (None, &place.key[..]),
            map if *map == *maps.ports_at => {
                let (address, rest) = place.key.split_at_checked(len)?;
                (address_of(address), rest)
            }
            map if *map == *maps.ports_if => (None, place.key.get(4..)?),
            _ => continue,
        };
        let [protocol, _, _, _, high, low, ..] = *rest else { return None };
        let protocol = Protocol::of_number(protocol)?;
        return Some(HostPort { family, address, protocol, port: u16::from_be_bytes([high, low]) });
    }
    None
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// The connections that follow from these ports and do not end by themselves: those of UDP go on as long
/// as somebody sends.
pub fn lasting(ports: impl Iterator<Item = HostPort>) -> Vec<SentTo> {
    let ports = ports.filter(|one| one.protocol == Protocol::Udp);
    let sent_to = |HostPort { address, protocol, port, .. }: HostPort| SentTo {
        protocol: protocol.number(),
        port,
        address,
    };
    let mut known = HashSet::new();
    ports.map(sent_to).filter(|one| known.insert(*one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(family: Family, address: Option<&str>) -> Mapping {
        let address = address.map(|text| text.parse().expect("an address"));
        let from = HostPort { family, address, protocol: Protocol::Udp, port: 5353 };
        Mapping { from, to: 53 }
    }

    fn portmap(conditions: &str) -> Portmap {
        let words = [conditions.to_owned()];
        Portmap {
            backend: super::super::conf::Backend::Nftables,
            snat: true,
            masq_all: false,
            conditions_v4: Conditions::parse(&words, Family::V4).unwrap(),
            conditions_v6: None,
            mappings: vec![
                mapping(Family::V4, None),
                mapping(Family::V6, None),
                mapping(Family::V4, Some("192.0.2.1")),
                mapping(Family::V6, Some("fd00::1")),
            ],
        }
    }

    fn pods() -> Vec<Pod> {
        let pod = |address: &str| Pod {
            address: address.parse().expect("an address"),
            reached_by: Some("br0".parse().expect("a name")),
        };
        vec![pod("10.1.0.2"), pod("fd00:1::2")]
    }

    #[test]
    fn ports_are_read_back_from_elements() {
        let read = |conditions: &str| -> Vec<HostPort> {
            let plan = Plan::new(&portmap(conditions), "net", &pods());
            let place =
                |entry: &Entry| IndexEntry { map: entry.map.number, key: entry.key.clone() };
            plan.entries.iter().filter_map(|entry| host_port(&place(entry))).collect()
        };
        let all = |of: &[Mapping]| of.iter().map(|one| one.from).collect::<Vec<_>>();
        let mut found = read("");
        found.sort_by_key(|one| (one.address.is_some(), one.family == Family::V6));
        assert_eq!(found, all(&portmap("").mappings));
        // The address is among the conditions.
        assert_eq!(
            read("ip saddr 10.0.0.0/8").iter().filter(|one| one.address.is_none()).count(),
            3
        );
    }

    #[test]
    fn conditions_have_a_chain_for_each_network_and_address() {
        let names = |network: &str, conditions: &str| -> Vec<String> {
            let plan = Plan::new(&portmap(conditions), network, &pods());
            plan.chains.into_iter().map(|chain| chain.name).collect()
        };
        let all = [names("one", "iif a"), names("two", "iif a"), names("one", "iif b")].concat();
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (6, 6));
        assert!(names("one", "").is_empty());
    }

    #[test]
    fn lasting_connections_are_those_of_udp() {
        let tcp = HostPort { protocol: Protocol::Tcp, ..mapping(Family::V4, None).from };
        let ports = [tcp, mapping(Family::V4, None).from, mapping(Family::V6, None).from];
        let found = lasting(ports.into_iter());
        assert_eq!(found, [SentTo { protocol: 17, port: 5353, address: None }]);
    }
}
