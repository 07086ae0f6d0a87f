// SPDX-License-Identifier: Apache-2.0
//! One test case: initial state, configuration, calls and expected errors.

use serde_json::Value;

use crate::conf::ETH0_SETUP;

/// One step of a case. Containers and pods are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs `ip` on the host.
    Host(&'static str),
    /// Runs `ip` in the first pod.
    Pod(&'static str),
    /// Writes a file: path, content.
    File(&'static str, &'static str),
    Add(usize),
    Check(usize),
    Del(usize),
}

/// A configuration and the steps to run with it.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub config: Value,
    pub args: &'static str,
    pub ifname: &'static str,
    /// Replaces the path of the pod's namespace.
    pub netns: Option<&'static str>,
    pub before: Vec<Step>,
    pub steps: Vec<Step>,
    /// Text expected in podwire's message if the first call fails.
    pub words: &'static str,
    /// Calls expected to fail, counted from 1, with podwire's error code.
    pub failing: Vec<(usize, u32)>,
}

impl Case {
    /// Runs ADD, CHECK if the version supports it, DEL and DEL again.
    pub fn new(name: impl Into<String>, config: Value) -> Case {
        let has_check = !["0.1.0", "0.2.0", "0.3.0", "0.3.1"]
            .iter()
            .any(|version| config["cniVersion"].as_str().unwrap_or("0.1.0") == *version);
        let mut steps = vec![Step::Add(1), Step::Check(1), Step::Del(1), Step::Del(1)];
        steps.retain(|step| has_check || !matches!(step, Step::Check(_)));
        Case {
            name: name.into(),
            config,
            args: "",
            ifname: "eth0",
            netns: None,
            before: Vec::new(),
            steps,
            words: "",
            failing: Vec::new(),
        }
    }

    /// Declares that these calls, counted from 1, fail with these podwire error codes.
    pub fn failing(mut self, calls: &[(usize, u32)]) -> Case {
        self.failing = calls.to_vec();
        self
    }

    /// Returns true for IPAM plugins, which change only files and not the kernel.
    pub fn gives_addresses_only(&self) -> bool {
        ["host-local", "static"].iter().any(|kind| self.config["type"] == **kind)
    }

    /// Error code expected from podwire for a call, counted from 0.
    pub fn code(&self, call: usize) -> Option<u32> {
        self.failing.iter().find(|(other, _)| *other == call + 1).map(|(_, code)| *code)
    }

    /// Changes the version of the configuration. Resets everything else except the name.
    pub fn version(mut self, version: &str) -> Case {
        self.config["cniVersion"] = version.into();
        Case::new(self.name, self.config)
    }

    pub fn args(mut self, args: &'static str) -> Case {
        self.args = args;
        self
    }

    pub fn ifname(mut self, ifname: &'static str) -> Case {
        self.ifname = ifname;
        self
    }

    pub fn netns(mut self, netns: &'static str) -> Case {
        self.netns = Some(netns);
        self
    }

    pub fn before(mut self, steps: &[Step]) -> Case {
        self.before = steps.to_vec();
        self
    }

    /// Creates `eth0` first, like a previous plugin of the chain.
    pub fn after_eth0(self) -> Case {
        let steps: Vec<Step> = ETH0_SETUP.iter().map(|line| Step::Pod(line)).collect();
        self.before(&steps)
    }

    /// Adds preparation steps.
    pub fn and_before(mut self, steps: &[Step]) -> Case {
        self.before.extend_from_slice(steps);
        self
    }

    /// Replaces the default steps.
    pub fn steps(mut self, steps: &[Step]) -> Case {
        self.steps = steps.to_vec();
        self
    }

    /// Declares that the first call fails, with this podwire error code and `words` in podwire's
    /// message.
    pub fn fails(mut self, code: u32, words: &'static str) -> Case {
        self.words = words;
        self.failing = vec![(1, code)];
        self.steps.retain(|step| !matches!(step, Step::Check(_)));
        self
    }

    /// Declares that every call fails, the first with `words` in the message.
    pub fn always_fails(self, code: u32, words: &'static str) -> Case {
        let mut case = self.fails(code, words);
        case.failing = (1..=case.steps.len()).map(|call| (call, code)).collect();
        case
    }
}
