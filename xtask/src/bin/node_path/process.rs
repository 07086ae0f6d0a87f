// SPDX-License-Identifier: Apache-2.0
//! Runs programs on a node.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Outcome;
use super::node::Node;

/// A process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process with its output in a file.
    pub(crate) fn start(node: &Node, command: &mut Command, log: &Path) -> Outcome<Process> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Process(node.netns.enter(|| command.spawn())??))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Fails if the process has ended.
    pub(crate) fn check(&mut self) -> Outcome {
        match self.0.try_wait()? {
            Some(status) => Err(format!("a program ended unexpectedly: {status}").into()),
            None => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program by its name.
#[expect(clippy::disallowed_methods, reason = "the benchmark runs other programs")]
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    Command::new(name)
}

/// Runs a command line on a node and returns its output.
pub(crate) fn run(node: &Node, line: &str) -> Outcome<String> {
    let mut words = line.split(' ');
    let mut command = program(words.next().unwrap_or_default());
    command.args(words);
    let output = node.netns.enter(|| command.output())??;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{line}`: {}", stderr.trim()).into())
        }
    }
}
