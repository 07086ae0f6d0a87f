// SPDX-License-Identifier: Apache-2.0
//! The reservations of a network, in the files of the Go plugin and under its lock, so that both
//! plugins can use one directory.
//!
//! The files are authoritative, but finding the addresses of a container means reading all of them.
//! The `index` next to them maps containers to addresses, so that ADD and DEL need not read every
//! file. It is a cache: it is verified before use, and no operation fails without it. DEL must work
//! even if the disk is full.

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

pub(crate) use allocate::allocate;
pub(crate) use error::Error;
pub(crate) use owner::Reservation;

use dir::Dir;
use error::doing;
use files::Files;
use index::{Index, Listed};
use last::Last;
use owner::Owner;

/// The directory with the indexes of all networks. The name of a network cannot start with a dot.
const INDEXES: &str = ".podwire";

/// The lock file, which the Go plugin uses too.
const LOCK: &str = "lock";

/// Maximum time to wait for the lock. A plugin holds it for microseconds; one that reads all files
/// of a large network holds it for less than a second.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// An address chosen from one of the network's range sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    pub ip: IpAddr,
    /// The position of the set in the configuration, which is part of the name of its
    /// `last_reserved_ip` file.
    pub set: usize,
}

/// The reservations of one network. The lock is held until the value is dropped.
#[derive(Debug)]
pub(crate) struct Store {
    files: Files,
    /// `None` if the index could not be opened or written. The files are read instead, and the next
    /// store tries again.
    index: Option<Index>,
    last: Vec<Last>,
    /// Whether the index matches the files; false after a failure halfway.
    in_sync: bool,
    _lock: fsutil::Lock,
}

impl Store {
    /// Opens the store of a network and creates it if it is missing. Waits for the lock.
    pub(crate) fn open(data_dir: &Path, network: &str) -> Result<Self, Error> {
        Self::open_within(data_dir, network, LOCK_TIMEOUT)
    }

