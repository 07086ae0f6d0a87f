// SPDX-License-Identifier: Apache-2.0
//! Paths of the programs that `cargo xtask` built or installed for the tests, such as the Go plugins. Only
//! this module reads them from the environment.

use std::env;
use std::path::{Path, PathBuf};

use crate::need::{not_run_by_choice, test_name};

/// Debian suites in order of preference, as `cargo xtask setup` names their directories.
const SUITES: [&str; 2] = ["sid", "stable"];

/// Returns the directory of the Go plugins, for `CNI_PATH`.
#[track_caller]
pub fn go_plugins() -> PathBuf {
    let given = env::var_os("PODWIRE_GO_PLUGINS").map(PathBuf::from);
    let candidates: Vec<PathBuf> = match given {
        Some(dir) => vec![dir],
        None => targets().iter().flat_map(|target| go_plugins_below(target)).collect(),
    };
    match candidates.iter().find(|dir| dir.join("bridge").is_file()) {
        Some(dir) => dir.clone(),
        None => panic!("no Go plugins in {candidates:?}: run `cargo xtask test` (or `setup`)"),
    }
}

/// Returns the plugin program to test: the shipped one if `cargo xtask test` has built it, otherwise the
/// one that cargo built with the test: `plugin_program(env!("CARGO_BIN_EXE_podwire-cni"))`.
#[track_caller]
pub fn plugin_program(built: &str) -> PathBuf {
    let program = env::var_os("PODWIRE_CNI_BIN").map_or_else(|| built.into(), PathBuf::from);
    assert!(program.is_file(), "no program {}: run `cargo xtask test`", program.display());
    program
}

/// Returns the directory of `kube-apiserver` and `kubectl`. If they were not built, adds the test to the
/// list of tests not run and returns `None`.
#[track_caller]
pub fn kubernetes() -> Option<PathBuf> {
    let given = env::var_os("PODWIRE_KUBERNETES").map(PathBuf::from);
    let below = targets().into_iter().map(|target| target.join("kubernetes/bin"));
    let dir = given.into_iter().chain(below).find(|dir| dir.join("VERSION").is_file());
    if dir.is_none() {
        let reason = "there is no Kubernetes API server; `cargo xtask kubernetes` builds one";
        not_run_by_choice(&test_name(), reason);
    }
    dir
}

/// Returns cargo's target directory in which the running test was built.
#[track_caller]
pub fn target_dir() -> PathBuf {
    match targets().into_iter().next() {
        Some(dir) => dir,
        None => panic!("the test program is not in a target directory of cargo"),
    }
}

/// Returns the target directory of this program, then the default one of the workspace. They differ if
/// `CARGO_TARGET_DIR` is set.
fn targets() -> Vec<PathBuf> {
    let program = env::current_exe().ok();
    // Cargo writes this file only at the top of a target directory.
    let own = program.as_deref().and_then(|path| ancestor_with(path, ".rustc_info.json"));
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let default = package
        .as_deref()
        .and_then(|path| ancestor_with(path, "Cargo.lock"))
        .map(|workspace| workspace.join("target"));
    own.into_iter().chain(default).collect()
}

fn ancestor_with(path: &Path, marker: &str) -> Option<PathBuf> {
    path.ancestors().find(|dir| dir.join(marker).is_file()).map(Path::to_path_buf)
}

fn go_plugins_below(target: &Path) -> Vec<PathBuf> {
    SUITES.iter().map(|suite| target.join("go-plugins").join(suite).join("usr/lib/cni")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_dir_contains_this_program() {
        let program = env::current_exe().unwrap();
        assert!(program.starts_with(target_dir()), "{}", target_dir().display());
    }

    #[test]
    fn newest_suite_comes_first() {
        let dirs = go_plugins_below(Path::new("/t"));
        assert_eq!(dirs[0], Path::new("/t/go-plugins/sid/usr/lib/cni"));
        assert_eq!(dirs[1], Path::new("/t/go-plugins/stable/usr/lib/cni"));
    }
}
