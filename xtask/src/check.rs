// SPDX-License-Identifier: Apache-2.0
//! Everything that can be found wrong without running a test.

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{cmd, invariants};

/// The whole of `cargo xtask check`.
pub fn all(workspace: &Workspace) -> Result<()> {
    quick(workspace)?;
    documentation(workspace)?;
    dependencies(workspace)?;
    invariants::of_plugin_program(&workspace.build_plugin_program()?)
}

/// What also precedes the tests: cheap, and finds most.
pub fn quick(workspace: &Workspace) -> Result<()> {
    invariants::of_sources(workspace)?;
    let root = &workspace.root;
    cmd::run(cmd::cargo().args(["fmt", "--all", "--check"]).current_dir(root))?;
    let mut clippy = cmd::cargo();
    // For the target we ship: types of the C library differ between musl and glibc.
    clippy.args(["clippy", "--workspace", "--all-targets", "--target", &workspace.triple]);
    // What only `bench` builds.
    clippy.args(["--features", "xtask/floor"]);
    cmd::run(clippy.args(["--", "-D", "warnings"]).current_dir(root))
}

fn documentation(workspace: &Workspace) -> Result<()> {
    let mut doc = cmd::cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--target", &workspace.triple]);
    cmd::run(doc.env("RUSTDOCFLAGS", "-D warnings").current_dir(&workspace.root))
}

/// Licences and advisories.
fn dependencies(workspace: &Workspace) -> Result<()> {
    if cmd::find("cargo-deny").is_none() {
        println!("licences and advisories were NOT checked: cargo-deny is not installed");
        return Ok(());
    }
    if !workspace.root.join("deny.toml").is_file() {
        println!("licences and advisories were NOT checked: there is no deny.toml");
        return Ok(());
    }
    let deny = |words: &[&str]| {
        cmd::run(cmd::cargo().arg("deny").args(words).current_dir(&workspace.root))
    };
    deny(&["check", "licenses", "bans", "sources"])?;
    match deny(&["fetch", "db"]) {
        // Where changes are judged an unknown is a failure; at a desk without network it is not.
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("advisories were NOT checked, as their database cannot be fetched: {error}");
            Ok(())
        }
        fetched => fetched.and_then(|()| deny(&["check", "advisories"])),
    }
}
