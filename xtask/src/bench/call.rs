// SPDX-License-Identifier: Apache-2.0
//! One call of a plugin, with all that can be prepared before the clock runs prepared.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::lab::{Subject, place};
use crate::cmd;

#[derive(Debug)]
pub struct Call {
    command: Command,
    conf: PathBuf,
}

impl Call {
    /// A plugin of one of those measured.
    pub fn plugin(subject: &Subject, plugin: &str, verb: &str, conf: &Path) -> Call {
        let mut call = Call::program(&subject.dir.join(plugin), conf);
        call.command.env("CNI_COMMAND", verb).env("CNI_PATH", &subject.dir);
        call
    }

    /// Any program that reads a configuration.
    pub fn program(program: &Path, conf: &Path) -> Call {
        let mut command = cmd::command(program);
        // An absolute path and no change to PATH: the standard library then starts it by
        // vfork, as a runtime does, whatever the size of this process.
        command.env_clear();
        Call { command, conf: conf.to_owned() }
    }

    /// With a `PATH`: the Go plugins start iptables.
    pub fn with_path(mut self) -> Call {
        self.command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        self
    }

    pub fn args(&mut self, args: &[&str]) {
        self.command.args(args);
    }

    /// The attachment it is about.
    pub fn attachment(mut self, container: &str, netns: &str) -> Call {
        self.command.env("CNI_CONTAINERID", container);
        self.command.env("CNI_NETNS", netns).env("CNI_IFNAME", "eth0");
        self
    }

    /// The bridge plugin for one pod.
    pub fn bridge(subject: &Subject, verb: &str, netns: &str) -> Call {
        let container = netns.replace('/', "-");
        let call = Call::plugin(subject, "bridge", verb, &subject.bridge_conf);
        call.attachment(container.trim_matches('-'), netns)
    }

    /// Microseconds from before the start until the process is reaped; an error if it fails.
    pub fn time(self) -> Result<f64> {
        self.time_into(&place("answer"))
    }

    /// For calls side by side, whose answers need files of their own.
    pub fn time_into(mut self, answer: &Path) -> Result<f64> {
        let output = File::create(answer)?;
        self.command.stdin(File::open(&self.conf)?);
        self.command.stderr(output.try_clone()?).stdout(output);
        let start = Instant::now();
        let status = self.command.spawn().context("start a plugin")?.wait()?;
        let micros = start.elapsed().as_secs_f64() * 1e6;
        if !status.success() {
            let said = fs::read_to_string(answer)?;
            bail!("{:?}: {status}: {}", self.command.get_program(), said.trim());
        }
        Ok(micros)
    }

    /// The command, to be run in another way.
    pub fn into_command(mut self) -> Result<Command> {
        self.command.stdin(File::open(&self.conf)?).stderr(Stdio::null());
        Ok(self.command)
    }
}