    fn open_within(data_dir: &Path, network: &str, timeout: Duration) -> Result<Self, Error> {
        let path = network_dir(data_dir, network)?;
        let lock = match open_lock(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let created = DirBuilder::new().recursive(true).mode(0o755).create(&path);
                created.map_err(doing("create directory", &path))?;
                open_lock(&path)
            }
            other => other,
        };
        Self::locked(data_dir, network, path, lock, timeout)
    }

    /// Opens the store of a network if its directory exists.
    pub(crate) fn open_existing(data_dir: &Path, network: &str) -> Result<Option<Self>, Error> {
        let path = network_dir(data_dir, network)?;
        match open_lock(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            lock => Self::locked(data_dir, network, path, lock, LOCK_TIMEOUT).map(Some),
        }
    }

    fn locked(
        data_dir: &Path,
        network: &str,
        path: PathBuf,
        lock: io::Result<File>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let lock = lock.and_then(|file| fsutil::lock(file, timeout));
        let lock = lock.map_err(doing("lock", &path.join(LOCK)))?;
        let files = Dir::open(path)?;
        let index = Index::open(&data_dir.join(INDEXES).join(network));
        let in_sync = index.as_ref().is_some_and(|index| index.agrees_with(&files));
        let files = Files::new(files);
        let mut store = Self { files, index, last: Vec::new(), in_sync, _lock: lock };
        store.sync();
        Ok(store)
    }

    /// The address that was reserved last in a set; `None` if the file has no valid address.
    pub(crate) fn last_reserved(&mut self, set: usize) -> Result<Option<IpAddr>, Error> {
        Ok(self.last(set)?.ip())
    }

    /// Whether an address is reserved. An empty file reserves nothing: a crash left it between
    /// creation and writing.
    pub(crate) fn is_taken(&self, ip: IpAddr) -> Result<bool, Error> {
        self.files.is_taken(ip)
    }

    /// The addresses of an attachment, including those in files that name the container only.
    pub(crate) fn addresses_of(&mut self, id: &str, ifname: &str) -> Result<Vec<IpAddr>, Error> {
        self.sync();
        let owner = Owner::new(id, ifname);
        let mut found = self.held_by(owner)?;
        found.extend(self.held_by(owner.legacy())?);
        Ok(found)
    }

    /// Reserves all of these addresses or none; [`Error::Taken`] if one is reserved already.
    pub(crate) fn reserve(&mut self, id: &str, ifname: &str, picks: &[Pick]) -> Result<(), Error> {
        self.sync();
        let owner = Owner::new(id, ifname);
        let mut taken = self.take(owner, picks);
        // The index may occupy the last free space.
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

    /// Removes the files that this call has just created. Errors are ignored because the caller
    /// reports another one; the index is out of sync until the next rebuild.
    fn unreserve(&self, picks: &[Pick]) {
        for pick in picks {
            let _ = self.files.remove(pick.ip);
        }
    }

    /// Releases the addresses of an attachment and returns them. It is not an error if there are
    /// none.
    ///
    /// `candidates` are addresses that the attachment may have regardless of the index, such as
    /// those of a `prevResult`. As for every address, their file must name the attachment. Files
    /// that name the container only are used if there are no others, as in the Go plugin.
    pub(crate) fn release(
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
        // The index does not notice a file that was rewritten in place, because the directory's
        // modification time stays the same. Otherwise only a repeated DEL gets here.
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

    /// Rebuilds the index from the files, regardless of the directory's modification time.
    pub(crate) fn rescan(&mut self) {
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

    /// Releases all addresses for which `keep` returns false, and returns them.
    ///
    /// The arguments of `keep` are a container and its interface. Without an interface, the file is
    /// an old one or was created by hand; GC keeps such files, because they do not show whether the
    /// attachment is gone.
    pub(crate) fn retain(
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

    /// All reservations, by reading every file.
    #[cfg(test)]
    pub(crate) fn reservations(&self) -> Result<Vec<Reservation>, Error> {
        Ok(self.files.scan()?.held)
    }

    /// The addresses that have a file, by reading the directory.
    pub(crate) fn taken(&self) -> Result<HashSet<IpAddr>, Error> {
        self.files.list()
    }

    /// Whether a set has no free address, by reading the directory; for STATUS.
    pub(crate) fn is_exhausted(&self, set: &RangeSet) -> Result<bool, Error> {
        let taken = self.taken()?;
        if choose(set, None, |ip| taken.contains(&ip)).is_some() {
            return Ok(false);
        }
        // An empty file reserves nothing, so the files themselves must be checked before the set
        // counts as exhausted.
        let is_taken = |ip| taken.contains(&ip) && self.is_taken(ip).unwrap_or(true);
        Ok(choose(set, None, is_taken).is_none())
    }

    /// The addresses that the index lists for an owner, or those found in all files if the index
    /// cannot answer; and whether the index has an entry to remove.
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

    /// Rebuilds the index by a full scan if it is out of sync: after a change by the Go plugin, a
    /// crash, or on first use. A file that cannot be read causes an error only when it is needed.
    fn sync(&mut self) {
        if self.in_sync || self.index.is_none() {
            return;
        }
        let Ok(scan) = self.files.scan() else { return };
        // The lock is held, so no process is about to write these files. A file that cannot be
        // removed does no harm.
        let _ = self.files.remove_all(&scan.empty);
        self.update_index(|index| index.replace_all(&scan.held));
    }

    /// Applies a change to the index and stamps both directories; discards the index on failure.
    fn update_index(&mut self, change: impl FnOnce(&Index) -> Result<(), Error>) {
        let Some(index) = &self.index else { return };
        let updated = change(index).and_then(|()| self.files.dir().stamp_alike(index.dir()));
        self.in_sync = updated.is_ok();
        if updated.is_err() {
            self.discard_index();
        }
    }

    /// Returns whether there was an index.
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

/// Whether an ADD could write reservations, for STATUS. Creates nothing.
pub(crate) fn require_writable(data_dir: &Path, network: &str) -> Result<(), Error> {
    let path = network_dir(data_dir, network)?;
    // The first existing directory must be writable.
    for directory in path.ancestors() {
        // The trailing slash makes the call fail for a file.
        match access(directory.join(""), Access::WRITE_OK | Access::EXEC_OK) {
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(doing("write to directory", directory)(cause.into())),
            Ok(()) => break,
        }
    }
    Ok(())
}

/// Opens the lock file without locking it. "Not found" means that the directory is missing.
fn open_lock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK);
    match fsutil::open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => fsutil::create(&path, 0o750),
        other => other,
    }
}
