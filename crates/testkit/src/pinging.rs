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
        let script = format!("exec stdbuf -oL ping -n -i 0.01 {to} > {}", output.display());
        let pinging = Pinging { daemon: from.start("sh", &["-c", &script]), output };
        pinging.wait_for_more();
        pinging
    }

    /// Ends it after some more answers: how many were sent, and how many were answered.
    #[track_caller]
    pub fn end(self) -> (u32, u32) {
        self.wait_for_more();
        run("kill", &["-INT", &self.daemon.id().to_string()]);
        let counted = wait_some(Duration::from_secs(5), || counts(&self.output));
        match counted {
            Some(counts) => counts,
            None => panic!("ping has not told: {:?}", fs::read_to_string(&self.output)),
        }
    }

    #[track_caller]
    fn wait_for_more(&self) {
        let before = answers(&self.output);
        let is_more = || answers(&self.output) >= before + MORE;
        wait_for("answers to ping", Duration::from_secs(20), is_more);
    }
}

fn answers(output: &Path) -> usize {
    let text = fs::read_to_string(output).unwrap_or_default();
    text.lines().filter(|line| line.contains(" bytes from ")).count()
}

/// Of `812 packets transmitted, 811 received, …`.
fn counts(output: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(output).ok()?;
    let line = text.lines().find(|line| line.contains(" packets transmitted, "))?;
    let mut numbers = line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}
