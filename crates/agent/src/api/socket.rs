// SPDX-License-Identifier: Apache-2.0
//! The agent's socket. A lock beside it says whether its owner lives, so that one that was left by a
//! crash is replaced and a living agent's never.

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

/// For root and its group.
const MODE: u32 = 0o660;

/// Where the socket of an agent with this directory is.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(NAME)
}

/// A socket that others can connect to; gone when dropped.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Which of all sockets that may be there under its name.
    id: Option<Id>,
    /// Held for as long as the socket is there.
    lock: File,
}

/// Device and inode of a file.
type Id = (u64, u64);

impl Socket {
    /// Makes the directory and the socket, in place of a dead agent's.
    pub fn create(run_dir: &Path) -> Result<Socket, Error> {
        let path = socket_path(run_dir);
        let failed = |source| Error::Socket { path: path.clone(), source };
        make_directory(run_dir).map_err(failed)?;
        let lock = take_lock(run_dir)?;
        refuse_others(&path).map_err(failed)?;
        let listener = bind(run_dir, &path).map_err(failed)?;
        let id = id_of(&path);
        Ok(Socket { listener, path, id, lock })
    }

    /// Fails if an agent runs with this directory. Creates nothing.
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

    /// Makes it anew where somebody has removed it or put something else there. False where it is there.
    pub(super) fn ensure(&mut self) -> Result<bool, Error> {
        if self.id.is_some() && id_of(&self.path) == self.id {
            return Ok(false);
        }
        let run_dir = self.path.parent().unwrap_or(&self.path).to_owned();
        let failed = |source| Error::Socket { path: self.path.clone(), source };
        make_directory(&run_dir).map_err(failed)?;
        // Where the lock has gone as well another agent may hold a new one.
        if !is_at(&self.lock, &run_dir.join(LOCK)).map_err(failed)? {
            self.lock = take_lock(&run_dir)?;
        }
        self.listener = bind(&run_dir, &self.path).map_err(failed)?;
        self.id = id_of(&self.path);
        Ok(true)
    }

    /// Removes the lock's file, too, where no agent is to run any more.
    pub fn remove(self) -> Result<(), Error> {
        let path = self.path.with_file_name(LOCK);
        fs::remove_file(&path).map_err(|source| Error::Socket { path, source })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // While the lock is held. One that stays is replaced by the next agent.
        let _ = fs::remove_file(&self.path);
    }
}

fn make_directory(run_dir: &Path) -> io::Result<()> {
    match run_dir.is_dir() {
        true => Ok(()),
        false => DirBuilder::new().recursive(true).mode(0o755).create(run_dir),
    }
}

/// None where there is nothing.
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
            // Whoever had it may have removed it since it was opened.
            Ok(()) if is_at(&lock, &path).map_err(failed)? => return Ok(lock),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Taken(run_dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// For root alone: whoever can open it can hold it.
fn lock_file(path: &Path) -> io::Result<File> {
    fsutil::create(path, 0o600)
}

/// Whether this is the file that is found there.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(id_of(path) == Some(id(&file.metadata()?)))
}

/// What is no socket was never an agent's.
fn refuse_others(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let words = "there is a file of that name that is no socket: remove it";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, words))
        }
        _ => Ok(()),
    }
}

/// Appears by rename with its mode, so that there is always a socket that answers, or none.
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
