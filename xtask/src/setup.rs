// SPDX-License-Identifier: Apache-2.0
//! Installs what a fresh Debian with only Rust lacks, for each command. A second run finds everything in
//! place and does nothing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine::{self, Kernel};
use crate::workspace::Workspace;
use crate::{cmd, elf, go_plugins};

/// Programs the tests start, and the Debian packages that have them.
const PROGRAMS: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("ss", "iproute2"),
    ("ping", "iputils-ping"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("wg", "wireguard-tools"),
    ("firewalld", "firewalld"),
    ("dbus-daemon", "dbus-daemon"),
    ("socat", "socat"),
    ("curl", "curl"),
    // What Prometheus' own library makes of our metrics.
    (PROMETHEUS, "python3-prometheus-client"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
    ("strace", "strace"),
    ("dnsmasq", "dnsmasq-base"),
    ("kea-dhcp4", "kea-dhcp4-server"),
    ("kea-dhcp6", "kea-dhcp6-server"),
    ("sysctl", "procps"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("timeout", "coreutils"),
    // Stores, and what looks at them from outside.
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("openssl", "openssl"),
    ("sqlite3", "sqlite3"),
    MUSL_GCC,
    // Runtimes. Where docker's own packages are, which cannot stand next to Debian's, they have the
    // last three of these, and nothing is installed.
    ("podman", "podman"),
    ("conmon", "conmon"),
    (BUSYBOX, "busybox-static"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
];

/// SQLite and ring are C in part, and what we ship is for musl.
const MUSL_GCC: (&str, &str) = ("musl-gcc", "musl-tools");

/// What a command needs besides Rust for this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Programs, and the Debian packages that have them.
    pub programs: &'static [(&'static str, &'static str)],
    /// The Rust target that we ship for.
    pub target: bool,
    /// Components of the Rust toolchain, by the cargo command that each has.
    pub components: &'static [(&'static str, &'static str)],
}

impl Needs {
    pub const NOTHING: Needs = Needs { programs: &[], target: false, components: &[] };

    /// To build for the target that we ship for.
    pub const BUILD: Needs = Needs { programs: &[MUSL_GCC], target: true, components: &[] };

    pub const CHECK: Needs =
        Needs { components: &[("fmt", "rustfmt"), ("clippy", "clippy")], ..Needs::BUILD };

    pub const BENCH: Needs = Needs {
        programs: &[
            MUSL_GCC,
            ("ip", "iproute2"),
            ("tc", "iproute2"),
            ("ping", "iputils-ping"),
            ("nft", "nftables"),
            ("etcd", "etcd-server"),
            ("unshare", "util-linux"),
            ("mount", "mount"),
            ("timeout", "coreutils"),
        ],
        ..Needs::BUILD
    };

    /// Whatever a test starts; the machine of [`crate::machine`] comes on top.
    pub const TEST: Needs = Needs { programs: PROGRAMS, ..Needs::CHECK };

    /// To unpack and patch sources of Debian.
    pub const SOURCES: Needs =
        Needs { programs: &[("dpkg-source", "dpkg-dev"), ("patch", "patch")], ..Needs::NOTHING };
}

/// No program: a whole path is found as it is.
const PROMETHEUS: &str = "/usr/lib/python3/dist-packages/prometheus_client/parser.py";

/// All that the containers of tests have, so it must be static.
const BUSYBOX: &str = "busybox";

/// Services that come with these packages and would be started where systemd runs: a firewall, DHCP
/// servers and a database on the machine of somebody who only wants to run tests, which start their own.
const SERVICES: [(&str, &str); 4] = [
    ("etcd-server", "etcd.service"),
    ("firewalld", "firewalld.service"),
    ("kea-dhcp4-server", "kea-dhcp4-server.service"),
    ("kea-dhcp6-server", "kea-dhcp6-server.service"),
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Fetch the Go plugins and the kernel again, though they are there
    #[arg(long)]
    pub refresh: bool,
}

/// What is there afterwards.
#[derive(Debug)]
pub struct Ready {
    /// To be used as `CNI_PATH`.
    pub go_plugins: PathBuf,
    /// For the emulated machine, where one is possible.
    pub kernel: Option<Kernel>,
}

/// Installs what a command needs, or says in one line what to install.
pub fn ensure(workspace: &Workspace, needs: &Needs) -> Result<()> {
    install(&packages_of(needs.programs, is_missing))?;
    if needs.target {
        add_rust_target(&workspace.triple)?;
    }
    add_components(needs.components)
}

/// Makes the machine ready for the tests; [`ensure`] comes first.
pub fn run(workspace: &Workspace, args: &Args) -> Result<Ready> {
    let of_machine: &[_] = if machine::is_possible() { &machine::PROGRAMS } else { &[] };
    install(&packages_of(of_machine, is_missing))?;
    let plugins = go_plugins::ensure(&workspace.target_dir, args.refresh)?;
    println!("Go plugins to compare with: {} in {}", plugins.version, plugins.dir.display());
    let kernel = machine::is_possible()
        .then(|| Kernel::ensure(&workspace.target_dir, args.refresh))
        .transpose()?;
    Ok(Ready { go_plugins: plugins.dir, kernel })
}

/// Refreshes apt's lists; they are absent on a fresh machine and soon out of date.
pub fn update_lists() -> Result<()> {
    cmd::run(cmd::command("apt-get").args(["update", "-qq"]))
}

fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let words = packages.join(" ");
    if cmd::find("apt-get").is_none() {
        bail!("this needs programs of these Debian packages, and there is no apt-get: {words}");
    }
    if !std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        bail!("this needs packages; run as root: apt-get install {words}");
    }
    update_lists()?;
    keep_services_down(packages)?;
    let mut install = cmd::command("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
    cmd::run(&mut install).with_context(|| format!("install {words}"))
}

fn is_missing(program: &str) -> bool {
    match cmd::find(program) {
        Some(found) if program == BUSYBOX => {
            !std::fs::read(found).is_ok_and(|file| elf::is_static(&file).unwrap_or_default())
        }
        found => found.is_none(),
    }
}

fn keep_services_down(packages: &[&str]) -> Result<()> {
    let units = services_of(packages);
    if units.is_empty() || !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    println!("masked, so that installing does not start them: {}", units.join(" "));
    cmd::run(cmd::command("systemctl").arg("mask").args(units))
}

fn services_of(packages: &[&str]) -> Vec<&'static str> {
    let of_these = SERVICES.iter().filter(|(package, _)| packages.contains(package));
    of_these.map(|(_, unit)| *unit).collect()
}

