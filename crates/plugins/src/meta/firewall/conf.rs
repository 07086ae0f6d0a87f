// SPDX-License-Identifier: Apache-2.0
//! The configuration of firewall.

use cni::{Error, Request};
use serde::Deserialize;

use crate::compat::iptables::{CHAIN_NAME, is_chain_name};

/// Default mark bit of packets to accept. kube-proxy uses bits 14 and 15, portmap 13, Cilium 8 to
/// 11, Calico 16 to 31.
const MARK_BIT: u8 = 12;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct FirewallConf {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
    mark_bit: Option<u8>,
}

/// The program that accepts the packets of a network's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// firewalld if it runs, otherwise nf_tables.
    Auto,
    /// nf_tables by netlink.
    Nftables,
    /// The program iptables-restore.
    Iptables,
    /// firewalld by D-Bus.
    Firewalld,
}

/// Which other containers may reach the containers of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ingress {
    /// All.
    Open,
    /// All except those of other networks with a policy.
    SameBridge,
    /// As `SameBridge`, and not those of the same network either.
    Isolated,
}

impl Ingress {
    /// The value of the key `ingressPolicy`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Ingress::Open => "open",
            Ingress::SameBridge => "same-bridge",
            Ingress::Isolated => "isolated",
        }
    }
}

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Firewall {
    pub backend: Backend,
    pub ingress: Ingress,
    /// The chain for the administrator's rules.
    pub admin_chain: String,
    /// The zone of firewalld.
    pub zone: String,
    /// The bit of the packet mark.
    pub mark_bit: u8,
}

impl Firewall {
    pub(super) fn parse(request: &Request) -> Result<Self, Error> {
        let conf: FirewallConf = request.conf()?;
        let backend = match conf.backend.as_str() {
            "" => Backend::Auto,
            "nftables" => Backend::Nftables,
            // Nomad's list has a second firewall plugin with this name, for IPv6. The Go plugin
            // treats an unknown name as no name and handles both families.
            "iptables" | "ip6tables" => Backend::Iptables,
            "firewalld" => Backend::Firewalld,
            other => {
                let allowed = "\"nftables\", \"iptables\" and \"firewalld\"";
                return Err(not_allowed("backend", other, allowed));
            }
        };
        let ingress = match conf.ingress_policy.as_str() {
            "" | "open" => Ingress::Open,
            "same-bridge" => Ingress::SameBridge,
            "isolated" => Ingress::Isolated,
            other => {
                let allowed = "\"open\", \"same-bridge\" and \"isolated\"";
                let details = not_allowed("ingressPolicy", other, allowed).msg;
                return Err(Error::invalid_config(format!("unknown ingress policy: {other:?}"))
                    .with_details(details));
            }
        };
        let mark_bit = conf.mark_bit.unwrap_or(MARK_BIT);
        if mark_bit > 31 {
            let msg = format!("key \"markBit\" is {mark_bit}, allowed are 0 to 31");
            return Err(Error::invalid_config(msg));
        }
        let zone = or_default(conf.firewalld_zone, "trusted");
        let admin_chain = or_default(conf.iptables_admin_chain_name, "CNI-ADMIN");
        let key = "iptablesAdminChainName";
        if !is_chain_name(&admin_chain) {
            return Err(not_allowed(key, &admin_chain, CHAIN_NAME));
        }
        if admin_chain.starts_with("firewall_") {
            let allowed = "names that do not begin with firewall_, which the plugin uses itself";
            return Err(not_allowed(key, &admin_chain, allowed));
        }
        Ok(Self { backend, ingress, admin_chain, zone, mark_bit })
    }
}

fn or_default(text: String, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text }
}

fn not_allowed(key: &str, value: &str, allowed: &str) -> Error {
    Error::invalid_config(format!("key {key:?} is {value:?}, allowed are {allowed}"))
}
