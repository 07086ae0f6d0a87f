// SPDX-License-Identifier: Apache-2.0
//! Gateways and default routes for the addresses of the IPAM plugin. Pure functions.

use std::net::IpAddr;

use cni::{CniResult, Route};
use ipnet::IpNet;
use kernel::Family;
use kernel::route::default_dst;

use super::conf::Bridge;

/// Index of the container's interface in the result: bridge, host end, container end.
pub(super) const CONTAINER: usize = 2;

/// Completes the result of the IPAM plugin: assigns each address to the container's interface, and
/// adds gateways and default routes if the configuration asks for them. Returns the addresses that
/// the bridge must have.
pub(super) fn complete(bridge: &Bridge, result: &mut CniResult) -> Vec<IpNet> {
    let mut gateways = Vec::new();
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER);
        if !bridge.is_gateway {
            continue;
        }
        let gateway = *ip.gateway.get_or_insert_with(|| first_address(ip.address));
        gateways.extend(IpNet::new(gateway, ip.address.prefix_len()));
        if bridge.is_default_gateway {
            ensure_default_route(&mut result.routes, gateway);
        }
    }
    gateways
}

/// An existing default route without a gateway is enough: it uses the gateway of the address.
fn ensure_default_route(routes: &mut Vec<Route>, gateway: IpAddr) {
    let default = default_dst(Family::of(gateway));
    if !routes.iter().any(|route| route.dst == default) {
        routes.push(Route::new(default, Some(gateway)));
    }
}

/// The first host address of a network.
fn first_address(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => IpAddr::V4((u32::from(network).wrapping_add(1)).into()),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network).wrapping_add(1)).into()),
    }
}

/// The change that gives the bridge an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The bridge has the address.
    Nothing,
    Add,
    /// These addresses must go first: only one IPv4 address is allowed, and no overlapping IPv6
    /// networks.
    Conflict(Vec<IpNet>),
}

/// Compares a desired address with the addresses of the bridge.
pub(super) fn compare(desired: IpNet, found: &[IpNet]) -> Change {
    if found.contains(&desired) {
        return Change::Nothing;
    }
    let is_conflict = |other: &&IpNet| match (desired, other) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => {
            desired.contains(&other.addr()) || other.contains(&desired.addr())
        }
        _ => false,
    };
    let conflicts: Vec<IpNet> = found.iter().filter(is_conflict).copied().collect();
    if conflicts.is_empty() { Change::Add } else { Change::Conflict(conflicts) }
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
            dad: crate::attach::interface::Dad::Skip,
            leave_down: false,
            check_spoofing: false,
            masquerade: None,
            vlans: None,
            vlan_gateway: None,
            mac: None,
            dns: crate::attach::dns::DnsConf::default(),
        }
    }

    fn ipam_result(
        addresses: &[(&str, Option<&str>)],
        routes: &[(&str, Option<&str>)],
    ) -> CniResult {
        let ip = |gw: &Option<&str>| gw.map(|gw| gw.parse().unwrap());
        CniResult {
            ips: addresses.iter().map(|(a, gw)| IpConfig::new(net(a), ip(gw))).collect(),
            routes: routes.iter().map(|(dst, gw)| Route::new(net(dst), ip(gw))).collect(),
            ..CniResult::default()
        }
    }

    #[test]
    fn complete_without_gateway_sets_interface_only() {
        let mut result = ipam_result(&[("10.1.0.5/24", None)], &[]);
        assert!(complete(&bridge(false, false), &mut result).is_empty());
        assert_eq!(result.ips[0].interface, Some(CONTAINER));
        assert_eq!(result.ips[0].gateway, None);
    }

    #[test]
    fn complete_uses_first_address_as_gateway() {
        let mut result =
            ipam_result(&[("10.1.0.5/24", None), ("fd00::5/64", Some("fd00::9"))], &[]);
        let gateways = complete(&bridge(true, true), &mut result);
        assert_eq!(gateways, [net("10.1.0.1/24"), net("fd00::9/64")]);
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
    fn complete_keeps_existing_default_route() {
        for gw in [None, Some("10.1.0.7")] {
            let mut result = ipam_result(&[("10.1.0.5/24", None)], &[("0.0.0.0/0", gw)]);
            complete(&bridge(true, true), &mut result);
            assert_eq!(result.routes.len(), 1, "{gw:?}");
        }
    }

    #[test]
    fn compare_finds_conflicting_addresses() {
        let check = |desired: &str, found: &[&str], expected: Change| {
            let found: Vec<IpNet> = found.iter().map(|text| net(text)).collect();
            assert_eq!(compare(net(desired), &found), expected, "{desired} {found:?}");
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
