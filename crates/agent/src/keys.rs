// SPDX-License-Identifier: Apache-2.0
//! The node's WireGuard key. It survives restarts and reboots: peers know the node by its key.

use std::io;
use std::path::{Path, PathBuf};

use kernel::wireguard::PrivateKey;

use crate::managed_file;

/// Why the key is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} contains no WireGuard key: {problem}")]
    Malformed { path: PathBuf, problem: String },
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("generate a key")]
    Generate(#[from] kernel::Error),
}

/// Path of the key file.
pub(crate) fn wireguard_file(state_dir: &Path) -> PathBuf {
    state_dir.join("wireguard.key")
}

/// Returns the private key of this node: the saved one, else flannel's, else a new one. Saves it.
pub(crate) fn wireguard(state_dir: &Path, flannels: &Path) -> Result<PrivateKey, Error> {
    let key = preview_wireguard(state_dir, flannels)?;
    let path = wireguard_file(state_dir);
    let failed = |source| Error::Write { path: path.clone(), source };
    managed_file::restrict(&path).map_err(failed)?;
    if !path.exists() {
        managed_file::replace_secret(&path, &format!("{}\n", key.to_base64())).map_err(failed)?;
    }
    Ok(key)
}

/// Returns the key that [`wireguard`] would return, without saving it. A new key differs each time.
pub(crate) fn preview_wireguard(state_dir: &Path, flannels: &Path) -> Result<PrivateKey, Error> {
    for path in [&wireguard_file(state_dir), flannels] {
        if let Some(key) = read(path)? {
            return Ok(key);
        }
    }
    Ok(PrivateKey::random()?)
}

fn read(path: &Path) -> Result<Option<PrivateKey>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let Some(text) = managed_file::read(path).map_err(failed)? else { return Ok(None) };
    let malformed = |problem: kernel::wireguard::KeyError| Error::Malformed {
        path: path.to_owned(),
        problem: problem.to_string(),
    };
    text.trim().parse().map(Some).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_saved_and_flannels_key_is_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let (state, flannels) = (dir.path().join("state"), dir.path().join("wgkey"));
        preview_wireguard(&state, &flannels).unwrap();
        assert!(!state.exists(), "nothing written");
        let first = wireguard(&state, &flannels).unwrap();
        let file = state.join("wireguard.key");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(wireguard(&state, &flannels).unwrap() == first);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&file).unwrap();
        let theirs = PrivateKey::random().unwrap();
        fs::write(&flannels, theirs.to_base64()).unwrap();
        assert!(wireguard(&state, &flannels).unwrap() == theirs);
        fs::remove_file(&flannels).unwrap();
        assert!(wireguard(&state, &flannels).unwrap() == theirs, "adopted");
        fs::write(&file, "nonsense").unwrap();
        let error = wireguard(&state, &flannels).unwrap_err().to_string();
        assert!(error.contains("wireguard.key contains no WireGuard key"), "{error}");
    }
}
