// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask check`: all checks that need no test run.

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{cmd, invariants};

pub(crate) fn all(workspace: &Workspace) -> Result<()> {
    quick(workspace)?;
    documentation(workspace)?;
    dependencies(workspace)?;
    invariants::check_plugin_program(&workspace.build_plugin_program()?)
}

/// The cheap checks, which also run before the tests.
pub(crate) fn quick(workspace: &Workspace) -> Result<()> {
    invariants::check_sources(workspace)?;
    let root = &workspace.root;
    cmd::run(cmd::cargo().args(["fmt", "--all", "--check"]).current_dir(root))?;
    let mut clippy = cmd::cargo();
    // For the shipped target: C types differ between musl and glibc.
    clippy.args(["clippy", "--workspace", "--all-targets", "--target", &workspace.triple]);
    // Programs that only `bench` builds.
    clippy.args(["--features", "xtask/floor"]);
    cmd::run(clippy.args(["--", "-D", "warnings"]).current_dir(root))
}

fn documentation(workspace: &Workspace) -> Result<()> {
    let mut doc = cmd::cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--target", &workspace.triple]);
    cmd::run(doc.env("RUSTDOCFLAGS", "-D warnings").current_dir(&workspace.root))
}

/// Checks licences and security advisories.
fn dependencies(workspace: &Workspace) -> Result<()> {
    if cmd::find("cargo-deny").is_none() {
        println!("licences and advisories NOT checked: cargo-deny is not installed");
        return Ok(());
    }
    if !workspace.root.join("deny.toml").is_file() {
        println!("licences and advisories NOT checked: deny.toml is missing");
        return Ok(());
    }
    let deny = |words: &[&str]| {
        cmd::run(cmd::cargo().arg("deny").args(words).current_dir(&workspace.root))
    };
    deny(&["check", "licenses", "bans", "sources"])?;
    match deny(&["fetch", "db"]) {
        // Without network, CI fails and a developer gets a message.
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("advisories NOT checked: their database cannot be fetched: {error}");
            Ok(())
        }
        fetched => fetched.and_then(|()| deny(&["check", "advisories"])),
    }
}
