// SPDX-License-Identifier: Apache-2.0
//! The configuration directory: which networks it holds, one of them by name, or the default.
//! A broken file is told about and hides no other.

use std::io;
use std::path::{Path, PathBuf};

use super::{NetworkList, Runtime};
use crate::error::{Code, Error};

/// One file of the directory.
#[derive(Clone, Debug)]
pub struct ConfFile {
    /// Where it is.
    pub file: PathBuf,
    /// What it says, or what is wrong with it.
    pub list: Result<NetworkList, Error>,
}

/// The network that serves containers which ask for none by name.
#[derive(Clone, Debug)]
pub struct DefaultNetwork {
    /// The network.
    pub list: NetworkList,
    /// Files before it in order that could not be used, and why.
    pub ignored: Vec<(PathBuf, Error)>,
}

/// Every `*.conflist` by path, then every `*.conf` and `*.json` by path. A directory that does not
/// exist is empty.
pub fn scan(dir: &Path) -> Result<Vec<ConfFile>, Error> {
    Ok(in_order(dir)?.into_iter().map(|file| ConfFile { list: load_file(&file), file }).collect())
}

/// The first network of this name in the order of [`scan`].
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
    Err(Error::invalid_config(msg).with_details(unreadable(&broken)))
}

/// As kubelet chooses: the first file by path, whatever its extension, that parses and whose
/// plugins exist and accept its version.
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
    // What is wrong in a file already names it; what is wrong with a plugin does not.
    let told = |(file, error): &(PathBuf, Error)| match file.display().to_string() {
        name if error.msg.starts_with(&name) => error.to_string(),
        name => format!("{name}: {error}"),
    };
    let broken: Vec<String> = ignored.iter().map(told).collect();
    let msg = format!("no valid net configuration in {}", dir.display());
    Err(Error::invalid_config(msg).with_details(unreadable(&broken)))
}

/// Reads one file, by its extension as a list or as a single plugin.
pub fn load_file(file: &Path) -> Result<NetworkList, Error> {
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

/// The files with one of these extensions, sorted. No folder, no files.
pub(super) fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause: io::Error| {
        Error::because(Code::IO, format!("read folder {}", dir.display()), &cause)
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        // A network may be called like a file, and then has no folder.
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
        let matches = |wanted: &&str| file.extension().is_some_and(|found| found == *wanted);
        if extensions.iter().any(matches) && !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files.push(file);
        }
    }
    // By the bytes of the whole path: a comparison of paths goes component by component.
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

fn unreadable(broken: &[String]) -> String {
    match broken {
        [] => String::new(),
        broken => format!("files that could not be used: {}", broken.join("; ")),
    }
}
