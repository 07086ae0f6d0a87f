// SPDX-License-Identifier: Apache-2.0
//! Which gateways and default routes follow from the addresses given, as pure functions.

use std::net::IpAddr;

use cni::{CniResult, Route};
use ipnet::IpNet;
use kernel::Family;
use kernel::route::default_dst;

use super::conf::Bridge;

/// Index of the container's interface in the result: bridge, host end, container end.
pub const CONTAINER: usize = 2;

/// Completes the IPAM plugin's result: every address belongs to the container, has a gateway
/// where the bridge is one, and its family a default route where that is asked for. Returns the
/// addresses that the bridge must hold.
pub fn complete(bridge: &Bridge, result: &mut CniResult) -> Vec<IpNet> {
    let mut on_bridge = Vec::new();
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER);
        if !bridge.is_gateway {
            continue;
        }
        let gateway = *ip.gateway.get_or_insert_with(|| first_address(ip.address));
        on_bridge.extend(IpNet::new(gateway, ip.address.prefix_len()));
        if bridge.is_default_gateway {
            ensure_default_route(&mut result.routes, gateway);
        }
    }
    on_bridge
}

/// A default route that names no gateway goes by the address's own, so it counts as well.
fn ensure_default_route(routes: &mut Vec<Route>, gateway: IpAddr) {
    let default = default_dst(Family::of(gateway));
    if !routes.iter().any(|route| route.dst == default) {
        routes.push(Route::new(default, Some(gateway)));
    }
}

/// The address after the network's own.
fn first_address(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => IpAddr::V4((u32::from(network).wrapping_add(1)).into()),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network).wrapping_add(1)).into()),
    }
}

/// What must happen to the bridge's addresses so that it holds `wanted`.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there.
    Nothing,
    /// Nothing is in its way.
    Add,
    /// These stand in its way: only one IPv4 address, and no overlapping IPv6 networks.
    Conflict(Vec<IpNet>),
}

/// Compares one wanted address with those that the bridge holds.
pub fn compare(wanted: IpNet, found: &[IpNet]) -> Change {
    if found.contains(&wanted) {
        return Change::Nothing;
    }
    let is_in_the_way = |other: &&IpNet| match (wanted, other) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => {
            wanted.contains(&other.addr()) || other.contains(&wanted.addr())
        }
        _ => false,
    };
    let in_the_way: Vec<IpNet> = found.iter().filter(is_in_the_way).copied().collect();
    if in_the_way.is_empty() { Change::Add } else { Change::Conflict(in_the_way) }
}

#[cfg(test)]
mod tests {
    use cni::IpConfig;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn bridge(is_gateway: bool, is_default_gateway: bool) -> Bridge {
        Bridge {
            name: "cni0".parse().unwrap(),
            is_gateway,
            is_default_gateway,
            force_address: false,
            mtu: None,
            hairpin: false,
            promisc: false,
            isolated: false,
            dad: false,
            leave_down: false,
            check_spoofing: false,
            masquerade: None,
            vlans: None,
            vlan_gateway: None,
            mac: None,
            dns: crate::dns::DnsConf::default(),
        }
    }

    fn given(addresses: &[(&str, Option<&str>)], routes: &[(&str, Option<&str>)]) -> CniResult {
        let ip = |gw: &Option<&str>| gw.map(|gw| gw.parse().unwrap());
        CniResult {
            ips: addresses.iter().map(|(a, gw)| IpConfig::new(net(a), ip(gw))).collect(),
            routes: routes.iter().map(|(dst, gw)| Route::new(net(dst), ip(gw))).collect(),
            ..CniResult::default()
        }
    }

    #[test]
    fn a_plain_bridge_only_claims_the_addresses() {
        let mut result = given(&[("10.1.0.5/24", None)], &[]);
        assert!(complete(&bridge(false, false), &mut result).is_empty());
        assert_eq!(result.ips[0].interface, Some(CONTAINER));
        assert_eq!(result.ips[0].gateway, None);
    }

    #[test]
    fn a_missing_gateway_is_the_first_address() {
        let mut result = given(&[("10.1.0.5/24", None), ("fd00::5/64", Some("fd00::9"))], &[]);
        let on_bridge = complete(&bridge(true, true), &mut result);
        assert_eq!(on_bridge, [net("10.1.0.1/24"), net("fd00::9/64")]);
        let routes: Vec<_> = result.routes.iter().map(|r| (r.dst, r.gw)).collect();
        assert_eq!(
            routes,
            [
                (net("0.0.0.0/0"), Some("10.1.0.1".parse().unwrap())),
                (net("::/0"), Some("fd00::9".parse().unwrap())),
            ]
        );
    }

    #[test]
    fn one_default_route_is_enough() {
        for gw in [None, Some("10.1.0.7")] {
            let mut result = given(&[("10.1.0.5/24", None)], &[("0.0.0.0/0", gw)]);
            complete(&bridge(true, true), &mut result);
            assert_eq!(result.routes.len(), 1, "{gw:?}");
        }
    }

    #[test]
    fn addresses_of_the_bridge_are_compared() {
        let check = |wanted: &str, found: &[&str], expected: Change| {
            let found: Vec<IpNet> = found.iter().map(|text| net(text)).collect();
            assert_eq!(compare(net(wanted), &found), expected, "{wanted} {found:?}");
        };
        check("10.1.0.1/24", &[], Change::Add);
        check("10.1.0.1/24", &["fe80::1/64"], Change::Add);
        check("10.1.0.1/24", &["10.1.0.1/24"], Change::Nothing);
        check("10.1.0.1/24", &["10.2.0.1/24"], Change::Conflict(vec![net("10.2.0.1/24")]));
        check("10.1.0.1/24", &["10.1.0.1/16"], Change::Conflict(vec![net("10.1.0.1/16")]));
        let both = Change::Conflict(vec![net("10.2.0.1/24"), net("10.3.0.1/24")]);
        check("10.1.0.1/24", &["10.2.0.1/24", "fe80::1/64", "10.3.0.1/24"], both);
        check("fd00::1/64", &["fe80::1/64", "fd01::1/64"], Change::Add);
        check("fd00::1/64", &["fd00::2/64"], Change::Conflict(vec![net("fd00::2/64")]));
        check("fd00::1/48", &["fd00:0:0:1::2/64"], Change::Conflict(vec![net("fd00:0:0:1::2/64")]));
    }
}
