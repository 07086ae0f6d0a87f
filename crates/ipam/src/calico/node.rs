// SPDX-License-Identifier: Apache-2.0
//! Calico's node: addresses of the node and of its tunnels (libcalico-go/lib/apis/internalapi/node.go). In Kubernetes
//! the fields are annotations of the node (lib/backend/k8s/resources/node.go).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::{Map, Value};

use crate::calico::fields::{Fields, Resource, nested};
use crate::calico::{Malformed, Preserved};

/// The networking part of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeResource {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Address of the node and its prefix length, which `CrossSubnet` compares.
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
    pub ipip_tunnel: Option<Ipv4Addr>,
    pub vxlan_v4: VxlanTunnel<Ipv4Addr>,
    pub vxlan_v6: VxlanTunnel<Ipv6Addr>,
    pub preserved: Preserved,
}

/// Address and MAC address of the tunnel device of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VxlanTunnel<A> {
    pub address: Option<A>,
    /// As Calico writes it, such as `66:11:22:33:44:55`.
    pub mac: Option<String>,
}

impl<A> Default for VxlanTunnel<A> {
    fn default() -> Self {
        Self { address: None, mac: None }
    }
}

const IPV4: &str = "projectcalico.org/IPv4Address";
const IPV6: &str = "projectcalico.org/IPv6Address";
const IPIP_TUNNEL: &str = "projectcalico.org/IPv4IPIPTunnelAddr";
const VXLAN_V4: &str = "projectcalico.org/IPv4VXLANTunnelAddr";
const VXLAN_V4_MAC: &str = "projectcalico.org/VXLANTunnelMACAddr";
const VXLAN_V6: &str = "projectcalico.org/IPv6VXLANTunnelAddr";
const VXLAN_V6_MAC: &str = "projectcalico.org/VXLANTunnelMACAddrV6";

impl NodeResource {
    /// Reads the annotations of a Kubernetes node. The labels are those of the Kubernetes node.
    pub fn from_annotations(
        name: &str,
        labels: BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, Malformed> {
        let text = |key: &str| annotations.get(key).filter(|text| !text.is_empty());
        let malformed = |key, reason| Malformed {
            object: format!("Node {name}"),
            reason: format!("annotation {key}: {reason}"),
        };
        macro_rules! parsed {
            ($key:ident) => {
                text($key).map(|text| parse(text)).transpose().map_err(|e| malformed($key, e))?
            };
        }
        Ok(Self {
            name: name.to_owned(),
            labels,
            ipv4: parsed!(IPV4),
            ipv6: parsed!(IPV6),
            ipip_tunnel: parsed!(IPIP_TUNNEL),
            vxlan_v4: VxlanTunnel { address: parsed!(VXLAN_V4), mac: text(VXLAN_V4_MAC).cloned() },
            vxlan_v6: VxlanTunnel { address: parsed!(VXLAN_V6), mac: text(VXLAN_V6_MAC).cloned() },
            preserved: Preserved::default(),
        })
    }

    /// Returns the annotations of the Kubernetes node. `None` stands for an annotation that has to be removed.
    pub fn annotations(&self) -> BTreeMap<&'static str, Option<String>> {
        BTreeMap::from([
            (IPV4, text(self.ipv4)),
            (IPV6, text(self.ipv6)),
            (IPIP_TUNNEL, text(self.ipip_tunnel)),
            (VXLAN_V4, text(self.vxlan_v4.address)),
            (VXLAN_V4_MAC, self.vxlan_v4.mac.clone()),
            (VXLAN_V6, text(self.vxlan_v6.address)),
            (VXLAN_V6_MAC, self.vxlan_v6.mac.clone()),
        ])
    }

    pub(super) fn from_resource(name: &str, mut resource: Resource) -> Result<Self, Malformed> {
        let labels = resource.envelope.get("metadata").and_then(|metadata| metadata.get("labels"));
        let labels = match labels {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(labels) => serde_json::from_value(labels.clone()).map_err(|e| Malformed {
                object: format!("Node {name}"),
                reason: format!("metadata.labels: {e}"),
            })?,
        };
        let spec = &mut resource.spec;
        let mut bgp = spec.nested("bgp")?;
        let mut node = Self {
            name: name.to_owned(),
            labels,
            ipv4: take(&mut bgp, "ipv4Address")?,
            ipv6: take(&mut bgp, "ipv6Address")?,
            ipip_tunnel: take(&mut bgp, "ipv4IPIPTunnelAddr")?,
            vxlan_v4: VxlanTunnel {
                address: take(spec, "ipv4VXLANTunnelAddr")?,
                mac: spec.optional("vxlanTunnelMACAddr")?,
            },
            vxlan_v6: VxlanTunnel {
                address: take(spec, "ipv6VXLANTunnelAddr")?,
                mac: spec.optional("vxlanTunnelMACAddrV6")?,
            },
            preserved: Preserved::default(),
        };
        node.preserved = resource.preserved();
        let bgp = bgp.rest();
        if !bgp.is_empty() {
            node.preserved.spec.insert("bgp".to_owned(), bgp.into());
        }
        Ok(node)
    }

    /// Returns `spec`. Labels are part of the envelope: podwire does not change them.
    pub(super) fn spec(&self) -> Map<String, Value> {
        let mut spec = self.preserved.spec.clone();
        for (key, value) in [
            ("ipv4VXLANTunnelAddr", text(self.vxlan_v4.address)),
            ("vxlanTunnelMACAddr", self.vxlan_v4.mac.clone()),
            ("ipv6VXLANTunnelAddr", text(self.vxlan_v6.address)),
            ("vxlanTunnelMACAddrV6", self.vxlan_v6.mac.clone()),
        ] {
            set(&mut spec, key, value);
        }
        let bgp = nested(&mut spec, "bgp");
        set(bgp, "ipv4Address", text(self.ipv4));
        set(bgp, "ipv6Address", text(self.ipv6));
        set(bgp, "ipv4IPIPTunnelAddr", text(self.ipip_tunnel));
        if bgp.is_empty() {
            spec.remove("bgp");
        }
        spec
    }
}

fn take<T: FromStr<Err: Display>>(fields: &mut Fields, key: &str) -> Result<Option<T>, Malformed> {
    let text: Option<String> = fields.optional(key)?;
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| parse(&text)).transpose().map_err(|reason| fields.error(key, reason))
}

/// Parses an address. As in Calico, the address of a node may be without a prefix length.
fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().or_else(|e| {
        let length = if text.contains(':') { 128 } else { 32 };
        format!("{text}/{length}").parse().map_err(|_| format!("{text:?}: {e}"))
    })
}

fn text(value: Option<impl Display>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn set(map: &mut Map<String, Value>, key: &str, value: Option<String>) {
    match value {
        Some(value) => map.insert(key.to_owned(), value.into()),
        None => map.remove(key),
    };
}
