// SPDX-License-Identifier: Apache-2.0
//! A network configuration: a list of plugins from a `.conflist`, or one plugin from a `.conf` or `.json`. Everything
//! except the plugins' own keys is validated here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gojson::DecodeError;
use serde_json::{Map, Value, json};

use super::conf_dir;
use super::source::Source;
use crate::error::Error;
use crate::validate;
use crate::version::{self, Version};

/// A network: its plugins in the order of ADD.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// Name of the network.
    pub name: String,
    /// The newest supported version of `cniVersions` and `cniVersion`.
    pub version: Version,
    /// CHECK does nothing.
    pub disable_check: bool,
    /// GC does nothing.
    pub disable_gc: bool,
    /// At least one plugin.
    pub plugins: Vec<PluginConf>,
    /// Text of the list, for the cache.
    pub bytes: Vec<u8>,
    /// File that the list was read from.
    pub file: Option<PathBuf>,
}

/// One plugin of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConf {
    /// `type`: the name of the plugin.
    pub kind: String,
    /// Enabled capabilities.
    pub capabilities: BTreeSet<String>,
    /// The whole configuration of the plugin.
    pub config: Map<String, Value>,
}

impl NetworkList {
    /// Parses a `.conflist`. If `file` is given, plugins in `<directory of the file>/<name>/*.conf` are appended, unless
    /// the list sets `loadOnlyInlinedPlugins`.
    pub fn parse(bytes: &[u8], file: Option<&Path>) -> Result<NetworkList, Error> {
        let source = Source { bytes, file };
        let mut object = source.object()?;
        let invalid = |problem: DecodeError| source.invalid(&problem);
        let name = take_name(&mut object).map_err(invalid)?;
        let version = choose_version(&mut object).map_err(invalid)?;
        let disable_check = take_flag(&mut object, "disableCheck").map_err(invalid)?;
        let disable_gc = take_flag(&mut object, "disableGC").map_err(invalid)?;
        let only_inlined = take_flag(&mut object, "loadOnlyInlinedPlugins").map_err(invalid)?;
        let mut plugins = take_plugins(&mut object, only_inlined).map_err(invalid)?;
        if let Some(dir) = file.and_then(Path::parent).filter(|_| !only_inlined) {
            plugins.extend(read_dir(&dir.join(&name))?);
        }
        if plugins.is_empty() {
            return Err(invalid(missing("plugins")).with_details("no plugin configs found"));
        }
        let (bytes, file) = (bytes.to_vec(), file.map(Path::to_path_buf));
        Ok(NetworkList { name, version, disable_check, disable_gc, plugins, bytes, file })
    }

    /// Parses the configuration of a single plugin into a list of one plugin.
    pub fn from_single(bytes: &[u8], file: Option<&Path>) -> Result<NetworkList, Error> {
        let source = Source { bytes, file };
        let config = source.object()?;
        let invalid = |problem: DecodeError| source.invalid(&problem);
        let mut rest = config.clone();
        let plugin = PluginConf::parse(Value::Object(config)).map_err(|problem| {
            let error = invalid(problem);
            match gojson::get(&rest, "plugins") {
                Some(_) => error.with_details("it has key \"plugins\": name the file *.conflist"),
                None => error,
            }
        })?;
        let name = take_name(&mut rest).map_err(invalid)?;
        let stated: Option<String> = gojson::take_as(&mut rest, "cniVersion").map_err(invalid)?;
        let stated = stated.unwrap_or_default();
        let version = supported_version(&stated).map_err(invalid)?;
        let list = json!({"cniVersion": stated, "name": name, "plugins": [plugin.config]});
        Ok(NetworkList {
            name,
            version,
            disable_check: false,
            disable_gc: false,
            plugins: vec![plugin],
            bytes: list.to_string().into_bytes(),
            file: file.map(Path::to_path_buf),
        })
    }

    /// Returns the enabled capabilities of all plugins.
    pub fn capabilities(&self) -> BTreeSet<String> {
        self.plugins.iter().flat_map(|plugin| plugin.capabilities.iter().cloned()).collect()
    }
}

impl PluginConf {
    fn parse(value: Value) -> Result<PluginConf, DecodeError> {
        let Value::Object(mut config) = value else {
            return Err(serde::de::Error::custom("expected an object"));
        };
        let kind: String = match gojson::get(&config, "type") {
            None => return Err(missing("type")),
            Some(Value::String(kind)) if !kind.is_empty() => kind.clone(),
            Some(other) => return Err(DecodeError::at("type", other, "expected a plugin's name")),
        };
        let capabilities = match gojson::get(&config, "capabilities") {
            None => BTreeSet::new(),
            Some(Value::Object(flags)) => enabled(flags)?,
            Some(other) => {
                return Err(DecodeError::at("capabilities", other, "expected an object"));
            }
        };
        // The key may be in any case. Plugins that are not written in Go expect this spelling.
        config.entry("type").or_insert_with(|| kind.as_str().into());
        Ok(PluginConf { kind, capabilities, config })
    }
}

