// SPDX-License-Identifier: Apache-2.0
//! `last_reserved_ip.<set>`: the position of the round-robin of a range set.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::{Error, doing};
use super::files::read_short;

#[derive(Debug)]
pub(super) struct Last {
    set: usize,
    path: PathBuf,
    /// `None` until the first reservation.
    file: Option<File>,
    text: String,
}

impl Last {
    pub(super) fn open(dir: &Path, set: usize) -> Result<Self, Error> {
        let path = dir.join(format!("last_reserved_ip.{set}"));
        let opened = fsutil::open_for_update(&path);
        let read = opened.and_then(|mut file| read_short(&mut file).map(|text| (file, text)));
        match read {
            Ok((file, text)) => Ok(Self { set, path, file: Some(file), text }),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Ok(Self { set, path, file: None, text: String::new() })
            }
            Err(e) => Err(doing("read", &path)(e)),
        }
    }

    pub(super) fn is_of(&self, set: usize) -> bool {
        self.set == set
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.text.parse().ok()
    }

    pub(super) fn set(&mut self, ip: IpAddr) -> Result<(), Error> {
        let text = ip.to_string();
        if text == self.text {
            return Ok(());
        }
        self.write(&text).map_err(doing("write", &self.path))?;
        self.text = text;
        Ok(())
    }

    /// Overwrites the file without truncating it first: truncation makes ext4 write the file to
    /// disk at once, at ten times the cost. A crash halfway leaves another address, and the
    /// round-robin continues from there.
    fn write(&mut self, text: &str) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(fsutil::create(&self.path, 0o600)?),
        };
        file.write_all_at(text.as_bytes(), 0)?;
        if text.len() < self.text.len() {
            file.set_len(text.len() as u64)?;
        }
        Ok(())
    }
}
