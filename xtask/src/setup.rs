// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask setup`: installs the programs that a command needs on a new Debian with only Rust. A
//! second run changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine::{self, Kernel};
use crate::workspace::Workspace;
use crate::{cmd, elf, go_plugins};

/// Programs that the tests run, and their Debian packages.
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
    // Parses the metrics with the Prometheus library.
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
    // Stores and their clients.
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("openssl", "openssl"),
    ("sqlite3", "sqlite3"),
    MUSL_GCC,
    // Container runtimes. Docker's own packages conflict with Debian's, but contain the last three
    // programs, so that nothing is installed then.
    ("podman", "podman"),
    ("conmon", "conmon"),
    (BUSYBOX, "busybox-static"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
];

/// SQLite and ring contain C code, and the shipped programs are built for musl.
const MUSL_GCC: (&str, &str) = ("musl-gcc", "musl-tools");

/// Requirements of a command besides Rust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Programs and their Debian packages.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// Whether the musl target of Rust is needed.
    pub(crate) target: bool,
    /// Cargo commands and the Rust components that contain them.
    pub(crate) components: &'static [(&'static str, &'static str)],
}

impl Needs {
    pub(crate) const NOTHING: Needs = Needs { programs: &[], target: false, components: &[] };

    /// For building with the shipped target.
    pub(crate) const BUILD: Needs = Needs { programs: &[MUSL_GCC], target: true, components: &[] };

    pub(crate) const CHECK: Needs =
        Needs { components: &[("fmt", "rustfmt"), ("clippy", "clippy")], ..Needs::BUILD };

    pub(crate) const BENCH: Needs = Needs {
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

    /// For the tests; [`run`] adds the programs of [`crate::machine`].
    pub(crate) const TEST: Needs = Needs { programs: PROGRAMS, ..Needs::CHECK };

    /// For unpacking and patching Debian sources.
    pub(crate) const SOURCES: Needs =
        Needs { programs: &[("dpkg-source", "dpkg-dev"), ("patch", "patch")], ..Needs::NOTHING };
}

/// A file, not a program: [`cmd::find`] also finds absolute paths.
const PROMETHEUS: &str = "/usr/lib/python3/dist-packages/prometheus_client/parser.py";

/// The only program in the containers of tests, so it must be static.
const BUSYBOX: &str = "busybox";

/// Services of these packages that systemd would start: a firewall, DHCP servers and a database. Tests
/// start their own instances.
const SERVICES: [(&str, &str); 4] = [
    ("etcd-server", "etcd.service"),
    ("firewalld", "firewalld.service"),
    ("kea-dhcp4-server", "kea-dhcp4-server.service"),
    ("kea-dhcp6-server", "kea-dhcp6-server.service"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Download the Go plugins and the kernel again
    #[arg(long)]
    pub(crate) refresh: bool,
}

/// Result of [`run`].
#[derive(Debug)]
pub(crate) struct Ready {
    /// Value for `CNI_PATH`.
    pub(crate) go_plugins: PathBuf,
    /// Kernel of the emulated machine, if this architecture supports it.
    pub(crate) kernel: Option<Kernel>,
}

/// Installs the requirements of a command, or fails with the command to install them.
pub(crate) fn ensure(workspace: &Workspace, needs: &Needs) -> Result<()> {
    install(&packages_of(needs.programs, is_missing))?;
    if needs.target {
        add_rust_target(&workspace.triple)?;
    }
    add_components(needs.components)
}

/// Downloads everything for the tests. Call [`ensure`] first.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<Ready> {
    let programs: &[_] = if machine::is_possible() { &machine::PROGRAMS } else { &[] };
    install(&packages_of(programs, is_missing))?;
    let plugins = go_plugins::ensure(&workspace.target_dir, args.refresh)?;
    println!("Go plugins for comparison: {} in {}", plugins.version, plugins.dir.display());
    let kernel = machine::is_possible()
        .then(|| Kernel::ensure(&workspace.target_dir, args.refresh))
        .transpose()?;
    Ok(Ready { go_plugins: plugins.dir, kernel })
}

/// Updates the package lists of apt, which may be missing or outdated.
pub(crate) fn update_lists() -> Result<()> {
    cmd::run(cmd::command("apt-get").args(["update", "-qq"]))
}

fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    if cmd::find("apt-get").is_none() {
        bail!("apt-get is missing; install the programs of these Debian packages: {names}");
    }
    if !std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        bail!("packages are missing; run as root: apt-get install {names}");
    }
    update_lists()?;
    mask_services(packages)?;
    let mut install = cmd::command("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
    cmd::run(&mut install).with_context(|| format!("install {names}"))
}

fn is_missing(program: &str) -> bool {
    match cmd::find(program) {
        Some(found) if program == BUSYBOX => {
            !std::fs::read(found).is_ok_and(|file| elf::is_static(&file).unwrap_or_default())
        }
        found => found.is_none(),
    }
}

fn mask_services(packages: &[&str]) -> Result<()> {
    let units = services_of(packages);
    if units.is_empty() || !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    println!("services masked before installation: {}", units.join(" "));
    cmd::run(cmd::command("systemctl").arg("mask").args(units))
}

fn services_of(packages: &[&str]) -> Vec<&'static str> {
    let matching = SERVICES.iter().filter(|(package, _)| packages.contains(package));
    matching.map(|(_, unit)| *unit).collect()
}

/// Packages of the missing programs, without duplicates.
fn packages_of(
    programs: &[(&'static str, &'static str)],
    is_missing: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let missing = programs.iter().filter(|(program, _)| is_missing(program));
    let mut packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Adds the musl target. rust-toolchain.toml names it for one architecture only, and some versions of
/// rustup do not add a target to an installed toolchain.
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
        let output = cmd::output(cmd::cargo().args([command, "--version"]));
        !output.is_ok_and(|output| output.status.success())
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
            "`rustup {shown}` is required, but rustup is missing: install it from https://rustup.rs"
        );
    }
    cmd::run(cmd::command("rustup").args(words))
        .with_context(|| format!("`rustup {shown}` is required"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(is_missing: impl Fn(&str) -> bool) -> Vec<&'static str> {
        packages_of(PROGRAMS, is_missing)
    }

    #[test]
    fn missing_programs_are_installed_once() {
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
    fn build_and_bench_install_the_compiler() {
        assert_eq!(packages_of(Needs::BUILD.programs, |_| true), ["musl-tools"]);
        let for_bench = packages_of(Needs::BENCH.programs, |_| true);
        assert!(
            ["musl-tools", "iproute2", "etcd-server"].iter().all(|one| for_bench.contains(one))
        );
        assert_eq!(services_of(&for_bench), ["etcd.service"]);
    }
}
