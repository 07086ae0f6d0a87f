// SPDX-License-Identifier: Apache-2.0
//! Programs that run on a node.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Outcome;
use super::node::Node;

/// Killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it, with what it says in a file.
    pub fn start(node: &Node, command: &mut Command, log: &Path) -> Outcome<Process> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Process(node.netns.enter(|| command.spawn())??))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// It is still there.
    pub fn check(&mut self) -> Outcome {
        match self.0.try_wait()? {
            Some(status) => Err(format!("a program that should run has ended: {status}").into()),
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
#[expect(clippy::disallowed_methods, reason = "starting programs is what this one is for")]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    Command::new(name)
}

/// Runs a command line on a node; what it prints.
pub fn run(node: &Node, line: &str) -> Outcome<String> {
    let mut words = line.split(' ');
    let mut command = program(words.next().unwrap_or_default());
    command.args(words);
    let output = node.netns.enter(|| command.output())??;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{line}`: {}", said.trim()).into())
        }
    }
}
