// SPDX-License-Identifier: Apache-2.0
//! The addresses that a pod has, asked of the kernel inside its namespace.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow, bail};
use kernel::addr::{self, Addr};
use kernel::route::SCOPE_UNIVERSE;
use kernel::{IfName, Netns, link};
use serde_json::json;

use super::state::{PodState, Store};
use crate::cli::PodStatus;
use crate::output::{self, Format};
use crate::report::Hint;

pub fn run(asked: &PodStatus, format: Format) -> Result<()> {
    let pod = &asked.pod;
    let Some(state) = Store::new(&asked.state.state_dir, pod).read()? else {
        return Err(anyhow!("pod {pod} is not up"))
            .hint(|| format!("bring it up: podwire pod up {pod}"));
    };
    if !state.is_up {
        return Err(anyhow!("pod {pod} came up in part only: the call was interrupted"))
            .hint(|| format!("remove what is left: podwire pod down {pod}"));
    }
    let ips = addresses(&state).with_context(|| format!("look into pod {pod}"))?;
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    if ips.is_empty() {
        return Err(anyhow!("pod {pod} has no address on {}", state.ifname))
            .hint(|| format!("connect it anew: podwire pod down {pod} && podwire pod up {pod}"));
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
        bail!("it has no interface {ifname}");
    };
    let is_global = |addr: &Addr| addr.scope == SCOPE_UNIVERSE && !addr.prefix.addr().is_loopback();
    let found = addr::list(&netlink, Some(link.index))?;
    let mut ips: Vec<IpAddr> =
        found.iter().filter(|addr| is_global(addr)).map(|addr| addr.prefix.addr()).collect();
    ips.sort_by_key(IpAddr::is_ipv6);
    Ok(ips)
}
