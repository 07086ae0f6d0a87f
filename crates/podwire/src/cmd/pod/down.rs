// SPDX-License-Identifier: Apache-2.0
//! `podwire pod down`. Removing something that is gone succeeds, and a failure does not stop the
//! steps after it.

use anyhow::{Context, Result, anyhow};
use clap::Args;
use cni::runtime::{Container, Runtime};
use kernel::Netns;
use serde_json::json;

use super::name::PodName;
use super::state::{PodState, StateFile};
use super::{StateArgs, network};
use crate::errors::{self, Hint};
use crate::network_lookup;
use crate::output::{self, Format};
use crate::runtime::{self, RuntimeArgs};

/// Disconnect a pod and remove its network namespace; succeeds if the pod is not up
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  podwire pod down default/web")]
pub(crate) struct Down {
    /// Pod to disconnect
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: PodName,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

pub(crate) fn run(args: &Down, format: Format) -> Result<()> {
    let host = args.runtime.host();
    let runtime = args.runtime.runtime(&host);
    let file = StateFile::new(&args.state.state_dir, &args.pod);
    let _lock = file.lock()?;
    let state = file.read()?;
    if let Some(state) = &state {
        disconnect(state, &file, &runtime)
            .with_context(|| format!("disconnect pod {}", args.pod))?;
    }
    let was_up = state.is_some();
    if format == Format::Json {
        return output::print_json(&json!({ "wasUp": was_up }));
    }
    let done = if was_up { "down" } else { "was not up" };
    output::print(&format!("{}: {done}\n", args.pod))
}

/// Detaches the pod and removes its namespace. The state file stays until all plugins succeed, so
/// that `down` can be repeated.
pub(crate) fn disconnect(state: &PodState, file: &StateFile, runtime: &Runtime) -> Result<()> {
    let mut container = network::container(state)?;
    if !is_usable(state, runtime)? {
        // An empty path means "the namespace is gone" in the CNI specification.
        container.netns = String::new();
    }
    let detached = detach(state, &container, runtime);
    let removed = remove_netns(state);
    match (detached, removed) {
        (Ok(()), Ok(())) => file.remove(),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
        (Err(first), Err(second)) => Err(anyhow!("{second:#}").context(format!("{first:#}"))),
    }
}

/// Whether plugins may work in the namespace: it exists, and it is not the one of this process.
fn is_usable(state: &PodState, runtime: &Runtime) -> Result<bool> {
    let Ok(netns) = Netns::open(&state.netns) else { return Ok(false) };
    if runtime.allow_own_netns || !runtime::is_own(&netns)? {
        return Ok(true);
    }
    let problem = format!("{} is the network namespace of podwire itself", state.netns.display());
    if state.owns_netns {
        let failure = Err(cni::Error::new(cni::Code::INVALID_NETNS, problem));
        return failure.hint(|| "run podwire in the host's network namespace".to_owned());
    }
    // A path below /proc may belong to another process by now.
    errors::warn(&format!("{problem}: left unchanged"));
    Ok(false)
}

fn detach(state: &PodState, container: &Container, runtime: &Runtime) -> Result<()> {
    let list = network::recorded(state)?;
    let detached = runtime
        .del(&list, container)
        .with_context(|| format!("detach it from network {:?}", list.name));
    let mut on_loopback = network::on_loopback(container);
    if !state.owns_netns {
        // Other programs may need loopback in their namespace: remove only the cache entry.
        on_loopback.netns = String::new();
    }
    // Like kubelet: loopback disappears with the namespace, so an error of its plugin is ignored.
    let _ = runtime.del(&network_lookup::loopback()?, &on_loopback);
    detached
}

fn remove_netns(state: &PodState) -> Result<()> {
    if state.owns_netns {
        Netns::remove_named(&state.netns)?;
    }
    Ok(())
}
