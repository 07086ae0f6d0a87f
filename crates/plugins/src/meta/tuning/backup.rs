// SPDX-License-Identifier: Apache-2.0
//! The attributes before the first ADD, saved in a file that the Go plugin can read too.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cni::{Attachment, Code, Error, Request};
use kernel::link::{Attributes, Link};
use serde::{Deserialize, Serialize};

use super::io_error;
use crate::state_file;

/// The file of the Go plugin with two more keys, which the Go plugin ignores: GC recognizes its
/// network's backups by the network's name, and ADD and DEL recognize their container's backup by
/// the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_q_len: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    network: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    netns: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Backup {
    /// The current values of the attributes that will change.
    pub(super) fn of(link: &Link, changes: &Attributes) -> Backup {
        let mac = link.mac.filter(|_| changes.mac.is_some());
        Backup {
            mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
            promisc: changes.promisc.map(|_| link.is_promisc()),
            mtu: changes.mtu.map_or(0, |_| link.mtu),
            allmulti: changes.allmulti.map(|_| link.is_allmulti()),
            tx_q_len: changes.txqlen.map(|_| link.txqlen),
            ..Backup::default()
        }
    }

    /// Adds the network and the unique name of the namespace.
    pub(super) fn owned_by(self, network: &str, netns: &str) -> Backup {
        Backup { network: network.to_owned(), netns: netns.to_owned(), ..self }
    }

    /// Whether the backup was made in this namespace.
    pub(super) fn is_of(&self, netns: &str) -> bool {
        self.netns == netns
    }

    /// Whether the backup was made in another namespace. The Go plugin does not record it.
    pub(super) fn is_of_another(&self, netns: &str) -> bool {
        !self.netns.is_empty() && !self.is_of(netns)
    }

    /// Prefers the values of an older backup, which are the original ones.
    pub(super) fn with_older(self, older: &Backup) -> Backup {
        Backup {
            mac: if older.mac.is_empty() { self.mac } else { older.mac.clone() },
            promisc: older.promisc.or(self.promisc),
            mtu: if older.mtu == 0 { self.mtu } else { older.mtu },
            allmulti: older.allmulti.or(self.allmulti),
            tx_q_len: older.tx_q_len.or(self.tx_q_len),
            network: self.network,
            netns: self.netns,
        }
    }

    /// The attributes to restore.
    pub(super) fn attributes(&self) -> Attributes {
        Attributes {
            mac: self.mac.parse().ok(),
            mtu: Some(self.mtu).filter(|mtu| *mtu != 0),
            promisc: self.promisc,
            allmulti: self.allmulti,
            txqlen: self.tx_q_len,
        }
    }

    /// The attributes to restore, one by one.
    pub(super) fn each_attribute(&self) -> impl Iterator<Item = Attributes> {
        let Attributes { mac, mtu, promisc, allmulti, txqlen } = self.attributes();
        let nothing = Attributes::default();
        let each = [
            Attributes { mtu, ..nothing },
            Attributes { mac, ..nothing },
            Attributes { promisc, ..nothing },
            Attributes { allmulti, ..nothing },
            Attributes { txqlen, ..nothing },
        ];
        each.into_iter().filter(|one| !one.is_empty())
    }

    /// Exactly the text that the Go plugin writes.
    fn to_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
        self.serialize(&mut serializer).expect("texts and numbers always print into memory");
        text
    }
}

/// The backup file of an attachment.
#[derive(Debug)]
pub(super) struct BackupFile<'a> {
    directory: &'a Path,
    name: String,
}

impl<'a> BackupFile<'a> {
    pub(super) fn of(request: &Request, directory: &'a Path) -> BackupFile<'a> {
        BackupFile { directory, name: file_name(&request.attachment()) }
    }

    /// Reads the backup; `None` if there is none or it cannot be parsed.
    pub(super) fn read(&self) -> Result<Option<Backup>, Error> {
        let text = state_file::read(self.directory, &self.name);
        let text = text.map_err(|cause| io_error(&format!("read {}", self.shown()), &cause))?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    pub(super) fn write(&self, backup: &Backup) -> Result<(), Error> {
        state_file::write(self.directory, &self.name, &backup.to_text())
            .map_err(|cause| Error::because(Code::IO, format!("write {}", self.shown()), &cause))
    }

    pub(super) fn remove(&self) -> Result<(), Error> {
        state_file::remove(self.directory, &self.name)
            .map_err(|cause| io_error(&format!("remove {}", self.shown()), &cause))
    }

    fn shown(&self) -> String {
        PathBuf::from(self.directory).join(&self.name).display().to_string()
    }
}

fn file_name(attachment: &Attachment) -> String {
    format!("{}_{}.json", attachment.container_id, attachment.ifname)
}

/// Removes the backups of a network that belong to none of these attachments.
pub(super) fn remove_stale(
    directory: &Path,
    network: &str,
    valid: &[Attachment],
) -> Result<(), Error> {
    let valid: HashSet<String> = valid.iter().map(file_name).collect();
    let names = state_file::names(directory)
        .map_err(|cause| io_error(&format!("list {}", directory.display()), &cause))?;
    let mut errors = Vec::new();
    for name in names.into_iter().filter(|name| !valid.contains(name)) {
        let file = BackupFile { directory, name };
        match file.read() {
            Ok(Some(backup)) if backup.network == network => errors.extend(file.remove().err()),
            _ => {}
        }
    }
    Error::join(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by the Go plugin 1.9.1.
    const GO: &str = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \
                      \"allmulti\": false,\n \"txQLen\": 1000\n}";

    #[test]
    fn to_text_matches_the_go_plugin() {
        let backup: Backup = serde_json::from_str(GO).unwrap();
        assert_eq!(String::from_utf8(backup.to_text()).unwrap(), GO);
        assert_eq!(backup.each_attribute().count(), 5);
    }

    #[test]
    fn older_values_win() {
        let older: Backup = serde_json::from_str("{\"mtu\": 1500, \"promisc\": false}").unwrap();
        let now: Backup = serde_json::from_str(
            "{\"mtu\": 1400, \"promisc\": true, \"txQLen\": 7, \"network\": \"n\"}",
        )
        .unwrap();
        let both = now.with_older(&older);
        assert_eq!((both.mtu, both.promisc, both.tx_q_len), (1500, Some(false), Some(7)));
        assert_eq!(both.network, "n");
    }
}
