// SPDX-License-Identifier: Apache-2.0
//! From a container and interface to its addresses: a directory of symbolic links, each named after
//! its owner and pointing at a list of addresses. Read with one call, written with one, and free of
//! half-written states.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::dir::Dir;
use super::error::{Error, doing};
use super::owner::{Owner, Reservation};

/// The target of an entry whose addresses do not fit in one.
const TOO_MANY: &str = "*";

/// The longest target Linux takes, without the final zero.
const TARGET_MAX: usize = 4095;

#[derive(Debug)]
pub(super) struct Index(Dir);

/// What the index has to say about an owner. It may list too much, so look at the files.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Nothing,
    Addresses(Vec<IpAddr>),
    /// Only the files can tell.
    TooMany,
}

impl Index {
    /// `None` if there is none and none can be made.
    pub(super) fn open(path: &Path) -> Option<Self> {
        match Dir::open_or_create(path.to_owned()) {
            Ok(dir) => Some(Self(dir)),
            Err(_) => {
                remove_empty_parent(path);
                None
            }
        }
    }

    /// Removes what it can, as a full disk needs the space; what stays is not believed.
    pub(super) fn discard(self) {
        for entry in self.0.entries().into_iter().flatten().flatten() {
            let _ = remove(&entry.path());
        }
        if fs::remove_dir(self.0.path()).is_err() {
            let _ = self.0.unstamp();
        }
        remove_empty_parent(self.0.path());
    }

    /// Whether it says what the files say.
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

    /// Lists more addresses for an owner.
    pub(super) fn add(
        &self,
        owner: Owner<'_>,
        ips: impl Iterator<Item = IpAddr>,
    ) -> Result<(), Error> {
        let path = self.0.join(&owner.entry_name());
        let mut ips: Vec<_> = ips.collect();
        // nearly always the first: an attachment is added once
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

    /// Makes the index list exactly these, touching only what differs.
    pub(super) fn replace_all(&self, held: &[Reservation]) -> Result<(), Error> {
        let mut wanted: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for reservation in held {
            wanted.entry(reservation.owner().entry_name()).or_default().push(reservation.ip);
        }
        let mut wanted: HashMap<_, _> =
            wanted.into_iter().map(|(name, mut ips)| (name, target(&mut ips))).collect();
        for entry in self.0.entries()? {
            let entry = entry.map_err(doing("read directory", self.0.path()))?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let found = fs::read_link(entry.path());
            if found.is_ok_and(|found| wanted.get(name).is_some_and(|w| found == Path::new(w))) {
                wanted.remove(name);
            } else {
                remove(&entry.path())?;
            }
        }
        for (name, target) in wanted {
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
    if target.len() <= TARGET_MAX { target } else { TOO_MANY.to_owned() }
}

/// A target that is no list of ours is treated as one too long to hold.
fn parse(target: &Path) -> Listed {
    let text = target.to_str().unwrap_or(TOO_MANY);
    let ips: Result<Vec<IpAddr>, _> = text.split(',').map(str::parse).collect();
    ips.map_or(Listed::TooMany, Listed::Addresses)
}

/// The parent is shared with other networks. One that is about to create its index in there does
/// without it this time.
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
