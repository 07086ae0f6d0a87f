// SPDX-License-Identifier: Apache-2.0
//! subnet.env: tells plugins this node's subnets, and a restarted agent the subnets that the node had.

use std::io;
use std::path::{Path, PathBuf};

use overlay::subnet_env::{Problem, SubnetEnv};
use text::ErrorChain;
use tokio::sync::watch;

use crate::managed_file::{self, ManagedFile};
use crate::status::{Session, StatusHub};

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

/// The desired content, and the session that the status shows once the file is written.
pub(crate) type Told = (SubnetEnv, Session);

/// Writes the desired content and restores the file, until dropped. Plugins cannot attach a pod without the file.
pub(crate) async fn keep(path: &Path, mut desired: watch::Receiver<Option<Told>>, hub: &StatusHub) {
    let mut file = ManagedFile::new(path, hub);
    loop {
        if let Some((env, session)) = &*desired.borrow_and_update() {
            let written = write(path, env).map_err(|error| ErrorChain(&error).to_string());
            let shown = written.is_ok().then(|| session.clone());
            file.written(&written);
            // A client that sees a ready node may read the file.
            if hub.session() != shown {
                hub.set_session(shown);
            }
        }
        tokio::select! {
            Ok(()) = desired.changed() => file.desired_changed(),
            () = file.next() => {}
        }
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
