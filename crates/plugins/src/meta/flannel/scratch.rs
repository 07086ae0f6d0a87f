// SPDX-License-Identifier: Apache-2.0
//! The delegate's configuration, saved from ADD to DEL in the file of the Go plugin. The Go
//! plugin's file name has the container ID only. Here, interfaces other than `eth0` have their own
//! files, so that two attachments of a container do not overwrite each other's configuration.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cni::{Attachment, Code, Error, Request};
use serde_json::{Map, Value};

use crate::state_file;

/// The interface whose file is named after the container only.
const DEFAULT_IFNAME: &str = "eth0";

/// Neither a container ID nor an interface name can contain this character.
const SEPARATOR: char = ':';

/// The saved configuration of one attachment.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: PathBuf,
    own: String,
    /// The file name of the Go plugin.
    go: String,
}

impl Scratch {
    pub(super) fn of(request: &Request, directory: &Path) -> Scratch {
        let Attachment { container_id, ifname } = request.attachment();
        let own = match ifname.as_str() {
            DEFAULT_IFNAME => container_id.clone(),
            _ => format!("{container_id}{SEPARATOR}{ifname}"),
        };
        Scratch { directory: directory.to_owned(), own, go: container_id }
    }

    pub(super) fn put(&self, config: &Map<String, Value>) -> Result<(), Error> {
        let text = serde_json::to_vec(config).expect("a JSON value with text keys always prints");
        state_file::write(&self.directory, &self.own, &text)
            .map_err(|cause| io_error("write", &self.directory, &self.own, &cause))
    }

    /// Reads the configuration; `None` if there is none or it cannot be parsed.
    pub(super) fn read(&self) -> Result<Option<Map<String, Value>>, Error> {
        for name in [&self.own, &self.go] {
            let text = state_file::read(&self.directory, name)
                .map_err(|cause| io_error("read", &self.directory, name, &cause))?;
            let config = text.and_then(|text| serde_json::from_slice(&text).ok());
            if config.is_some() {
                return Ok(config);
            }
        }
        Ok(None)
    }

    /// Removes the attachment's own file. The file of the Go plugin may belong to `eth0`.
    pub(super) fn clear(&self) -> Result<(), Error> {
        remove(&self.directory, &self.own)
    }
}

pub(super) fn remove(directory: &Path, name: &str) -> Result<(), Error> {
    state_file::remove(directory, name).map_err(|cause| io_error("remove", directory, name, &cause))
}

fn io_error(doing: &str, directory: &Path, name: &str, cause: &std::io::Error) -> Error {
    let doing = format!("{doing} {}", directory.join(name).display());
    Error::because(Code::IO, doing, cause)
}

/// The saved configuration of an attachment that is no longer valid.
#[derive(Debug)]
pub(super) struct Stale {
    pub attachment: Attachment,
    pub config: Map<String, Value>,
    pub file: String,
}

/// The files of this network that belong to none of these attachments. A file without an interface
/// name may have been written by the Go plugin for any interface.
pub(super) fn stale(
    directory: &Path,
    network: &str,
    valid: &[Attachment],
) -> Result<Vec<Stale>, Error> {
    let names =
        state_file::names(directory).map_err(|cause| io_error("list", directory, "", &cause))?;
    let valid: HashSet<(&str, Option<&str>)> = valid
        .iter()
        .flat_map(|one| [None, Some(one.ifname.as_str())].map(|name| (&*one.container_id, name)))
        .collect();
    let mut stale = Vec::new();
    for file in names {
        let (container_id, ifname) = match file.split_once(SEPARATOR) {
            Some((container_id, ifname)) => (container_id, Some(ifname)),
            None => (file.as_str(), None),
        };
        if valid.contains(&(container_id, ifname)) {
            continue;
        }
        let text = state_file::read(directory, &file).ok().flatten().unwrap_or_default();
        let Ok(config) = serde_json::from_slice::<Map<String, Value>>(&text) else { continue };
        if config.get("name").is_some_and(|name| name == network) {
            let ifname = ifname.unwrap_or(DEFAULT_IFNAME).to_owned();
            let attachment = Attachment { container_id: container_id.to_owned(), ifname };
            stale.push(Stale { attachment, config, file });
        }
    }
    Ok(stale)
}
