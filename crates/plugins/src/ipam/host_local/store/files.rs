// SPDX-License-Identifier: Apache-2.0
//! The address files of a network: one file per reservation, named after the address, with exactly
//! the contents that the Go plugin writes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::dir::Dir;
use super::error::{Error, doing};
use super::owner::{Owner, Reservation};

#[derive(Debug)]
pub(super) struct Files(Dir);

/// The contents of all address files.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) held: Vec<Reservation>,
    /// Addresses whose file was created but not written.
    pub(super) empty: Vec<IpAddr>,
}

impl Files {
    pub(super) fn new(dir: Dir) -> Self {
        Self(dir)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn dir(&self) -> &Dir {
        &self.0
    }

    pub(super) fn is_taken(&self, ip: IpAddr) -> Result<bool, Error> {
        let path = self.file_of(ip);
        match fs::symlink_metadata(&path) {
            // Anything other than a file, such as a FIFO, reserves the address.
            Ok(meta) => Ok(meta.len() > 0 || !meta.is_file()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(doing("look at", &path)(e)),
        }
    }

    /// Creates the file of an address; returns `false` if the address is reserved.
    pub(super) fn create(&self, ip: IpAddr, text: &str) -> Result<bool, Error> {
        let path = self.file_of(ip);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let opened = match options.open(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                if self.is_taken(ip)? {
                    return Ok(false);
                }
                // Not rewritten in place: this would not change the directory's modification time,
                // and the index would not notice it.
                fs::remove_file(&path).and_then(|()| options.open(&path))
            }
            other => other,
        };
        let mut file = opened.map_err(doing("create", &path))?;
        if let Err(e) = file.write_all(text.as_bytes()) {
            // A full disk must not leave an address that is reserved for no container.
            let _ = fs::remove_file(&path);
            return Err(doing("write", &path)(e));
        }
        Ok(true)
    }

    /// Whether the file of an address names this owner.
    pub(super) fn is_held_by(&self, ip: IpAddr, owner: Owner<'_>) -> Result<bool, Error> {
        match self.read(ip) {
            Ok(text) => Ok(!text.is_empty() && Owner::parse(&text) == owner),
            Err(e) if e.kind() == ErrorKind::NotFound || fsutil::is_wrong_kind(&e) => Ok(false),
            Err(e) => Err(doing("read", &self.file_of(ip))(e)),
        }
    }

    pub(super) fn remove(&self, ip: IpAddr) -> io::Result<()> {
        match fs::remove_file(self.file_of(ip)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Tries to remove all of these before it reports a failure.
    pub(super) fn remove_all(&self, ips: &[IpAddr]) -> Result<(), Error> {
        let (mut failed, mut first) = (Vec::new(), None);
        for ip in ips {
            if let Err(e) = self.remove(*ip) {
                failed.push(*ip);
                first.get_or_insert(e);
            }
        }
        first.map_or(Ok(()), |cause| Err(Error::Release { ips: failed, cause }))
    }

    /// The addresses that have a file, from the file names.
    pub(super) fn list(&self) -> Result<HashSet<IpAddr>, Error> {
        let mut ips = HashSet::new();
        for entry in self.0.entries()? {
            let entry = entry.map_err(doing("read directory", self.path()))?;
            ips.extend(address(&entry.file_name()));
        }
        Ok(ips)
    }

    /// The addresses of an owner, by reading every file.
    pub(super) fn held_by(&self, owner: Owner<'_>) -> Result<Vec<IpAddr>, Error> {
        let held = self.scan()?.held.into_iter();
        Ok(held.filter(|reservation| reservation.owner() == owner).map(|r| r.ip).collect())
    }

    /// Reads every address file. A file that cannot be read has no owner and is kept.
    pub(super) fn scan(&self) -> Result<Scan, Error> {
        let mut scan = Scan::default();
        for ip in self.list()? {
            let Ok(text) = self.read(ip) else {
                continue;
            };
            if text.is_empty() {
                scan.empty.push(ip);
                continue;
            }
            let Owner { id, ifname } = Owner::parse(&text);
            let (id, ifname) = (id.to_owned(), ifname.map(str::to_owned));
            scan.held.push(Reservation { ip, id, ifname });
        }
        Ok(scan)
    }

    fn read(&self, ip: IpAddr) -> io::Result<String> {
        read_short(&mut fsutil::open(&self.file_of(ip))?)
    }

    fn file_of(&self, ip: IpAddr) -> PathBuf {
        self.0.join(&ip.to_string())
    }
}

/// The address that a file is named after; `None` for other files and for spellings that neither
/// plugin uses.
fn address(name: &OsStr) -> Option<IpAddr> {
    let name = name.to_str()?;
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

/// Reads a small file with one system call; `read_to_string` needs four.
pub(super) fn read_short(file: &mut File) -> io::Result<String> {
    let mut buffer = [0; 512];
    let n = file.read(&mut buffer)?;
    let mut bytes = buffer[..n].to_vec();
    if n == buffer.len() {
        file.take(fsutil::LIMIT).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_addresses() {
        for (name, expected) in [
            ("10.1.0.2", true),
            ("fd00::2", true),
            ("::102:304", true),
            ("FD00::2", false),
            ("fd00:0::2", false),
            ("010.1.0.2", false),
            ("last_reserved_ip.0", false),
            ("lock", false),
        ] {
            assert_eq!(address(OsStr::new(name)).is_some(), expected, "{name}");
        }
    }
}
