// SPDX-License-Identifier: Apache-2.0
//! One configuration of the table: what is there before, what is called, what should come of it.

use serde_json::Value;

/// One thing that happens; containers and pods are counted from 1.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// `ip` on the host.
    Host(&'static str),
    /// `ip` in the first pod.
    Pod(&'static str),
    /// A file is written.
    File(&'static str, &'static str),
    Add(usize),
    Check(usize),
    Del(usize),
}

/// What our plugin should answer to the first ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Success,
    /// The code, and words of the message.
    Failure(u32, &'static str),
}

/// A configuration and what is done with it.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub config: Value,
    pub args: &'static str,
    pub ifname: &'static str,
    /// In place of the pod's own.
    pub netns: Option<&'static str>,
    pub before: Vec<Step>,
    pub steps: Vec<Step>,
    pub expected: Expected,
    /// Calls, counted from 1, that fail by design, besides the first ADD.
    pub failing: Vec<usize>,
}

impl Case {
    /// ADD, CHECK where the version has it, DEL and DEL again.
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
            expected: Expected::Success,
            failing: Vec::new(),
        }
    }

    /// These calls, counted from 1, fail by design.
    pub fn failing(mut self, steps: &[usize]) -> Case {
        self.failing = steps.to_vec();
        self
    }

    /// IPAM plugins do not touch the kernel, so that only the disk needs to be looked at.
    pub fn gives_addresses_only(&self) -> bool {
        ["host-local", "static"].iter().any(|kind| self.config["type"] == **kind)
    }

    /// Whether an answer of ours, counted from 0, may be an error.
    pub fn may_fail(&self, at: usize) -> bool {
        self.failing.contains(&(at + 1))
    }

    /// The same in an older version.
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

    /// In place of the usual steps.
    pub fn steps(mut self, steps: &[Step]) -> Case {
        self.steps = steps.to_vec();
        self
    }

    /// The ADD fails, with this code of ours and these words in our message.
    pub fn fails(mut self, code: u32, words: &'static str) -> Case {
        self.expected = Expected::Failure(code, words);
        self.steps.retain(|step| !matches!(step, Step::Check(_)));
        self
    }
}
