// SPDX-License-Identifier: Apache-2.0
//! Finds the configuration of a network by name, and describes invalid configuration files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use cni::Code;
use cni::runtime::NetworkList;
use cni::runtime::conf_dir::{self, ConfFile};

use crate::errors::Hint;

const LOOPBACK: &str =
    r#"{"cniVersion":"0.2.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}"#;

const REPAIR: &str = "correct the file, or pass another directory with --conf-dir";

/// Example for a directory without networks.
const EXAMPLE: &str = r#"{ "cniVersion": "1.1.0", "name": "mynet", "plugins": [ {
    "type": "bridge", "bridge": "mynet0", "isGateway": true,
    "ipam": { "type": "host-local", "ranges": [[ { "subnet": "10.88.0.0/24" } ]],
              "routes": [ { "dst": "0.0.0.0/0" } ] } } ] }"#;

/// Reads all configuration files of a directory. A missing directory has none; a file in its place is an error.
pub(crate) fn scan(dir: &Path) -> Result<Vec<ConfFile>, cni::Error> {
    match std::fs::read_dir(dir) {
        Err(cause) if cause.kind() == ErrorKind::NotADirectory => {
            let doing = format!("read directory {}", dir.display());
            Err(cni::Error::because(Code::IO, doing, &cause))
        }
        _ => conf_dir::scan(dir),
    }
}

/// Loads the network of this name; the error lists the networks that exist.
pub(crate) fn load(dir: &Path, name: &str) -> Result<NetworkList> {
    find(dir, name)?.map_or_else(|| missing(dir, name), Ok)
}

/// Loads the network of this name; `None` if no file describes it.
pub(crate) fn find(dir: &Path, name: &str) -> Result<Option<NetworkList>> {
    let found = scan(dir)?;
    let has_name = |found: &&ConfFile| found.list.as_ref().is_ok_and(|list| list.name == name);
    if let Some(ConfFile { list: Ok(list), .. }) = found.iter().find(has_name) {
        return Ok(Some(list.clone()));
    }
    let is_invalid_file = |found: &&ConfFile| found.list.is_err() && is_about(&found.file, name);
    if let Some(ConfFile { list: Err(error), .. }) = found.iter().find(is_invalid_file) {
        return Err(error.clone())
            .hint(|| REPAIR.to_owned())
            .with_context(|| format!("the configuration of network {name:?} is invalid"));
    }
    Ok(None)
}

/// The error for a network that does not exist.
pub(crate) fn missing<T>(dir: &Path, name: &str) -> Result<T> {
    let found = scan(dir)?;
    let missing = format!("there is no network {name:?} in {}", dir.display());
    let invalid: Vec<String> = found.iter().filter_map(parse_error).collect();
    Err(cni::Error::invalid_config(missing).with_details(invalid.join("\n")))
        .hint(|| advice(dir, &found))
}

/// Whether an invalid file seems to describe the network of this name: by its file name without a
/// leading number, or by a "name" key in its text.
fn is_about(file: &Path, name: &str) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let unnumbered = stem.trim_start_matches(|c: char| c.is_ascii_digit());
    let bare = unnumbered.strip_prefix('-').unwrap_or(&stem);
    let has_name_key = || {
        let bytes = fsutil::read_following(file).unwrap_or_default();
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        text.retain(|c| !c.is_whitespace());
        text.contains(&format!("\"name\":\"{name}\""))
    };
    stem == name || bare == name || has_name_key()
}

/// The hint for a directory without networks.
pub(crate) fn how_to_create(dir: &Path) -> String {
    let file = dir.join("10-mynet.conflist");
    format!(
        "a node agent writes a network there when its node is ready (`podwire status` shows why it is not); \
         or write one to {}, such as\n{EXAMPLE}",
        file.display()
    )
}

/// The error of an invalid file with the line in question; `None` for a valid file.
pub(crate) fn parse_error(found: &ConfFile) -> Option<String> {
    let cni::Error { msg, details, .. } = found.list.as_ref().err()?;
    Some(if details.is_empty() { msg.clone() } else { format!("{msg}\n  {details}") })
}

/// Warnings about networks whose name an earlier file already uses.
pub(crate) fn hidden(found: &[ConfFile]) -> Vec<String> {
    let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut hidden = Vec::new();
    for found in found {
        let Ok(list) = &found.list else { continue };
        if let Some(earlier) = first.get(list.name.as_str()) {
            let (file, earlier) = (found.file.display(), earlier.display());
            hidden
                .push(format!("{file}: ignored, network {:?} is defined by {earlier}", list.name));
        } else {
            first.insert(&list.name, &found.file);
        }
    }
    hidden
}

/// The loopback network of every pod, as kubelet defines it.
pub(crate) fn loopback() -> Result<NetworkList> {
    NetworkList::parse(LOOPBACK.as_bytes(), None).context("the loopback network")
}

fn advice(dir: &Path, found: &[ConfFile]) -> String {
    let names: Vec<&str> =
        found.iter().filter_map(|found| Some(found.list.as_ref().ok()?.name.as_str())).collect();
    match names.is_empty() {
        true if found.is_empty() => how_to_create(dir),
        true => REPAIR.to_owned(),
        false => format!("existing networks: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_configuration_is_valid() {
        let list = NetworkList::parse(EXAMPLE.as_bytes(), None).unwrap();
        assert_eq!(list.name, "mynet");
        assert_eq!(loopback().unwrap().name, "cni-loopback");
    }

    #[test]
    fn missing_network_error_lists_existing_ones() {
        let dir = tempfile::tempdir().unwrap();
        let all = crate::privilege::Privilege::ALL;
        let failure = |name: &str| crate::errors::text(&load(dir.path(), name).unwrap_err(), all);
        assert!(failure("a").contains("10-mynet.conflist, such as\n{ \"cniVersion\""));
        std::fs::write(dir.path().join("10-b.conflist"), EXAMPLE).unwrap();
        assert!(failure("a").ends_with("hint: existing networks: mynet\n"));
        std::fs::write(dir.path().join("05-c.conflist"), "{\n  \"name\": }\n").unwrap();
        let text = failure("a");
        assert!(
            text.contains("05-c.conflist:2:11: expected value\n    line 2: \"name\": }"),
            "{text}"
        );
        assert_eq!(load(dir.path(), "mynet").unwrap().name, "mynet");
    }

    #[test]
    fn lookup_errors_have_cni_codes() {
        let dir = tempfile::tempdir().unwrap();
        let check = |dir: &Path, name: &str, code: u32| {
            let printed = crate::errors::json(&load(dir, name).unwrap_err());
            assert_eq!(printed["code"], code, "{name}: {printed}");
        };
        check(dir.path(), "a", 7);
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("10-a.conflist", "{");
        write("20-other.conf", "{ \"name\" : \"b\", ");
        check(dir.path(), "a", 6);
        check(dir.path(), "b", 6);
        check(dir.path(), "c", 7);
        check(&dir.path().join("10-a.conflist"), "a", 5);
        // Reading a FIFO would never end.
        let fifo = dir.path().join("30-fifo.conflist");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        check(dir.path(), "c", 7);
        check(&dir.path().join("missing"), "a", 7);
    }
}
