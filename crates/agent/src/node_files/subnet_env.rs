// SPDX-License-Identifier: Apache-2.0
//! subnet.env: tells plugins this node's subnets, and a restarted agent the subnets that the node had.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overlay::subnet_env::{Problem, SubnetEnv};
use text::ErrorChain;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::bridge;
use crate::managed_file::{self, ManagedFile};
use crate::overlay::Programmed;
use crate::settings::Settings;
use crate::status::{ConditionKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("parse {path}")]
    Malformed { path: PathBuf, source: Problem },
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// Writes the file. Returns `false` if the content is the same.
pub fn write(path: &Path, env: &SubnetEnv) -> Result<bool, Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    managed_file::replace(path, &env.to_string()).map_err(failed)
}

/// Reads the file that the last agent, or flanneld, has written; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<SubnetEnv>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let Some(text) = managed_file::read(path).map_err(failed)? else { return Ok(None) };
    let malformed = |source| Error::Malformed { path: path.to_owned(), source };
    SubnetEnv::parse(&text).map(Some).map_err(malformed)
}

/// Writes the file for the network that the node has joined, and restores it. Plugins cannot attach a pod
/// without the file, so the node is ready only when it is written.
pub(crate) async fn run(
    settings: &Settings,
    network: &mut watch::Receiver<Option<Arc<Programmed>>>,
    hub: &StatusHub,
    heartbeat: &Heartbeat,
) -> Result<(), Failure> {
    let path = &settings.files.subnet_env;
    let mut file = ManagedFile::new(path, hub);
    loop {
        heartbeat.beat();
        let desired = network.borrow_and_update().clone();
        if let Some(desired) = desired {
            publish(settings, &desired, &mut file, hub).await;
        }
        tokio::select! {
            changed = network.changed() => match changed {
                Ok(()) => file.desired_changed(),
                Err(_) => return Ok(()),
            },
            () = file.next() => {}
            () = beats(heartbeat) => {}
        }
    }
}

/// Reports progress while nothing happens.
async fn beats(heartbeat: &Heartbeat) {
    loop {
        heartbeat.tick().await;
    }
}

async fn publish(
    settings: &Settings,
    desired: &Programmed,
    file: &mut ManagedFile,
    hub: &StatusHub,
) {
    let shown = super::shown(&settings.node.owner, desired);
    // The node does not become ready before the bridge fits its subnets.
    if hub.network().is_none_or(|network| network.lease != shown.lease) {
        let expected =
            super::expected_bridge(settings, &desired.joined.conf, &desired.joined.lease);
        let checked = spawn_blocking(move || bridge::check(&expected)).await;
        let checked = checked.map_err(|error| error.to_string());
        hub.report_result(
            ConditionKind::Bridge,
            checked.and_then(|checked| checked.map_err(|error| error.to_string())),
        );
    }
    let (conf, lease) = (&desired.joined.conf, &desired.joined.lease);
    let env = super::subnet_env(settings, conf, lease, desired.pod_mtu);
    let path = settings.files.subnet_env.clone();
    let written = spawn_blocking(move || write(&path, &env)).await;
    let written = written.map_err(|error| error.to_string());
    let written =
        written.and_then(|written| written.map_err(|error| ErrorChain(&error).to_string()));
    let shown = written.is_ok().then_some(shown);
    file.written(&written);
    // A client that sees a ready node may read the file.
    if hub.network() != shown {
        hub.set_network(shown);
    }
}

/// Removes the file. Returns `false` if it does not exist.
pub fn remove(path: &Path) -> Result<bool, Error> {
    managed_file::remove(path).map_err(|source| Error::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TEXT: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.10.1/24\n\
        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn file_is_replaced_atomically_and_world_readable() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run/flannel/subnet.env");
        assert!(read(&path).unwrap().is_none());
        assert!(!remove(&path).unwrap());
        let env = SubnetEnv::parse(TEXT).unwrap();
        assert!(write(&path, &env).unwrap());
        assert!(!write(&path, &env).unwrap(), "same content");
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o644, 0o755));
        let other = SubnetEnv { mtu: 1400, ..env };
        let inode = fs::File::open(&path).unwrap();
        assert!(write(&path, &other).unwrap());
        assert_eq!(read(&path).unwrap(), Some(other));
        let old = std::io::read_to_string(inode).unwrap();
        assert_eq!(old, TEXT, "an open file keeps the old content");
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file left"
        );
        assert!(remove(&path).unwrap());
    }

    #[test]
    fn malformed_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("subnet.env");
        fs::write(&path, "FLANNEL_MTU=x").unwrap();
        assert!(matches!(read(&path), Err(Error::Malformed { .. })));
    }
}
