// SPDX-License-Identifier: Apache-2.0
//! Chooses the interface to other nodes, and this node's addresses on it. The choice is a pure function of the settings
//! and of the state of the host. If no interface fits, the agent reports the reasons and waits.

mod observe;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernel::{IfIndex, IfName};
use overlay::Addresses;
use overlay::routed::leads_out_of_host;
use regex_lite::Regex;

/// An interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub index: IfIndex,
    pub name: IfName,
    pub mtu: u32,
    /// Whether the interface is up and has a carrier.
    pub is_up: bool,
    /// Addresses in the kernel's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// Length of the prefix that is on the link.
    pub prefix_len: u8,
    pub is_deprecated: bool,
    /// Whether it is a privacy address, which changes.
    pub is_temporary: bool,
    /// Whether its lifetime is unlimited.
    pub is_permanent: bool,
}

/// The observed state of the host.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub interfaces: Vec<Interface>,
    /// The interface of the IPv4 default route.
    pub default_v4: Option<IfIndex>,
    /// The interface of the IPv6 default route.
    pub default_v6: Option<IfIndex>,
    /// Interface and source address of the route to [`Wish::can_reach`].
    pub reaching: Option<(IfIndex, Option<IpAddr>)>,
    /// Internal addresses of this node's Kubernetes object.
    pub internal: Vec<IpAddr>,
}

impl Facts {
    /// Returns the smallest MTU of the underlay and of all interfaces that lead out of the host and are up. Routed
    /// pods have it, as with Calico: a packet may leave by any of these interfaces.
    pub fn smallest_mtu(&self, underlay: IfIndex) -> Option<u32> {
        let counts =
            |one: &&Interface| one.index == underlay || one.is_up && leads_out_of_host(&one.name);
        self.interfaces.iter().filter(counts).map(|one| one.mtu).min()
    }
}

/// The requirements for the underlay.
#[derive(Debug, Clone, Default)]
pub struct Wish<'a> {
    /// Whether an IPv4 address is required.
    pub ipv4: bool,
    /// Whether an IPv6 address is required.
    pub ipv6: bool,
    /// Names or addresses, in order of preference.
    pub interfaces: &'a [String],
    /// Patterns, tried next.
    pub patterns: &'a [Regex],
    /// Address that the interface must have a route to, tried last.
    pub can_reach: Option<IpAddr>,
    /// The previous choice. It stays if the settings select no interface: the default route may change, or lead into a
    /// tunnel, for a while.
    pub before: Option<IfIndex>,
    /// Address at which other nodes reach this node, if configured.
    pub public_v4: Option<Ipv4Addr>,
    pub public_v6: Option<Ipv6Addr>,
}

/// The interface to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub index: IfIndex,
    pub name: IfName,
    pub mtu: u32,
    /// The interface's own address, if the family is required.
    pub local_v4: Option<Ipv4Addr>,
    pub local_v6: Option<Ipv6Addr>,
    /// Address that other nodes use: the configured one, else the interface's own.
    pub public_v4: Option<Ipv4Addr>,
    pub public_v6: Option<Ipv6Addr>,
}

/// Chooses an interface. The error lists why each candidate was rejected.
pub fn choose(wish: &Wish<'_>, facts: &Facts) -> Result<Underlay, String> {
    let mut reasons = Vec::new();
    for candidate in candidates(wish, facts) {
        let tried = candidate.and_then(|(found, source)| take(wish, found, source));
        match tried {
            Ok(underlay) => return Ok(underlay),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

type Candidate<'a> = Result<(&'a Interface, Option<IpAddr>), String>;

/// Returns the candidates in the order of flanneld. If the settings select none, the addresses of the Kubernetes node come
/// before the default route, because other components of Kubernetes use them.
fn candidates<'a>(wish: &Wish<'_>, facts: &'a Facts) -> Vec<Candidate<'a>> {
    let mut found: Vec<Candidate<'a>> = Vec::new();
    found.extend(wish.interfaces.iter().map(|text| by_name_or_address(facts, text)));
    found.extend(wish.patterns.iter().flat_map(|pattern| by_pattern(wish, facts, pattern)));
    if let Some(address) = wish.can_reach {
        found.push(by_route(facts, address));
    }
    if !found.is_empty() {
        return found;
    }
    let public = [wish.public_v4.map(IpAddr::from), wish.public_v6.map(IpAddr::from)];
    if public.iter().any(Option::is_some) {
        let configured = public.into_iter().flatten();
        return configured.map(|address| by_address(facts, address)).collect();
    }
    found.extend(facts.internal.iter().map(|address| by_address(facts, *address)));
    let is_before = |one: &&Interface| Some(one.index) == wish.before && one.is_up;
    found.extend(facts.interfaces.iter().find(is_before).map(|one| Ok((one, None))));
    found.push(by_default_route(wish, facts));
    found
}

fn by_name_or_address<'a>(facts: &'a Facts, text: &str) -> Candidate<'a> {
    if let Ok(address) = text.parse() {
        return by_address(facts, address);
    }
    let found = facts.interfaces.iter().find(|one| one.name.as_str() == text);
    found.map(|one| (one, None)).ok_or_else(|| format!("there is no interface {text:?}"))
}

fn by_address(facts: &Facts, address: IpAddr) -> Candidate<'_> {
    let has = |one: &&Interface| one.addresses.iter().any(|other| other.ip == address);
    let found = facts.interfaces.iter().find(has);
    found.map(|one| (one, Some(address))).ok_or_else(|| format!("no interface has {address}"))
}