/// Packages of the programs that are missing, each once.
fn packages_of(
    programs: &[(&'static str, &'static str)],
    is_missing: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let missing = programs.iter().filter(|(program, _)| is_missing(program));
    let mut packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// rust-toolchain.toml names one architecture; this serves the others, and rustups that do
/// not add a target to a toolchain already installed.
fn add_rust_target(triple: &str) -> Result<()> {
    let mut ask = cmd::command("rustc");
    let dir = cmd::read(ask.args(["--print", "target-libdir", "--target", triple]))?;
    if Path::new(dir.trim()).is_dir() {
        return Ok(());
    }
    rustup(&["target", "add", triple])
}

fn add_components(components: &[(&str, &str)]) -> Result<()> {
    let is_missing = |command: &str| {
        let said = cmd::output(cmd::cargo().args([command, "--version"]));
        !said.is_ok_and(|said| said.status.success())
    };
    let missing = components.iter().filter(|(command, _)| is_missing(command));
    let missing: Vec<&str> = missing.map(|(_, component)| *component).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => rustup(&[&["component", "add"], &missing[..]].concat()),
    }
}

fn rustup(words: &[&str]) -> Result<()> {
    let shown = words.join(" ");
    if cmd::find("rustup").is_none() {
        bail!(
            "this needs `rustup {shown}`, and there is no rustup: get Rust from https://rustup.rs"
        );
    }
    cmd::run(cmd::command("rustup").args(words))
        .with_context(|| format!("this needs `rustup {shown}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(is_missing: impl Fn(&str) -> bool) -> Vec<&'static str> {
        packages_of(PROGRAMS, is_missing)
    }

    #[test]
    fn only_missing_programs_are_installed_once() {
        assert_eq!(missing(|_| false), Vec::<&str>::new());
        assert_eq!(missing(|program| program == "nft"), ["nftables"]);
        let both = missing(|program| ["ip", "tc", "strace"].contains(&program));
        assert_eq!(both, ["iproute2", "strace"]);
        let dockers = ["containerd", "ctr", "runc"];
        let runtimes = missing(|program| program == "podman" || dockers.contains(&program));
        assert_eq!(runtimes, ["podman", "containerd", "runc"]);
        let firewalld = missing(|program| ["firewalld", "nft"].contains(&program));
        assert_eq!(firewalld, ["nftables", "firewalld"]);
        assert_eq!(services_of(&firewalld), ["firewalld.service"]);
    }

    #[test]
    fn a_build_installs_its_compiler() {
        assert_eq!(packages_of(Needs::BUILD.programs, |_| true), ["musl-tools"]);
        let of_bench = packages_of(Needs::BENCH.programs, |_| true);
        assert!(["musl-tools", "iproute2", "etcd-server"].iter().all(|one| of_bench.contains(one)));
        assert_eq!(services_of(&of_bench), ["etcd.service"]);
    }
}
