// SPDX-License-Identifier: Apache-2.0
//! Values under `/proc/sys`. Those under `net/` belong to the calling thread's namespace; use
//! [`crate::Netns::enter`] for another one. Paths are written with `/`, so that an interface name
//! can contain dots: `net/ipv4/conf/eth0.100/arp_notify`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use ::netlink::Errno;
use rustix::fs::{Access, access};

use crate::error::{Error, Result};

/// Reads a value, without the newline.
pub fn read(path: &str) -> Result<String> {
    const OP: &str = "read sysctl";
    let value = fs::read_to_string(file(OP, path)?).map_err(|e| Error::from_io(OP, path, &e))?;
    Ok(value.trim_end().to_owned())
}

/// Writes a value.
pub fn write(path: &str, value: &str) -> Result<()> {
    const OP: &str = "write sysctl";
    // Not fs::write, which tries to create a missing entry and fails with EACCES instead of ENOENT.
    let opened = fs::OpenOptions::new().write(true).open(file(OP, path)?);
    let written =
        opened.and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|e| Error::from_io(OP, path, &e))
}

/// Returns whether a value can be written. In most containers `/proc/sys` is read-only.
pub fn is_writable(path: &str) -> Result<bool> {
    const OP: &str = "inspect sysctl";
    match access(file(OP, path)?, Access::WRITE_OK) {
        Ok(()) => Ok(true),
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => Ok(false),
        Err(errno) => Err(Error::from_errno(OP, path, errno)),
    }
}

/// Writes a value if it differs, and returns whether it did. Reading is cheaper, and succeeds even
/// if `/proc/sys` is read-only.
pub fn ensure(path: &str, value: &str) -> Result<bool> {
    if read(path)? == value {
        return Ok(false);
    }
    write(path, value).map(|()| true)
}

fn file(op: &'static str, path: &str) -> Result<PathBuf> {
    let mut parts = Path::new(path).components();
    // A path from a configuration must stay below /proc/sys.
    if path.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
        let ext = Some("not a path under /proc/sys".to_owned());
        return Err(Error { op, object: path.to_owned(), errno: Errno::INVAL, ext });
    }
    Ok(Path::new("/proc/sys").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_under_proc_sys() {
        for path in ["", "/etc/passwd", "net/../../etc/passwd", "../x"] {
            assert_eq!(read(path).unwrap_err().errno, Errno::INVAL, "{path:?}");
        }
        assert!(read("net/ipv4/conf/no.such.link/arp_notify").unwrap_err().is_not_found());
        assert_eq!(read("kernel/ostype").unwrap(), "Linux");
        assert!(is_writable("net/ipv4/conf/no.such.link/arp_notify").unwrap_err().is_not_found());
    }
}
