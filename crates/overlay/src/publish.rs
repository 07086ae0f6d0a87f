// SPDX-License-Identifier: Apache-2.0
//! The lease attributes that a node publishes about itself. [`crate::plan`] configures the node
//! accordingly.

use kernel::Family;
use kernel::wireguard::PublicKey;

use crate::backend::{Backend, BackendData, Vtep, WireguardMode, vxlan, wireguard};
use crate::cidr::{self, Addresses};
use crate::lease::Attributes;
use crate::netconf::NetConf;

/// Identity of a node.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Bytes that never change and that no other node has. MAC addresses are derived from them.
    pub seed: &'a [u8],
    /// Addresses of the underlay interface.
    pub addresses: Addresses,
    /// Addresses by which peers reach the node, different from `addresses` behind NAT.
    pub public: Addresses,
    /// Public key for the wireguard backend.
    pub wireguard_key: Option<PublicKey>,
    /// Output of the pre-startup command of the extension backend.
    pub extension_output: Option<&'a str>,
}

/// Reason why a node cannot publish a lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the node has neither an IPv4 nor an IPv6 address that backend {0} can use")]
    NoAddress(&'static str),
    #[error(
        "the public address differs from the interface's: the node is behind NAT, which host-gw does not support"
    )]
    Nat,
    #[error("backend wireguard needs a key")]
    NoKey,
}

/// Returns the attributes of a node's lease.
pub fn attributes(conf: &NetConf, identity: &Identity<'_>) -> Result<Attributes, Error> {
    let backend = &conf.backend;
    let carriers = carriers(conf, identity);
    let (families, data) = match backend {
        Backend::Vxlan(conf) => (carriers.clone(), vxlan::lease_data(conf, &carriers, identity)),
        Backend::Wireguard(conf) => {
            let carriers = match conf.mode {
                WireguardMode::Separate => carriers,
                _ => families(&identity.public),
            };
            (carriers.clone(), wireguard::lease_data(conf, &carriers, identity)?)
        }
        Backend::HostGw => {
            if identity.addresses != identity.public {
                return Err(Error::Nat);
            }
            (carriers, BackendData::HostGw)
        }
        Backend::Ipip(_) => (vec![Family::V4], BackendData::Ipip),
        Backend::Udp(_) => (vec![Family::V4], BackendData::Bare),
        Backend::Alloc => (families(&identity.public), BackendData::Bare),
        Backend::Extension(_) => {
            let output = identity.extension_output.map(str::to_owned);
            (families(&identity.public), BackendData::Extension(output))
        }
    };
    let v4 = identity.public.v4.filter(|_| families.contains(&Family::V4));
    let v6 = identity.public.v6.filter(|_| families.contains(&Family::V6));
    if v4.is_none() && v6.is_none() {
        return Err(Error::NoAddress(backend.name()));
    }
    Ok(Attributes { public: Addresses { v4, v6 }, data })
}

/// Keeps the MAC addresses of an earlier lease with the same VNI, such as one that flannel published.
/// Packets in flight then still reach the node.
pub fn keep_macs(mut attributes: Attributes, before: &Attributes) -> Attributes {
    if let (BackendData::Vxlan(now), BackendData::Vxlan(before)) =
        (&mut attributes.data, &before.data)
    {
        let kept = |now: Option<Vtep>, before: Option<Vtep>| match (now, before) {
            (Some(now), Some(before)) if now.vni == before.vni => Some(before),
            (now, _) => now,
        };
        now.v4 = kept(now.v4, before.v4);
        now.v6 = kept(now.v6, before.v6);
    }
    attributes
}

/// Returns whether two nodes publish the same MAC address. Peers could reach only one of them.
pub fn share_mac(one: &Attributes, other: &Attributes) -> bool {
    let macs = |attributes: &Attributes| match &attributes.data {
        BackendData::Vxlan(vteps) => vteps.iter().map(|(_, vtep)| vtep.mac).collect(),
        _ => Vec::new(),
    };
    let others = macs(other);
    macs(one).iter().any(|mac| others.contains(mac))
}

/// Returns the underlay families of the tunnels: those that pods have. If the node has no address of
/// such a family, the other family carries it.
fn carriers(conf: &NetConf, identity: &Identity<'_>) -> Vec<Family> {
    let has = |family: &Family| {
        identity.addresses.get(*family).is_some() && identity.public.get(*family).is_some()
    };
    let pods = Family::ALL.into_iter().filter(|family| conf.networks.get(*family).is_some());
    let mut carriers: Vec<Family> = pods
        .filter_map(|family| [family, cidr::other(family)].into_iter().find(|one| has(one)))
        .collect();
    carriers.sort();
    carriers.dedup();
    carriers
}

