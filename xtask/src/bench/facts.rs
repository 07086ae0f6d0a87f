// SPDX-License-Identifier: Apache-2.0
//! Facts about the machine that explain the numbers, without identifying it.

use std::fs;
use std::thread;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::cmd;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) date: String,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_kib: u64,
    pub(crate) load: String,
    pub(crate) rustc: String,
    pub(crate) podwire: String,
    pub(crate) go_plugins: String,
    pub(crate) command: String,
    /// Whether the measured programs ran at real-time priority.
    pub(crate) is_real_time: bool,
}

pub(crate) fn gather(go_version: &str, quick: bool, is_real_time: bool) -> Result<Facts> {
    let date = cmd::read(cmd::command("date").args(["-u", "+%Y-%m-%d"]))?;
    let rustc = cmd::read(cmd::command("rustc").arg("--version"))?;
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(Facts {
        date: date.trim().to_owned(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cpu: field(&fs::read_to_string("/proc/cpuinfo")?, "model name").to_owned(),
        cpus: thread::available_parallelism()?.get(),
        memory_kib: kib(&fs::read_to_string("/proc/meminfo")?, "MemTotal"),
        load: load.split_whitespace().next().unwrap_or_default().to_owned(),
        rustc: rustc.trim().to_owned(),
        podwire: env!("CARGO_PKG_VERSION").to_owned(),
        go_plugins: go_version.trim().to_owned(),
        command: format!("cargo xtask bench{}", if quick { " --quick" } else { "" }),
        is_real_time,
    })
}

/// The value of the first `name : value` line.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let mut matching = values.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    matching.next().unwrap_or("unknown")
}

/// A field in `kB`, as in `/proc/meminfo` and `/proc/<pid>/status`.
pub(crate) fn kib(text: &str, name: &str) -> u64 {
    let value = field(text, name).trim_end_matches("kB").trim();
    value.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let text = "Name:\tbridge\nVmHWM:\t    5396 kB\nmodel name\t: A: B\n";
        assert_eq!(kib(text, "VmHWM"), 5396);
        assert_eq!(kib(text, "VmPeak"), 0);
        assert_eq!(field(text, "model name"), "A: B");
    }
}
