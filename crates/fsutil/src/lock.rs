// SPDX-License-Identifier: Apache-2.0
//! `flock` with a deadline. The error at the deadline names the process that holds the lock.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::{Errno, retry_on_intr};

use crate::open::create;

/// A lock that is held until the value is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Returns the locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has just forked has a copy of the descriptor
        // until it calls exec.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes an exclusive lock. Waits for other holders at most this long. After that the error has the kind
/// [`io::ErrorKind::TimedOut`] and names the holder.
pub fn lock(file: File, wait: Duration) -> io::Result<Lock> {
    acquire(file, wait, FlockOperation::NonBlockingLockExclusive, FlockOperation::LockExclusive)
}

/// Takes a shared lock, which several processes can hold at the same time. Waits like [`lock`].
pub fn lock_shared(file: File, wait: Duration) -> io::Result<Lock> {
    acquire(file, wait, FlockOperation::NonBlockingLockShared, FlockOperation::LockShared)
}

/// Takes an exclusive lock without waiting. Returns `None` if another open file description holds it.
pub fn try_lock(file: File) -> io::Result<Option<Lock>> {
    match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(Some(Lock { file })),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a lock file with mode 0600, because every process that can open the file could lock it. Creates the file, its
/// directory and the parent of the directory.
pub fn open_lock(directory: &Path, name: &str) -> io::Result<File> {
    let path = directory.join(name);
    match create(&path, 0o600) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    for (missing, mode) in
        directory.parent().map(|parent| (parent, 0o755)).into_iter().chain([(directory, 0o700)])
    {
        match DirBuilder::new().mode(mode).create(missing) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    create(&path, 0o600)
}

fn acquire(
    file: File,
    wait: Duration,
    attempt: FlockOperation,
    block: FlockOperation,
) -> io::Result<Lock> {
    match retry_on_intr(|| flock(&file, attempt)) {
        Ok(()) => return Ok(Lock { file }),
        Err(Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(errno.into()),
    }
    // No system call waits for a lock with a deadline, so a thread waits for the lock. If the thread gets the lock after
    // the deadline, it releases the lock at once.
    let waiting = file.try_clone()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let blocked = move || {
        let locked = retry_on_intr(|| flock(&waiting, block));
        let _ = sender.send(locked.map(|()| Lock { file: waiting }));
    };
    thread::Builder::new().stack_size(64 << 10).spawn(blocked)?;
    match receiver.recv_timeout(wait) {
        Ok(locked) => locked.map_err(Into::into),
        Err(_) => {
            let holder = holder(&file).unwrap_or_else(|| "another process".to_owned());
            let text = format!("{holder} has held it for {} s", wait.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}

/// How often the list of locks is read until it names the holder.
const HOLDER_ATTEMPTS: u32 = 5;

/// Returns the process that holds the lock of a file, if `/proc/locks` lists it.
fn holder(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    // The kernel returns the list in parts of a page. If other programs release locks meanwhile, it skips entries.
    let pid = (0..HOLDER_ATTEMPTS).find_map(|_| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holder_in(&locks, meta.dev(), meta.ino())
    })?;
    // The kernel prints 0 for a process of another PID namespace.
    if pid == 0 {
        return Some("a process of another PID namespace".to_owned());
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Some(match name {
        Some(name) => format!("process {pid} ({})", name.trim_end().escape_debug()),
        // The process has exited, and a child has inherited the lock.
        None => format!("a child of process {pid}"),
    })
}

/// Finds the holder in the text of `/proc/locks`. On some file systems the device number differs from that of `stat`.
/// If no line matches both, a line with the same inode is used.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let held = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // `1: FLOCK ADVISORY WRITE 4242 08:01:1234 0 EOF`; a waiting process has `->` after the number.
        let [_, "FLOCK", _, _, pid, id, ..] = words.as_slice() else { return None };
        let (device, number) = id.rsplit_once(':')?;
        (number.parse() == Ok(inode)).then(|| Some((pid.parse().ok()?, device.to_owned())))?
    });
    let held: Vec<(u32, String)> = held.collect();
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    let exact = held.iter().find(|(_, other)| *other == device);
    exact.or(held.first()).map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn lock_is_awaited_until_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let open = || open_lock(&directory.path().join("a"), "lock").unwrap();
        let held = try_lock(open()).unwrap().unwrap();
        assert!(try_lock(open()).unwrap().is_none());
        let late = lock(open(), SHORT).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let own = format!("process {} (", std::process::id());
        assert!(late.to_string().starts_with(&own), "{late}");
        assert!(late.to_string().ends_with(") has held it for 0 s"), "{late}");
        assert!(lock_shared(open(), SHORT).is_err());
        let waiting = open();
        let waiter = thread::spawn(move || lock(waiting, LONG));
        drop(held);
        // The thread that timed out has also released the lock.
        drop(waiter.join().unwrap().unwrap());
        let first = lock_shared(open(), LONG).unwrap();
        let second = lock_shared(open(), LONG).unwrap();
        assert!(lock(open(), SHORT).is_err());
        drop((first, second));
        lock(open(), LONG).unwrap();
    }

    #[test]
    fn holder_is_found_by_device_and_inode() {
        let text = "1: POSIX  ADVISORY  WRITE 11 00:19:77 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 12 00:1a:77 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE 13 00:19:77 0 EOF\n\
                    3: -> FLOCK  ADVISORY  WRITE 14 00:19:77 0 EOF\n\
                    4: FLOCK  ADVISORY  READ  15 00:19:78 0 EOF\nnonsense\n";
        assert_eq!(holder_in(text, 0x19, 77), Some(13));
        assert_eq!(holder_in(text, 0x19, 78), Some(15));
        assert_eq!(holder_in(text, 0x44, 78), Some(15));
        assert_eq!(holder_in(text, 0x19, 79), None);
    }
}
