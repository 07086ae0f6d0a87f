// SPDX-License-Identifier: Apache-2.0
//! All measurements, as stored in the results file.

use serde::{Deserialize, Serialize};

use super::agent::Agents;
use super::facts::Facts;
use super::stats::{Summary, summary};

pub const VERSION: &str = "VERSION";
pub const LOOPBACK_ADD: &str = "loopback ADD";
pub const BRIDGE_ADD: &str = "bridge+host-local ADD";
pub const BRIDGE_DEL: &str = "bridge+host-local DEL";
pub const BRIDGE_DEL_DONE: &str = "bridge+host-local DEL, until the kernel is done";

pub const CHAIN_ADD: &str = "full chain ADD";
pub const CHAIN_DEL: &str = "full chain DEL";

/// The measured program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// The Go plugins.
    Go,
    /// podwire-cni.
    Ours,
    /// The plugin `podwire`, which runs a list in one process.
    Whole,
    /// podwire-cni with its files on a disk.
    OursOnDisk,
    /// A static program that makes only the same kernel changes.
    Floor,
    /// The same changes in a loop, without starting processes.
    Loop,
    /// A tunnel loop with one packet per system call.
    Naive,
    /// A network configured with `ip` and `bridge`.
    ByHand,
}

impl Who {
    pub fn name(self) -> &'static str {
        match self {
            Who::Go => "Go",
            Who::Ours => "podwire",
            Who::Whole => "podwire, one plugin",
            Who::OursOnDisk => "podwire, disk",
            Who::Floor => "floor (process)",
            Who::Loop => "floor (loop)",
            Who::Naive => "naive loop",
            Who::ByHand => "by hand",
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Results {
    pub facts: Facts,
    pub latency: Vec<Series>,
    pub bulk: Vec<Bulk>,
    pub sizes: Vec<Amount>,
    pub memory: Vec<Amount>,
    #[serde(default)]
    pub udp: Vec<Throughput>,
    #[serde(default)]
    pub agents: Agents,
}

/// TCP throughput between two nodes in bit/s, one number per connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Throughput {
    pub who: Who,
    pub bits: Vec<f64>,
}

/// Durations of all calls of one kind and program, in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    pub case: String,
    pub who: Who,
    pub micros: Vec<f64>,
}

/// Parallel calls: seconds from the first start to the last end, one number per round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bulk {
    pub verb: String,
    pub who: Who,
    pub count: usize,
    pub parallel: usize,
    pub seconds: Vec<f64>,
    /// Seconds until the background children have ended too.
    pub settled_seconds: Vec<f64>,
    pub failures: usize,
}

/// Size or memory of a program in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Amount {
    pub what: String,
    pub who: Who,
    pub bytes: u64,
}

impl Results {
    /// Adds one measurement.
    pub fn push(&mut self, case: &str, who: Who, micros: f64) {
        let known = self.latency.iter_mut().find(|series| series.case == case && series.who == who);
        match known {
            Some(series) => series.micros.push(micros),
            None => {
                let case = case.to_owned();
                self.latency.push(Series { case, who, micros: vec![micros] });
            }
        }
    }

    /// Summary of one case; `None` if it was not measured.
    pub fn summary(&self, case: &str, who: Who) -> Option<Summary> {
        let mut all = self.latency.iter();
        summary(&all.find(|series| series.case == case && series.who == who)?.micros)
    }

    pub fn median(&self, case: &str, who: Who) -> Option<f64> {
        Some(self.summary(case, who)?.median)
    }

    /// Throughput of a UDP tunnel in Gbit/s: minimum, median and maximum of all connections.
    pub fn udp(&self, who: Who) -> Option<[f64; 3]> {
        self.udp.iter().find(|through| through.who == who)?.gigabits()
    }

    /// Parallel calls of one kind.
    pub fn bulk(&self, verb: &str, parallel: usize, who: Who) -> Option<&Bulk> {
        let matches =
            |bulk: &&Bulk| bulk.verb == verb && bulk.parallel == parallel && bulk.who == who;
        self.bulk.iter().find(matches)
    }
}

impl Throughput {
    /// Throughput in Gbit/s: minimum, median and maximum of all connections.
    pub fn gigabits(&self) -> Option<[f64; 3]> {
        let most = self.bits.iter().copied().reduce(f64::max)?;
        let of = summary(&self.bits)?;
        Some([of.min, of.median, most].map(|bits| bits / 1e9))
    }
}

impl Bulk {
    /// Median of all rounds.
    pub fn seconds(&self) -> Option<f64> {
        Some(summary(&self.seconds)?.median)
    }

    pub fn settled_seconds(&self) -> Option<f64> {
        Some(summary(&self.settled_seconds)?.median)
    }

    /// Calls per second.
    pub fn per_second(&self) -> Option<f64> {
        // Far below 2^52.
        Some(self.count as f64 / self.seconds()?)
    }
}

/// Name of the case: host-local with this number of reserved addresses.
pub fn host_local(verb: &str, taken: usize) -> String {
    format!("host-local {verb}, {} taken", grouped(taken as u64))
}

/// Name of the case: portmap with this number of existing mappings.
pub fn mappings(verb: &str, present: usize) -> String {
    format!("portmap {verb}, {} mappings present", grouped(present as u64))
}

/// `50 000`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_grouped_by_case() {
        let mut results = Results::default();
        for micros in [3.0, 1.0, 2.0] {
            results.push(VERSION, Who::Ours, micros);
        }
        results.push(VERSION, Who::Go, 20.0);
        assert_eq!(results.latency.len(), 2);
        assert_eq!(results.median(VERSION, Who::Ours), Some(2.0));
        assert_eq!(results.median(VERSION, Who::Floor), None);
    }

    #[test]
    fn digits_are_grouped() {
        for (number, expected) in
            [(0, "0"), (999, "999"), (1_000, "1 000"), (1_234_567, "1 234 567")]
        {
            assert_eq!(grouped(number), expected);
        }
    }
}
