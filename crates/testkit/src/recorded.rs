// SPDX-License-Identifier: Apache-2.0
//! Recorded state of a flannel node: output of `ip`, `bridge` and etcd.

use std::collections::{BTreeMap, BTreeSet};

/// A recording: a head, followed by sections of lines that each start with `--- name`.
#[derive(Debug)]
pub struct Recorded {
    sections: BTreeMap<String, Vec<String>>,
}

impl Recorded {
    pub fn read(text: &str) -> Recorded {
        let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut section = "head".to_owned();
        for line in text.lines() {
            match line.strip_prefix("--- ") {
                Some(name) => section = name.to_owned(),
                None => sections.entry(section.clone()).or_default().push(line.to_owned()),
            }
        }
        Recorded { sections }
    }

    pub fn lines(&self, section: &str) -> &[String] {
        self.sections.get(section).map_or(&[], Vec::as_slice)
    }

    /// Returns net-conf.json.
    pub fn conf(&self) -> &str {
        self.lines("head")[0]
            .strip_prefix("conf: ")
            .expect("the head starts with the configuration")
    }

    /// Returns keys and values of the leases.
    pub fn leases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lines("keys").chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str()))
    }

    /// Returns the routes of the network, without those that the kernel made.
    pub fn routes(&self) -> BTreeSet<String> {
        let lines = self.lines("route").iter().chain(self.lines("route6"));
        let ours = lines.filter(|line| line.starts_with("10.5.") || line.starts_with("fd00:5:"));
        ours.filter(|line| !line.contains("proto kernel")).cloned().collect()
    }

    /// Returns the lines about flannel's devices that end with `word`, in lower case.
    pub fn on_flannel(&self, section: &str, word: &str) -> BTreeSet<String> {
        let lines = self.lines(section).iter().filter(|line| line.contains("dev flannel"));
        lines.map(|line| line.to_lowercase()).filter(|line| line.ends_with(word)).collect()
    }

    /// Returns names and addresses of flannel's devices, without link-local addresses.
    pub fn addresses(&self) -> BTreeSet<String> {
        let lines = self.lines("addr").iter().filter(|line| line.starts_with("flannel"));
        let shown = lines.flat_map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            words.skip(1).map(move |word| format!("{name} {word}"))
        });
        shown.filter(|line| !line.contains(" fe80:")).collect()
    }
}
