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
    if Netns::open(&state.netns).is_err() {
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

fn detach(state: &PodState, container: &Container, runtime: &Runtime) -> Result<()> {
    let list = network::recorded(state)?;
    let detached = runtime
        .del(&list, container)
        .with_context(|| format!("detach it from network {:?}", list.name));
    // As kubelet: loopback goes with the namespace, whatever its plugin says.
    let _ = runtime.del(&config::loopback()?, &network::on_loopback(container));
    detached
}

fn remove_netns(state: &PodState) -> Result<()> {
    if state.owns_netns {
        Netns::remove_named(&state.netns)?;
    }
    Ok(())
}
