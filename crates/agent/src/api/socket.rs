// SPDX-License-Identifier: Apache-2.0
//! The agent's Unix socket. A lock file beside it tells whether its agent is running: a stale socket is replaced, the
//! socket of a running agent never.

use std::fs::{self, DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::Error;

const NAME: &str = "agent.sock";
const FRESH: &str = ".agent.sock.new";
const LOCK: &str = "agent.lock";

/// Accessible to root and its group.
const MODE: u32 = 0o660;

/// Path of the socket of an agent with this run directory.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(NAME)
}

/// The listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Identity of the socket file, to detect that it was replaced.
    id: Option<Id>,
    /// Held while the socket exists.
    lock: File,
}

/// Device and inode of a file.
type Id = (u64, u64);

impl Socket {
    /// Creates the directory and the socket, and replaces a stale socket.
    pub fn create(run_dir: &Path) -> Result<Socket, Error> {
        let path = socket_path(run_dir);
        let failed = |source| Error::Socket { path: path.clone(), source };
        make_directory(run_dir).map_err(failed)?;
        let lock = take_lock(run_dir)?;
        refuse_foreign(&path).map_err(failed)?;
        let listener = bind(run_dir, &path).map_err(failed)?;
        let id = id_of(&path);
        Ok(Socket { listener, path, id, lock })
    }

    /// Fails if an agent runs with this directory, without creating anything.
    pub fn refuse_taken(run_dir: &Path) -> Result<(), Error> {
        let path = run_dir.join(LOCK);
        let lock = match fsutil::open_for_update(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|source| Error::Socket { path: path.clone(), source })?,
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(Error::Taken(run_dir.to_owned())),
            Err(TryLockError::Error(source)) => Err(Error::Socket { path, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Re-creates the socket if the file was removed or replaced. Returns `false` if it is in place.
    pub(super) fn ensure(&mut self) -> Result<bool, Error> {
        if self.id.is_some() && id_of(&self.path) == self.id {
            return Ok(false);
        }
        let run_dir = self.path.parent().unwrap_or(&self.path).to_owned();
        let failed = |source| Error::Socket { path: self.path.clone(), source };
        make_directory(&run_dir).map_err(failed)?;
        // If the lock file is gone as well, another agent may hold a new one.
        if !is_at(&self.lock, &run_dir.join(LOCK)).map_err(failed)? {
            self.lock = take_lock(&run_dir)?;
        }
        self.listener = bind(&run_dir, &self.path).map_err(failed)?;
        self.id = id_of(&self.path);
        Ok(true)
    }

    /// Removes the socket and the lock file.
    pub fn remove(self) -> Result<(), Error> {
        let path = self.path.with_file_name(LOCK);
        fs::remove_file(&path).map_err(|source| Error::Socket { path, source })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The lock is still held. The next agent replaces a file that could not be removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn make_directory(run_dir: &Path) -> io::Result<()> {
    match run_dir.is_dir() {
        true => Ok(()),
        false => DirBuilder::new().recursive(true).mode(0o755).create(run_dir),
    }
}

/// Returns `None` if there is no file.
fn id_of(path: &Path) -> Option<Id> {
    fs::symlink_metadata(path).ok().as_ref().map(id)
}

fn id(data: &Metadata) -> Id {
    (data.dev(), data.ino())
}

fn take_lock(run_dir: &Path) -> Result<File, Error> {
    let path = run_dir.join(LOCK);
    let failed = |source| Error::Socket { path: path.clone(), source };
    loop {
        let lock = lock_file(&path).map_err(failed)?;
        match lock.try_lock() {
            // The previous holder may have removed the file since it was opened.
            Ok(()) if is_at(&lock, &path).map_err(failed)? => return Ok(lock),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Taken(run_dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// Opens the lock file. Only root may open it, because every process that can open it can lock it.
fn lock_file(path: &Path) -> io::Result<File> {
    fsutil::create(path, 0o600)
}

/// Whether the path leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(id_of(path) == Some(id(&file.metadata()?)))
}

/// Fails if the path is not a socket, which no agent has created.
fn refuse_foreign(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            let problem = "a file that is not a socket exists: remove it";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, problem))
        }
        _ => Ok(()),
    }
}

/// Binds the socket and renames it into place with its final mode, so that clients find a working socket or none.
fn bind(run_dir: &Path, path: &Path) -> io::Result<UnixListener> {
    let fresh = run_dir.join(FRESH);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    fs::rename(&fresh, path)?;
    UnixListener::from_std(listener)
}
