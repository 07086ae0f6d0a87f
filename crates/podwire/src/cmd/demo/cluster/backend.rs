// SPDX-License-Identifier: Apache-2.0
//! Backends of the demo.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use kernel::{Netns, link};
use serde_json::json;

use crate::errors::Hint;

/// Backends by flannel's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// UDP tunnel in the kernel
    #[default]
    Vxlan,
    /// Plain routes, no tunnel
    HostGw,
    /// UDP tunnel in the agent
    Udp,
    /// Encrypted tunnel in the kernel
    Wireguard,
    /// IP-in-IP tunnel in the kernel
    Ipip,
}

impl Backend {
    /// `Backend.Type` in the network configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backend::Vxlan => "vxlan",
            Backend::HostGw => "host-gw",
            Backend::Udp => "udp",
            Backend::Wireguard => "wireguard",
            Backend::Ipip => "ipip",
        }
    }

    /// The tunnel device; `None` if packets use the underlay interface.
    pub(crate) fn device(self) -> Option<&'static str> {
        match self {
            Backend::Vxlan => Some("flannel.1"),
            Backend::HostGw => None,
            Backend::Udp => Some("flannel0"),
            Backend::Wireguard => Some("flannel-wg"),
            Backend::Ipip => Some("flannel.ipip"),
        }
    }

    /// Whether packets pass without a running agent.
    pub(crate) fn outlives_agent(self) -> bool {
        self != Backend::Udp
    }

    /// The network configuration.
    pub(crate) fn net_config(self) -> String {
        json!({"Network": "10.244.0.0/16", "Backend": {"Type": self.name()}}).to_string()
    }

    /// Fails if this kernel does not support the backend. The check creates an interface in `netns`.
    pub(crate) fn require(self, netns: &Netns) -> Result<()> {
        let (missing, is_supported) = match self {
            Backend::HostGw => return Ok(()),
            Backend::Udp => ("/dev/net/tun".to_owned(), Path::new("/dev/net/tun").exists()),
            other => {
                let kind = other.name();
                let supported = link::is_supported(&netns.netlink()?, kind);
                let supported =
                    supported.with_context(|| format!("check for {kind} interfaces"))?;
                (format!("{kind} interfaces"), supported)
            }
        };
        if is_supported {
            return Ok(());
        }
        Err(anyhow!("this kernel has no {missing}: backend {} is not available", self.name())).hint(
            || "host-gw needs no kernel support; try: podwire demo --backend host-gw".to_owned(),
        )
    }
}
