// SPDX-License-Identifier: Apache-2.0
//! Calico's files for its plugin: the name of this node, which shows that the agent is ready, and the MTU of
//! pods.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::managed_file::{self, ManagedFile};
use crate::routed::ProgrammedPools;
use crate::settings::Settings;
use crate::status::StatusHub;
use crate::supervisor::{Failure, Heartbeat};

/// Writes the files for the network that the node has joined, and restores them. The plugin attaches no pod
/// without the name, so the node is ready only when it is written.
pub(crate) async fn run(
    settings: &Settings,
    network: &mut watch::Receiver<Option<Arc<ProgrammedPools>>>,
    hub: &StatusHub,
    heartbeat: &Heartbeat,
) -> Result<(), Failure> {
    let [name_path, mtu_path] = ["nodename", "mtu"].map(|name| settings.files.calico.join(name));
    let mut name = ManagedFile::new(&name_path, hub);
    let mut mtu = ManagedFile::new(&mtu_path, hub);
    loop {
        heartbeat.beat();
        let desired = network.borrow_and_update().clone();
        if let Some(desired) = desired {
            let is_written = write(&mut mtu, &mtu_path, desired.mtu_text()).await
                && write(&mut name, &name_path, desired.node_name().to_owned()).await;
            let shown = is_written.then(|| desired.shown(&settings.node.owner));
            if hub.network() != shown {
                hub.set_network(shown);
            }
        }
        tokio::select! {
            changed = network.changed() => match changed {
                Ok(()) => {
                    name.desired_changed();
                    mtu.desired_changed();
                }
                Err(_) => return Ok(()),
            },
            () = name.next() => {}
            () = mtu.next() => {}
            () = heartbeat.during(std::future::pending()) => {}
        }
    }
}

/// Writes a file. Returns whether it has its content.
async fn write(file: &mut ManagedFile, path: &Path, text: String) -> bool {
    let path = path.to_owned();
    let written = spawn_blocking(move || managed_file::replace(&path, &text)).await;
    let written = written.map_err(|error| error.to_string());
    let written = written.and_then(|written| written.map_err(|error| error.to_string()));
    file.written(&written);
    written.is_ok()
}
