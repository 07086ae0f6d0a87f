// SPDX-License-Identifier: Apache-2.0
//! One run of the demo: its number, its directory, its namespaces. The directory is made first
//! and removed last, and locked while the run lives; so whatever a killed run has left can be told
//! from a living one, and found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use kernel::Netns;

use crate::lock::{self, Lock};
use crate::place;

const HOME: &str = "/run/podwire/demo";
/// In the directory of a run that was asked to stay.
const KEPT: &str = "kept";

/// A run that owns its namespaces, and removes them in the end unless it is kept.
#[derive(Debug)]
pub struct Run {
    id: u32,
    dir: PathBuf,
    /// Let go only when this value is.
    _lock: Option<Lock>,
    is_over: bool,
}

/// What became of an earlier run.
#[derive(Debug, PartialEq, Eq)]
pub enum Cleaned {
    Removed { id: u32, namespaces: usize },
    StillRunning { id: u32 },
}

impl Run {
    /// Takes the first free number, after removing what killed runs have left.
    pub fn claim() -> Result<Run> {
        let _home = lock_home()?;
        clean_up(false)?;
        let taken = ids()?;
        let id = (1..).find(|id| !taken.contains(id)).unwrap_or(u32::MAX);
        let dir = dir_of(id);
        let claim = || -> io::Result<Option<Lock>> {
            fs::create_dir(&dir)?;
            lock::attempt(&dir)
        };
        let lock = claim().with_context(|| format!("make {}", dir.display()))?;
        Ok(Run { id, dir, _lock: lock, is_over: false })
    }

    /// For configuration, cache and addresses of this run.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes a namespace that goes with the run.
    pub fn namespace(&self, name: &str) -> Result<(PathBuf, Netns)> {
        let path = place::named_netns(&format!("{}{name}", prefix(self.id)));
        let netns = Netns::create_named(&path)?;
        Ok((path, netns))
    }

    /// Leaves everything in place.
    pub fn keep(mut self) -> Result<()> {
        fs::write(self.dir.join(KEPT), "").context("mark the demo as kept")?;
        self.is_over = true;
        Ok(())
    }

    /// Removes everything.
    pub fn remove(mut self) -> Result<()> {
        self.is_over = true;
        remove_all(self.id).map(drop)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.is_over {
            // Reached by a panic only, which has its own words; `--clean` can try again.
            let _ = remove_all(self.id);
        }
    }
}

/// Removes every run that is over, kept or killed.
pub fn clean() -> Result<Vec<Cleaned>> {
    let _home = lock_home()?;
    let cleaned = clean_up(true)?;
    remove_home();
    Ok(cleaned)
}

fn lock_home() -> Result<Lock> {
    lock::wait(Path::new(HOME), lock::directory).with_context(|| format!("lock {HOME}"))
}

/// Called with the home locked.
fn clean_up(kept_too: bool) -> Result<Vec<Cleaned>> {
    let (mut cleaned, mut errors) = (Vec::new(), Vec::new());
    for id in ids()? {
        if dir_of(id).join(KEPT).exists() && !kept_too {
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

/// Removes a run, and the home with the last of them.
fn remove_all(id: u32) -> Result<usize> {
    let _home = lock_home()?;
    let count = remove_run(id)?;
    remove_home();
    Ok(count)
}

/// Called with the home locked. Namespaces first: without the directory nobody would find them.
fn remove_run(id: u32) -> Result<usize> {
    let namespaces = namespaces(id)?;
    let removed = namespaces.iter().map(Netns::remove_named);
    join(removed.filter_map(|removed| removed.err().map(Error::from)).collect())?;
    let dir = dir_of(id);
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(namespaces.len())
}

/// One failure stays as it is; of several all are told.
fn join(mut errors: Vec<Error>) -> Result<()> {
    if errors.len() < 2 {
        return errors.pop().map_or(Ok(()), Err);
    }
    let told: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
    Err(anyhow!(told.join("; ")))
}

fn remove_home() {
    // Either may hold something of others, and then stays.
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
    let all = place::named_netns("");
    let ours = names(&all)?.into_iter().filter(|name| name.starts_with(&prefix));
    Ok(ours.map(|name| all.join(name)).collect())
}

/// The names in a directory; none where it is not there.
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
