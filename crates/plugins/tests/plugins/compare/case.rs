// SPDX-License-Identifier: Apache-2.0
//! One configuration of the table: what is there before, what is called, what should come of it.

use serde_json::Value;

use crate::conf::HAVING_ETH0;

/// One thing that happens; containers and pods are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// In our message where the first call fails.
    pub words: &'static str,
    /// Calls, counted from 1, that fail by design, with our code.
    pub failing: Vec<(usize, u32)>,
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
            words: "",
            failing: Vec::new(),
        }
    }

    /// These calls, counted from 1, fail by design, with these codes of ours.
    pub fn failing(mut self, calls: &[(usize, u32)]) -> Case {
        self.failing = calls.to_vec();
        self
    }

    /// IPAM plugins do not touch the kernel, so that only the disk needs to be looked at.
    pub fn gives_addresses_only(&self) -> bool {
        ["host-local", "static"].iter().any(|kind| self.config["type"] == **kind)
    }

    /// The code that a call of ours, counted from 0, should fail with.
    pub fn code(&self, call: usize) -> Option<u32> {
        self.failing.iter().find(|(other, _)| *other == call + 1).map(|(_, code)| *code)
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

    /// After a plugin that has made `eth0`.
    pub fn after_eth0(self) -> Case {
        let steps: Vec<Step> = HAVING_ETH0.iter().map(|line| Step::Pod(line)).collect();
        self.before(&steps)
    }

    /// More before the first step.
    pub fn and_before(mut self, steps: &[Step]) -> Case {
        self.before.extend_from_slice(steps);
        self
    }

    /// In place of the usual steps.
    pub fn steps(mut self, steps: &[Step]) -> Case {
        self.steps = steps.to_vec();
        self
    }

    /// The first call fails, with this code of ours and these words in our message.
    pub fn fails(mut self, code: u32, words: &'static str) -> Case {
        self.words = words;
        self.failing = vec![(1, code)];
        self.steps.retain(|step| !matches!(step, Step::Check(_)));
        self
    }

    /// Every call fails, the first with these words.
    pub fn always_fails(self, code: u32, words: &'static str) -> Case {
        let mut case = self.fails(code, words);
        case.failing = (1..=case.steps.len()).map(|call| (call, code)).collect();
        case
    }
}
