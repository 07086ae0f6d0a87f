// SPDX-License-Identifier: Apache-2.0
//! Peak memory of a call.
//!
//! `wait4` is useless for small programs: it includes the memory of the caller, which a new process
//! shares until exec. Instead, a full output pipe blocks the program at the end of its work, and its
//! peak is read from /proc.

use std::fs;
use std::io::{self, Read, Write};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::call::Call;
use super::facts::kib;
use super::lab::Lab;
use super::results::{Amount, Who};

/// Capacity of a pipe in bytes.
const PIPE: usize = 64 * 1024;
const BRIDGE: &str = "memory, bridge ADD";
/// Maximum wait for the blocked program.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Amount>> {
    let pods = lab.make_pods("memory-", 6)?;
    let mut amounts = Vec::new();
    for (at, subject) in lab.subjects().into_iter().enumerate() {
        let netns = |n: usize| pods.path(at * 2 + n);
        let loopback = Call::plugin(subject, "loopback", "ADD", &lab.loopback_conf);
        let ipam = Call::plugin(subject, "host-local", "ADD", &subject.bridge_conf);
        let calls = [
            ("memory, loopback ADD", loopback.attachment("memory", &netns(0))),
            ("memory, host-local ADD", ipam.attachment("memory", &netns(0))),
            (BRIDGE, Call::bridge(subject, "ADD", &netns(1))),
        ];
        for (what, call) in calls {
            let bytes = peak(call).with_context(|| what.to_owned())?;
            amounts.push(Amount { what: what.to_owned(), who: subject.who, bytes });
        }
        // Removes what the calls have created, without measuring.
        let ipam = Call::plugin(subject, "host-local", "DEL", &subject.bridge_conf);
        ipam.attachment("memory", &netns(0)).time()?;
        Call::bridge(subject, "DEL", &netns(1)).time()?;
        lab.settle()?;
    }
    let bytes = peak(lab.floor_add(&pods.path(5)))?;
    amounts.push(Amount { what: BRIDGE.to_owned(), who: Who::Floor, bytes });
    lab.floor_del().time()?;
    pods.remove()?;
    Ok(amounts)
}

fn peak(call: Call) -> Result<u64> {
    let (mut reader, mut writer) = io::pipe()?;
    writer.write_all(&[0; PIPE])?;
    let mut command = call.into_command()?;
    let mut child = command.stdout(writer).spawn()?;
    // The command holds the writing end, and reading would not end.
    drop(command);
    let peak = wait_for_writer(&mut child);
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    if !child.wait()?.success() {
        bail!("{}", String::from_utf8_lossy(&output[PIPE.min(output.len())..]).trim());
    }
    peak
}

/// Waits until a thread of the process sleeps in a write to a pipe.
#[expect(clippy::disallowed_methods, reason = "the kernel has no event for a blocked writer")]
fn wait_for_writer(child: &mut Child) -> Result<u64> {
    let proc = format!("/proc/{}", child.id());
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
        let tasks = fs::read_dir(format!("{proc}/task"))?.flatten();
        let mut places =
            tasks.filter_map(|task| fs::read_to_string(task.path().join("wchan")).ok());
        if places.any(|place| place.contains("pipe_write")) {
            return Ok(kib(&fs::read_to_string(format!("{proc}/status"))?, "VmHWM") * 1024);
        }
    }
    bail!("the program printed no answer")
}
