// SPDX-License-Identifier: Apache-2.0
//! A folder with plugins, a cache and a record of what was called; and one plugin as functions.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Error, Host, Interface, Plugin, Request, Version};
use serde_json::{Value, json};

/// A host that holds no plugins.
pub static NO_PLUGINS: Host =
    Host { plugins: &[], program: None, always_exec: false, builtin_fallback: false, locks: None };

pub struct Lab {
    pub folder: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        Lab { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A plugin that records its verb, its input and its environment, and then runs this script.
    /// `$lab` is the lab's folder, `$name` the plugin's name.
    pub fn plugin(&self, name: &str, script: &str) -> PathBuf {
        let lab = self.folder.path().display();
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

    /// A plugin that is this text.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path("bin").join(name);
        testkit::write_program(&file, text);
        file
    }

    /// What was called, in order; forgotten once asked.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// What a plugin was sent for a verb.
    pub fn sent(&self, plugin: &str, verb: &str) -> Value {
        let text = fs::read(self.path(&format!("{plugin}.{verb}"))).unwrap();
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

/// A list of plugins with nothing but their types.
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

/// Prints a result for ADD and succeeds with all else.
pub fn printing(result: &Value) -> String {
    format!("if [ $CNI_COMMAND = ADD ]; then echo '{result}'; fi")
}

/// Fails this verb with this code, and prints a result for ADD otherwise.
pub fn failing(verb: &str, code: u32, msg: &str) -> String {
    let error = json!({"cniVersion": "1.0.0", "code": code, "msg": msg});
    format!(
        "if [ $CNI_COMMAND = {verb} ]; then echo '{error}'; exit 1; fi\n{}",
        printing(&json!({"cniVersion": "1.0.0"}))
    )
}

/// Waits for something to become true, without sleeping.
pub fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Device and inode, by which a program knows itself.
pub fn identity(file: &Path) -> (u64, u64) {
    let meta = fs::metadata(file).unwrap();
    (meta.dev(), meta.ino())
}

/// A plugin as functions. Key `log` of its configuration is where it records its verbs, key `fail`
/// the verb that it fails.
pub static FUNCTION: Plugin = Plugin {
    name: "function",
    about: "records its verbs",
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
        true => Err(Error::internal(format!("{} is to fail", request.command))),
        false => Ok(()),
    }
}
