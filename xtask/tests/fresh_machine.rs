// SPDX-License-Identifier: Apache-2.0
//! A new machine with Rust, but without the musl target and its C compiler: commands install both before
//! they build, or say in one line what to install. `cargo` and the installers are scripts that log their
//! arguments, so that no test changes this machine.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory of scripts that is the only one in `PATH`.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        let dir = machine.0.path().display();
        let metadata =
            format!(r#"{{"workspace_root": "{dir}", "target_directory": "{dir}/target"}}"#);
        let cargo = format!("case $1 in metadata) echo '{metadata}' ;; *) exit 1 ;; esac");
        machine.script("cargo", &cargo);
        // rustc also prints the directory of a target that is not installed.
        machine.script("rustc", &format!("echo {dir}/no-target"));
        machine
    }

    fn with_installers(self) -> Machine {
        self.script("apt-get", "");
        self.script("rustup", "");
        self
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.0.path().join(name);
        let log = self.0.path().join("log");
        let text = format!("#!/bin/sh\necho {name} \"$@\" >>{}\n{body}\n", log.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "tests start the program")]
    fn run(&self, command: &str) -> Output {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        xtask.arg(command).env("PATH", self.0.path()).env("CARGO", self.0.path().join("cargo"));
        xtask.output().unwrap()
    }

    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join("log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// xtask also searches the system's directories of programs for administrators.
fn has_compiler_elsewhere() -> bool {
    ["/usr/local/sbin", "/usr/sbin", "/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join("musl-gcc").exists())
}

#[test]
fn command_installs_missing_compiler_before_it_builds() {
    assert!(
        is_root() && !has_compiler_elsewhere(),
        "the tests run as root on a Debian-like machine"
    );
    let target = format!("rustup target add {ARCH}-unknown-linux-musl");
    for (command, first_use) in [("build", "cargo build"), ("check", "cargo tree")] {
        let machine = Machine::new().with_installers();
        let output = machine.run(command);
        let log = machine.log();
        let position = |start: &str| {
            let found = log.iter().position(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("{command}: no {start:?}: {log:#?}\n{output:?}"))
        };
        let install = position("apt-get install");
        assert!(log[install].split(' ').any(|word| word == "musl-tools"), "{}", log[install]);
        assert!(position("apt-get update") < install, "{log:#?}");
        let used = position(first_use);
        assert!(install < used && position(&target) < used, "{log:#?}");
    }
}

#[test]
fn command_without_installers_names_what_to_install() {
    let error = |machine: &Machine| {
        let output = machine.run("build");
        assert!(!output.status.success());
        assert!(machine.log().iter().all(|line| !line.starts_with("cargo build")));
        String::from_utf8(output.stderr).unwrap()
    };
    let nothing = Machine::new();
    let expected =
        "error: apt-get is missing; install the programs of these Debian packages: musl-tools\n";
    assert_eq!(error(&nothing), expected);
    let compiler = Machine::new();
    compiler.script("musl-gcc", "");
    let expected = format!(
        "error: `rustup target add {ARCH}-unknown-linux-musl` is required, but rustup is missing: \
         install it from https://rustup.rs\n"
    );
    assert_eq!(error(&compiler), expected);
}
