// SPDX-License-Identifier: Apache-2.0
//! All measurements, as stored in the results file.

use serde::{Deserialize, Serialize};

use super::agent::Agents;
use super::facts::Facts;
use super::routed::RoundTrips;
use super::stats::{Summary, summary};

pub(crate) const VERSION: &str = "VERSION";
pub(crate) const LOOPBACK_ADD: &str = "loopback ADD";
pub(crate) const BRIDGE_ADD: &str = "bridge+host-local ADD";
pub(crate) const BRIDGE_DEL: &str = "bridge+host-local DEL";
pub(crate) const BRIDGE_DEL_DONE: &str = "bridge+host-local DEL, until the kernel is done";

pub(crate) const CHAIN_ADD: &str = "full chain ADD";
pub(crate) const CHAIN_DEL: &str = "full chain DEL";

/// The measured program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Who {
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
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) struct Results {
    pub(crate) facts: Facts,
    pub(crate) latency: Vec<Series>,
    pub(crate) bulk: Vec<Bulk>,
    pub(crate) sizes: Vec<Amount>,
    pub(crate) memory: Vec<Amount>,
    #[serde(default)]
    pub(crate) udp: Vec<Throughput>,
    #[serde(default)]
    pub(crate) agents: Agents,
    #[serde(default)]
    pub(crate) round_trips: Vec<RoundTrips>,
}

/// TCP throughput between two nodes in bit/s, one number per connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) who: Who,
    pub(crate) bits: Vec<f64>,
}

/// Durations of all calls of one kind and program, in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) case: String,
    pub(crate) who: Who,
    pub(crate) micros: Vec<f64>,
}

/// Parallel calls: seconds from the first start to the last end, one number per round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Bulk {
    pub(crate) verb: String,
    pub(crate) who: Who,
    pub(crate) count: usize,
    pub(crate) parallel: usize,
    pub(crate) seconds: Vec<f64>,
    /// Seconds until the background children have ended too.
    pub(crate) settled_seconds: Vec<f64>,
    pub(crate) failures: usize,
}

/// Size or memory of a program in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Amount {
    pub(crate) what: String,
    pub(crate) who: Who,
    pub(crate) bytes: u64,
}

impl Results {
    /// Adds one measurement.
    pub(crate) fn push(&mut self, case: &str, who: Who, micros: f64) {
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
    pub(crate) fn summary(&self, case: &str, who: Who) -> Option<Summary> {
        let mut all = self.latency.iter();
        summary(&all.find(|series| series.case == case && series.who == who)?.micros)
    }

    pub(crate) fn median(&self, case: &str, who: Who) -> Option<f64> {
        Some(self.summary(case, who)?.median)
    }

    /// Throughput of a UDP tunnel in Gbit/s: minimum, median and maximum of all connections.
    pub(crate) fn udp(&self, who: Who) -> Option<[f64; 3]> {
        self.udp.iter().find(|through| through.who == who)?.gigabits()
    }

    /// Parallel calls of one kind.
    pub(crate) fn bulk(&self, verb: &str, parallel: usize, who: Who) -> Option<&Bulk> {
        let matches =
            |bulk: &&Bulk| bulk.verb == verb && bulk.parallel == parallel && bulk.who == who;
        self.bulk.iter().find(matches)
    }
}

impl Throughput {
    /// Throughput in Gbit/s: minimum, median and maximum of all connections.
    pub(crate) fn gigabits(&self) -> Option<[f64; 3]> {
        let most = self.bits.iter().copied().reduce(f64::max)?;
        let of = summary(&self.bits)?;
        Some([of.min, of.median, most].map(|bits| bits / 1e9))
    }
}

impl Bulk {
    /// Median of all rounds.
    pub(crate) fn seconds(&self) -> Option<f64> {
        Some(summary(&self.seconds)?.median)
    }

    pub(crate) fn settled_seconds(&self) -> Option<f64> {
        Some(summary(&self.settled_seconds)?.median)
    }

    /// Calls per second.
    pub(crate) fn per_second(&self) -> Option<f64> {
        // Far below 2^52.
        Some(self.count as f64 / self.seconds()?)
    }
}

/// Name of the case: host-local with this number of reserved addresses.
pub(crate) fn host_local(verb: &str, taken: usize) -> String {
    format!("host-local {verb}, {} taken", grouped(taken as u64))
}

/// Name of the case: portmap with this number of existing mappings.
pub(crate) fn mappings(verb: &str, present: usize) -> String {
    format!("portmap {verb}, {} mappings present", grouped(present as u64))
}

/// `50 000`
pub(crate) fn grouped(number: u64) -> String {
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
