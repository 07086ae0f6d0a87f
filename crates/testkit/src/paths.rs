// SPDX-License-Identifier: Apache-2.0
//! Where `cargo xtask` has put things for the tests: the programs to test, the Go plugins to
//! compare with. The environment is read here and in no test.

use std::env;
use std::path::{Path, PathBuf};

use crate::need::{not_run_by_choice, test_name};

/// Suites in the order of preference, as `cargo xtask setup` names their directories.
const SUITES: [&str; 2] = ["sid", "stable"];

/// The directory of the Go plugins, to be used as `CNI_PATH`.
#[track_caller]
pub fn go_plugins() -> PathBuf {
    let given = env::var_os("PODWIRE_GO_PLUGINS").map(PathBuf::from);
    let looked_for: Vec<PathBuf> = match given {
        Some(dir) => vec![dir],
        None => targets().iter().flat_map(|target| go_plugins_below(target)).collect(),
    };
    match looked_for.iter().find(|dir| dir.join("bridge").is_file()) {
        Some(dir) => dir.clone(),
        None => panic!("no Go plugins in {looked_for:?}: run `cargo xtask test` (or `setup`)"),
    }
}

/// The plugin program to test: the shipped one when `cargo xtask test` has built it, else the
/// one cargo built with the test: `plugin_program(env!("CARGO_BIN_EXE_podwire-cni"))`.
#[track_caller]
pub fn plugin_program(built: &str) -> PathBuf {
    let program = env::var_os("PODWIRE_CNI_BIN").map_or_else(|| built.into(), PathBuf::from);
    assert!(program.is_file(), "no program {}: run `cargo xtask test`", program.display());
    program
}

/// The directory of `kube-apiserver` and `kubectl`. `None`, and the test is on the list of
/// tests not run, where nobody has built them.
#[track_caller]
pub fn kubernetes() -> Option<PathBuf> {
    let given = env::var_os("PODWIRE_KUBERNETES").map(PathBuf::from);
    let below = targets().into_iter().map(|target| target.join("kubernetes/bin"));
    let found = given.into_iter().chain(below).find(|dir| dir.join("VERSION").is_file());
    if found.is_none() {
        let reason = "there is no API server of Kubernetes; `cargo xtask kubernetes` builds one";
        not_run_by_choice(&test_name(), reason);
    }
    found
}

/// Cargo's target directory, that the running test was built in.
#[track_caller]
pub fn target_dir() -> PathBuf {
    match targets().into_iter().next() {
        Some(dir) => dir,
        None => panic!("the test's program lies in no target directory of cargo"),
    }
}

/// The target directory of this program, then the workspace's usual one, which is another
/// where `CARGO_TARGET_DIR` is set.
fn targets() -> Vec<PathBuf> {
    let program = env::current_exe().ok();
    // Cargo writes this file at the top of a target directory and nowhere else.
    let own = program.as_deref().and_then(|path| above(path, ".rustc_info.json"));
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let usual = package
        .as_deref()
        .and_then(|path| above(path, "Cargo.lock"))
        .map(|workspace| workspace.join("target"));
    own.into_iter().chain(usual).collect()
}

fn above(path: &Path, marker: &str) -> Option<PathBuf> {
    path.ancestors().find(|dir| dir.join(marker).is_file()).map(Path::to_path_buf)
}

fn go_plugins_below(target: &Path) -> Vec<PathBuf> {
    SUITES.iter().map(|suite| target.join("go-plugins").join(suite).join("usr/lib/cni")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_dir_holds_this_program() {
        let program = env::current_exe().unwrap();
        assert!(program.starts_with(target_dir()), "{}", target_dir().display());
    }

    #[test]
    fn newest_suite_comes_first() {
        let found = go_plugins_below(Path::new("/t"));
        assert_eq!(found[0], Path::new("/t/go-plugins/sid/usr/lib/cni"));
        assert_eq!(found[1], Path::new("/t/go-plugins/stable/usr/lib/cni"));
    }
}
