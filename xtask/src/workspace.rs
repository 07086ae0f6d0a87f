// SPDX-License-Identifier: Apache-2.0
//! The directories of this workspace according to cargo, and the shipped target.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cmd;

#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// `CARGO_TARGET_DIR`, or `target` below the root.
    pub(crate) target_dir: PathBuf,
    /// Target triple of static programs for this architecture.
    pub(crate) triple: String,
}

impl Workspace {
    pub(crate) fn find() -> Result<Workspace> {
        let text = cmd::read(cmd::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
        let metadata: Value = serde_json::from_str(&text).context("read cargo's metadata")?;
        let dir = |key: &str| {
            let text = metadata[key].as_str();
            text.map(PathBuf::from).with_context(|| format!("cargo's metadata has no {key}"))
        };
        Ok(Workspace {
            root: dir("workspace_root")?,
            target_dir: dir("target_directory")?,
            triple: format!("{ARCH}-unknown-linux-musl"),
        })
    }

    /// Builds podwire-cni as shipped and returns its path.
    pub(crate) fn build_plugin_program(&self) -> Result<PathBuf> {
        let mut build = cmd::cargo();
        build.args(["build", "--profile", "plugin", "--target", &self.triple]);
        build.args(["-p", "podwire-plugins", "--bin", "podwire-cni"]);
        cmd::run(build.current_dir(&self.root))?;
        Ok(self.target_dir.join(&self.triple).join("plugin/podwire-cni"))
    }
}
