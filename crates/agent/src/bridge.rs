// SPDX-License-Identifier: Apache-2.0
//! The pods' bridge, which a plugin makes with the gateway's address of the node's subnet. It stays when the subnet
//! is another, and then the plugin refuses every pod.

use ipnet::IpNet;
use kernel::{IfName, Netlink, addr, link};

/// As the plugin calls it; our configuration gives it no other name.
const NAME: &str = "cni0";

/// Why pods cannot be connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "{NAME} has {found}, and this node's subnet is {subnet}: new pods are refused; when no pod is on it any more: ip link delete {NAME}"
    )]
    InTheWay { found: IpNet, subnet: IpNet },
    #[error("look at {NAME}: {0}")]
    Kernel(#[from] kernel::Error),
}

/// Fails where the bridge of this namespace is not for these subnets. One that is not there yet is fine.
pub fn check(subnets: &[IpNet]) -> Result<(), Error> {
    in_the_way(&addresses()?, subnets).map_or(Ok(()), Err)
}

/// The bridge's name where an address of it is in one of these networks, for who is to remove it.
pub fn within(networks: &[IpNet]) -> kernel::Result<Option<(&'static str, IpNet)>> {
    let is_within = |address: &IpNet| networks.iter().any(|network| network.contains(address));
    Ok(addresses()?.into_iter().find(is_within).map(|address| (NAME, address)))
}

fn addresses() -> kernel::Result<Vec<IpNet>> {
    let nl = Netlink::open()?;
    let name: IfName = NAME.parse().expect("a name of an interface");
    let Some(bridge) = link::by_name(&nl, name)?.filter(|link| link.is_kind("bridge")) else {
        return Ok(Vec::new());
    };
    Ok(addr::list(&nl, Some(bridge.index))?.iter().map(|address| address.prefix).collect())
}

/// The plugin wants no other IPv4 address than the gateway's; of IPv6 a bridge may have several.
fn in_the_way(found: &[IpNet], subnets: &[IpNet]) -> Option<Error> {
    let subnet = *subnets.iter().find(|subnet| subnet.addr().is_ipv4())?;
    let ipv4: Vec<&IpNet> = found.iter().filter(|address| address.addr().is_ipv4()).collect();
    if ipv4.iter().any(|address| subnet.contains(*address)) {
        return None;
    }
    ipv4.first().map(|found| Error::InTheWay { found: **found, subnet })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ipv4_address_of_another_subnet_is_in_the_way() {
        let is_told = |found: &[&str], subnets: &[&str]| {
            let nets = |texts: &[&str]| -> Vec<IpNet> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            in_the_way(&nets(found), &nets(subnets)).is_some()
        };
        assert!(is_told(&["10.5.1.1/24"], &["10.5.2.0/24"]));
        assert!(is_told(&["fe80::1/64", "10.5.1.1/24"], &["10.5.2.0/24", "fd05:0:0:2::/64"]));
        assert!(!is_told(&["10.5.2.1/24"], &["10.5.2.0/24"]));
        assert!(!is_told(&["10.5.2.1/24", "192.0.2.1/24"], &["10.5.2.0/24"]));
        assert!(!is_told(&["fd05:0:0:1::1/64"], &["10.5.2.0/24", "fd05:0:0:2::/64"]));
        assert!(!is_told(&["10.5.1.1/24"], &["fd05:0:0:2::/64"]));
        assert!(!is_told(&[], &["10.5.2.0/24"]));
    }
}
