// SPDX-License-Identifier: Apache-2.0
//! Starts the program, and helpers for the tests of all commands.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Ns, run, try_run};

pub const PODWIRE: &str = env!("CARGO_BIN_EXE_podwire");

/// Returns what the program printed; panics if it failed.
#[track_caller]
pub fn ok(args: &[&str]) -> String {
    match try_run(PODWIRE, args) {
        Ok(printed) => printed,
        Err(why) => panic!("{why}"),
    }
}

/// Returns the JSON that the program printed; panics if it failed.
#[track_caller]
pub fn ok_json(args: &[&str]) -> Value {
    let printed = ok(&[args, &["-o", "json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|cause| panic!("{cause}: {printed}"))
}

/// Returns both outputs of a failed program; panics unless the exit status is 1.
#[track_caller]
pub fn fails(args: &[&str]) -> String {
    match try_run(PODWIRE, args) {
        Ok(printed) => panic!("{args:?} succeeded: {printed}"),
        Err(why) => {
            assert!(why.contains("exit status: 1\n"), "{why}");
            why
        }
    }
}

/// Returns both outputs for a wrong command line; panics unless the exit status is 2.
#[track_caller]
pub fn usage_error(args: &[&str]) -> String {
    let why = try_run(PODWIRE, args).expect_err("exit status 2");
    assert!(why.contains("exit status: 2\n"), "{why}");
    why
}

/// Returns the error that the program printed as JSON; panics if it did not fail.
#[track_caller]
pub fn fails_json(args: &[&str]) -> Value {
    let script = "\"$0\" -o json \"$@\" 2>/dev/null; test $? = 1";
    let printed = run("sh", &[&["-c", script, PODWIRE], args].concat());
    serde_json::from_str(&printed).unwrap_or_else(|cause| panic!("{cause}: {printed}"))
}

/// Returns standard error of the program; panics if it failed.
#[track_caller]
pub fn warnings(args: &[&str]) -> String {
    run("sh", &[&["-c", "exec \"$0\" \"$@\" 2>&1 >/dev/null", PODWIRE], args].concat())
}

/// A configuration directory and a directory for addresses; removed when dropped.
pub struct Conf {
    dir: TempDir,
}

impl Conf {
    pub fn new() -> Conf {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("net.d")).unwrap();
        Conf { dir }
    }

    /// Adds a bridge network with this name and subnet.
    pub fn with_bridge(name: &str, subnet: &str) -> Conf {
        let conf = Conf::new();
        let bridge = bridge(name, subnet, &conf.addresses());
        conf.write("10-bridge.conflist", &list(name, &[bridge]).to_string());
        conf
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.net_d().join(file), text).unwrap();
    }

    pub fn net_d(&self) -> PathBuf {
        self.dir.path().join("net.d")
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The option `--conf-dir`.
    pub fn flag(&self) -> String {
        format!("--conf-dir={}", self.net_d().display())
    }

    pub fn addresses(&self) -> PathBuf {
        self.dir.path().join("addresses")
    }

    /// Reserved addresses, read from the files of host-local.
    pub fn reserved(&self, network: &str) -> Vec<String> {
        let names = names(&self.addresses().join(network)).into_iter();
        names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
    }
}

pub fn bridge(name: &str, subnet: &str, addresses: &Path) -> Value {
    json!({
        "type": "bridge", "bridge": format!("{name}0"), "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": addresses,
            "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

pub fn list(name: &str, plugins: &[Value]) -> Value {
    json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins})
}

/// Sorted names in a directory; empty if it does not exist.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> =
        entries.map(name).map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Addresses of one family on an interface, read with `ip`.
pub fn addresses(ns: &Ns, device: &str, family: &str) -> Vec<String> {
    let shown = ns.ip_json(&[family, "addr", "show", "dev", device, "scope", "global"]);
    let infos = shown[0]["addr_info"].as_array().cloned().unwrap_or_default();
    infos.iter().map(|info| info["local"].as_str().unwrap().to_owned()).collect()
}

/// Links of the test's namespace except loopback.
pub fn links() -> Vec<String> {
    let shown = Ns::here().ip_json(&["link"]);
    let names = shown.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap());
    names.filter(|name| *name != "lo").map(str::to_owned).collect()
}
