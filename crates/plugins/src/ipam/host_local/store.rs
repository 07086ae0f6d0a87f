// SPDX-License-Identifier: Apache-2.0
//! Who holds which address of a network, in the Go plugin's files and under its lock, so that both
//! can serve one directory.
//!
//! The files are the truth, but name no address for a container. An `index` beside them does, and
//! spares ADD and DEL the reading of every file; it is a cache, checked before it is believed, and
//! no operation fails for want of it: a full disk is emptied by DEL.

mod allocate;
mod dir;
mod error;
mod files;
mod index;
mod last;
mod owner;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::ipam::{RangeSet, choose};
use rustix::fs::{Access, access};
use rustix::io::Errno;

pub use allocate::allocate;
pub use error::Error;
pub use owner::Reservation;

use dir::Dir;
use error::doing;
use files::Files;
use index::{Index, Listed};
use last::Last;
use owner::Owner;

/// Holds the indexes of all networks. A network's name cannot begin with a dot.
const INDEXES: &str = ".podwire";

/// The file that the Go plugin locks, too.
const LOCK: &str = "lock";

/// How long to wait for the lock. A plugin holds it for microseconds; one that reads all files of a
/// large network, for less than a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// An address for one of the range sets of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    pub ip: IpAddr,
    /// The set's place in the configuration, which names its `last_reserved_ip` file.
    pub set: usize,
}

/// The reservations of one network. The lock is held as long as the value lives.
#[derive(Debug)]
pub struct Store {
    files: Files,
    /// Missing once it could not be opened or written. The files are read instead, and the next
    /// store tries again.
    index: Option<Index>,
    last: Vec<Last>,
    /// Whether the index says what the files say; a failure half way leaves it unset.
    in_sync: bool,
    _lock: fsutil::Lock,
}

impl Store {
    /// Opens the store of a network, creating what is missing; waits for the lock, with a deadline.
    pub fn open(data_dir: &Path, network: &str) -> Result<Self, Error> {
        Self::open_within(data_dir, network, PATIENCE)
    }

