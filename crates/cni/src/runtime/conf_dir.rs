// SPDX-License-Identifier: Apache-2.0
//! The configuration directory: lists its networks, finds one by name, or chooses the default. An invalid file is
//! reported and does not affect the others.

use std::io;
use std::path::{Path, PathBuf};

use super::{NetworkList, Runtime};
use crate::error::{Code, Error};

/// A file of the configuration directory.
#[derive(Clone, Debug)]
pub struct ConfFile {
    /// Path of the file.
    pub file: PathBuf,
    /// The network, or the reason why the file is invalid.
    pub list: Result<NetworkList, Error>,
}

/// The network for containers that name none.
#[derive(Clone, Debug)]
pub struct DefaultNetwork {
    /// The network.
    pub list: NetworkList,
    /// Earlier files that are not usable, with the reason.
    pub ignored: Vec<(PathBuf, Error)>,
}

/// Reads every `*.conflist` in order of path, then every `*.conf` and `*.json` in order of path. A missing directory
/// counts as empty.
pub fn scan(dir: &Path) -> Result<Vec<ConfFile>, Error> {
    Ok(in_order(dir)?.into_iter().map(|file| ConfFile { list: load_file(&file), file }).collect())
}

/// Returns the first network of this name in the order of [`scan`].
pub fn load(dir: &Path, name: &str) -> Result<NetworkList, Error> {
    let files = in_order(dir)?;
    if files.is_empty() {
        return Err(none_found(dir));
    }
    let mut broken = Vec::new();
    for file in files {
        match load_file(&file) {
            Ok(list) if list.name == name => return Ok(list),
            Ok(_) => {}
            Err(error) => broken.push(error.to_string()),
        }
    }
    let msg = format!("no net configuration with name {name:?} in {}", dir.display());
    Err(Error::invalid_config(msg).with_details(unusable(&broken)))
}

/// Returns the default network as kubelet chooses it: the first file by path, with any of the extensions, that parses
/// and whose plugins exist and support its version.
pub fn first_valid(dir: &Path, runtime: &Runtime) -> Result<DefaultNetwork, Error> {
    let files = files(dir, &["conf", "conflist", "json"])?;
    if files.is_empty() {
        return Err(none_found(dir));
    }
    let mut ignored = Vec::new();
    for file in files {
        let usable = |list: NetworkList| runtime.validate(&list).map(|_| list);
        match load_file(&file).and_then(usable) {
            Ok(list) => return Ok(DefaultNetwork { list, ignored }),
            Err(error) => ignored.push((file, error)),
        }
    }
    // An error in the file already names it; an error of a plugin does not.
    let describe = |(file, error): &(PathBuf, Error)| match file.display().to_string() {
        name if error.msg.starts_with(&name) => error.to_string(),
        name => format!("{name}: {error}"),
    };
    let broken: Vec<String> = ignored.iter().map(describe).collect();
    let msg = format!("no valid net configuration in {}", dir.display());
    Err(Error::invalid_config(msg).with_details(unusable(&broken)))
}

/// Reads one file. Its extension decides whether it is a list or a single plugin.
fn load_file(file: &Path) -> Result<NetworkList, Error> {
    let bytes = read(file)?;
    match file.extension().is_some_and(|extension| extension == "conflist") {
        true => NetworkList::parse(&bytes, Some(file)),
        false => NetworkList::from_single(&bytes, Some(file)),
    }
}

fn in_order(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut all = files(dir, &["conflist"])?;
    all.extend(files(dir, &["conf", "json"])?);
    Ok(all)
}

/// Returns the sorted files with one of these extensions. A missing directory counts as empty.
pub(super) fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause: io::Error| {
        Error::because(Code::IO, format!("read directory {}", dir.display()), &cause)
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        // A network can have the name of a file instead of a directory of plugins.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let file = entry.path();
        let has_extension = |ext: &&str| file.extension().is_some_and(|own| own == *ext);
        if extensions.iter().any(has_extension)
            && !entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            files.push(file);
        }
    }
    // Sort by the bytes of the whole path, because `Path` compares component by component.
    files.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    Ok(files)
}

pub(super) fn read(file: &Path) -> Result<Vec<u8>, Error> {
    fsutil::read_following(file)
        .map_err(|cause| Error::because(Code::IO, format!("read {}", file.display()), &cause))
}

fn none_found(dir: &Path) -> Error {
    Error::invalid_config(format!("no net configurations found in {}", dir.display()))
}

fn unusable(broken: &[String]) -> String {
    match broken {
        [] => String::new(),
        broken => format!("files that could not be used: {}", broken.join("; ")),
    }
}
