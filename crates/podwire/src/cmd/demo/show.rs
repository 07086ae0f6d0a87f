// SPDX-License-Identifier: Apache-2.0
//! Helpers for the output of both kinds of demo.

use std::path::Path;
use std::time::Duration;

/// Name of a network namespace.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn median(times: impl IntoIterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
