// SPDX-License-Identifier: Apache-2.0
//! Leases on disk, for the next daemon: one file an attachment,
//! `<leasedir>/<network>/<container>:<interface>.json`, written by rename.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::super::conf::Asked;
use super::super::lease::{Lease, Terms};
use super::super::protocol::Key;
use super::interface::Spot;
use super::log;

/// What the next daemon has to know of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Whose.
    pub key: Key,
    /// Where it is.
    pub spot: Spot,
    /// What it wants.
    pub asked: Asked,
    /// Its IPv4 lease.
    pub ipv4: Option<Kept>,
    /// Its IPv6 lease.
    pub ipv6: Option<Kept>,
}

/// A lease with its begin by the wall clock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    terms: Terms,
    granted_unix_ms: u64,
}

impl Kept {
    /// A lease as it is kept.
    pub fn new(lease: &Lease, clock: Clock) -> Kept {
        let age = clock.now.saturating_duration_since(lease.granted);
        let granted = clock.unix.saturating_sub(age).as_millis();
        let granted_unix_ms = u64::try_from(granted).unwrap_or(u64::MAX);
        Kept { terms: lease.terms.clone(), granted_unix_ms }
    }

    /// The lease again; `None` where it is older than this machine has been up.
    pub fn lease(&self, clock: Clock) -> Option<Lease> {
        let age = clock.unix.saturating_sub(Duration::from_millis(self.granted_unix_ms));
        let granted = clock.now.checked_sub(age)?;
        Some(Lease { terms: self.terms.clone(), granted })
    }

    /// What was granted.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }
}

/// The same moment by both clocks: that of timers, and that of files.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// For timers.
    pub now: Instant,
    /// Since 1970, for files.
    pub unix: Duration,
}

impl Clock {
    /// Now.
    pub fn read() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { now: Instant::now(), unix }
    }
}

/// The directory.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// Leases below this directory, which need not be there.
    pub fn new(directory: &Path) -> Store {
        Store { directory: directory.to_owned() }
    }

    /// Writes what is to be known.
    pub fn save(&self, record: &Record) -> io::Result<()> {
        let file = self.file(&record.key);
        let directory = file.parent().unwrap_or(&self.directory);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let temporary = directory.join(format!(".{}", file_name(&record.key)));
        let written = fsutil::create_fresh(&temporary, 0o600)
            .and_then(|mut to| to.write_all(&serde_json::to_vec(record)?));
        written.and_then(|()| fs::rename(&temporary, &file)).inspect_err(|_| {
            // The failure is the one to tell.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Forgets an attachment.
    pub fn remove(&self, key: &Key) {
        let file = self.file(key);
        match fs::remove_file(&file) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                log::line(&format!("remove {}: {cause}", file.display()));
            }
            _ => {}
        }
    }

    /// What an earlier daemon knew of an attachment.
    pub fn find(&self, key: &Key) -> Option<Record> {
        load(&self.file(key)).filter(|record| record.key == *key)
    }

    /// All that earlier daemons knew.
    pub fn load(&self) -> Vec<Record> {
        let list = |directory: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(directory).into_iter().flatten();
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        };
        let files = list(&self.directory).into_iter().flat_map(|network| list(&network));
        files.filter_map(|file| load(&file)).collect()
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.directory.join(&key.network).join(file_name(key))
    }
}

/// Neither part can hold a colon.
fn file_name(key: &Key) -> String {
    format!("{}:{}.json", key.container_id, key.ifname)
}

/// A file that is not ours, or half of one, is left alone.
fn load(file: &Path) -> Option<Record> {
    let is_hidden = file.file_name()?.to_str()?.starts_with('.');
    let text = fsutil::read(file).ok().filter(|_| !is_hidden)?;
    let record = serde_json::from_slice(&text);
    record.inspect_err(|cause| log::line(&format!("read {}: {cause}", file.display()))).ok()
}