    fn open_within(data_dir: &Path, network: &str, patience: Duration) -> Result<Self, Error> {
        let path = network_dir(data_dir, network)?;
        let lock = match open_lock(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
                made.map_err(doing("create directory", &path))?;
                open_lock(&path)
            }
            other => other,
        };
        Self::locked(data_dir, network, path, lock, patience)
    }

    /// Opens the store of a network if it has a directory; creates nothing if it has none.
    pub fn open_existing(data_dir: &Path, network: &str) -> Result<Option<Self>, Error> {
        let path = network_dir(data_dir, network)?;
        match open_lock(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            lock => Self::locked(data_dir, network, path, lock, PATIENCE).map(Some),
        }
    }

    fn locked(
        data_dir: &Path,
        network: &str,
        path: PathBuf,
        lock: io::Result<File>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let lock = lock.and_then(|file| fsutil::lock(file, patience));
        let lock = lock.map_err(doing("lock", &path.join(LOCK)))?;
        let files = Dir::open(path)?;
        let index = Index::open(&data_dir.join(INDEXES).join(network));
        let in_sync = index.as_ref().is_some_and(|index| index.agrees_with(&files));
        let files = Files::new(files);
        let mut store = Self { files, index, last: Vec::new(), in_sync, _lock: lock };
        store.sync();
        Ok(store)
    }

    /// The address reserved last in a set; `None` too if the file holds something else.
    pub fn last_reserved(&mut self, set: usize) -> Result<Option<IpAddr>, Error> {
        Ok(self.last(set)?.ip())
    }

    /// Whether somebody holds an address. An empty file is what a crash left between creating and
    /// writing it: nobody's.
    pub fn is_taken(&self, ip: IpAddr) -> Result<bool, Error> {
        self.files.is_taken(ip)
    }

    /// The addresses of an attachment, those in files that name only its container included.
    pub fn addresses_of(&mut self, id: &str, ifname: &str) -> Result<Vec<IpAddr>, Error> {
        self.sync();
        let owner = Owner::new(id, ifname);
        let mut found = self.held_by(owner)?;
        found.extend(self.held_by(owner.legacy())?);
        Ok(found)
    }

    /// Takes all of these addresses, or none: [`Error::Taken`] if somebody holds one.
    pub fn reserve(&mut self, id: &str, ifname: &str, picks: &[Pick]) -> Result<(), Error> {
        self.sync();
        let owner = Owner::new(id, ifname);
        let mut taken = self.take(owner, picks);
        // the index may hold the last of the space
        if taken.as_ref().is_err_and(Error::is_full) && self.discard_index() {
            taken = self.take(owner, picks);
        }
        taken?;
        self.update_index(|index| index.add(owner, picks.iter().map(|p| p.ip)));
        Ok(())
    }

    fn take(&mut self, owner: Owner<'_>, picks: &[Pick]) -> Result<(), Error> {
        let text = owner.text();
        for (n, pick) in picks.iter().enumerate() {
            let created = self.files.create(pick.ip, &text);
            if matches!(created, Ok(true)) {
                self.in_sync = false;
                continue;
            }
            self.unreserve(&picks[..n]);
            created?;
            return Err(Error::Taken { ip: pick.ip });
        }
        let advanced = picks.iter().try_for_each(|pick| self.last(pick.set)?.set(pick.ip));
        if advanced.is_err() {
            self.unreserve(picks);
        }
        advanced
    }

    /// Takes back what this call has just created. An error is already on its way to the caller,
    /// and the index is out of step until the next rebuild.
    fn unreserve(&self, picks: &[Pick]) {
        for pick in picks {
            let _ = self.files.remove(pick.ip);
        }
    }

    /// Frees the addresses of an attachment and says which; none is success.
    ///
    /// `candidates` are addresses it may hold whatever the index says, such as those of a
    /// `prevResult`. Like every address, they are freed only if their file names the attachment.
    /// Files that name only the container count if no other does, as they do for the Go plugin.
    pub fn release(
        &mut self,
        id: &str,
        ifname: &str,
        candidates: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Error> {
        self.sync();
        let owner = Owner::new(id, ifname);
        let was_in_sync = self.in_sync;
        let freed = self.release_either(owner, candidates)?;
        if !freed.is_empty() || !was_in_sync {
            return Ok(freed);
        }
        // The index knows no address, but the index does not notice a file that was rewritten in
        // place: the directory's time stays as it was. Only a repeated DEL comes here in vain.
        self.rescan();
        self.release_either(owner, candidates)
    }

    fn release_either(
        &mut self,
        owner: Owner<'_>,
        candidates: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Error> {
        let freed = self.release_all_of(owner, candidates)?;
        if freed.is_empty() { self.release_all_of(owner.legacy(), candidates) } else { Ok(freed) }
    }

    /// Rebuilds the index from the files, whatever their directory's time says.
    pub fn rescan(&mut self) {
        self.in_sync = false;
        self.sync();
    }

    fn release_all_of(
        &mut self,
        owner: Owner<'_>,
        candidates: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Error> {
        let (mut ips, is_listed) = self.listed(owner)?;
        for ip in candidates.iter().map(IpAddr::to_canonical) {
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
        let ips = self.only_held_by(owner, ips)?;
        if !is_listed && ips.is_empty() {
            return Ok(ips);
        }
        self.in_sync = false;
        self.files.remove_all(&ips)?;
        self.update_index(|index| index.remove(owner));
        Ok(ips)
    }

    /// Frees every address whose holder `keep` does not want kept, and says which.
    ///
    /// `keep` is asked with a container and its interface; with `None` for the interface, the file
    /// is an old one or made by hand, and GC keeps every such file: nothing says that the
    /// attachment is gone.
    pub fn retain(
        &mut self,
        mut keep: impl FnMut(&str, Option<&str>) -> bool,
    ) -> Result<Vec<Reservation>, Error> {
        let (kept, gone): (Vec<_>, Vec<_>) =
            self.files.scan()?.held.into_iter().partition(|r| keep(&r.id, r.ifname.as_deref()));
        let ips: Vec<_> = gone.iter().map(|r| r.ip).collect();
        self.in_sync = false;
        self.files.remove_all(&ips)?;
        self.update_index(|index| index.replace_all(&kept));
        Ok(gone)
    }

    /// Everything that is held, by reading every file: for people, not for ADD and DEL.
    pub fn reservations(&self) -> Result<Vec<Reservation>, Error> {
        Ok(self.files.scan()?.held)
    }

    /// The addresses that have a file, by reading the directory.
    pub fn taken(&self) -> Result<HashSet<IpAddr>, Error> {
        self.files.list()
    }

    /// Whether a set has no address left, by reading the directory: for STATUS.
    pub fn is_exhausted(&self, set: &RangeSet) -> Result<bool, Error> {
        let taken = self.taken()?;
        if choose(set, None, |ip| taken.contains(&ip)).is_some() {
            return Ok(false);
        }
        // An empty file reserves nothing; now that it matters, the files are looked at.
        let is_taken = |ip| taken.contains(&ip) && self.is_taken(ip).unwrap_or(true);
        Ok(choose(set, None, is_taken).is_none())
    }

    /// What the index lists for an owner, or all files say where it cannot tell; and whether the
    /// index has an entry to remove.
    fn listed(&self, owner: Owner<'_>) -> Result<(Vec<IpAddr>, bool), Error> {
        let index = self.index.as_ref().filter(|_| self.in_sync);
        match index.map(|index| index.get(owner)) {
            Some(Ok(Listed::Nothing)) => Ok((Vec::new(), false)),
            Some(Ok(Listed::Addresses(ips))) => Ok((ips, true)),
            Some(Ok(Listed::TooMany) | Err(_)) => Ok((self.files.held_by(owner)?, true)),
            None => Ok((self.files.held_by(owner)?, false)),
        }
    }

    fn held_by(&self, owner: Owner<'_>) -> Result<Vec<IpAddr>, Error> {
        let (ips, _) = self.listed(owner)?;
        self.only_held_by(owner, ips)
    }

    fn only_held_by(&self, owner: Owner<'_>, ips: Vec<IpAddr>) -> Result<Vec<IpAddr>, Error> {
        let mut held = Vec::with_capacity(ips.len());
        for ip in ips {
            if self.files.is_held_by(ip, owner)? {
                held.push(ip);
            }
        }
        Ok(held)
    }

    fn last(&mut self, set: usize) -> Result<&mut Last, Error> {
        let place = match self.last.iter().position(|last| last.is_of(set)) {
            Some(place) => place,
            None => {
                self.last.push(Last::open(self.files.path(), set)?);
                self.last.len() - 1
            }
        };
        Ok(&mut self.last[place])
    }

    /// Rebuilds the index by one full scan if it is not in step with the files: after a change by
    /// the Go plugin, a crash half way, or at the first use. Files that cannot be read are left to
    /// fail where they are needed.
    fn sync(&mut self) {
        if self.in_sync || self.index.is_none() {
            return;
        }
        let Ok(scan) = self.files.scan() else { return };
        // we hold the lock, so nobody is about to write these; those that stay do no harm
        let _ = self.files.remove_all(&scan.empty);
        self.update_index(|index| index.replace_all(&scan.held));
    }

    /// Lets the index follow the files, and stamps both; gives the index up if that fails.
    fn update_index(&mut self, change: impl FnOnce(&Index) -> Result<(), Error>) {
        let Some(index) = &self.index else { return };
        let updated = change(index).and_then(|()| self.files.dir().stamp_alike(index.dir()));
        self.in_sync = updated.is_ok();
        if updated.is_err() {
            self.discard_index();
        }
    }

    /// Whether there was one.
    fn discard_index(&mut self) -> bool {
        self.in_sync = false;
        self.index.take().map(Index::discard).is_some()
    }
}

fn network_dir(data_dir: &Path, network: &str) -> Result<PathBuf, Error> {
    let is_plain = network.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !is_plain || network.contains(['/', '\0']) {
        return Err(Error::Network { name: network.to_owned() });
    }
    Ok(data_dir.join(network))
}

/// Whether an ADD could write reservations, for STATUS: nothing that is missing is made.
pub fn require_writable(data_dir: &Path, network: &str) -> Result<(), Error> {
    let path = network_dir(data_dir, network)?;
    // The first that is there has to take the others.
    for directory in path.ancestors() {
        // With a slash at its end, which refuses a file.
        match access(directory.join(""), Access::WRITE_OK | Access::EXEC_OK) {
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(doing("write to directory", directory)(cause.into())),
            Ok(()) => break,
        }
    }
    Ok(())
}

/// Opens the lock file, without the lock; "not found" means that the directory is missing.
fn open_lock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK);
    match fsutil::open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => fsutil::create(&path, 0o750),
        other => other,
    }
}
