// SPDX-License-Identifier: Apache-2.0
//! What both kinds of demo show alike.

use std::path::Path;
use std::time::Duration;

/// The name of a namespace.
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// A time for programs.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The one in the middle.
pub fn median(times: impl IntoIterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
