// SPDX-License-Identifier: Apache-2.0
//! Everything measured, as it is written to a file and read again.

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

/// Who was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// The Go plugins.
    Go,
    /// podwire-cni.
    Ours,
    /// The plugin podwire, which does a list by one process.
    Whole,
    /// podwire-cni with its files on a disk.
    OursOnDisk,
    /// A static program that makes the same changes and nothing else.
    Floor,
    /// The same changes in a loop, without any start of a process.
    Loop,
    /// A loop that carries one packet a call.
    Naive,
    /// What `ip` and `bridge` make when they are told line by line.
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

/// TCP between two nodes, in bits a second, one number a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Throughput {
    pub who: Who,
    pub bits: Vec<f64>,
}

/// All calls of one kind by one of those measured, in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    pub case: String,
    pub who: Who,
    pub micros: Vec<f64>,
}

/// Many calls at once: seconds from the first start to the last end, one number a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bulk {
    pub verb: String,
    pub who: Who,
    pub count: usize,
    pub parallel: usize,
    pub seconds: Vec<f64>,
    /// Until children left behind have ended too.
    pub settled_seconds: Vec<f64>,
    pub failures: usize,
}

/// Bytes of a thing that a program is or uses.
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

    /// Of one case; `None` if it was not measured.
    pub fn summary(&self, case: &str, who: Who) -> Option<Summary> {
        let mut all = self.latency.iter();
        summary(&all.find(|series| series.case == case && series.who == who)?.micros)
    }

    pub fn median(&self, case: &str, who: Who) -> Option<f64> {
        Some(self.summary(case, who)?.median)
    }

    /// Gigabits a second through a UDP tunnel: least, median and most of all connections.
    pub fn udp(&self, who: Who) -> Option<[f64; 3]> {
        self.udp.iter().find(|through| through.who == who)?.gigabits()
    }

    /// Calls of a kind, many at once.
    pub fn bulk(&self, verb: &str, parallel: usize, who: Who) -> Option<&Bulk> {
        let is_it =
            |bulk: &&Bulk| bulk.verb == verb && bulk.parallel == parallel && bulk.who == who;
        self.bulk.iter().find(is_it)
    }
}

impl Throughput {
    /// Gigabits a second: least, median and most of all connections.
    pub fn gigabits(&self) -> Option<[f64; 3]> {
        let most = self.bits.iter().copied().reduce(f64::max)?;
        let of = summary(&self.bits)?;
        Some([of.min, of.median, most].map(|bits| bits / 1e9))
    }
}

impl Bulk {
    /// Of the median round.
    pub fn seconds(&self) -> Option<f64> {
        Some(summary(&self.seconds)?.median)
    }

    pub fn settled_seconds(&self) -> Option<f64> {
        Some(summary(&self.settled_seconds)?.median)
    }

    /// Calls a second.
    pub fn per_second(&self) -> Option<f64> {
        // Far below 2^52.
        Some(self.count as f64 / self.seconds()?)
    }
}

/// The case of an IPAM call with this many addresses taken.
pub fn host_local(verb: &str, taken: usize) -> String {
    format!("host-local {verb}, {} taken", grouped(taken as u64))
}

/// The case of a portmap call with this many mappings of others present.
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
    fn samples_of_one_case_are_together() {
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
