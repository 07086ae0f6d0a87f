// SPDX-License-Identifier: Apache-2.0
//! A stream of packets, for what must not be interrupted.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Daemon, run};
use crate::ns::Ns;
use crate::wait::{wait_for, wait_some};

/// Before what is tried, and after it.
const MORE: usize = 20;

/// A hundred echo requests a second, until it is ended.
#[derive(Debug)]
pub struct Pinging {
    daemon: Daemon,
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
        let pinging = Pinging { daemon: from.start("sh", &["-c", &script]), output };
        pinging.wait_for(MORE);
        pinging
    }

    /// Ends it after some more answers: how many were sent, and how many were answered.
    #[track_caller]
    pub fn end(self) -> (u32, u32) {
        self.wait_for(MORE);
        run("kill", &["-INT", &self.daemon.id().to_string()]);
        let counted = wait_some(Duration::from_secs(30), || counts(&self.output));
        match counted {
            Some(counts) => counts,
            None => panic!("ping has not told: {:?}", fs::read_to_string(&self.output)),
        }
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
        let silences = times[since.saturating_sub(1)..].windows(2).map(|pair| pair[1] - pair[0]);
        Duration::from_secs_f64(silences.fold(0.0, f64::max))
    }

    #[track_caller]
    fn wait_for(&self, more: usize) {
        let before = self.answers();
        wait_for("answers to ping", Duration::from_secs(60), || self.answers() >= before + more);
    }
}

/// When answers came, in seconds, of `[1700000000.123456] 64 bytes from 10.5.1.2: …`.
fn answers(output: &Path) -> Vec<f64> {
    let text = fs::read_to_string(output).unwrap_or_default();
    let time = |line: &str| {
        let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
        time.parse().ok().filter(|_| rest.contains(" bytes from "))
    };
    text.lines().filter_map(time).collect()
}

/// Of `812 packets transmitted, 811 received, …`.
fn counts(output: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(output).ok()?;
    let line = text.lines().find(|line| line.contains(" packets transmitted, "))?;
    let mut numbers = line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}
