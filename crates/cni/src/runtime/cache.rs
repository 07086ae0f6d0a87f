// SPDX-License-Identifier: Apache-2.0
//! What is remembered of an attachment between ADD and DEL: `<cache>/results/<network>-<id>-<if>`
//! in the reference library's format, so that either can undo what the other has done.

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

/// One attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The network's name.
    pub network: String,
    /// The container and all that the runtime told about it.
    pub container: Container,
    /// The list as it was at the time of ADD, see [`super::NetworkList::bytes`]; may be empty.
    pub config: Vec<u8>,
    /// The result of ADD as printed.
    pub result: Option<Value>,
    /// Where this is written.
    pub file: PathBuf,
}

impl Entry {
    /// As GC speaks of it.
    pub fn attachment(&self) -> Attachment {
        self.container.attachment()
    }

    fn is_named(&self) -> bool {
        let Container { id, ifname, .. } = &self.container;
        !self.network.is_empty() && !id.is_empty() && !ifname.is_empty()
    }

    fn is_of(&self, network: &str, container: &Container) -> bool {
        self.network == network
            && self.container.id == container.id
            && self.container.ifname == container.ifname
    }
}

/// The file's content, its keys in the order of the reference library.
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

/// Writes an entry to the place that its names say, all of it or nothing.
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

/// What is known of an attachment; `None` where there is nothing or the file is about another one
/// (names may contain the `-` that stands between them). An error where it cannot be read.
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
        Content::Entry(entry) => Ok(Some(entry).filter(|entry| entry.is_of(network, container))),
        Content::BareResult(result) => Ok(Some(Entry {
            network: network.to_owned(),
            container: container.clone(),
            config: Vec::new(),
            result: Some(result),
            file,
        })),
    }
}

/// Forgets an attachment. That it is not there, or cannot be removed, must not keep a DEL.
pub(super) fn remove(cache: &Path, network: &str, container: &Container) {
    if !matches!(read(cache, network, container), Ok(None)) {
        let _ = std::fs::remove_file(path(cache, network, container));
    }
}

/// All entries by file name, and the files that do not say which attachment they are about: empty
/// or broken ones, and those of old libraries. Where there is no cache, there is nothing in it.
pub(super) fn list(
    cache: &Path,
    container_id: Option<&str>,
) -> io::Result<(Vec<Entry>, Vec<PathBuf>)> {
    let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
    for file in files(&results(cache), container_id)? {
        match fsutil::read(&file) {
            // Removed since the folder was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => unreadable.push(file),
            Ok(text) => match parse(&text, file.clone()) {
                Ok(Content::Entry(entry)) if entry.is_named() => entries.push(entry),
                _ => unreadable.push(file),
            },
        }
    }
    entries.retain(|entry| container_id.is_none_or(|id| entry.container.id == id));
    Ok((entries, unreadable))
}

/// All attachments that the cache in this directory holds. Unreadable entries are left out.
pub fn attachments(cache: &Path) -> Vec<Entry> {
    list(cache, None).map(|(entries, _)| entries).unwrap_or_default()
}

/// Sorted; those whose name cannot be of this container are left out.
fn files(folder: &Path, container_id: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // Files being written begin with a dot, and no network does.
        !name.starts_with('.') && container_id.is_none_or(|id| name.contains(&format!("-{id}-")))
    });
    files.sort();
    Ok(files)
}

/// Where an attachment's file is.
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
    // Before 0.8 the library wrote nothing but the result; whatever is not of the present kind it
    // takes for that.
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

/// By rename, with the content on the disk before the name: after a power cut a file is there
/// whole or not at all. The folder is not synced: an entry that is lost then is about a container
/// that is lost too.
fn replace(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Only one process works on an attachment at a time, and what it leaves the next overwrites.
    let temporary = folder.join(format!(".{name}"));
    fsutil::replace(&folder.join(name), &temporary, text, 0o600)
}
