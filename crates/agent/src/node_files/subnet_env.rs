// SPDX-License-Identifier: Apache-2.0
//! The file by which plugins learn this node's subnets, and an agent at its start what it had.

use std::io;
use std::path::{Path, PathBuf};

use overlay::subnet_env::{Problem, SubnetEnv};
use text::ErrorChain;
use tokio::sync::watch;

use crate::managed_file;
use crate::managed_file::ManagedFile;
use crate::status::{Session, StatusHub};

/// Why the file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("understand {path}")]
    Malformed { path: PathBuf, source: Problem },
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// Writes it, where it says something else. False where it does not.
pub fn write(path: &Path, env: &SubnetEnv) -> Result<bool, Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    managed_file::replace(path, &env.to_string()).map_err(failed)
}

/// What the last agent, or flanneld, has left there; none where there is no file.
pub fn read(path: &Path) -> Result<Option<SubnetEnv>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let Some(text) = managed_file::read(path).map_err(failed)? else { return Ok(None) };
    let malformed = |source| Error::Malformed { path: path.to_owned(), source };
    SubnetEnv::parse(&text).map(Some).map_err(malformed)
}

/// What the file is to say, and what is shown of this node while it does.
pub(crate) type Told = (SubnetEnv, Session);

/// Has it there as it is wanted, until dropped. Without it no plugin can connect a pod.
pub(crate) async fn keep(path: &Path, mut wanted: watch::Receiver<Option<Told>>, hub: &StatusHub) {
    let mut kept = ManagedFile::new(path, hub);
    loop {
        if let Some((env, session)) = &*wanted.borrow_and_update() {
            let written = write(path, env).map_err(|error| ErrorChain(&error).to_string());
            let shown = written.is_ok().then(|| session.clone());
            kept.put(&written);
            // Whoever sees a node that is ready may read the file.
            if hub.session() != shown {
                hub.set_session(shown);
            }
        }
        tokio::select! {
            Ok(()) = wanted.changed() => kept.is_to_change(),
            () = kept.next() => {}
        }
    }
}

/// Removes it; false where there is none.
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
    fn it_is_replaced_as_a_whole_and_for_everybody_to_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run/flannel/subnet.env");
        assert!(read(&path).unwrap().is_none());
        assert!(!remove(&path).unwrap());
        let env = SubnetEnv::parse(TEXT).unwrap();
        assert!(write(&path, &env).unwrap());
        assert!(!write(&path, &env).unwrap(), "nothing is different");
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o644, 0o755));
        let other = SubnetEnv { mtu: 1400, ..env };
        let inode = fs::File::open(&path).unwrap();
        assert!(write(&path, &other).unwrap());
        assert_eq!(read(&path).unwrap(), Some(other));
        let old = std::io::read_to_string(inode).unwrap();
        assert_eq!(old, TEXT, "whoever had it open reads on in the old one");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left");
        assert!(remove(&path).unwrap());
    }

    #[test]
    fn a_broken_one_is_told_from_none() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("subnet.env");
        fs::write(&path, "FLANNEL_MTU=x").unwrap();
        assert!(matches!(read(&path), Err(Error::Malformed { .. })));
    }
}
