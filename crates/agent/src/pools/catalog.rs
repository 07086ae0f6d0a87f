// SPDX-License-Identifier: Apache-2.0
//! Pools, settings and nodes as last known, and what follows from them. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam::calico::{IpamConfig, Key, NodeResource, Object, Reservation};
use ipam::node::{Content, Revision, Settings, Stored, Tunnel};
use ipam::pool::{self, PoolConf};
use ipam::pools::{Pools, Reservations};
use kernel::Family;
use overlay::routed::{Encapsulation, RoutedNode, RoutedPool, VxlanEnd, When, tunnel_mac};
use overlay::{Addresses, PerFamily};

/// Everything that applies to all nodes, and the nodes.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pools: BTreeMap<String, (Revision, PoolConf)>,
    reservations: BTreeMap<String, Reservation>,
    config: IpamConfig,
    nodes: BTreeMap<String, (Revision, NodeResource)>,
    /// Objects that cannot be read, with the reason.
    malformed: BTreeMap<Key, String>,
}

/// Effect of a change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Affected {
    /// Neither pools nor nodes.
    Nothing,
    /// Pools, reservations or the configuration.
    Settings,
    Node(String),
}

impl Catalog {
    /// Takes a changed object. An object that cannot be read counts as absent.
    pub(super) fn update(&mut self, stored: &Stored) -> Affected {
        let object = match &stored.content {
            Content::Object(object) => Some(object),
            Content::Deleted | Content::Malformed(_) => None,
        };
        match &stored.content {
            Content::Malformed(reason) => {
                self.malformed.insert(stored.key.clone(), reason.clone());
            }
            _ => drop(self.malformed.remove(&stored.key)),
        }
        match (&stored.key, object) {
            (Key::Pool(name), Some(Object::Pool(pool))) => {
                self.pools.insert(name.clone(), (stored.revision, pool.clone()));
            }
            (Key::Pool(name), _) => drop(self.pools.remove(name)),
            (Key::Reservation(name), Some(Object::Reservation(reservation))) => {
                self.reservations.insert(name.clone(), reservation.clone());
            }
            (Key::Reservation(name), _) => drop(self.reservations.remove(name)),
            (Key::Config, Some(Object::Config(config))) => self.config = config.clone(),
            (Key::Config, _) => self.config = IpamConfig::default(),
            (Key::Node(name), object) => {
                let before = match object {
                    Some(Object::Node(node)) => {
                        self.nodes.insert(name.clone(), (stored.revision, node.clone()))
                    }
                    _ => self.nodes.remove(name),
                };
                // In Kubernetes, a node changes every few minutes without any change that matters here.
                let after = self.nodes.get(name).map(|(_, node)| node);
                if before.as_ref().map(|(_, node)| node) == after {
                    return Affected::Nothing;
                }
                return Affected::Node(name.clone());
            }
            _ => return Affected::Nothing,
        }
        Affected::Settings
    }

    /// Returns the settings for the addresses of a node.
    pub(super) fn settings(&self, node: &str, addresses: &[IpAddr]) -> Settings {
        let labels = self.nodes.get(node).map(|(_, node)| node.labels.clone());
        Settings {
            pools: Pools::new(self.pools.values().map(|(_, pool)| pool.clone()), addresses),
            config: self.config.clone(),
            reservations: Reservations::new(self.reservations.values()),
            node_labels: labels.unwrap_or_default(),
        }
    }

    pub(super) fn node(&self, name: &str) -> Option<(Revision, &NodeResource)> {
        self.nodes.get(name).map(|(revision, node)| (*revision, node))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&String, &NodeResource)> {
        self.nodes.iter().map(|(name, (_, node))| (name, node))
    }

    pub(super) fn pool(&self, name: &str) -> Option<(Revision, &PoolConf)> {
        self.pools.get(name).map(|(revision, pool)| (*revision, pool))
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &PoolConf> {
        self.pools.values().map(|(_, pool)| pool)
    }

    /// Returns the objects that cannot be read, with the reason.
    pub(super) fn malformed(&self) -> impl Iterator<Item = String> {
        self.malformed.iter().map(|(key, reason)| format!("{key} is ignored: {reason}"))
    }
}

/// Returns the tunnels that the valid pools need on a node with these addresses.
pub(super) fn tunnels(pools: &Pools, addresses: Addresses) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for pool in pools.iter().filter(|pool| !pool.conf().disabled) {
        let tunnel = match (pool.encapsulation(), pool.is_ipv6()) {
            (pool::Encapsulation::Vxlan { .. }, false) if addresses.v4.is_some() => Tunnel::Vxlan,
            (pool::Encapsulation::Vxlan { .. }, true) if addresses.v6.is_some() => Tunnel::VxlanV6,
            (pool::Encapsulation::Ipip { .. }, _) if addresses.v4.is_some() => Tunnel::Ipip,
            _ => continue,
        };
        if !tunnels.contains(&tunnel) {
            tunnels.push(tunnel);
        }
    }
    tunnels
}

/// Returns the pools as the routes need them. The blocks of a disabled pool are routed too.
pub(super) fn routed_pools(pools: &Pools) -> Vec<RoutedPool> {
    let routed = pools.iter().map(|pool| RoutedPool {
        cidr: pool.cidr(),
        encapsulation: match pool.encapsulation() {
            pool::Encapsulation::None => Encapsulation::None,
            pool::Encapsulation::Vxlan { cross_subnet } => Encapsulation::Vxlan(when(cross_subnet)),
            pool::Encapsulation::Ipip { cross_subnet } => Encapsulation::Ipip(when(cross_subnet)),
        },
    });
    routed.collect()
}

