// SPDX-License-Identifier: Apache-2.0
//! Starting other programs: each is shown before it runs, and named when it fails.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A command. `PATH` gets the directories of the administrator's programs, which a plain
/// user's lacks (`ip`, `nft`).
#[expect(clippy::disallowed_methods, reason = "starting programs is what xtask is for")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// The cargo that started us, so that a toolchain chosen by hand is kept.
pub fn cargo() -> Command {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Shows the command and runs it with our own output.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command.status().with_context(|| format!("start {}", shown(command)))?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// Like [`run`], and lets `look` see each line that it prints.
pub fn run_watched(command: &mut Command, look: impl FnMut(&str)) -> Result<()> {
    eprintln!("+ {}", shown(command));
    watch(command, look)
}

/// Like [`run_watched`], for a command that is too long to show.
pub fn watch(command: &mut Command, mut look: impl FnMut(&str)) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", shown(command)))?;
    // Not `lines()`: what a test prints need not be UTF-8.
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(|out| out.split(b'\n'))
    {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        look(&line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// Runs the command and returns what it printed; its stderr is part of the error.
pub fn read(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}`: {}\n{}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs the command and returns all of it, whether it failed or not.
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("start {}", shown(command)))
}

/// Where a program lies, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&search_path()).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
