// SPDX-License-Identifier: Apache-2.0
//! Leases on disk, for the next daemon. Each attachment has a file
//! `<leasedir>/<network>/<container>:<interface>.json`, which is replaced by rename.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::super::conf::LeaseOptions;
use super::super::lease::{Lease, Terms};
use super::super::protocol::{self, AttachmentKey};
use super::interface::ContainerInterface;
use super::log;

/// State of an attachment for the next daemon. The JSON keys are those of earlier versions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub key: AttachmentKey,
    #[serde(rename = "spot")]
    pub interface: ContainerInterface,
    #[serde(rename = "asked")]
    pub options: LeaseOptions,
    pub ipv4: Option<SavedLease>,
    pub ipv6: Option<SavedLease>,
}

/// A lease with the wall-clock time of its grant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedLease {
    terms: Terms,
    granted_unix_ms: u64,
}

impl SavedLease {
    /// Converts a lease for the file.
    pub(super) fn new(lease: &Lease, clock: Clock) -> SavedLease {
        let age = clock.now.saturating_duration_since(lease.granted);
        let granted = clock.unix.saturating_sub(age).as_millis();
        let granted_unix_ms = u64::try_from(granted).unwrap_or(u64::MAX);
        SavedLease { terms: lease.terms.clone(), granted_unix_ms }
    }

    /// Converts back to a lease. Returns `None` if the lease is older than the machine's uptime.
    pub(super) fn lease(&self, clock: Clock) -> Option<Lease> {
        let age = clock.unix.saturating_sub(Duration::from_millis(self.granted_unix_ms));
        let granted = clock.now.checked_sub(age)?;
        Some(Lease { terms: self.terms.clone(), granted })
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }
}

/// The same point in time on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Monotonic clock, for timers.
    pub now: Instant,
    /// Time since 1970, for files.
    pub unix: Duration,
}

impl Clock {
    pub(super) fn read() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { now: Instant::now(), unix }
    }
}

/// The lease directory.
#[derive(Debug, Clone)]
pub(super) struct Store {
    directory: PathBuf,
}

impl Store {
    /// Uses this directory, which need not exist yet.
    pub(super) fn new(directory: &Path) -> Store {
        Store { directory: directory.to_owned() }
    }

    /// Writes the file of an attachment.
    pub(super) fn save(&self, record: &Record) -> io::Result<()> {
        let file = self.file(&record.key);
        let directory = file.parent().unwrap_or(&self.directory);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let temporary = directory.join(format!(".{}", file_name(&record.key)));
        fsutil::replace(&file, &temporary, &serde_json::to_vec(record)?, 0o600)
    }

    /// Removes the file of an attachment.
    pub(super) fn remove(&self, key: &AttachmentKey) {
        let file = self.file(key);
        match fs::remove_file(&file) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                log::line(&format!("remove {}: {cause}", file.display()));
            }
            _ => {}
        }
    }

    /// Reads the state of one attachment.
    pub(super) fn find(&self, key: &AttachmentKey) -> Option<Record> {
        load(&self.file(key)).filter(|record| record.key == *key)
    }

    /// Reads the state of all attachments.
    pub(super) fn load(&self) -> Vec<Record> {
        let list = |directory: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(directory).into_iter().flatten();
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        };
        let files = list(&self.directory).into_iter().flat_map(|network| list(&network));
        files.filter_map(|file| load(&file)).collect()
    }

    fn file(&self, key: &AttachmentKey) -> PathBuf {
        self.directory.join(&key.network).join(file_name(key))
    }
}

/// Returns the file name. Neither part can contain a colon.
fn file_name(key: &AttachmentKey) -> String {
    format!("{}:{}.json", key.container_id, key.ifname)
}

/// Reads a file. Temporary and invalid files are ignored.
fn load(file: &Path) -> Option<Record> {
    let is_hidden = file.file_name()?.to_str()?.starts_with('.');
    let text = fsutil::read(file).ok().filter(|_| !is_hidden)?;
    let record = protocol::parse(&text);
    record.inspect_err(|cause| log::line(&format!("read {}: {cause}", file.display()))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new daemon must resume the leases of an older version.
    #[test]
    fn record_of_an_earlier_version_is_parsed_unchanged() {
        let text = r#"{"key":{"network":"net","containerId":"c1","ifname":"eth0"},"spot":{"netns":"/run/netns/c1","identity":[4,42],"index":2,"mac":[2,0,0,0,0,9],"ifname":"eth0"},"asked":{"ipv4":true,"ipv6":false,"provided":[{"code":12,"value":[98]}],"requested":[1,3],"priority":0},"ipv4":{"terms":{"address":"10.5.0.100/24","gateway":"10.5.0.1","routes":[{"dst":"0.0.0.0/0","gateway":"10.5.0.1"}],"dns":{"nameservers":["10.5.0.53"]},"server":[10,5,0,1],"server_mac":null,"span":{"renew":500,"rebind":875,"valid":1000}},"grantedUnixMs":7},"ipv6":null}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.key.name(), "c1/net/eth0");
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
}
