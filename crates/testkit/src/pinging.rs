// SPDX-License-Identifier: Apache-2.0
//! A stream of packets, for what must not be interrupted.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::Daemon;
use crate::ns::Ns;
use crate::wait::wait_for;

/// Before what is tried, and after it.
const MORE: usize = 20;

/// A hundred echo requests a second, until it is ended.
#[derive(Debug)]
pub struct Pinging {
    _daemon: Daemon,
    output: PathBuf,
}

impl Pinging {
    /// Begins, and waits for the first answers. Only inside [`in_netns`](crate::in_netns()), whose
    /// `/run` it writes to.
    #[track_caller]
    pub fn start(from: &Ns, to: IpAddr) -> Pinging {
        let output = PathBuf::from(format!("/run/ping-{}-{to}", from.name()));
        // Nothing of one before it.
        fs::write(&output, "").expect("a test may write below /run");
        let script = format!("exec stdbuf -oL ping -nD -i 0.01 {to} > {}", output.display());
        let pinging = Pinging { _daemon: from.start("sh", &["-c", &script]), output };
        pinging.wait_for(MORE);
        pinging
    }

    /// Ends it after some more answers: how many were sent up to the last one that was answered, as others may be under
    /// way, and how many of these were answered.
    #[track_caller]
    pub fn end(self) -> (usize, usize) {
        self.wait_for(MORE);
        let numbers: BTreeSet<usize> = answers(&self.output).into_iter().map(|(_, n)| n).collect();
        (numbers.last().copied().unwrap_or_default(), numbers.len())
    }

    /// How many answers have come.
    pub fn answers(&self) -> usize {
        answers(&self.output).len()
    }

    /// For how long no answer came, at most, since there were so many; once they come again.
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
        wait_for("answers to ping", Duration::from_secs(60), || self.answers() >= before + more);
    }
}

/// When answers came, in seconds, and to which requests, of whole lines
/// `[1700000000.123456] 64 bytes from 10.5.1.2: icmp_seq=7 ttl=62 …`.
fn answers(output: &Path) -> Vec<(f64, usize)> {
    let text = fs::read_to_string(output).unwrap_or_default();
    let answer = |line: &str| {
        let (time, rest) = line.strip_suffix('\n')?.strip_prefix('[')?.split_once(']')?;
        let (_, behind) = rest.split_once(" icmp_seq=")?;
        let (number, _) = behind.split_once(" ttl=")?;
        Some((time.parse().ok()?, number.parse().ok()?))
    };
    text.split_inclusive('\n').filter_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_times_and_numbers() {
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
