// SPDX-License-Identifier: Apache-2.0
//! The journal: which addresses this node has assigned, one file per attachment. The agent writes a file before
//! it answers. After a restart it knows the addresses that the store does not know yet, and after a DEL
//! without the agent, for which the plugin removes the file, it knows the addresses to release.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_client::ipam::journal;
use ipam::node::{JournalEntry, JournalOp};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Mode of the directory and of the files: attachments name pods.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The content of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// For the plugin's CHECK.
    addresses: Vec<IpAddr>,
    entries: Vec<JournalEntry>,
}

/// The directory with the files. Writers take turns, because all use the same temporary file.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    state_dir: PathBuf,
    turn: Arc<Mutex<()>>,
}

/// All entries, and the files that cannot be read with the reasons.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub entries: Vec<JournalEntry>,
    pub problems: Vec<String>,
}

impl Journal {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), turn: Arc::default() }
    }

    /// Waits until no other task reads or writes the files, also none of an earlier run of the controller. Move the
    /// guard into the work.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.state_dir.join(journal::DIRECTORY)
    }

    /// Creates the directory and reads all files. A file that cannot be read does not affect the others.
    pub(crate) fn load(&self) -> io::Result<Loaded> {
        use std::os::unix::fs::DirBuilderExt;
        let directory = self.directory();
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&directory)?;
        let mut loaded = Loaded::default();
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            if is_temporary(&path) {
                // Left by an agent that was killed between writing and renaming.
                fs::remove_file(&path)?;
                continue;
            }
            match read(&path) {
                Ok(entries) => loaded.entries.extend(entries),
                Err(error) => loaded.problems.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(loaded)
    }

    /// Returns the addresses that the files have. Files that cannot be read have none.
    pub(crate) fn addresses(&self) -> io::Result<BTreeSet<IpAddr>> {
        let mut addresses = BTreeSet::new();
        for file in fs::read_dir(self.directory())? {
            let path = file?.path();
            if !is_temporary(&path)
                && let Ok(entries) = read(&path)
            {
                addresses.extend(entries.iter().map(|entry| entry.address));
            }
        }
        Ok(addresses)
    }

    /// Writes and removes entries. The files are not synced: the pods do not survive a power failure either.
    pub(crate) fn apply(&self, op: &JournalOp) -> io::Result<()> {
        let mut files: BTreeMap<PathBuf, (Vec<&JournalEntry>, Vec<&JournalEntry>)> =
            BTreeMap::new();
        for entry in &op.write {
            files.entry(self.file(entry)).or_default().0.push(entry);
        }
        for entry in &op.remove {
            files.entry(self.file(entry)).or_default().1.push(entry);
        }
        for (path, (written, removed)) in files {
            let mut entries = match read(&path) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                // The new content replaces a damaged one.
                Err(error) if is_damage(&error) => Vec::new(),
                Err(error) => return Err(error),
            };
            let is_listed = |entry: &JournalEntry| {
                let same = |other: &&JournalEntry| other.address == entry.address;
                written.iter().any(same) || removed.iter().any(same)
            };
            entries.retain(|entry| !is_listed(entry));
            entries.extend(written.into_iter().cloned());
            match entries.is_empty() {
                true => remove(&path)?,
                false => write(&path, entries)?,
            }
        }
        Ok(())
    }

    fn file(&self, entry: &JournalEntry) -> PathBuf {
        journal::file(&self.state_dir, &entry.attachment.handle, &entry.attachment.interface)
    }
}

fn read(path: &Path) -> io::Result<Vec<JournalEntry>> {
    let content: Content = serde_json::from_slice(&fsutil::read(path)?)?;
    Ok(content.entries)
}

/// Returns whether a file has been read, and its content is wrong or not complete.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn write(path: &Path, entries: Vec<JournalEntry>) -> io::Result<()> {
    let addresses = entries.iter().map(|entry| entry.address).collect();
    let content = Content { addresses, entries };
    let temporary = temporary(path);
    let mut file = fsutil::create(&temporary, FILE_MODE)?;
    file.set_len(0)?;
    file.write_all(&serde_json::to_vec(&content)?)?;
    fs::rename(&temporary, path)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Names of journal files do not start with a dot.
fn temporary(path: &Path) -> PathBuf {
    path.with_file_name(".new")
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use ipam::Timestamp;
    use ipam::node::{Attachment, OpId};

    use super::*;

    fn entry(handle: &str, address: &str) -> JournalEntry {
        let attachment = Attachment {
            handle: handle.to_owned(),
            network: "net".to_owned(),
            container_id: "c1".to_owned(),
            interface: "eth0".to_owned(),
            netns: Some("/run/netns/c1".to_owned()),
            netns_inode: Some(7),
            pod: None,
            tunnel: None,
        };
        let block = "10.6.0.0/26".parse().unwrap();
        let address = address.parse().unwrap();
        JournalEntry { address, block, assigned_at: Timestamp::from_millis(1000), attachment }
    }

    fn op(write: &[JournalEntry], remove: &[JournalEntry]) -> JournalOp {
        JournalOp { id: OpId(1), write: write.to_vec(), remove: remove.to_vec() }
    }

    fn addresses(journal: &Journal) -> Vec<String> {
        let loaded = journal.load().unwrap();
        let mut addresses: Vec<String> =
            loaded.entries.iter().map(|entry| entry.address.to_string()).collect();
        addresses.sort();
        addresses
    }

    #[test]
    fn entries_are_found_after_a_restart_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path());
        assert_eq!(addresses(&journal), [""; 0]);
        let (one, two) = (entry("net.c1", "10.6.0.1"), entry("net.c1", "10.6.0.2"));
        let other = entry("net.c2", "10.6.0.3");
        journal.apply(&op(&[one.clone(), two.clone(), other.clone()], &[])).unwrap();
        assert_eq!(addresses(&journal), ["10.6.0.1", "10.6.0.2", "10.6.0.3"]);
        assert_eq!(journal.load().unwrap().entries.iter().filter(|one| **one == other).count(), 1);
        journal.apply(&op(&[], std::slice::from_ref(&one))).unwrap();
        assert_eq!(addresses(&journal), ["10.6.0.2", "10.6.0.3"]);
        journal.apply(&op(&[], &[one, two])).unwrap();
        // The plugin removes the file of an attachment if the agent is down.
        fs::remove_file(journal::file(dir.path(), "net.c2", "eth0")).unwrap();
        assert_eq!(addresses(&journal), [""; 0]);
        journal.apply(&op(&[], &[other])).unwrap();
    }

    #[test]
    fn damaged_and_temporary_files_do_not_affect_others() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path());
        journal.load().unwrap();
        journal.apply(&op(&[entry("net.c1", "10.6.0.1")], &[])).unwrap();
        fs::write(dir.path().join("ipam/net.c2:eth0"), "{").unwrap();
        fs::write(dir.path().join("ipam/.new"), "[").unwrap();
        let loaded = journal.load().unwrap();
        assert_eq!(loaded.entries.len(), 1);
        assert_eq!(loaded.problems.len(), 1);
        assert!(loaded.problems[0].contains("net.c2:eth0"), "{:?}", loaded.problems);
        assert!(!dir.path().join("ipam/.new").exists());
        // The damaged file is replaced by the next assignment of its attachment.
        journal.apply(&op(&[entry("net.c2", "10.6.0.2")], &[])).unwrap();
        assert_eq!(addresses(&journal), ["10.6.0.1", "10.6.0.2"]);
    }
}
