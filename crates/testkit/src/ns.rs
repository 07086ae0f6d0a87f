// SPDX-License-Identifier: Apache-2.0
//! A network namespace of the lab, for a pod or a node. `ip` creates, queries and removes it.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use serde_json::Value;

use crate::command::{Daemon, json, run, succeeds, try_run};
use crate::in_netns::is_inside;
use crate::wait::wait_for;

/// A network namespace: a named one that the test created, or that of the test itself.
#[derive(Debug)]
pub struct Ns {
    /// `None` for the namespace of the test.
    name: Option<String>,
}

impl Ns {
    /// Creates a named namespace with `lo` down, as runtimes do. Dropping the value removes the namespace.
    ///
    /// Call it only inside [`in_netns`](crate::in_netns()), where names cannot collide with those of the
    /// machine.
    #[track_caller]
    pub fn new(name: &str) -> Ns {
        assert!(is_inside(), "create lab namespaces inside testkit::in_netns");
        run("ip", &["netns", "add", name]);
        Ns { name: Some(name.to_owned()) }
    }

    /// Returns the namespace in which the test runs.
    pub fn here() -> Ns {
        Ns { name: None }
    }

    /// Returns the name for `ip netns`, which is empty for the namespace of the test.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns the path of the namespace, as in `CNI_NETNS`.
    pub fn path(&self) -> PathBuf {
        match &self.name {
            Some(name) => PathBuf::from(format!("/run/netns/{name}")),
            None => PathBuf::from(format!("/proc/{}/ns/net", process::id())),
        }
    }

    /// Runs `ip` in this namespace; panics if it fails.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &self.ip_args(args))
    }

    /// Runs `ip -d -j` in this namespace and drops the empty entries that `ip` prints.
    #[track_caller]
    pub fn ip_json(&self, args: &[&str]) -> Value {
        json("ip", &self.ip_args(&[&["-d", "-j"], args].concat()))
    }

    /// Runs a program in this namespace, with its `/sys`; panics with its stderr if it fails.
    #[track_caller]
    pub fn exec(&self, program: &str, args: &[&str]) -> String {
        let words = self.exec_words(program, args);
        run(words[0], &words[1..])
    }

    /// Like [`exec`](Ns::exec), for a program that may fail.
    pub fn try_exec(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let words = self.exec_words(program, args);
        try_run(words[0], &words[1..])
    }

    /// Starts a program in this namespace that runs until the value is dropped.
    #[track_caller]
    pub fn start(&self, program: &str, args: &[&str]) -> Daemon {
        let words = self.exec_words(program, args);
        Daemon::start(words[0], &words[1..])
    }

    /// Connects two namespaces by a veth pair and waits until both ends are up. The kernel handles a change
    /// of carrier asynchronously and drops packets that are sent before.
    #[track_caller]
    pub fn connect(&self, device: &str, other: &Ns, other_device: &str) {
        let target = other.path();
        let target = target.to_str().expect("a UTF-8 path");
        let peer = ["peer", "name", other_device, "netns", target];
        self.ip(&[&["link", "add", device, "type", "veth"], &peer[..]].concat());
        self.ip(&["link", "set", device, "up"]);
        other.ip(&["link", "set", other_device, "up"]);
        for (ns, device) in [(self, device), (other, other_device)] {
            let is_up = || ns.ip_json(&["link", "show", device])[0]["operstate"] == "UP";
            wait_for("operstate UP of both ends of a veth pair", Duration::from_secs(30), is_up);
        }
    }

    fn ip_args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let place: &[&str] = if self.name.is_some() { &["-n", self.name()] } else { &[] };
        [place, args].concat()
    }

    fn exec_words<'a>(&'a self, program: &'a str, args: &[&'a str]) -> Vec<&'a str> {
        let enter = ["ip", "netns", "exec", self.name()];
        let enter: &[&str] = if self.name.is_some() { &enter } else { &[] };
        [enter, &[program], args].concat()
    }
}

impl Drop for Ns {
    fn drop(&mut self) {
        // The test may have removed the namespace. A second panic would hide the first.
        if let Some(name) = &self.name {
            succeeds("ip", &["netns", "del", name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_namespace() {
        let pod = std::mem::ManuallyDrop::new(Ns { name: Some("pod".into()) });
        assert_eq!(pod.ip_args(&["addr"]), ["-n", "pod", "addr"]);
        assert_eq!(pod.exec_words("ping", &["::1"]), ["ip", "netns", "exec", "pod", "ping", "::1"]);
        assert_eq!(pod.path(), PathBuf::from("/run/netns/pod"));
        assert_eq!(Ns::here().ip_args(&["addr"]), ["addr"]);
        assert_eq!(Ns::here().exec_words("ping", &["::1"]), ["ping", "::1"]);
    }
}
