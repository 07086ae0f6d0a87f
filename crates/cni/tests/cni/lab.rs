// SPDX-License-Identifier: Apache-2.0
//! A directory with plugin scripts, a cache and a log of calls; and a built-in plugin.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Error, Host, Interface, Plugin, Request, Version};
use serde_json::{Value, json};

/// A host without built-in plugins.
pub static NO_PLUGINS: Host =
    Host { plugins: &[], program: None, always_exec: false, builtin_fallback: false, locks: None };

pub struct Lab {
    pub dir: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Lab {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        Lab { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates a plugin that records its command, input and environment, and then runs this script. `$lab` is the
    /// lab's directory, `$name` the plugin's name.
    pub fn plugin(&self, name: &str, script: &str) -> PathBuf {
        let lab = self.dir.path().display();
        self.program(
            name,
            &format!(
                "#!/bin/sh\nlab='{lab}' name='{name}'\n\
                 echo \"$CNI_COMMAND $name\" >> $lab/calls\n\
                 cat > $lab/$name.$CNI_COMMAND\n\
                 env | grep ^CNI_ | sort > $lab/$name.$CNI_COMMAND.env\n{script}\n"
            ),
        )
    }

    /// Creates a plugin with this content.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path("bin").join(name);
        testkit::write_program(&file, text);
        file
    }

    /// Returns and clears the log of calls.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// Returns the input of a plugin for a command.
    pub fn sent(&self, plugin: &str, command: &str) -> Value {
        let text = fs::read(self.path(&format!("{plugin}.{command}"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn runtime(&self) -> Runtime<'static> {
        self.runtime_with(&NO_PLUGINS)
    }

    pub fn runtime_with<'h>(&self, host: &'h Host) -> Runtime<'h> {
        let path = self.path("bin").display().to_string();
        Runtime { cache_dir: self.path("cache"), ..Runtime::new(host, path) }
    }
}

/// Creates a list of plugins that have only a type.
pub fn list(version: &str, kinds: &[&str]) -> NetworkList {
    let plugins: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    list_of(&json!({"cniVersion": version, "name": "net", "plugins": plugins}))
}

pub fn list_of(value: &Value) -> NetworkList {
    NetworkList::parse(value.to_string().as_bytes(), None).unwrap()
}

pub fn container() -> Container {
    Container {
        id: "c1".into(),
        netns: "/run/netns/c1".into(),
        ifname: "eth0".into(),
        ..Container::default()
    }
}

/// Script that prints a result for ADD and succeeds for all other commands.
pub fn printing(result: &Value) -> String {
    format!("if [ $CNI_COMMAND = ADD ]; then echo '{result}'; fi")
}

/// Script that fails this command with this code. Otherwise it prints a result for ADD.
pub fn failing(command: &str, code: u32, msg: &str) -> String {
    let error = json!({"cniVersion": "1.0.0", "code": code, "msg": msg});
    format!(
        "if [ $CNI_COMMAND = {command} ]; then echo '{error}'; exit 1; fi\n{}",
        printing(&json!({"cniVersion": "1.0.0"}))
    )
}

/// Waits for a condition without sleeping.
pub fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Returns device and inode of a file, see [`Host::program`].
pub fn identity(file: &Path) -> (u64, u64) {
    let meta = fs::metadata(file).unwrap();
    (meta.dev(), meta.ino())
}

/// A built-in plugin that logs its commands to the file in key `log` of its configuration and fails the command in key
/// `fail`.
pub static FUNCTION: Plugin = Plugin {
    name: "function",
    about: "logs its commands",
    versions: Version::ALL,
    add: |request| {
        record(request)?;
        let mut result = request.prev_result()?.unwrap_or_default();
        let name = "from-function".to_owned();
        result.interfaces.push(Interface { name, ..Interface::default() });
        if let Some(address) = request.config.get("address") {
            let ips = json!({"ips": [{"address": address}]});
            result.ips = CniResult::parse(ips, Version::LATEST)?.ips;
        }
        Ok(result)
    },
    del: record,
    check: record,
    status: record,
    gc: record,
};

fn record(request: &Request) -> Result<(), Error> {
    if let Some(log) = request.config.get("log").and_then(Value::as_str) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        writeln!(file, "{} function", request.command).unwrap();
    }
    match request.config.get("fail") == Some(&json!(request.command.as_str())) {
        true => Err(Error::internal(format!("{} fails as configured", request.command))),
        false => Ok(()),
    }
}
