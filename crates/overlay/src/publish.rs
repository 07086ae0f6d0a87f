// SPDX-License-Identifier: Apache-2.0
//! What a node tells the others about itself. [`crate::plan`] makes the node what it says here.

use kernel::Family;

use crate::backend::{Backend, BackendData, Vtep, Vxlan, Wireguard, WireguardData, WireguardMode};
use crate::cidr::{self, Addresses, PerFamily};
use crate::lease::Attributes;
use crate::mac;
use crate::netconf::NetConf;
use kernel::wireguard::PublicKey;

/// Who the node is.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// What it never changes and no other node has.
    pub seed: &'a [u8],
    /// Of its interface.
    pub addresses: Addresses,
    /// Under which others reach it: the same, but behind NAT.
    pub public: Addresses,
    /// With WireGuard, its public key.
    pub wireguard_key: Option<PublicKey>,
    /// What the command before the start has printed.
    pub extension_output: Option<&'a str>,
}

/// Why it has nothing to tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the node has neither an IPv4 nor an IPv6 address that backend {0} can use")]
    NoAddress(&'static str),
    #[error(
        "the public address differs from the interface's: the node is behind NAT, which host-gw cannot cross"
    )]
    Nat,
    #[error("backend wireguard needs a key")]
    NoKey,
}

/// The attributes of its lease.
pub fn attributes(conf: &NetConf, identity: &Identity<'_>) -> Result<Attributes, Error> {
    let backend = &conf.backend;
    let carriers = carriers(conf, identity);
    let (families, data) = match backend {
        Backend::Vxlan(vxlan) => (carriers.clone(), vteps(vxlan, &carriers, identity)),
        Backend::Wireguard(wireguard) => {
            let carriers = match wireguard.mode {
                WireguardMode::Separate => carriers,
                _ => both(&identity.public),
            };
            (carriers.clone(), wireguard_ends(wireguard, &carriers, identity)?)
        }
        Backend::HostGw => {
            if identity.addresses != identity.public {
                return Err(Error::Nat);
            }
            (carriers, BackendData::HostGw)
        }
        Backend::Ipip(_) => (vec![Family::V4], BackendData::Ipip),
        Backend::Udp(_) => (vec![Family::V4], BackendData::Bare),
        Backend::Alloc => (both(&identity.public), BackendData::Bare),
        Backend::Extension(_) => {
            let output = identity.extension_output.map(str::to_owned);
            (both(&identity.public), BackendData::Extension(output))
        }
    };
    let v4 = identity.public.v4.filter(|_| families.contains(&Family::V4));
    let v6 = identity.public.v6.filter(|_| families.contains(&Family::V6));
    if v4.is_none() && v6.is_none() {
        return Err(Error::NoAddress(backend.name()));
    }
    Ok(Attributes { public: Addresses { v4, v6 }, data })
}

/// With the hardware addresses that others know of this node, where they are of the same network
/// number: what is in flight to it, and what flannel chose for it before, stays good.
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

/// Whether two nodes tell of the same hardware address: then others could reach only one of them.
pub fn share_mac(one: &Attributes, other: &Attributes) -> bool {
    let macs = |attributes: &Attributes| match &attributes.data {
        BackendData::Vxlan(vteps) => vteps.iter().map(|(_, vtep)| vtep.mac).collect(),
        _ => Vec::new(),
    };
    let others = macs(other);
    macs(one).iter().any(|mac| others.contains(mac))
}

/// The families that carry: those that pods have, and where the node has no address of one, the
/// other.
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

fn both(addresses: &Addresses) -> Vec<Family> {
    addresses.iter().map(Family::of).collect()
}

fn vteps(conf: &Vxlan, carriers: &[Family], identity: &Identity<'_>) -> BackendData {
    let vtep =
        |carrier| Vtep { vni: Some(conf.vni), mac: mac::of_node(identity.seed, conf.vni, carrier) };
    let all = carriers.iter().fold(PerFamily::default(), |all, one| all.with(*one, vtep(*one)));
    BackendData::Vxlan(all)
}

fn wireguard_ends(
    conf: &Wireguard,
    carriers: &[Family],
    identity: &Identity<'_>,
) -> Result<BackendData, Error> {
    let key = identity.wireguard_key.ok_or(Error::NoKey)?;
    let end = |carrier| WireguardData {
        key,
        port: Some(match (conf.mode, carrier) {
            (WireguardMode::Separate, Family::V6) => conf.listen_port_v6,
            _ => conf.listen_port,
        }),
    };
    let all = carriers.iter().fold(PerFamily::default(), |all, one| all.with(*one, end(*one)));
    Ok(BackendData::Wireguard(all))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn each_backend_tells_what_flannel_tells() {
        let own = addresses("192.0.2.1", "fd00:90::1");
        let check = |families: &str, backend: &str, wanted: &str| {
            assert_eq!(published(&conf(families, backend), own).unwrap(), wanted);
        };
        let v4 = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null"#;
        let mac4 = mac::of_node(b"node-1", 1, Family::V4);
        let mac6 = mac::of_node(b"node-1", 1, Family::V6);
        let vtep = |mac| format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#);
        let wanted = format!(r#"{v4},"BackendType":"vxlan","BackendData":{}}}"#, vtep(mac4));
        check("4", r#"{"Type":"vxlan"}"#, &wanted);
        let wanted = format!(
            r#"{{"PublicIP":"192.0.2.1","PublicIPv6":"fd00:90::1","BackendType":"vxlan","BackendData":{},"BackendV6Data":{}}}"#,
            vtep(mac4),
            vtep(mac6),
        );
        check("46", r#"{"Type":"vxlan"}"#, &wanted);
        check("4", r#"{"Type":"host-gw"}"#, &format!(r#"{v4},"BackendType":"host-gw"}}"#));
        check("4", r#"{"Type":"ipip"}"#, &format!(r#"{v4},"BackendType":"ipip"}}"#));
        check("4", r#"{"Type":"udp"}"#, &format!("{v4}}}"));
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let wanted = format!(
            r#"{v4},"BackendType":"wireguard","BackendData":{{"PublicKey":"{key}","Port":51820}}}}"#
        );
        check("4", r#"{"Type":"wireguard"}"#, &wanted);
    }

    #[test]
    fn a_hardware_address_that_others_know_is_kept() {
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
    fn a_family_without_an_address_is_carried_by_the_other() {
        let check = |families: &str, own: Addresses, v4: bool, v6: bool| {
            let text = published(&conf(families, r#"{"Type":"vxlan"}"#), own).unwrap();
            let found = (text.contains("BackendData"), text.contains("BackendV6Data"));
            assert_eq!(found, (v4, v6), "{text}");
        };
        let (v4, v6) = (addresses("192.0.2.1", ""), addresses("", "fd00:90::1"));
        check("46", v4, true, false);
        check("46", v6, false, true);
        check("6", v4, true, false);
        check("4", v6, false, true);
        check("6", addresses("192.0.2.1", "fd00:90::1"), false, true);
    }

    #[test]
    fn what_cannot_work_is_refused() {
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
