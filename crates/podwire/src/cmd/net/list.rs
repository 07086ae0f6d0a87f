// SPDX-License-Identifier: Apache-2.0
//! `podwire net list`.

use anyhow::Result;
use clap::Args;
use cni::runtime::NetworkList;
use cni::runtime::conf_dir::ConfFile;
use serde_json::{Value, json};

use crate::output::{self, Format};
use crate::runtime::RuntimeArgs;
use crate::{errors, network_lookup};

/// List the networks of the configuration directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire net list
  podwire net list --conf-dir ./networks -o json")]
pub(crate) struct List {
    #[command(flatten)]
    runtime: RuntimeArgs,
}

pub(crate) fn run(args: &List, format: Format) -> Result<()> {
    let dir = &args.runtime.conf_dir;
    let files = network_lookup::scan(dir)?;
    if format == Format::Json {
        return output::print_json(&json(&files));
    }
    if files.is_empty() {
        let hint = network_lookup::how_to_create(dir);
        return output::print(&format!("no network in {}\nhint: {hint}\n", dir.display()));
    }
    let rows = files.iter().filter_map(|file| {
        let list = file.list.as_ref().ok()?;
        let version = list.version.to_string();
        Some([list.name.clone(), version, types(list).join(" "), file.file.display().to_string()])
    });
    if files.iter().any(|file| file.list.is_ok()) {
        output::print(&output::table(["NETWORK", "VERSION", "PLUGINS", "FILE"], rows))?;
    }
    files.iter().filter_map(network_lookup::parse_error).for_each(|error| errors::warn(&error));
    network_lookup::hidden(&files).iter().for_each(|hidden| errors::warn(hidden));
    let lists = files.iter().filter_map(|file| file.list.as_ref().ok());
    lists.for_each(super::warn_of_misspelled_keys);
    Ok(())
}

fn types(list: &NetworkList) -> Vec<&str> {
    list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect()
}

fn json(files: &[ConfFile]) -> Value {
    let (mut networks, mut broken) = (Vec::new(), Vec::new());
    for file in files {
        match &file.list {
            Ok(list) => networks.push(json!({
                "name": list.name,
                "cniVersion": list.version.as_str(),
                "plugins": types(list),
                "file": file.file,
            })),
            Err(error) => broken.push(json!({
                "file": file.file,
                "error": error.to_json(cni::Version::LATEST),
            })),
        }
    }
    json!({ "networks": networks, "broken": broken })
}
