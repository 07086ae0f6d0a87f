// SPDX-License-Identifier: Apache-2.0
//! A pod going down. What is gone already is fine; what fails does not keep the rest from going.

use anyhow::{Context, Result, anyhow};
use cni::runtime::{Container, Runtime};
use kernel::Netns;
use serde_json::json;

use super::network;
use super::state::{PodState, Store};
use crate::cli::PodDown;
use crate::output::{self, Format};
use crate::report::{self, Hint};
use crate::{config, place};

pub fn run(asked: &PodDown, format: Format) -> Result<()> {
    let host = place::host(&asked.places);
    let runtime = place::runtime(&host, &asked.places);
    let store = Store::new(&asked.state.state_dir, &asked.pod);
    let _lock = store.lock()?;
    let state = store.read()?;
    if let Some(state) = &state {
        take_down(state, &store, &runtime)
            .with_context(|| format!("disconnect pod {}", asked.pod))?;
    }
    let was_up = state.is_some();
    if format == Format::Json {
        return output::print_json(&json!({ "wasUp": was_up }));
    }
    let done = if was_up { "down" } else { "was not up" };
    output::print(&format!("{}: {done}\n", asked.pod))
}

/// Detaches the pod and removes its namespace. The pod is remembered until no plugin complains, so
/// that `down` can be tried again.
pub fn take_down(state: &PodState, store: &Store, runtime: &Runtime) -> Result<()> {
    let mut container = network::container(state)?;
    if !is_reachable(state, runtime)? {
        // The specification's word for a namespace that is gone.
        container.netns = String::new();
    }
    let detached = detach(state, &container, runtime);
    let removed = remove_netns(state);
    match (detached, removed) {
        (Ok(()), Ok(())) => store.remove(),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
        (Err(first), Err(second)) => Err(anyhow!("{second:#}").context(format!("{first:#}"))),
    }
}

/// Whether plugins may work in the namespace: it is there, and it is not our own.
fn is_reachable(state: &PodState, runtime: &Runtime) -> Result<bool> {
    let Ok(netns) = Netns::open(&state.netns) else { return Ok(false) };
    if runtime.allow_own_netns || !place::is_own(&netns)? {
        return Ok(true);
    }
    let told = format!("{} is the namespace that podwire itself runs in", state.netns.display());
    if state.owns_netns {
        let failure = Err(cni::Error::new(cni::Code::INVALID_NETNS, told));
        return failure.hint(|| "call podwire in the namespace of the host".to_owned());
    }
    // A path below /proc may have come to mean another process since.
    report::warn(&format!("{told}: it is left as it is"));
    Ok(false)
}

fn detach(state: &PodState, container: &Container, runtime: &Runtime) -> Result<()> {
    let list = network::recorded(state)?;
    let detached = runtime
        .del(&list, container)
        .with_context(|| format!("detach it from network {:?}", list.name));
    let mut on_loopback = network::on_loopback(container);
    if !state.owns_netns {
        // Others may need it in a namespace of theirs; only the cache forgets it.
        on_loopback.netns = String::new();
    }
    // As kubelet: loopback goes with the namespace, whatever its plugin says.
    let _ = runtime.del(&config::loopback()?, &on_loopback);
    detached
}

fn remove_netns(state: &PodState) -> Result<()> {
    if state.owns_netns {
        Netns::remove_named(&state.netns)?;
    }
    Ok(())
}
