// SPDX-License-Identifier: Apache-2.0
//! How the pods of the demo are connected: bridged, with a subnet for each node, or routed, with addresses from a
//! pool.

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use kernel::{Netns, link};

use super::backend::Backend;
use crate::errors::Hint;

/// Addresses of all pods.
const CIDR: &str = "10.244.0.0/16";

/// Where pods get their addresses from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Each node has a subnet and a bridge, as with flannel
    #[default]
    Bridged,
    /// Each pod has a route; addresses come from a pool of all nodes, as with Calico
    Routed,
}

/// Encapsulation between the nodes of routed pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encapsulation {
    /// UDP tunnel in the kernel
    #[default]
    Vxlan,
    /// Plain routes, no tunnel
    None,
    /// IP-in-IP tunnel in the kernel
    Ipip,
}

/// The network between the nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Network {
    Bridged(Backend),
    Routed(Encapsulation),
}

impl Encapsulation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encapsulation::Vxlan => "vxlan",
            Encapsulation::None => "none",
            Encapsulation::Ipip => "ipip",
        }
    }
}

impl Network {
    /// The backend or the encapsulation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Network::Bridged(backend) => backend.name(),
            Network::Routed(encapsulation) => encapsulation.name(),
        }
    }

    pub(crate) fn is_routed(self) -> bool {
        matches!(self, Network::Routed(_))
    }

    /// The tunnel device; `None` if packets use the underlay interface.
    pub(crate) fn device(self) -> Option<&'static str> {
        match self {
            Network::Bridged(backend) => backend.device(),
            Network::Routed(Encapsulation::Vxlan) => Some("vxlan.calico"),
            Network::Routed(Encapsulation::None) => None,
            Network::Routed(Encapsulation::Ipip) => Some("ipip.podwire"),
        }
    }

    /// Whether packets pass without a running agent.
    pub(crate) fn outlives_agent(self) -> bool {
        match self {
            Network::Bridged(backend) => backend.outlives_agent(),
            Network::Routed(_) => true,
        }
    }

    /// Options of the agents.
    pub(crate) fn options(self) -> Vec<String> {
        match self {
            Network::Bridged(backend) => {
                vec!["--net-config".to_owned(), backend.net_config(), "--ip-masq".to_owned()]
            }
            Network::Routed(encapsulation) => {
                let flags = ["--pods", "routed", "--pool-cidr", CIDR, "--pool-encapsulation"];
                let flags = flags.into_iter().chain([encapsulation.name()]);
                flags.map(str::to_owned).collect()
            }
        }
    }

    /// Fails if this kernel does not support the network. The check creates an interface in `netns`.
    pub(crate) fn require(self, netns: &Netns) -> Result<()> {
        let kind = match self {
            Network::Bridged(backend) => return backend.require(netns),
            Network::Routed(Encapsulation::None) => return Ok(()),
            Network::Routed(encapsulation) => encapsulation.name(),
        };
        let supported = link::is_supported(&netns.netlink()?, kind);
        if supported.with_context(|| format!("check for {kind} interfaces"))? {
            return Ok(());
        }
        Err(anyhow!("this kernel has no {kind} interfaces: encapsulation {kind} is not available"))
            .hint(|| "try: podwire demo --mode routed --encapsulation none".to_owned())
    }
}
