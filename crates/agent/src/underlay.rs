// SPDX-License-Identifier: Apache-2.0
//! The choice of the interface to other nodes and of this node's addresses on it: a pure function of
//! what was told and what is there. Where nothing fits, the reason is told, and the agent waits.

mod carrier;
mod observe;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernel::{IfIndex, IfName};
use regex_lite::Regex;

pub use self::carrier::{Carrier, choose_among};

/// An interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: IfName,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it carries packets now.
    pub is_up: bool,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Not to be used for new connections.
    pub is_deprecated: bool,
    /// A privacy address, that changes.
    pub is_temporary: bool,
    /// Without an end.
    pub is_permanent: bool,
}

/// What is there.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The host's interfaces.
    pub interfaces: Vec<Interface>,
    /// The interface of the IPv4 default route.
    pub default_v4: Option<IfIndex>,
    /// The interface of the IPv6 default route.
    pub default_v6: Option<IfIndex>,
    /// Interface and source address of the route to the address that must be reached.
    pub reaching: Option<(IfIndex, Option<IpAddr>)>,
    /// Addresses that Kubernetes has for this node.
    pub internal: Vec<IpAddr>,
}

/// What is wanted.
#[derive(Debug, Clone, Default)]
pub struct Wish<'a> {
    /// Whether there are tunnels over IPv4.
    pub ipv4: bool,
    /// Whether there are tunnels over IPv6.
    pub ipv6: bool,
    /// Names or addresses, in order.
    pub interfaces: &'a [String],
    /// Patterns, tried next.
    pub patterns: &'a [Regex],
    /// An address to reach, tried last.
    pub can_reach: Option<IpAddr>,
    /// The one that was chosen before. Without any other wish it stays: a default route comes and goes, and
    /// may lead into a tunnel for a while.
    pub before: Option<IfIndex>,
    /// The address that others use.
    pub public_v4: Option<Ipv4Addr>,
    /// Its sister.
    pub public_v6: Option<Ipv6Addr>,
}

/// The interface to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: IfName,
    /// Its MTU.
    pub mtu: u32,
    /// Its own addresses, as far as they are wanted.
    pub local_v4: Option<Ipv4Addr>,
    /// Its sister.
    pub local_v6: Option<Ipv6Addr>,
    /// The addresses that others use: those told, else its own.
    pub public_v4: Option<Ipv4Addr>,
    /// Its sister.
    pub public_v6: Option<Ipv6Addr>,
}

/// Chooses, or says what is missing.
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

/// In the order of flanneld, except that without any wish a node's own addresses come before the
/// default route: they are what Kubernetes' other parts use.
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
        let told = public.into_iter().flatten();
        return told.map(|address| by_address(facts, address)).collect();
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

/// Addresses first, then all names that match. An address that matches is the one to take.
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
    let missing = || format!("no route leads to {address}");
    let (index, source) = facts.reaching.ok_or_else(missing)?;
    let found = facts.interfaces.iter().find(|one| one.index == index);
    found.map(|one| (one, source)).ok_or_else(missing)
}

fn by_default_route<'a>(wish: &Wish<'_>, facts: &'a Facts) -> Candidate<'a> {
    let index = match (wish.ipv4, wish.ipv6) {
        (true, true) if facts.default_v4 != facts.default_v6 => {
            return Err(
                "the default routes of IPv4 and IPv6 are by different interfaces, or one is \
                        missing: say which by iface"
                    .to_owned(),
            );
        }
        (true, _) => facts.default_v4,
        (false, _) => facts.default_v6,
    };
    let found = index.and_then(|index| facts.interfaces.iter().find(|one| one.index == index));
    found.map(|one| (one, None)).ok_or_else(|| "there is no default route".to_owned())
}

/// The interface with the addresses that are wanted.
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

/// Those that may be used, the best first: of global scope, permanent, not temporary.
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

#[cfg(test)]
mod tests;
