// SPDX-License-Identifier: Apache-2.0
//! Sizes of the programs.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::lab::{Lab, plugin_names};
use super::results::{Amount, Who};

/// Sizes of the plugins that both sets contain.
pub(crate) fn measure(lab: &Lab) -> Result<Vec<Amount>> {
    let names = plugin_names(&lab.go.dir)?;
    let size = |dir: &Path, name: &str| fs::metadata(dir.join(name)).map(|meta| meta.len());
    let go_sizes: Result<Vec<u64>, _> = names.iter().map(|name| size(&lab.go.dir, name)).collect();
    let what = format!("programs of {} plugins ({})", names.len(), names.join(", "));
    Ok(vec![
        Amount { what: what.clone(), who: Who::Go, bytes: go_sizes?.iter().sum() },
        Amount { what, who: Who::Ours, bytes: size(&lab.ours.dir, "podwire-cni")? },
    ])
}
