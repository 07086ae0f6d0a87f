// SPDX-License-Identifier: Apache-2.0
//! The index from attachments to addresses: a directory of symbolic links, each named after its
//! owner and with a list of addresses as target. Reading or writing an entry takes one system call,
//! and an entry is never incomplete.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::dir::Dir;
use super::error::{Error, doing};
use super::owner::{Owner, Reservation};

/// The target of an entry with too many addresses.
const TOO_MANY: &str = "*";

/// The maximum length of a link target on Linux, without the NUL byte.
const MAX_TARGET: usize = 4095;

#[derive(Debug)]
pub(super) struct Index(Dir);

/// The addresses that the index lists for an owner. There may be too many, so the files must be
/// checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Nothing,
    Addresses(Vec<IpAddr>),
    /// Only the files have the addresses.
    TooMany,
}

impl Index {
    /// Returns `None` if the index cannot be opened or created.
    pub(super) fn open(path: &Path) -> Option<Self> {
        match Dir::open_or_create(path.to_owned()) {
            Ok(dir) => Some(Self(dir)),
            Err(_) => {
                remove_empty_parent(path);
                None
            }
        }
    }

    /// Removes as much as possible, because a full disk needs the space. A remaining part is marked
    /// as out of sync.
    pub(super) fn discard(self) {
        for entry in self.0.entries().into_iter().flatten().flatten() {
            let _ = remove(&entry.path());
        }
        if fs::remove_dir(self.0.path()).is_err() {
            let _ = self.0.unstamp();
        }
        remove_empty_parent(self.0.path());
    }

    /// Whether the index matches the files.
    pub(super) fn agrees_with(&self, files: &Dir) -> bool {
        self.0.is_stamped_like(files).unwrap_or(false)
    }

    pub(super) fn dir(&self) -> &Dir {
        &self.0
    }

    pub(super) fn get(&self, owner: Owner<'_>) -> Result<Listed, Error> {
        let path = self.0.join(&owner.entry_name());
        match fs::read_link(&path) {
            Ok(target) => Ok(parse(&target)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Listed::Nothing),
            Err(e) => Err(doing("read", &path)(e)),
        }
    }

    /// Adds addresses to the entry of an owner.
    pub(super) fn add(
        &self,
        owner: Owner<'_>,
        ips: impl Iterator<Item = IpAddr>,
    ) -> Result<(), Error> {
        let path = self.0.join(&owner.entry_name());
        let mut ips: Vec<_> = ips.collect();
        // Usually there is no entry yet, because an attachment is added once.
        match symlink(target(&mut ips), &path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            other => return other.map_err(doing("create", &path)),
        }
        let target = match self.get(owner)? {
            Listed::Nothing => target(&mut ips),
            Listed::Addresses(more) => {
                ips.extend(more);
                target(&mut ips)
            }
            Listed::TooMany => TOO_MANY.to_owned(),
        };
        remove(&path)?;
        symlink(target, &path).map_err(doing("create", &path))
    }

    pub(super) fn remove(&self, owner: Owner<'_>) -> Result<(), Error> {
        remove(&self.0.join(&owner.entry_name()))
    }

    /// Makes the index list exactly these reservations. Only entries that differ are changed.
    pub(super) fn replace_all(&self, held: &[Reservation]) -> Result<(), Error> {
        let mut desired: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for reservation in held {
            desired.entry(reservation.owner().entry_name()).or_default().push(reservation.ip);
        }
        let mut desired: HashMap<_, _> =
            desired.into_iter().map(|(name, mut ips)| (name, target(&mut ips))).collect();
        for entry in self.0.entries()? {
            let entry = entry.map_err(doing("read directory", self.0.path()))?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let found = fs::read_link(entry.path());
            let is_same = |found| desired.get(name).is_some_and(|one| found == Path::new(one));
            if found.is_ok_and(is_same) {
                desired.remove(name);
            } else {
                remove(&entry.path())?;
            }
        }
        for (name, target) in desired {
            let path = self.0.join(&name);
            symlink(target, &path).map_err(doing("create", &path))?;
        }
        Ok(())
    }
}

fn target(ips: &mut Vec<IpAddr>) -> String {
    ips.sort_unstable();
    ips.dedup();
    let texts: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
    let target = texts.join(",");
    if target.len() <= MAX_TARGET { target } else { TOO_MANY.to_owned() }
}

/// A target that is not a list of addresses is treated as too long.
fn parse(target: &Path) -> Listed {
    let text = target.to_str().unwrap_or(TOO_MANY);
    let ips: Result<Vec<IpAddr>, _> = text.split(',').map(str::parse).collect();
    ips.map_or(Listed::TooMany, Listed::Addresses)
}

/// The parent is shared with other networks. If another process is about to create its index there,
/// it continues without an index this time.
fn remove_empty_parent(path: &Path) {
    if let Some(parent) = path.parent() {
        let _ = fs::remove_dir(parent);
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(doing("remove", path)),
    }
}
