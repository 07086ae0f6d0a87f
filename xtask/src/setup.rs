// SPDX-License-Identifier: Apache-2.0
//! What a fresh Debian with only Rust lacks for the tests. A second run finds everything in
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
    // SQLite and ring are C in part, and what we ship is for musl.
    ("musl-gcc", "musl-tools"),
    // Runtimes. Where docker's own packages are, which cannot stand next to Debian's, they have the
    // last three of these, and nothing is installed.
    ("podman", "podman"),
    ("conmon", "conmon"),
    (BUSYBOX, "busybox-static"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
];

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

/// Makes the machine ready.
pub fn run(workspace: &Workspace, args: &Args) -> Result<Ready> {
    install_missing()?;
    add_rust_target(&workspace.triple)?;
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

fn install_missing() -> Result<()> {
    install(&packages_of(is_missing))
}

/// Installs those of these programs that are missing, out of the packages that have them.
pub fn ensure_programs(programs: &[(&str, &'static str)]) -> Result<()> {
    let missing = programs.iter().filter(|(program, _)| is_missing(program));
    install(&missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let words = packages.join(" ");
    if cmd::find("apt-get").is_none() {
        bail!("the tests need these programs, and there is no apt-get to get them: {words}");
    }
    if !std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        bail!("the tests need packages; as root: apt-get install {words}");
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
fn packages_of(is_missing: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let of_machine = machine::PROGRAMS.iter().filter(|_| machine::is_possible());
    let missing = PROGRAMS.iter().chain(of_machine).filter(|(program, _)| is_missing(program));
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
    cmd::run(cmd::command("rustup").args(["target", "add", triple]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_programs_are_installed_once() {
        assert_eq!(packages_of(|_| false), Vec::<&str>::new());
        assert_eq!(packages_of(|program| program == "nft"), ["nftables"]);
        let both = packages_of(|program| ["ip", "tc", "strace"].contains(&program));
        assert_eq!(both, ["iproute2", "strace"]);
        let dockers = ["containerd", "ctr", "runc"];
        let runtimes = packages_of(|program| program == "podman" || dockers.contains(&program));
        assert_eq!(runtimes, ["podman", "containerd", "runc"]);
        let firewalld = packages_of(|program| ["firewalld", "nft"].contains(&program));
        assert_eq!(firewalld, ["nftables", "firewalld"]);
        assert_eq!(services_of(&firewalld), ["firewalld.service"]);
    }
}
