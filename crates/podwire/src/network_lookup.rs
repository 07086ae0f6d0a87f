// SPDX-License-Identifier: Apache-2.0
//! Finding a network's configuration, and showing what is wrong with a broken one.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use cni::Code;
use cni::runtime::NetworkList;
use cni::runtime::conf_dir::{self, Found};

use crate::report::Hint;

const LOOPBACK: &str =
    r#"{"cniVersion":"0.2.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}"#;

const REPAIR: &str = "repair the file, or name another directory with --conf-dir";

/// Shown where there is no network at all.
const SMALLEST: &str = r#"{ "cniVersion": "1.1.0", "name": "mynet", "plugins": [ {
    "type": "bridge", "bridge": "mynet0", "isGateway": true,
    "ipam": { "type": "host-local", "ranges": [[ { "subnet": "10.88.0.0/24" } ]],
              "routes": [ { "dst": "0.0.0.0/0" } ] } } ] }"#;

/// The files of the directory. One that is not there is empty, but a file is no directory.
pub fn scan(dir: &Path) -> Result<Vec<Found>, cni::Error> {
    match std::fs::read_dir(dir) {
        Err(cause) if cause.kind() == ErrorKind::NotADirectory => {
            let doing = format!("read folder {}", dir.display());
            Err(cni::Error::because(Code::IO, doing, &cause))
        }
        _ => conf_dir::scan(dir),
    }
}

/// The network of this name; the error says which ones there are instead.
pub fn load(dir: &Path, name: &str) -> Result<NetworkList> {
    find(dir, name)?.map_or_else(|| missing(dir, name), Ok)
}

/// The same; none where no file is about it.
pub fn find(dir: &Path, name: &str) -> Result<Option<NetworkList>> {
    let found = scan(dir)?;
    let is_it = |found: &&Found| found.list.as_ref().is_ok_and(|list| list.name == name);
    if let Some(Found { list: Ok(list), .. }) = found.iter().find(is_it) {
        return Ok(Some(list.clone()));
    }
    let is_its_file = |found: &&Found| found.list.is_err() && is_about(&found.file, name);
    if let Some(Found { list: Err(error), .. }) = found.iter().find(is_its_file) {
        return Err(error.clone())
            .hint(|| REPAIR.to_owned())
            .with_context(|| format!("the configuration of network {name:?} is broken"));
    }
    Ok(None)
}

/// The error for a network that is not there.
pub fn missing<T>(dir: &Path, name: &str) -> Result<T> {
    let found = scan(dir)?;
    let missing = format!("there is no network {name:?} in {}", dir.display());
    let broken: Vec<String> = found.iter().filter_map(fault).collect();
    Err(cni::Error::invalid_config(missing).with_details(broken.join("\n")))
        .hint(|| advice(dir, &found))
}

/// Whether a file that cannot be read as a network seems to be the one of this name: it is called
/// so but for a number in front, or says so.
fn is_about(file: &Path, name: &str) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let unnumbered = stem.trim_start_matches(|c: char| c.is_ascii_digit());
    let bare = unnumbered.strip_prefix('-').unwrap_or(&stem);
    let says_so = || {
        let bytes = std::fs::read(file).unwrap_or_default();
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        text.retain(|c| !c.is_whitespace());
        text.contains(&format!("\"name\":\"{name}\""))
    };
    stem == name || bare == name || says_so()
}

/// What to do about an empty directory.
pub fn how_to_begin(dir: &Path) -> String {
    let file = dir.join("10-mynet.conflist");
    format!(
        "a node agent writes one there while its node is ready (podwire status says why it is not); \
         or write a network to {}, such as\n{SMALLEST}",
        file.display()
    )
}

/// What is wrong with a file, with the line in question below; `None` where nothing is.
pub fn fault(found: &Found) -> Option<String> {
    let cni::Error { msg, details, .. } = found.list.as_ref().err()?;
    Some(if details.is_empty() { msg.clone() } else { format!("{msg}\n  {details}") })
}

/// What there is to say of networks that another file of the same name hides.
pub fn hidden(found: &[Found]) -> Vec<String> {
    let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut hidden = Vec::new();
    for found in found {
        let Ok(list) = &found.list else { continue };
        if let Some(earlier) = first.get(list.name.as_str()) {
            let (file, earlier) = (found.file.display(), earlier.display());
            hidden.push(format!(
                "{file}: network {:?} is that of {earlier}, which counts",
                list.name
            ));
        } else {
            first.insert(&list.name, &found.file);
        }
    }
    hidden
}

/// The loopback network, kubelet's own.
pub fn loopback() -> Result<NetworkList> {
    NetworkList::parse(LOOPBACK.as_bytes(), None).context("the loopback network")
}

fn advice(dir: &Path, found: &[Found]) -> String {
    let names: Vec<&str> =
        found.iter().filter_map(|found| Some(found.list.as_ref().ok()?.name.as_str())).collect();
    match names.is_empty() {
        true if found.is_empty() => how_to_begin(dir),
        true => REPAIR.to_owned(),
        false => format!("the networks there are: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_configuration_is_valid() {
        let list = NetworkList::parse(SMALLEST.as_bytes(), None).unwrap();
        assert_eq!(list.name, "mynet");
        assert_eq!(loopback().unwrap().name, "cni-loopback");
    }

    #[test]
    fn a_missing_network_is_told_with_those_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let all = crate::privilege::Privilege::ALL;
        let failure = |name: &str| crate::report::text(&load(dir.path(), name).unwrap_err(), all);
        assert!(failure("a").contains("10-mynet.conflist, such as\n{ \"cniVersion\""));
        std::fs::write(dir.path().join("10-b.conflist"), SMALLEST).unwrap();
        assert!(failure("a").ends_with("hint: the networks there are: mynet\n"));
        std::fs::write(dir.path().join("05-c.conflist"), "{\n  \"name\": }\n").unwrap();
        let text = failure("a");
        assert!(
            text.contains("05-c.conflist:2:11: expected value\n    line 2: \"name\": }"),
            "{text}"
        );
        assert_eq!(load(dir.path(), "mynet").unwrap().name, "mynet");
    }

    #[test]
    fn failures_have_the_codes_of_the_specification() {
        let dir = tempfile::tempdir().unwrap();
        let check = |dir: &Path, name: &str, code: u32| {
            let printed = crate::report::json(&load(dir, name).unwrap_err());
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
        check(&dir.path().join("missing"), "a", 7);
    }
}
