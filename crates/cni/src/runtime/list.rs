// SPDX-License-Identifier: Apache-2.0
//! A network's configuration: a list of plugins, read from a `.conflist`, or from a `.conf` or
//! `.json` of one plugin. What is read here is valid but for the plugins' own keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gojson::DecodeError;
use serde_json::{Map, Value, json};

use super::conf_dir;
use super::source::Source;
use crate::error::Error;
use crate::validate;
use crate::version::{self, Version};

/// A network: plugins in the order of ADD.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// Its name.
    pub name: String,
    /// The newest of `cniVersions` and `cniVersion` that we speak.
    pub version: Version,
    /// CHECK is not to be run.
    pub disable_check: bool,
    /// GC is not to be run.
    pub disable_gc: bool,
    /// At least one.
    pub plugins: Vec<PluginConf>,
    /// The list as it was written, for the cache.
    pub bytes: Vec<u8>,
    /// Where it was read.
    pub file: Option<PathBuf>,
}

/// One plugin of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConf {
    /// `type`: the name of the plugin.
    pub kind: String,
    /// The capabilities that are enabled.
    pub capabilities: BTreeSet<String>,
    /// All of it.
    pub config: Map<String, Value>,
}

impl NetworkList {
    /// Reads a `.conflist`. With a file, plugins in `<folder of the file>/<name>/*.conf` are added
    /// unless the list says `loadOnlyInlinedPlugins`.
    pub fn parse(bytes: &[u8], file: Option<&Path>) -> Result<NetworkList, Error> {
        let source = Source { bytes, file };
        let mut object = source.object()?;
        let wrong = |problem: DecodeError| source.wrong(&problem);
        let name = take_name(&mut object).map_err(wrong)?;
        let version = choose_version(&mut object).map_err(wrong)?;
        let disable_check = take_flag(&mut object, "disableCheck").map_err(wrong)?;
        let disable_gc = take_flag(&mut object, "disableGC").map_err(wrong)?;
        let only_inlined = take_flag(&mut object, "loadOnlyInlinedPlugins").map_err(wrong)?;
        let mut plugins = take_plugins(&mut object, only_inlined).map_err(wrong)?;
        if let Some(folder) = file.and_then(Path::parent).filter(|_| !only_inlined) {
            plugins.extend(read_folder(&folder.join(&name))?);
        }
        if plugins.is_empty() {
            return Err(wrong(missing("plugins")).with_details("no plugin configs found"));
        }
        let (bytes, file) = (bytes.to_vec(), file.map(Path::to_path_buf));
        Ok(NetworkList { name, version, disable_check, disable_gc, plugins, bytes, file })
    }

    /// Reads a configuration of a single plugin as a list of one.
    pub fn from_single(bytes: &[u8], file: Option<&Path>) -> Result<NetworkList, Error> {
        let source = Source { bytes, file };
        let config = source.object()?;
        let wrong = |problem: DecodeError| source.wrong(&problem);
        let mut rest = config.clone();
        let plugin = PluginConf::read(Value::Object(config)).map_err(|problem| {
            let error = wrong(problem);
            match gojson::get(&rest, "plugins") {
                Some(_) => error.with_details("it holds \"plugins\": call the file *.conflist"),
                None => error,
            }
        })?;
        let name = take_name(&mut rest).map_err(wrong)?;
        let stated: Option<String> = gojson::take_as(&mut rest, "cniVersion").map_err(wrong)?;
        let stated = stated.unwrap_or_default();
        let version = known_version(&stated).map_err(wrong)?;
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

    /// The enabled capabilities of all plugins.
    pub fn capabilities(&self) -> BTreeSet<String> {
        self.plugins.iter().flat_map(|plugin| plugin.capabilities.iter().cloned()).collect()
    }
}

impl PluginConf {
    fn read(value: Value) -> Result<PluginConf, DecodeError> {
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
        // A program looks for it in this spelling, and Go's library in any.
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

/// The newest version that both the list and we know; versions newer than ours are passed over.
fn choose_version(object: &mut Map<String, Value>) -> Result<Version, DecodeError> {
    let stated: String = gojson::take_as(object, "cniVersion")?.unwrap_or_default();
    let Some(all) = gojson::take_as::<Vec<String>>(object, "cniVersions")? else {
        return known_version(&stated);
    };
    let mut best = None;
    for (at, text) in all.iter().enumerate() {
        let numbers = version::parse_numbers(text).ok_or_else(|| {
            DecodeError::at(&format!("cniVersions[{at}]"), json!(text), "this is no version")
        })?;
        let is_same = |known: &&Version| version::parse_numbers(known.as_str()) == Some(numbers);
        best = best.max(Version::ALL.iter().find(is_same).copied());
    }
    match (best, &*stated) {
        (Some(best), "") => Ok(best),
        (None, "") if !all.is_empty() => {
            let shown = json!(all);
            Err(DecodeError::at("cniVersions", shown, format!("known are {}", known_versions())))
        }
        (None, stated) => known_version(stated),
        // One that is newer than ours is no fault here; one that is no version is.
        (Some(best), stated) => match version::parse_numbers(stated) {
            Some(_) => Ok(Version::parse(stated).map_or(best, |stated| stated.max(best))),
            None => known_version(stated),
        },
    }
}

fn known_version(stated: &str) -> Result<Version, DecodeError> {
    let problem = || format!("known are {}", known_versions());
    Version::parse(stated).ok_or_else(|| DecodeError::at("cniVersion", json!(stated), problem()))
}

fn known_versions() -> String {
    let known: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    known.join(", ")
}

/// A flag, which may be written as a text.
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
                "then key \"plugins\" must be there",
            )),
            false => Ok(Vec::new()),
        };
    };
    if plugins.is_empty() {
        return Err(DecodeError::at("plugins", "[]", "no plugins in list"));
    }
    let numbered = plugins.into_iter().enumerate();
    numbered
        .map(|(at, plugin)| PluginConf::read(plugin).map_err(|error| error.under("plugins", at)))
        .collect()
}

/// Plugins that were dropped in as files of their own.
fn read_folder(folder: &Path) -> Result<Vec<PluginConf>, Error> {
    let mut plugins = Vec::new();
    for file in conf_dir::files(folder, &["conf"])? {
        let bytes = conf_dir::read(&file)?;
        let source = Source { bytes: &bytes, file: Some(&file) };
        let plugin = PluginConf::read(Value::Object(source.object()?));
        plugins.push(plugin.map_err(|problem| source.wrong(&problem))?);
    }
    Ok(plugins)
}

fn missing(key: &str) -> DecodeError {
    serde::de::Error::custom(format_args!("key {key:?} is missing"))
}