fn when(cross_subnet: bool) -> When {
    if cross_subnet { When::CrossSubnet } else { When::Always }
}

/// Returns what a node publishes, as the routes need it.
pub(super) fn routed_node(node: &NodeResource) -> RoutedNode {
    let mac = |text: &Option<String>, family| {
        let published = text.as_deref().and_then(|text| text.parse().ok());
        published.unwrap_or_else(|| tunnel_mac(&node.name, family))
    };
    let v4 = node.vxlan_v4.address.map(|address| VxlanEnd {
        mac: mac(&node.vxlan_v4.mac, Family::V4),
        address: address.into(),
    });
    let v6 = node.vxlan_v6.address.map(|address| VxlanEnd {
        mac: mac(&node.vxlan_v6.mac, Family::V6),
        address: address.into(),
    });
    RoutedNode {
        addresses: Addresses {
            v4: node.ipv4.map(|net| net.addr()),
            v6: node.ipv6.map(|net| net.addr()),
        },
        vxlan: PerFamily { v4, v6 },
        ipip: node.ipip_tunnel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(key: Key, revision: u64, content: Content) -> Stored {
        Stored { key, revision: Revision(revision), content }
    }

    fn pool(name: &str, cidr: &str) -> Stored {
        let conf = PoolConf::new(name, cidr.parse().unwrap());
        stored(Key::Pool(name.to_owned()), 1, Content::Object(Object::Pool(conf)))
    }

    #[test]
    fn pools_that_cannot_be_read_do_not_affect_others() {
        let mut catalog = Catalog::default();
        assert_eq!(catalog.update(&pool("good", "10.6.0.0/16")), Affected::Settings);
        let bad = Content::Malformed("cidr: no text".to_owned());
        let key = Key::Pool("bad".to_owned());
        assert_eq!(catalog.update(&stored(key.clone(), 2, bad)), Affected::Settings);
        let names = |catalog: &Catalog| {
            let settings = catalog.settings("n1", &[]);
            settings.pools.iter().map(|pool| pool.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&catalog), ["good"]);
        let malformed: Vec<String> = catalog.malformed().collect();
        assert_eq!(malformed, ["IPPool bad is ignored: cidr: no text"]);
        catalog.update(&stored(key, 3, Content::Deleted));
        assert_eq!(catalog.malformed().count(), 0);
        catalog.update(&stored(Key::Pool("good".to_owned()), 4, Content::Deleted));
        assert_eq!(names(&catalog), [""; 0]);
    }

    #[test]
    fn node_without_a_change_that_matters_affects_nothing() {
        let mut catalog = Catalog::default();
        let node = |revision, content| stored(Key::Node("n1".to_owned()), revision, content);
        let content = || {
            let name = "n1".to_owned();
            Content::Object(Object::Node(NodeResource { name, ..NodeResource::default() }))
        };
        let affected = Affected::Node("n1".to_owned());
        assert_eq!(catalog.update(&node(1, content())), affected);
        assert_eq!(catalog.update(&node(2, content())), Affected::Nothing);
        assert_eq!(catalog.node("n1").map(|(revision, _)| revision), Some(Revision(2)));
        assert_eq!(catalog.update(&node(3, Content::Deleted)), affected);
        assert_eq!(catalog.update(&node(4, Content::Deleted)), Affected::Nothing);
    }

    #[test]
    fn tunnels_follow_from_pools_and_node_addresses() {
        let with = |ipip, vxlan, name: &str, cidr: &str| {
            let conf = PoolConf::new(name, cidr.parse().unwrap());
            PoolConf { ipip, vxlan, ..conf }
        };
        use ipam::pool::Mode::{Always, CrossSubnet, Never};
        let pools = Pools::new(
            [
                with(Never, CrossSubnet, "a", "10.6.0.0/16"),
                with(Never, Always, "b", "fd00:6::/64"),
                with(Always, Never, "c", "10.7.0.0/16"),
                with(Never, Never, "d", "10.8.0.0/16"),
            ],
            &[],
        );
        let v4 = Addresses { v4: Some("192.0.2.1".parse().unwrap()), v6: None };
        let both = Addresses { v6: Some("2001:db8::1".parse().unwrap()), ..v4 };
        assert_eq!(tunnels(&pools, v4), [Tunnel::Vxlan, Tunnel::Ipip]);
        assert_eq!(tunnels(&pools, both), [Tunnel::Vxlan, Tunnel::VxlanV6, Tunnel::Ipip]);
        assert_eq!(routed_pools(&pools)[0].encapsulation, Encapsulation::Vxlan(When::CrossSubnet));
    }

    #[test]
    fn node_without_a_published_mac_has_calicos_default() {
        let resource = NodeResource {
            name: "node-1".to_owned(),
            ipv4: Some("192.0.2.1/24".parse().unwrap()),
            vxlan_v4: ipam::calico::VxlanTunnel {
                address: Some("10.6.0.1".parse().unwrap()),
                mac: None,
            },
            ..NodeResource::default()
        };
        let node = routed_node(&resource);
        let end = node.vxlan.get(Family::V4).unwrap();
        assert_eq!(end.mac, tunnel_mac("node-1", Family::V4));
        let given = ipam::calico::VxlanTunnel {
            mac: Some("66:01:02:03:04:05".to_owned()),
            ..resource.vxlan_v4.clone()
        };
        let node = routed_node(&NodeResource { vxlan_v4: given, ..resource });
        assert_eq!(node.vxlan.get(Family::V4).unwrap().mac.to_string(), "66:01:02:03:04:05");
    }
}