/// Matches addresses first, then names. An address that matches is the one to use.
fn by_pattern<'a>(wish: &Wish<'_>, facts: &'a Facts, pattern: &Regex) -> Vec<Candidate<'a>> {
    for one in &facts.interfaces {
        let fits = |is_v4: bool| {
            usable(one).into_iter().find(|address| {
                address.is_ipv4() == is_v4 && pattern.is_match(&address.to_string())
            })
        };
        let (v4, v6) = (fits(true), fits(false));
        if (!wish.ipv4 || v4.is_some()) && (!wish.ipv6 || v6.is_some()) {
            return vec![Ok((one, v4.or(v6)))];
        }
    }
    let by_name = facts.interfaces.iter().filter(|one| pattern.is_match(one.name.as_str()));
    let found: Vec<Candidate<'a>> = by_name.map(|one| Ok((one, None))).collect();
    if found.is_empty() {
        let pattern = pattern.as_str();
        return vec![Err(format!("no interface's address or name matches {pattern:?}"))];
    }
    found
}

fn by_route(facts: &Facts, address: IpAddr) -> Candidate<'_> {
    let missing = || format!("no route to {address}");
    let (index, source) = facts.reaching.ok_or_else(missing)?;
    let found = facts.interfaces.iter().find(|one| one.index == index);
    found.map(|one| (one, source)).ok_or_else(missing)
}

fn by_default_route<'a>(wish: &Wish<'_>, facts: &'a Facts) -> Candidate<'a> {
    let index = match (wish.ipv4, wish.ipv6) {
        (true, true) if facts.default_v4 != facts.default_v6 => {
            return Err("the default routes of IPv4 and IPv6 use different interfaces, or one is \
                        missing: select the interface with --iface"
                .to_owned());
        }
        (true, _) => facts.default_v4,
        (false, _) => facts.default_v6,
    };
    let found = index.and_then(|index| facts.interfaces.iter().find(|one| one.index == index));
    found.map(|one| (one, None)).ok_or_else(|| "there is no default route".to_owned())
}

/// Returns the interface with the required addresses.
fn take(wish: &Wish<'_>, found: &Interface, source: Option<IpAddr>) -> Result<Underlay, String> {
    let name = found.name;
    if found.mtu == 0 {
        return Err(format!("interface {name} has no MTU"));
    }
    let of_family = |is_v4: bool| {
        let preferred = source.filter(|address| address.is_ipv4() == is_v4);
        preferred.or_else(|| usable(found).into_iter().find(|one| one.is_ipv4() == is_v4))
    };
    let missing = |family| format!("interface {name} has no usable {family} address");
    let local_v4 = match of_family(true) {
        Some(IpAddr::V4(address)) if wish.ipv4 => Some(address),
        _ if wish.ipv4 => return Err(missing("IPv4")),
        _ => None,
    };
    let local_v6 = match of_family(false) {
        Some(IpAddr::V6(address)) if wish.ipv6 => Some(address),
        _ if wish.ipv6 => return Err(missing("IPv6")),
        _ => None,
    };
    Ok(Underlay {
        index: found.index,
        name,
        mtu: found.mtu,
        local_v4,
        local_v6,
        public_v4: wish.public_v4.filter(|_| wish.ipv4).or(local_v4),
        public_v6: wish.public_v6.filter(|_| wish.ipv6).or(local_v6),
    })
}

/// Returns the usable addresses, best first: global scope, permanent, not temporary.
fn usable(interface: &Interface) -> Vec<IpAddr> {
    let mut found: Vec<&Address> = interface
        .addresses
        .iter()
        .filter(|one| !one.is_deprecated && !one.ip.is_loopback() && !one.ip.is_multicast())
        .collect();
    found.sort_by_key(|one| (is_link_local(one.ip), !one.is_permanent, one.is_temporary));
    found.into_iter().map(|one| one.ip).collect()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether tunnels run over IPv4, and over IPv6.
pub type Carrier = (bool, bool);

/// Chooses an interface for the first combination of families that has one. `published` are the addresses that other
/// nodes know: with only the other family they would not find this node.
pub fn choose_among(
    carriers: &[Carrier],
    wish: &Wish<'_>,
    facts: &Facts,
    published: Addresses,
) -> Result<Underlay, String> {
    let mut reason = None;
    // Every interface has a link-local address, also while it waits for another one. It is the last resort.
    let mut link_local = None;
    for (at, &(ipv4, ipv6)) in carriers.iter().enumerate() {
        let is_first = at == 0;
        match choose(&Wish { ipv4, ipv6, ..wish.clone() }, facts) {
            Ok(underlay) if is_link_local_only(&underlay) => {
                link_local = link_local.or(is_first.then_some(underlay));
            }
            Ok(underlay) if is_first || is_published(published, (ipv4, ipv6)) => {
                return Ok(underlay);
            }
            Ok(_) => {}
            Err(why) => reason = reason.or(Some(why)),
        }
    }
    link_local.ok_or_else(|| reason.unwrap_or_default())
}

/// Whether other nodes know this node by one of these families, or do not know it at all.
fn is_published(published: Addresses, (ipv4, ipv6): Carrier) -> bool {
    published == Addresses::default()
        || ipv4 && published.v4.is_some()
        || ipv6 && published.v6.is_some()
}

/// Whether an address of the choice is link-local, which only nodes on the same link can use.
fn is_link_local_only(underlay: &Underlay) -> bool {
    underlay.public_v4.is_some_and(|address| address.is_link_local())
        || underlay.public_v6.is_some_and(|address| address.is_unicast_link_local())
}

#[cfg(test)]
mod tests;
