// SPDX-License-Identifier: Apache-2.0
//! One call of a plugin, prepared as far as possible before the time measurement.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::lab::{Subject, place};
use crate::cmd;

#[derive(Debug)]
pub(crate) struct Call {
    command: Command,
    conf: PathBuf,
}

impl Call {
    /// A call of a plugin.
    pub(crate) fn plugin(subject: &Subject, plugin: &str, verb: &str, conf: &Path) -> Call {
        let mut call = Call::program(&subject.dir.join(plugin), conf);
        call.command.env("CNI_COMMAND", verb).env("CNI_PATH", &subject.dir);
        call
    }

    /// A call of any program that reads a configuration.
    pub(crate) fn program(program: &Path, conf: &Path) -> Call {
        let mut command = cmd::command(program);
        // With an absolute path and an unchanged PATH the standard library uses vfork, like a
        // container runtime. The size of this process then does not matter.
        command.env_clear();
        Call { command, conf: conf.to_owned() }
    }

    /// Sets `PATH`, because the Go plugins run iptables.
    pub(crate) fn with_path(mut self) -> Call {
        self.command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        self
    }

    pub(crate) fn args(&mut self, args: &[&str]) {
        self.command.args(args);
    }

    /// Sets the attachment.
    pub(crate) fn attachment(mut self, container: &str, netns: &str) -> Call {
        self.command.env("CNI_CONTAINERID", container);
        self.command.env("CNI_NETNS", netns).env("CNI_IFNAME", "eth0");
        self
    }

    /// A call of the bridge plugin for one pod.
    pub(crate) fn bridge(subject: &Subject, verb: &str, netns: &str) -> Call {
        let container = netns.replace('/', "-");
        let call = Call::plugin(subject, "bridge", verb, &subject.bridge_conf);
        call.attachment(container.trim_matches('-'), netns)
    }

    /// Runs the call and returns the microseconds from its start until the process is reaped.
    pub(crate) fn time(self) -> Result<f64> {
        self.time_into(&place("answer"))
    }

    /// Like [`Call::time`], with a separate output file for parallel calls.
    pub(crate) fn time_into(mut self, answer: &Path) -> Result<f64> {
        let output = File::create(answer)?;
        self.command.stdin(File::open(&self.conf)?);
        self.command.stderr(output.try_clone()?).stdout(output);
        let start = Instant::now();
        let status = self.command.spawn().context("start a plugin")?.wait()?;
        let micros = start.elapsed().as_secs_f64() * 1e6;
        if !status.success() {
            let output = fs::read_to_string(answer)?;
            bail!("{:?}: {status}: {}", self.command.get_program(), output.trim());
        }
        Ok(micros)
    }

    /// The command, for other kinds of measurements.
    pub(crate) fn into_command(mut self) -> Result<Command> {
        self.command.stdin(File::open(&self.conf)?).stderr(Stdio::null());
        Ok(self.command)
    }
}
