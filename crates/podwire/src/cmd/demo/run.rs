// SPDX-License-Identifier: Apache-2.0
//! One run of the demo: its number, its directory, its namespaces. The directory is created first,
//! removed last, and locked in between. An unlocked directory therefore belongs to a demo that was
//! kept or killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use kernel::Netns;

use crate::lock::{self, Lock};
use crate::runtime;

const HOME: &str = "/run/podwire/demo";
/// File in the directory of a run with `--keep`.
const KEPT: &str = "kept";

/// How long the removal of a run's directory is tried.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A run that owns its namespaces and removes them in the end unless it is kept.
#[derive(Debug)]
pub(crate) struct Run {
    id: u32,
    dir: PathBuf,
    /// Released when this value is dropped.
    _lock: Option<Lock>,
    is_over: bool,
}

/// Result of cleaning up an earlier run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cleaned {
    Removed { id: u32, namespaces: usize },
    StillRunning { id: u32 },
}

impl Run {
    /// Removes killed runs, then takes the first free number.
    pub(crate) fn claim() -> Result<Run> {
        let _home = lock_home()?;
        clean_up(false)?;
        let used = ids()?;
        let id = (1..).find(|id| !used.contains(id)).unwrap_or(u32::MAX);
        let dir = dir_of(id);
        let claim = || -> io::Result<Option<Lock>> {
            fs::create_dir(&dir)?;
            lock::attempt(&dir)
        };
        let lock = claim().with_context(|| format!("create {}", dir.display()))?;
        Ok(Run { id, dir, _lock: lock, is_over: false })
    }

    /// Directory for configuration, cache and addresses of this run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates a namespace that is removed with the run.
    pub(crate) fn namespace(&self, name: &str) -> Result<(PathBuf, Netns)> {
        let path = runtime::named_netns(&format!("{}{name}", prefix(self.id)));
        let netns = Netns::create_named(&path)?;
        Ok((path, netns))
    }

    /// Leaves everything in place.
    pub(crate) fn keep(mut self) -> Result<()> {
        fs::write(self.dir.join(KEPT), "").context("mark the demo as kept")?;
        self.is_over = true;
        Ok(())
    }

    /// Removes everything.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.is_over = true;
        remove_all(self.id).map(drop)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.is_over {
            // Only after a panic, which prints its own message. `--clean` can try again.
            let _ = remove_all(self.id);
        }
    }
}

/// Removes all kept and killed runs.
pub(crate) fn clean() -> Result<Vec<Cleaned>> {
    let _home = lock_home()?;
    let cleaned = clean_up(true)?;
    remove_home();
    Ok(cleaned)
}

fn lock_home() -> Result<Lock> {
    lock::wait(Path::new(HOME), lock::directory).with_context(|| format!("lock {HOME}"))
}

/// The caller holds the lock of the home directory.
fn clean_up(include_kept: bool) -> Result<Vec<Cleaned>> {
    let (mut cleaned, mut errors) = (Vec::new(), Vec::new());
    for id in ids()? {
        if dir_of(id).join(KEPT).exists() && !include_kept {
            continue;
        }
        match clean_run(id) {
            Ok(done) => cleaned.push(done),
            Err(error) => errors.push(error.context(format!("remove demo {id}"))),
        }
    }
    join(errors).map(|()| cleaned)
}

fn clean_run(id: u32) -> Result<Cleaned> {
    let dir = dir_of(id);
    let lock = lock::attempt(&dir).with_context(|| format!("lock {}", dir.display()))?;
    Ok(match lock {
        None => Cleaned::StillRunning { id },
        Some(_lock) => Cleaned::Removed { id, namespaces: remove_run(id)? },
    })
}

/// Removes a run, and the home directory if this was the last run.
fn remove_all(id: u32) -> Result<usize> {
    let _home = lock_home()?;
    let count = remove_run(id)?;
    remove_home();
    Ok(count)
}

/// Removes the namespaces first: without the directory they would not be found again. The caller holds
/// the lock of the home directory.
fn remove_run(id: u32) -> Result<usize> {
    let namespaces = namespaces(id)?;
    let removed = namespaces.iter().map(Netns::remove_named);
    join(removed.filter_map(|removed| removed.err().map(Error::from)).collect())?;
    let dir = dir_of(id);
    remove_dir(&dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(namespaces.len())
}

/// Removes a directory in which the thread of a store that is ending may still create a file.
fn remove_dir(dir: &Path) -> io::Result<()> {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    loop {
        match fs::remove_dir_all(dir) {
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty
                    && Instant::now() < deadline =>
            {
                thread::yield_now();
            }
            removed => return removed,
        }
    }
}

/// Joins several errors into one.
fn join(mut errors: Vec<Error>) -> Result<()> {
    if errors.len() < 2 {
        return errors.pop().map_or(Ok(()), Err);
    }
    let texts: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
    Err(anyhow!(texts.join("; ")))
}

fn remove_home() {
    // Fails if one of them is not empty; then it stays.
    let home = Path::new(HOME);
    let _ = fs::remove_dir(home);
    let _ = home.parent().map(fs::remove_dir);
}

fn prefix(id: u32) -> String {
    format!("podwire-demo-{id}-")
}

fn dir_of(id: u32) -> PathBuf {
    Path::new(HOME).join(id.to_string())
}

fn ids() -> Result<Vec<u32>> {
    let mut ids: Vec<u32> =
        names(Path::new(HOME))?.iter().filter_map(|name| name.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

fn namespaces(id: u32) -> Result<Vec<PathBuf>> {
    let prefix = prefix(id);
    let all = runtime::named_netns("");
    let own = names(&all)?.into_iter().filter(|name| name.starts_with(&prefix));
    Ok(own.map(|name| all.join(name)).collect())
}

/// The names in a directory; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().with_context(|| format!("list {}", dir.display()))
}