fn enabled(flags: &Map<String, Value>) -> Result<BTreeSet<String>, DecodeError> {
    let mut enabled = BTreeSet::new();
    for (name, flag) in flags {
        match flag {
            Value::Bool(true) => enabled.insert(name.clone()),
            Value::Bool(false) | Value::Null => continue,
            other => {
                let problem = DecodeError::at(name, other, "expected true or false");
                return Err(problem.within("capabilities"));
            }
        };
    }
    Ok(enabled)
}

fn take_name(object: &mut Map<String, Value>) -> Result<String, DecodeError> {
    let name: String = gojson::take_as(object, "name")?.ok_or_else(|| missing("name"))?;
    match validate::network_name(&name) {
        Ok(()) => Ok(name),
        Err(problem) => Err(DecodeError::at("name", json!(name), problem.to_string())),
    }
}

/// Returns the newest version of the list that this library supports. Newer versions are ignored.
fn choose_version(object: &mut Map<String, Value>) -> Result<Version, DecodeError> {
    let stated: String = gojson::take_as(object, "cniVersion")?.unwrap_or_default();
    let Some(all) = gojson::take_as::<Vec<String>>(object, "cniVersions")? else {
        return supported_version(&stated);
    };
    let mut best = None;
    for (at, text) in all.iter().enumerate() {
        let numbers = version::parse_numbers(text).ok_or_else(|| {
            DecodeError::at(&format!("cniVersions[{at}]"), json!(text), "this is not a version")
        })?;
        let is_same = |known: &&Version| version::parse_numbers(known.as_str()) == Some(numbers);
        best = best.max(Version::ALL.iter().find(is_same).copied());
    }
    match (best, &*stated) {
        (Some(best), "") => Ok(best),
        (None, "") if !all.is_empty() => {
            Err(DecodeError::at("cniVersions", json!(all), supported_versions()))
        }
        (None, stated) => supported_version(stated),
        // A newer version is no error here, but text that is not a version is.
        (Some(best), stated) => match version::parse_numbers(stated) {
            Some(_) => Ok(Version::parse(stated).map_or(best, |stated| stated.max(best))),
            None => supported_version(stated),
        },
    }
}

fn supported_version(stated: &str) -> Result<Version, DecodeError> {
    Version::parse(stated)
        .ok_or_else(|| DecodeError::at("cniVersion", json!(stated), supported_versions()))
}

fn supported_versions() -> String {
    let supported: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    format!("supported are {}", supported.join(", "))
}

/// Takes a boolean, which may also be written as a string.
fn take_flag(object: &mut Map<String, Value>, key: &str) -> Result<bool, DecodeError> {
    match gojson::take(object, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(DecodeError::at(key, other, "expected true or false")),
    }
}

fn take_plugins(
    object: &mut Map<String, Value>,
    only_inlined: bool,
) -> Result<Vec<PluginConf>, DecodeError> {
    let Some(plugins) = gojson::take_as::<Vec<Value>>(object, "plugins")? else {
        return match only_inlined {
            true => Err(DecodeError::at(
                "loadOnlyInlinedPlugins",
                true,
                "key \"plugins\" is required with it",
            )),
            false => Ok(Vec::new()),
        };
    };
    if plugins.is_empty() {
        return Err(DecodeError::at("plugins", "[]", "no plugins in list"));
    }
    let numbered = plugins.into_iter().enumerate();
    numbered
        .map(|(at, plugin)| PluginConf::parse(plugin).map_err(|error| error.under("plugins", at)))
        .collect()
}

/// Reads plugins that are in files of their own.
fn read_dir(dir: &Path) -> Result<Vec<PluginConf>, Error> {
    let mut plugins = Vec::new();
    for file in conf_dir::files(dir, &["conf"])? {
        let bytes = conf_dir::read(&file)?;
        let source = Source { bytes: &bytes, file: Some(&file) };
        let plugin = PluginConf::parse(Value::Object(source.object()?));
        plugins.push(plugin.map_err(|problem| source.invalid(&problem))?);
    }
    Ok(plugins)
}

fn missing(key: &str) -> DecodeError {
    serde::de::Error::custom(format_args!("key {key:?} is missing"))
}
