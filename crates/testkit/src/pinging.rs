// SPDX-License-Identifier: Apache-2.0
//! A stream of pings, for traffic that must not be interrupted.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::Daemon;
use crate::ns::Ns;
use crate::wait::wait_for;

/// Number of answers to wait for at the start and at the end.
const ANSWERS: usize = 20;

/// Sends a hundred echo requests per second.
#[derive(Debug)]
pub struct Pinging {
    _daemon: Daemon,
    output: PathBuf,
}

impl Pinging {
    /// Starts sending and waits for the first answers. Call it only inside
    /// [`in_netns`](crate::in_netns()), because it writes to `/run`.
    #[track_caller]
    pub fn start(from: &Ns, to: IpAddr) -> Pinging {
        let output = PathBuf::from(format!("/run/ping-{}-{to}", from.name()));
        // Remove the output of an earlier stream.
        fs::write(&output, "").expect("write below /run");
        let script = format!("exec stdbuf -oL ping -nD -i 0.01 {to} > {}", output.display());
        let pinging = Pinging { _daemon: from.start("sh", &["-c", &script]), output };
        pinging.wait_for(ANSWERS);
        pinging
    }

    /// Ends the stream after some more answers. Returns the number of requests up to the last one that was
    /// answered, and the number of answers. Later requests may still be in flight, so they do not count.
    #[track_caller]
    pub fn end(self) -> (usize, usize) {
        self.wait_for(ANSWERS);
        let numbers: BTreeSet<usize> = answers(&self.output).into_iter().map(|(_, n)| n).collect();
        (numbers.last().copied().unwrap_or_default(), numbers.len())
    }

    /// Returns the number of answers so far.
    pub fn answers(&self) -> usize {
        answers(&self.output).len()
    }

    /// Waits for more answers and returns the longest time without an answer since answer number `since`.
    #[track_caller]
    pub fn longest_silence(&self, since: usize) -> Duration {
        self.wait_for(2);
        let times = answers(&self.output);
        let silences =
            times[since.saturating_sub(1)..].windows(2).map(|pair| pair[1].0 - pair[0].0);
        Duration::from_secs_f64(silences.fold(0.0, f64::max))
    }

    #[track_caller]
    fn wait_for(&self, more: usize) {
        let before = self.answers();
        wait_for("more answers to ping", Duration::from_secs(60), || {
            self.answers() >= before + more
        });
    }
}

/// Returns time and request number of each answer. Only complete lines count, such as
/// `[1700000000.123456] 64 bytes from 10.5.1.2: icmp_seq=7 ttl=62 …`.
fn answers(output: &Path) -> Vec<(f64, usize)> {
    let text = fs::read_to_string(output).unwrap_or_default();
    let answer = |line: &str| {
        let (time, rest) = line.strip_suffix('\n')?.strip_prefix('[')?.split_once(']')?;
        let (_, after) = rest.split_once(" icmp_seq=")?;
        let (number, _) = after.split_once(" ttl=")?;
        Some((time.parse().ok()?, number.parse().ok()?))
    };
    text.split_inclusive('\n').filter_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_answers_are_parsed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "PING 10.5.1.2 (10.5.1.2) 56(84) bytes of data.\n\
            [1700000000.5] 64 bytes from 10.5.1.2: icmp_seq=1 ttl=62 time=0.1 ms\n\
            [1700000000.6] From 10.5.1.1 icmp_seq=2 Destination Host Unreachable\n\
            [1700000000.7] 64 bytes from 10.5.1.2: icmp_seq=70 ttl=62 time=0.1 ms\n\
            [1700000000.8] 64 bytes from 10.5.1.2: icmp_seq=7";
        fs::write(file.path(), text).unwrap();
        assert_eq!(answers(file.path()), [(1_700_000_000.5, 1), (1_700_000_000.7, 70)]);
    }
}
