// SPDX-License-Identifier: Apache-2.0
//! Locks between runtimes on one node, across processes: operations on one container run one after the other, and GC
//! runs alone. The locks are `flock`s on files in `<cache>/locks`, so the kernel releases them when a process dies.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time to wait for another runtime. A plugin may wait for a DHCP server, and GC waits for all operations.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Locks held by an operation on a container. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct ContainerLock {
    _container: LockFile,
    _no_gc: LockFile,
}

/// Locks held by GC.
#[derive(Debug)]
pub(super) struct GcLock {
    _exclusive: LockFile,
    _door: LockFile,
}

#[derive(Debug)]
struct LockFile {
    lock: fsutil::Lock,
    /// File to remove on release. Each container has its own lock file, so the files must not accumulate.
    path: Option<PathBuf>,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // While the lock is held: a waiting process then sees that the path no longer is the file it locked.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits until no other operation on this container and no GC runs.
pub(super) fn container(cache: &Path, id: &str) -> io::Result<ContainerLock> {
    let dir = lock_dir(cache)?;
    let door = acquire(&dir.join("door"), fsutil::lock)?;
    let no_gc = acquire(&dir.join("gc"), fsutil::lock_shared)?;
    drop(door);
    // The container's lock comes last in every path, so that its holder never waits for another lock.
    let path = dir.join(format!("container-{id}"));
    loop {
        let mut container = acquire(&path, fsutil::lock)?;
        let locked = container.lock.file().metadata()?;
        let current = std::fs::metadata(&path).ok().map(|meta| (meta.dev(), meta.ino()));
        if current == Some((locked.dev(), locked.ino())) {
            container.path = Some(path);
            return Ok(ContainerLock { _container: container, _no_gc: no_gc });
        }
    }
}

/// Waits until no other operation runs. Keeps the door locked meanwhile: overlapping operations on containers could
/// otherwise hold the shared lock forever.
pub(super) fn gc(cache: &Path) -> io::Result<GcLock> {
    let dir = lock_dir(cache)?;
    let door = acquire(&dir.join("door"), fsutil::lock)?;
    let exclusive = acquire(&dir.join("gc"), fsutil::lock)?;
    Ok(GcLock { _exclusive: exclusive, _door: door })
}

fn lock_dir(cache: &Path) -> io::Result<PathBuf> {
    let dir = cache.join("locks");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    Ok(dir)
}

fn acquire(
    path: &Path,
    lock: fn(File, Duration) -> io::Result<fsutil::Lock>,
) -> io::Result<LockFile> {
    let locked = lock(fsutil::create(path, 0o600)?, TIMEOUT);
    let locked = locked.map_err(|error| {
        io::Error::new(error.kind(), format!("wait for {}: {error}", path.display()))
    });
    Ok(LockFile { lock: locked?, path: None })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// Runs `enter` many times in eight threads. Returns how many threads were inside at the same time.
    fn most_at_once(enter: impl Fn(usize, &dyn Fn()) + Sync) -> usize {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for number in 0..8 {
                let (enter, work) = (&enter, &work);
                scope.spawn(move || (0..50).for_each(|_| enter(number, work)));
            }
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn operations_on_one_container_run_one_by_one() {
        let cache = tempfile::tempdir().unwrap();
        let most = most_at_once(|_, work| {
            let _lock = container(cache.path(), "a").unwrap();
            work();
        });
        assert_eq!(most, 1);
        let left: Vec<_> = std::fs::read_dir(cache.path().join("locks")).unwrap().collect();
        assert_eq!(left.len(), 2, "only the files of door and GC stay: {left:?}");
    }

    #[test]
    fn gc_runs_alone() {
        let cache = tempfile::tempdir().unwrap();
        let most = most_at_once(|number, work| {
            if number % 2 == 0 {
                let _lock = gc(cache.path()).unwrap();
                work();
            } else {
                let _lock = container(cache.path(), "a").unwrap();
                work();
            }
        });
        assert_eq!(most, 1);
    }

    #[test]
    fn operations_on_two_containers_run_together() {
        let cache = tempfile::tempdir().unwrap();
        let _first = container(cache.path(), "a").unwrap();
        let _second = container(cache.path(), "b").unwrap();
    }
}
