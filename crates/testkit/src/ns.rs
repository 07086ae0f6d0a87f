// SPDX-License-Identifier: Apache-2.0
//! A network namespace of the lab: a pod or a node, made, asked and removed with `ip`.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use serde_json::Value;

use crate::command::{Daemon, json, run, succeeds, try_run};
use crate::in_netns::is_inside;
use crate::wait::wait_for;

/// A network namespace: a named one of our making, or the one the test itself runs in.
#[derive(Debug)]
pub struct Ns {
    /// `None` for the test's own.
    name: Option<String>,
}

impl Ns {
    /// Makes a named namespace with `lo` down, as runtimes do. Removed when dropped.
    ///
    /// Only inside [`in_netns`](crate::in_netns()), where names cannot meet those of the machine.
    #[track_caller]
    pub fn new(name: &str) -> Ns {
        assert!(is_inside(), "make lab namespaces inside testkit::in_netns");
        run("ip", &["netns", "add", name]);
        Ns { name: Some(name.to_owned()) }
    }

    /// The namespace the test runs in.
    pub fn here() -> Ns {
        Ns { name: None }
    }

    /// What `ip netns` calls it; empty for the test's own.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The file that stands for it, as in `CNI_NETNS`.
    pub fn path(&self) -> PathBuf {
        match &self.name {
            Some(name) => PathBuf::from(format!("/run/netns/{name}")),
            None => PathBuf::from(format!("/proc/{}/ns/net", process::id())),
        }
    }

    /// `ip` in this namespace; panics if it fails.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &self.ip_args(args))
    }

    /// `ip -d -j` in this namespace, without the empty entries `ip` prints.
    #[track_caller]
    pub fn ip_json(&self, args: &[&str]) -> Value {
        json("ip", &self.ip_args(&[&["-d", "-j"], args].concat()))
    }

    /// A program in this namespace, with its `/sys`; panics with its stderr if it fails.
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

    /// Starts a program here and leaves it running until the value is dropped.
    #[track_caller]
    pub fn start(&self, program: &str, args: &[&str]) -> Daemon {
        let words = self.exec_words(program, args);
        Daemon::start(words[0], &words[1..])
    }

    /// A veth pair between two namespaces, both ends up and ready: the kernel follows a change of
    /// carrier in a task of its own, and drops what is sent before.
    #[track_caller]
    pub fn connect(&self, device: &str, other: &Ns, other_device: &str) {
        let target = other.path();
        let target = target.to_str().expect("a namespace's path is text");
        let peer = ["peer", "name", other_device, "netns", target];
        self.ip(&[&["link", "add", device, "type", "veth"], &peer[..]].concat());
        self.ip(&["link", "set", device, "up"]);
        other.ip(&["link", "set", other_device, "up"]);
        for (ns, device) in [(self, device), (other, other_device)] {
            let is_up = || ns.ip_json(&["link", "show", device])[0]["operstate"] == "UP";
            wait_for("carrier of a new pair", Duration::from_secs(30), is_up);
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
        // The test may have removed it already; a second panic would hide the first.
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