fn families(addresses: &Addresses) -> Vec<Family> {
    addresses.iter().map(Family::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mac;

    fn addresses(v4: &str, v6: &str) -> Addresses {
        Addresses { v4: v4.parse().ok(), v6: v6.parse().ok() }
    }

    fn published(conf: &str, own: Addresses) -> Result<String, Error> {
        let conf = NetConf::parse(conf).unwrap();
        let identity = Identity {
            seed: b"node-1",
            addresses: own,
            public: own,
            wireguard_key: Some(PublicKey([0; 32])),
            extension_output: None,
        };
        attributes(&conf, &identity).map(|attributes| attributes.print())
    }

    fn conf(families: &str, backend: &str) -> String {
        let rest = match families {
            "4" => r#""Network": "10.5.0.0/16""#,
            "6" => r#""EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48""#,
            _ => r#""Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/48""#,
        };
        format!(r#"{{{rest}, "Backend": {backend}}}"#)
    }

    #[test]
    fn each_backend_publishes_flannels_attributes() {
        let own = addresses("192.0.2.1", "fd00:90::1");
        let check = |families: &str, backend: &str, expected: &str| {
            assert_eq!(published(&conf(families, backend), own).unwrap(), expected);
        };
        let v4 = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null"#;
        let mac4 = mac::of_node(b"node-1", 1, Family::V4);
        let mac6 = mac::of_node(b"node-1", 1, Family::V6);
        let vtep = |mac| format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#);
        let expected = format!(r#"{v4},"BackendType":"vxlan","BackendData":{}}}"#, vtep(mac4));
        check("4", r#"{"Type":"vxlan"}"#, &expected);
        let expected = format!(
            r#"{{"PublicIP":"192.0.2.1","PublicIPv6":"fd00:90::1","BackendType":"vxlan","BackendData":{},"BackendV6Data":{}}}"#,
            vtep(mac4),
            vtep(mac6),
        );
        check("46", r#"{"Type":"vxlan"}"#, &expected);
        check("4", r#"{"Type":"host-gw"}"#, &format!(r#"{v4},"BackendType":"host-gw"}}"#));
        check("4", r#"{"Type":"ipip"}"#, &format!(r#"{v4},"BackendType":"ipip"}}"#));
        check("4", r#"{"Type":"udp"}"#, &format!("{v4}}}"));
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let expected = format!(
            r#"{v4},"BackendType":"wireguard","BackendData":{{"PublicKey":"{key}","Port":51820}}}}"#
        );
        check("4", r#"{"Type":"wireguard"}"#, &expected);
    }

    #[test]
    fn published_mac_with_same_vni_is_kept() {
        let data = |text: &str| {
            let text = format!(r#"{{"PublicIP":"192.0.2.1","PublicIPv6":null,{text}}}"#);
            Attributes::parse(text.as_bytes()).unwrap()
        };
        let vxlan = |vni: u32, mac: &str| {
            data(&format!(
                r#""BackendType":"vxlan","BackendData":{{"VNI":{vni},"VtepMAC":"{mac}"}}"#
            ))
        };
        let (ours, theirs) = ("02:00:00:00:00:01", "76:40:2b:2c:32:07");
        assert_eq!(keep_macs(vxlan(1, ours), &vxlan(1, theirs)), vxlan(1, theirs));
        assert_eq!(keep_macs(vxlan(1, ours), &vxlan(2, theirs)), vxlan(1, ours));
        let other = data(r#""BackendType":"host-gw""#);
        assert_eq!(keep_macs(vxlan(1, ours), &other), vxlan(1, ours));
        assert_eq!(keep_macs(other.clone(), &vxlan(1, ours)), other);
    }

    #[test]
    fn family_without_address_uses_the_other() {
        let check = |families: &str, own: Addresses, v4: bool, v6: bool| {
            let text = published(&conf(families, r#"{"Type":"vxlan"}"#), own).unwrap();
            let carriers = (text.contains("BackendData"), text.contains("BackendV6Data"));
            assert_eq!(carriers, (v4, v6), "{text}");
        };
        let (v4, v6) = (addresses("192.0.2.1", ""), addresses("", "fd00:90::1"));
        check("46", v4, true, false);
        check("46", v6, false, true);
        check("6", v4, true, false);
        check("4", v6, false, true);
        check("6", addresses("192.0.2.1", "fd00:90::1"), false, true);
    }

    #[test]
    fn unusable_addresses_are_errors() {
        let none = Addresses::default();
        let vxlan = conf("4", r#"{"Type":"vxlan"}"#);
        assert_eq!(published(&vxlan, none), Err(Error::NoAddress("vxlan")));
        let only_v6 = addresses("", "fd00:90::1");
        let udp = conf("4", r#"{"Type":"udp"}"#);
        assert_eq!(published(&udp, only_v6), Err(Error::NoAddress("udp")));
        let conf = NetConf::parse(&conf("4", r#"{"Type":"host-gw"}"#)).unwrap();
        let identity = Identity {
            seed: b"",
            addresses: addresses("10.0.0.1", ""),
            public: addresses("8.8.8.8", ""),
            wireguard_key: None,
            extension_output: None,
        };
        assert_eq!(attributes(&conf, &identity), Err(Error::Nat));
    }
}
