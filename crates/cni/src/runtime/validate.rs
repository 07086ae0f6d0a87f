// SPDX-License-Identifier: Apache-2.0
//! Checks that the plugins of a list exist and support its version. Asks plugin processes with the VERSION command.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::{NetworkList, Runtime};
use crate::delegate::{self, Target};
use crate::error::{Code, Error};
use crate::exec;
use crate::version::Version;

pub(super) fn validate(runtime: &Runtime, list: &NetworkList) -> Result<BTreeSet<String>, Error> {
    let check = |kind: &str| {
        let versions = plugin_versions(runtime, kind)?;
        if versions.iter().any(|version| version == list.version.as_str()) {
            return Ok(());
        }
        let stated = list.version.as_str();
        let msg = format!("plugin {kind} does not support config version {stated:?}");
        let details = format!("it supports {}", versions.join(", "));
        Err(Error::new(Code::INCOMPATIBLE_VERSION, msg).with_details(details))
    };
    Error::all(list.plugins.iter().map(|plugin| check(&plugin.kind)))?;
    Ok(list.capabilities())
}

pub(super) fn plugin_versions(runtime: &Runtime, kind: &str) -> Result<Vec<String>, Error> {
    let file = match delegate::find(runtime.host, kind, &runtime.path)? {
        Target::Program(file) => file,
        Target::Function(plugin) => {
            return Ok(plugin.versions.iter().map(Version::to_string).collect());
        }
    };
    // The oldest Go skeletons require these variables for every command.
    let variables = exec::Variables {
        command: "VERSION",
        container_id: "",
        netns: "dummy",
        ifname: "dummy",
        args: "",
        path: "dummy",
        depth: 0,
    };
    let stdin = json!({"cniVersion": Version::LATEST.as_str()}).to_string();
    match exec::run(&file, &variables, stdin.as_bytes(), runtime.timeout) {
        Ok(printed) => parse_versions(kind, &printed),
        // VERSION was introduced with 0.2.0.
        Err(error) if error.msg == "unknown CNI_COMMAND: VERSION" => Ok(vec!["0.1.0".into()]),
        Err(error) => Err(error),
    }
}

fn parse_versions(kind: &str, printed: &[u8]) -> Result<Vec<String>, Error> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Wire {
        cni_version: String,
        supported_versions: Vec<String>,
    }
    let doing = format!("version of plugin {kind}");
    let value = exec::parse_output(printed)
        .map_err(|error| Error { msg: format!("{doing}: {}", error.msg), ..error })?;
    let wire: Wire =
        gojson::decode(&value).map_err(|cause| Error::because(Code::DECODE, &doing, &cause))?;
    let missing = |key: &str| Error::new(Code::DECODE, format!("{doing}: missing field {key}"));
    match (&*wire.cni_version, wire.supported_versions) {
        ("", _) => Err(missing("cniVersion")),
        // 0.2.0 had no list.
        ("0.2.0", versions) if versions.is_empty() => Ok(vec!["0.1.0".into(), "0.2.0".into()]),
        (_, versions) if versions.is_empty() => Err(missing("supportedVersions")),
        (_, versions) => Ok(versions),
    }
}
