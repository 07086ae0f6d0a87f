// SPDX-License-Identifier: Apache-2.0
//! Order between runtimes on one node, in one process or many: operations on one container one
//! after the other, GC alone. Files under `<cache>/locks`, held by the kernel's `flock`, so that
//! nothing stays locked when a process dies.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for an operation of another runtime. A plugin may wait for a DHCP server, and GC
/// for all operations.
const PATIENCE: Duration = Duration::from_secs(180);

/// What an operation on a container holds; released from top to bottom.
#[derive(Debug)]
pub(super) struct Turn {
    _container: Held,
    _no_gc: Held,
}

/// What GC holds.
#[derive(Debug)]
pub(super) struct Alone {
    _nobody_else: Held,
    _door: Held,
}

#[derive(Debug)]
struct Held {
    lock: fsutil::Lock,
    /// Removed on release; such files come with every container and must not pile up.
    path: Option<PathBuf>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // While the lock is held: who waits for it will see that the file is another.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits until nobody else works on this container and no GC runs.
pub(super) fn container(cache: &Path, id: &str) -> io::Result<Turn> {
    let folder = folder(cache)?;
    let door = hold(&folder.join("door"), fsutil::lock)?;
    let no_gc = hold(&folder.join("gc"), fsutil::lock_shared)?;
    drop(door);
    // Never the other way round: who holds a container waits for nothing else.
    let path = folder.join(format!("container-{id}"));
    loop {
        let mut held = hold(&path, fsutil::lock)?;
        let ours = held.lock.file().metadata()?;
        let found = std::fs::metadata(&path).ok().map(|meta| (meta.dev(), meta.ino()));
        if found == Some((ours.dev(), ours.ino())) {
            held.path = Some(path);
            return Ok(Turn { _container: held, _no_gc: no_gc });
        }
    }
}

/// Waits until nothing else runs. The door stays shut meanwhile, or an endless row of overlapping
/// operations would never let this one in.
pub(super) fn alone(cache: &Path) -> io::Result<Alone> {
    let folder = folder(cache)?;
    let door = hold(&folder.join("door"), fsutil::lock)?;
    let nobody_else = hold(&folder.join("gc"), fsutil::lock)?;
    Ok(Alone { _nobody_else: nobody_else, _door: door })
}

fn folder(cache: &Path) -> io::Result<PathBuf> {
    let folder = cache.join("locks");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder)
}

fn hold(path: &Path, lock: fn(File, Duration) -> io::Result<fsutil::Lock>) -> io::Result<Held> {
    let locked = lock(fsutil::create(path, 0o600)?, PATIENCE);
    let locked = locked.map_err(|error| {
        io::Error::new(error.kind(), format!("wait for {}: {error}", path.display()))
    });
    Ok(Held { lock: locked?, path: None })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// Runs `inside` in eight threads, many times, and counts how many are in there at once.
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
    fn one_container_is_worked_on_by_one() {
        let cache = tempfile::tempdir().unwrap();
        let most = most_at_once(|_, work| {
            let _turn = container(cache.path(), "a").unwrap();
            work();
        });
        assert_eq!(most, 1);
        let left: Vec<_> = std::fs::read_dir(cache.path().join("locks")).unwrap().collect();
        assert_eq!(left.len(), 2, "only the door and GC's lock stay: {left:?}");
    }

    #[test]
    fn gc_is_alone() {
        let cache = tempfile::tempdir().unwrap();
        let most = most_at_once(|number, work| {
            if number % 2 == 0 {
                let _alone = alone(cache.path()).unwrap();
                work();
            } else {
                let _turn = container(cache.path(), "a").unwrap();
                work();
            }
        });
        assert_eq!(most, 1);
    }

    #[test]
    fn containers_do_not_wait_for_each_other() {
        let cache = tempfile::tempdir().unwrap();
        let _one = container(cache.path(), "a").unwrap();
        let _other = container(cache.path(), "b").unwrap();
    }
}
