// SPDX-License-Identifier: Apache-2.0
//! Requirements of tests on the machine. No test is skipped silently: it either fails with the reason, or
//! is added to the list of tests not run, which `cargo xtask test` prints.

use std::env;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;

use crate::command::{succeeds, try_run};
use crate::in_netns::is_inside;
use crate::paths::target_dir;

/// A requirement that not every machine meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// A program in `PATH`, by name.
    Program(&'a str),
    /// A link type of `ip link add type` that the kernel supports.
    Link(&'a str),
    /// A file or directory, such as one below `/proc/sys`.
    File(&'a str),
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Program(name) => write!(f, "program {name}"),
            Need::Link(kind) => write!(f, "link type {kind}"),
            Need::File(path) => write!(f, "file {path}"),
        }
    }
}

/// Returns the reason why `need` is not met on this machine, or `None` if it is met.
#[track_caller]
pub fn missing(need: Need<'_>) -> Option<String> {
    match need {
        Need::Program(name) => find_program(name).is_none().then(|| {
            format!("{need} is not in PATH; `cargo xtask setup` installs the programs for tests")
        }),
        Need::Link(kind) => {
            missing_link(kind).map(|why| format!("the kernel has no {need}: {why}"))
        }
        Need::File(path) => (!Path::new(path).exists()).then(|| format!("{need} does not exist")),
    }
}

/// Fails the test, with the reason, if `need` is not met. See also [`require!`](crate::require!).
#[track_caller]
pub fn require(need: Need<'_>) {
    if let Some(reason) = missing(need) {
        panic!("this test cannot run here: {reason}");
    }
}

/// Fails the test, with the reason, unless the machine has all of these:
/// `require!(Program("nft"), Link("vxlan"))`.
#[macro_export]
macro_rules! require {
    ($($kind:ident($what:expr)),+ $(,)?) => {{
        $($crate::require($crate::Need::$kind($what));)+
    }};
}

/// Returns from the test (or from the body of `in_netns`) unless the machine has all of these, and adds the
/// test to the list of tests not run. Use it for requirements that no package can provide, such as a
/// kernel with wireguard: `not_run_unless!(Link("wireguard"))`.
#[macro_export]
macro_rules! not_run_unless {
    ($($kind:ident($what:expr)),+ $(,)?) => {
        $(if let Some(reason) = $crate::missing($crate::Need::$kind($what)) {
            $crate::not_run(&$crate::test_name(), &reason);
            return;
        })+
    };
}

/// Adds a test to the list of tests not run, which `cargo xtask test` prints at the end.
#[track_caller]
pub fn not_run(name: &str, reason: &str) {
    println!("not run: {name}: {reason}");
    append(&list(), &line(name, reason));
}

/// Like [`not_run`], for a test that needs programs which are built only on request. The emulated machine
/// does not have them either.
#[track_caller]
pub fn not_run_by_choice(name: &str, reason: &str) {
    println!("not run: {name}: {reason}");
    append(&list(), &line(name, reason).replace('\n', "\tby choice\n"));
}

#[track_caller]
fn list() -> PathBuf {
    env::var_os("PODWIRE_NOT_RUN").map_or_else(|| target_dir().join("not-run.txt"), PathBuf::from)
}

/// Returns the name of the running test, which is the name of its thread.
#[track_caller]
pub fn test_name() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => panic!("testkit was called outside the test's own thread"),
    }
}

fn line(name: &str, reason: &str) -> String {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{name}\t{reason}\n")
}

/// Appends with a single write, so that lines of several processes do not mix.
#[track_caller]
fn append(list: &Path, line: &str) {
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(list)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(cause) = written {
        panic!("cannot add to {}: {cause}", list.display());
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Tries to create a link. The message of `ip` shows whether the type is unknown or only a parameter is
/// missing, such as the parent of a vlan.
#[track_caller]
fn missing_link(kind: &str) -> Option<String> {
    assert!(is_inside(), "call this inside testkit::in_netns: it creates a link");
    let probe = "probe0";
    match try_run("ip", &["link", "add", probe, "type", kind]) {
        Ok(_) => {
            succeeds("ip", &["link", "del", probe]);
            None
        }
        Err(why) if why.contains("Unknown device type") || why.contains("not supported") => {
            why.trim().lines().last().map(str::to_owned)
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_needs_have_a_reason() {
        assert_eq!(missing(Need::Program("sh")), None);
        assert_eq!(missing(Need::File("/proc/self")), None);
        let why = missing(Need::Program("no-such-program")).unwrap();
        assert!(why.contains("no-such-program") && why.contains("cargo xtask setup"), "{why}");
        let why = missing(Need::File("/no/such/file")).unwrap();
        assert!(why.contains("/no/such/file"), "{why}");
    }

    #[test]
    fn reason_is_listed_on_one_line() {
        assert_eq!(line("a::b", "no\n  such thing\n"), "a::b\tno such thing\n");
    }
}
