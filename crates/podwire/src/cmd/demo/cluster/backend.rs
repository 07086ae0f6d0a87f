// SPDX-License-Identifier: Apache-2.0
//! How packets go from node to node.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use kernel::{Netns, link};
use serde_json::json;

use crate::report::Hint;

/// flannel's names of backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In UDP datagrams, by the kernel
    #[default]
    Vxlan,
    /// As they are, by routes
    HostGw,
    /// In UDP datagrams, by the agent
    Udp,
    /// Encrypted, by the kernel
    Wireguard,
    /// In IP packets, by the kernel
    Ipip,
}

impl Backend {
    /// Its type in the network's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vxlan => "vxlan",
            Backend::HostGw => "host-gw",
            Backend::Udp => "udp",
            Backend::Wireguard => "wireguard",
            Backend::Ipip => "ipip",
        }
    }

    /// The interface that packets enter on their way to other nodes; without one it is the underlay's.
    pub fn device(self) -> Option<&'static str> {
        match self {
            Backend::Vxlan => Some("flannel.1"),
            Backend::HostGw => None,
            Backend::Udp => Some("flannel0"),
            Backend::Wireguard => Some("flannel-wg"),
            Backend::Ipip => Some("flannel.ipip"),
        }
    }

    /// Whether packets pass while no agent runs.
    pub fn outlives_agent(self) -> bool {
        self != Backend::Udp
    }

    /// The network's configuration.
    pub fn net_config(self) -> String {
        json!({"Network": "10.244.0.0/16", "Backend": {"Type": self.name()}}).to_string()
    }

    /// An error where this machine lacks what it takes. A namespace to ask in is needed, as some
    /// questions are answered by an interface.
    pub fn require(self, netns: &Netns) -> Result<()> {
        let (missing, is_there) = match self {
            Backend::HostGw => return Ok(()),
            Backend::Udp => ("/dev/net/tun".to_owned(), Path::new("/dev/net/tun").exists()),
            other => {
                let kind = other.name();
                let asked = link::is_supported(&netns.netlink()?, kind);
                let asked = asked.with_context(|| format!("ask for interfaces of kind {kind}"))?;
                (format!("interfaces of kind {kind}"), asked)
            }
        };
        if is_there {
            return Ok(());
        }
        Err(anyhow!("this kernel has no {missing}, which backend {} needs", self.name())).hint(
            || "host-gw needs nothing of the kind; try: podwire demo --backend host-gw".to_owned(),
        )
    }
}
