// SPDX-License-Identifier: Apache-2.0
//! The map elements for a configuration and a container's addresses, and the ports of existing
//! elements. Pure functions.

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

/// An address of the container, with the host interface that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub address: IpAddr,
    pub interface: Option<IfName>,
}

/// The elements and chains of an attachment.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub entries: Vec<Entry>,
    pub chains: Vec<DesiredChain>,
}

/// The first address of each family on the container's interface.
pub(super) fn addresses(result: &CniResult, request: &Request) -> Vec<IpNet> {
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
    pub(super) fn new(portmap: &Portmap, network: &str, pods: &[Pod]) -> Self {
        let mut plan = Self::default();
        for pod in pods {
            let family = Family::of(pod.address);
            let mappings = portmap.mappings.iter().filter(|mapping| mapping.from.family == family);
            let before = plan.entries.len();
            let mut guards: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
            for mapping in mappings {
                let conditions = portmap.conditions(family);
                plan.map(conditions, network, mapping, pod.address);
                let HostPort { protocol, port, address, .. } = mapping.from;
                let key = key(&[&[protocol.number()], &port.to_be_bytes()]);
                *guards.entry(key).or_default() |= conditions.is_none() && address.is_none();
            }
            plan.guard(family, guards);
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
                let chain = self.chain_for(conditions, network, family, address).to_be_bytes();
                (maps.ports_if, key(&[&chain, &protocol, &port]))
            }
        };
        self.entries.push(Entry { map, key, data });
    }

    /// Adds the guards of ports; the boolean tells whether all packets to the port are mapped.
    /// Guards come last, so that a claim of exactly the same port reports that port.
    fn guard(&mut self, family: Family, ports: BTreeMap<Vec<u8>, bool>) {
        let map = Maps::of(family).held;
        self.entries.extend(ports.into_iter().map(|(key, is_all)| {
            let value = if is_all { tables::ALL } else { tables::PART };
            Entry { map, key, data: Some(Data::Value(value.to_vec())) }
        }));
    }

    /// Returns the chain for a network's conditions and, if there is one, a host address.
    fn chain_for(
        &mut self,
        conditions: &Conditions,
        network: &str,
        family: Family,
        host: Option<IpAddr>,
    ) -> ChainId {
        let shown = host.map(|host| host.to_string()).unwrap_or_default();
        let suffix = if family == Family::V4 { "4" } else { "6" };
        let id = names::digest(&[network, suffix, &shown, &conditions.text]) as ChainId;
        let name = format!("{}{id:08x}", chain_prefix(network));
        if self.chains.iter().any(|chain| chain.name == name) {
            return id;
        }
        // A rule for one host address comes before the rules for all addresses.
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
        let rules = vec![(tables::condition_rule(family, id), "")];
        self.chains.push(DesiredChain {
            parts: vec![(Maps::of(family).ports_if, id)],
            jump_rules: conditions.exprs().into_iter().map(jump_rule).collect(),
            ..DesiredChain::new(name, network, rules)
        });
        id
    }

    /// Adds the elements for connections that must be masqueraded.
    fn masquerade(&mut self, all: bool, pod: &Pod) {
        let maps = Maps::of(Family::of(pod.address));
        let own = octets(pod.address);
        let mut add = |map, key| self.entries.push(Entry { map, key, data: None });
        if all {
            add(maps.masq_all, own);
            return;
        }
        add(maps.own, key(&[&own, &own]));
        if let Some(name) = pod.interface {
            add(maps.hairpin, key(&[&ifname_key(name.as_str()), &own]));
        }
    }
}

/// Describes a conflict between a mapping of all packets to a port and a mapping of a part of them.
pub(super) fn overlap(entry: &Entry) -> Option<String> {
    let family =
        [Family::V4, Family::V6].into_iter().find(|one| entry.map == Maps::of(*one).held)?;
    let all = IndexEntry { map: Maps::of(family).ports.number, key: entry.key.clone() };
    let port = host_port(&all)?;
    if entry.data == Some(Data::Value(tables::PART.to_vec())) {
        return Some(port.to_string());
    }
    let HostPort { protocol, port, .. } = port;
    Some(format!("{} port {port} of one address, or under conditions,", protocol.as_str()))
}

/// The host port of an element; `None` for elements of other maps. For an element with conditions
/// the address is not known.
pub(super) fn host_port(entry: &IndexEntry) -> Option<HostPort> {
    let map = FEATURE.maps.iter().find(|map| map.number == entry.map)?;
    for family in [Family::V4, Family::V6] {
        let maps = Maps::of(family);
        let len = usize::try_from(family.address_registers() * 4).ok()?;
        let (address, rest) = match *map {
            map if *map == *maps.ports => (None, &entry.key[..]),
            map if *map == *maps.ports_at => {
                let (address, rest) = entry.key.split_at_checked(len)?;
                (address_of(address), rest)
            }
            map if *map == *maps.ports_if => (None, entry.key.get(4..)?),
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

/// The UDP connections to these ports. Their tracking entries live as long as the client keeps
/// sending; those of other protocols end by themselves.
pub(super) fn udp_connections(ports: impl Iterator<Item = HostPort>) -> Vec<SentTo> {
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
            interface: Some("br0".parse().expect("a name")),
        };
        vec![pod("10.1.0.2"), pod("fd00:1::2")]
    }

    #[test]
    fn host_port_reads_elements_of_the_plan() {
        let read = |conditions: &str| -> Vec<HostPort> {
            let plan = Plan::new(&portmap(conditions), "net", &pods());
            let indexed =
                |entry: &Entry| IndexEntry { map: entry.map.number, key: entry.key.clone() };
            plan.entries.iter().filter_map(|entry| host_port(&indexed(entry))).collect()
        };
        let all = |of: &[Mapping]| of.iter().map(|one| one.from).collect::<Vec<_>>();
        let mut found = read("");
        found.sort_by_key(|one| (one.address.is_some(), one.family == Family::V6));
        assert_eq!(found, all(&portmap("").mappings));
        // With conditions, the address is part of the chain.
        assert_eq!(
            read("ip saddr 10.0.0.0/8").iter().filter(|one| one.address.is_none()).count(),
            3
        );
    }

    #[test]
    fn conditions_get_a_chain_per_network_and_address() {
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
    fn udp_connections_are_unique() {
        let tcp = HostPort { protocol: Protocol::Tcp, ..mapping(Family::V4, None).from };
        let ports = [tcp, mapping(Family::V4, None).from, mapping(Family::V6, None).from];
        let found = udp_connections(ports.into_iter());
        assert_eq!(found, [SentTo { protocol: 17, port: 5353, address: None }]);
    }
}
