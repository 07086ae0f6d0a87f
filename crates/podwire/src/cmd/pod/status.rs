// SPDX-License-Identifier: Apache-2.0
//! `podwire pod status`: the addresses of a pod, read from the kernel in its namespace.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kernel::addr::{self, Addr};
use kernel::route::SCOPE_UNIVERSE;
use kernel::{IfName, Netns, link};
use serde_json::json;

use super::StateArgs;
use super::name::PodName;
use super::state::{PodState, StateFile};
use crate::errors::Hint;
use crate::output::{self, Format};

/// Show the addresses that a pod has in the kernel
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire pod status default/web
  podwire pod status default/web -o json | jq -r .ip")]
pub(crate) struct Status {
    /// Pod to show
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: PodName,
    #[command(flatten)]
    state: StateArgs,
}

pub(crate) fn run(args: &Status, format: Format) -> Result<()> {
    let pod = &args.pod;
    let Some(state) = StateFile::new(&args.state.state_dir, pod).read()? else {
        return Err(anyhow!("pod {pod} is not up"))
            .hint(|| format!("connect it: podwire pod up {pod}"));
    };
    if !state.is_up {
        return Err(anyhow!("pod {pod} is incomplete: `podwire pod up` was interrupted"))
            .hint(|| format!("remove the rest: podwire pod down {pod}"));
    }
    let ips = addresses(&state).with_context(|| format!("read the addresses of pod {pod}"))?;
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    if ips.is_empty() {
        return Err(anyhow!("pod {pod} has no address on {}", state.ifname))
            .hint(|| format!("reconnect it: podwire pod down {pod} && podwire pod up {pod}"));
    }
    if format == Format::Json {
        return output::print_json(&json!({
            "namespace": state.namespace,
            "name": state.name,
            "sandboxID": state.sandbox_id,
            "netns": state.netns,
            "network": state.network,
            "networkFile": state.network_file,
            "ip": ips.first(),
            "ips": ips,
        }));
    }
    output::print(&output::table(
        ["POD", "ADDRESSES", "NETWORK", "NAMESPACE", "SANDBOX"],
        [[
            pod.to_string(),
            ips.join(" "),
            state.network,
            state.netns.display().to_string(),
            state.sandbox_id.chars().take(13).collect(),
        ]],
    ))
}

/// Global addresses of the pod's interface, IPv4 first.
fn addresses(state: &PodState) -> Result<Vec<IpAddr>> {
    let netlink = Netns::open(&state.netns)?.netlink()?;
    let ifname: IfName = state.ifname.parse()?;
    let Some(link) = link::by_name(&netlink, ifname)? else {
        bail!("no interface {ifname} in {}", state.netns.display());
    };
    let is_global = |addr: &Addr| addr.scope == SCOPE_UNIVERSE && !addr.prefix.addr().is_loopback();
    let all = addr::list(&netlink, Some(link.index))?;
    let mut ips: Vec<IpAddr> =
        all.iter().filter(|addr| is_global(addr)).map(|addr| addr.prefix.addr()).collect();
    ips.sort_by_key(IpAddr::is_ipv6);
    Ok(ips)
}
