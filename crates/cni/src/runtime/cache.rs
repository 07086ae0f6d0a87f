// SPDX-License-Identifier: Apache-2.0
//! Results of ADD, kept until DEL in `<cache>/results/<network>-<id>-<ifname>`. The format is libcni's, so that libcni
//! and podwire can remove each other's attachments.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gojson::base64;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Container;
use crate::error::{Code, Error};
use crate::request::Attachment;

const KIND: &str = "cniCacheV1";

/// A cached attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name of the network.
    pub network: String,
    /// The container and the runtime's arguments for it.
    pub container: Container,
    /// Text of the list at the time of ADD, see [`super::NetworkList::bytes`]; may be empty.
    pub config: Vec<u8>,
    /// Result of ADD as printed.
    pub result: Option<Value>,
    /// File of this entry.
    pub file: PathBuf,
}

impl Entry {
    /// Returns the attachment as GC lists it.
    pub fn attachment(&self) -> Attachment {
        self.container.attachment()
    }

    fn has_names(&self) -> bool {
        let Container { id, ifname, .. } = &self.container;
        !self.network.is_empty() && !id.is_empty() && !ifname.is_empty()
    }

    fn belongs_to(&self, network: &str, container: &Container) -> bool {
        self.network == network
            && self.container.id == container.id
            && self.container.ifname == container.ifname
    }
}

/// Content of the file, with the keys in libcni's order.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    kind: String,
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    capability_args: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

/// Writes an entry to its file atomically.
pub(super) fn write(cache: &Path, entry: &Entry) -> Result<(), Error> {
    let container = &entry.container;
    let wire = Wire {
        kind: KIND.to_owned(),
        container_id: container.id.clone(),
        config: base64::encode(&entry.config),
        if_name: container.ifname.clone(),
        network_name: entry.network.clone(),
        netns: container.netns.clone(),
        cni_args: container.args.clone(),
        capability_args: container.capability_args.clone(),
        result: entry.result.clone(),
    };
    let failed = |cause: &dyn std::error::Error| {
        let doing = format!("failed to set network {:?} cached result", entry.network);
        Error::because(Code::IO, doing, cause)
    };
    let text = serde_json::to_vec(&wire).map_err(|cause| failed(&cause))?;
    replace(&results(cache), &file_name(&entry.network, container), &text)
        .map_err(|cause| failed(&cause).with_details(entry.file.display().to_string()))
}

/// Reads the entry of an attachment. Returns `None` if there is no file or it belongs to another attachment, which is
/// possible because names may contain the separator `-`. Returns an error if the file cannot be parsed.
pub(super) fn read(
    cache: &Path,
    network: &str,
    container: &Container,
) -> Result<Option<Entry>, Error> {
    let file = path(cache, network, container);
    let text = match fsutil::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => {
            let doing = format!("read cached result {}", file.display());
            return Err(Error::because(Code::IO, doing, &cause));
        }
    };
    match parse(&text, file.clone())? {
        Content::Entry(entry) => {
            Ok(Some(entry).filter(|entry| entry.belongs_to(network, container)))
        }
        Content::BareResult(result) => Ok(Some(Entry {
            network: network.to_owned(),
            container: container.clone(),
            config: Vec::new(),
            result: Some(result),
            file,
        })),
    }
}

/// Removes an entry. A failure is ignored, because it must not fail a DEL.
pub(super) fn remove(cache: &Path, network: &str, container: &Container) {
    if !matches!(read(cache, network, container), Ok(None)) {
        let _ = std::fs::remove_file(path(cache, network, container));
    }
}

/// Returns all entries in order of file name, and the files that do not name their attachment: empty files, broken
/// files, and files of old versions of libcni. A missing cache is empty.
pub(super) fn list(
    cache: &Path,
    container_id: Option<&str>,
) -> io::Result<(Vec<Entry>, Vec<PathBuf>)> {
    let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
    for file in files(&results(cache), container_id)? {
        match fsutil::read(&file) {
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => unreadable.push(file),
            Ok(text) => match parse(&text, file.clone()) {
                Ok(Content::Entry(entry)) if entry.has_names() => entries.push(entry),
                _ => unreadable.push(file),
            },
        }
    }
    entries.retain(|entry| container_id.is_none_or(|id| entry.container.id == id));
    Ok((entries, unreadable))
}

/// Returns all attachments of the cache in this directory. Leaves out files that cannot be parsed.
pub fn attachments(cache: &Path) -> Vec<Entry> {
    list(cache, None).map(|(entries, _)| entries).unwrap_or_default()
}

/// Returns the sorted files, without those whose name excludes this container.
fn files(dir: &Path, container_id: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // Temporary files start with a dot, and network names do not.
        !name.starts_with('.') && container_id.is_none_or(|id| name.contains(&format!("-{id}-")))
    });
    files.sort();
    Ok(files)
}

/// Returns the file of an attachment.
pub(super) fn path(cache: &Path, network: &str, container: &Container) -> PathBuf {
    results(cache).join(file_name(network, container))
}

enum Content {
    Entry(Entry),
    BareResult(Value),
}

fn parse(text: &[u8], file: PathBuf) -> Result<Content, Error> {
    let broken = |cause: &dyn std::error::Error| {
        Error::because(Code::DECODE, format!("cached result {}", file.display()), cause)
    };
    let object: Map<String, Value> =
        serde_json::from_slice(text).map_err(|cause| broken(&cause))?;
    // Before 0.8 libcni wrote only the result. It still treats a file of any other kind as such a result.
    if gojson::get(&object, "kind").and_then(Value::as_str) != Some(KIND) {
        return Ok(Content::BareResult(Value::Object(object)));
    }
    let wire: Wire = gojson::decode_object(&object).map_err(|cause| broken(&cause))?;
    Ok(Content::Entry(Entry {
        network: wire.network_name,
        container: Container {
            id: wire.container_id,
            netns: wire.netns,
            ifname: wire.if_name,
            args: wire.cni_args,
            capability_args: wire.capability_args,
        },
        config: base64::decode(&wire.config).unwrap_or_default(),
        result: wire.result,
        file,
    }))
}

pub(super) fn results(cache: &Path) -> PathBuf {
    cache.join("results")
}

fn file_name(network: &str, container: &Container) -> String {
    format!("{network}-{}-{}", container.id, container.ifname)
}

/// Replaces a file by rename after its content is on disk, so that a power failure leaves a complete file or none. The
/// directory is not synced: a power failure that loses an entry also ends its container.
fn replace(dir: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // The container lock excludes other writers, and a stale temporary file is overwritten.
    let temporary = dir.join(format!(".{name}"));
    fsutil::replace(&dir.join(name), &temporary, text, 0o600)
}
