// SPDX-License-Identifier: Apache-2.0
//! The two networks of every pod: loopback and the default network.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cni::runtime::conf_dir::{self, DefaultNetwork};
use cni::runtime::{Container, NetworkList, Runtime};
use serde_json::{Value, json};

use super::state::PodState;
use crate::errors::Hint;
use crate::{network_lookup, runtime};

/// kubelet's error for a node without a network.
const UNINITIALIZED: &str = "cni config uninitialized";

/// Reads the directory and returns its first valid network.
pub(crate) fn default(dir: &Path, runtime: &Runtime) -> Result<DefaultNetwork> {
    let chosen = conf_dir::first_valid(dir, runtime);
    if chosen.is_ok() || !network_lookup::scan(dir).context(UNINITIALIZED)?.is_empty() {
        // The error describes the problem of each file.
        return chosen.context(UNINITIALIZED);
    }
    chosen.hint(|| network_lookup::how_to_create(dir)).context(UNINITIALIZED)
}

/// The invalid files before the chosen one, each with its error.
pub(crate) fn ignored_files(chosen: &DefaultNetwork) -> Vec<String> {
    let describe = |(file, error): &(PathBuf, cni::Error)| {
        let (file, error) = (file.display().to_string(), error.to_string());
        if error.contains(&file) { error } else { format!("{file}: {error}") }
    };
    chosen.ignored.iter().map(describe).collect()
}

/// The whole network as JSON for the state file, independent of its file and directory.
pub(crate) fn to_record(list: &NetworkList) -> Value {
    json!({
        "cniVersion": list.version.as_str(),
        "name": list.name,
        "disableCheck": list.disable_check,
        "disableGC": list.disable_gc,
        "loadOnlyInlinedPlugins": true,
        "plugins": list.plugins.iter().map(|plugin| &plugin.config).collect::<Vec<_>>(),
    })
}

/// The default network at the time the pod was connected.
pub(crate) fn recorded(state: &PodState) -> Result<NetworkList> {
    NetworkList::parse(state.config.to_string().as_bytes(), None)
        .with_context(|| format!("network {:?} as recorded", state.network))
}

/// The pod's container on the default network.
pub(crate) fn container(state: &PodState) -> Result<Container> {
    Ok(Container {
        id: state.sandbox_id.clone(),
        netns: runtime::as_text(&state.netns)?.to_owned(),
        ifname: state.ifname.clone(),
        args: state.args.clone(),
        capability_args: state.capability_args.clone(),
    })
}

/// The same container on the loopback network.
pub(crate) fn on_loopback(container: &Container) -> Container {
    Container { ifname: "lo".to_owned(), ..container.clone() }
}
