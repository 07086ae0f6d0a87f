// SPDX-License-Identifier: Apache-2.0
//! Runs other programs. Prints each command before it runs, and names it in errors.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A command with the `sbin` directories in `PATH`, which users often lack (`ip`, `nft`).
#[expect(clippy::disallowed_methods, reason = "xtask runs other programs")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// The cargo that started xtask, with the same toolchain.
pub(crate) fn cargo() -> Command {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Prints the command and runs it; its output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command.status().with_context(|| format!("start {}", shown(command)))?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// Like [`run`], and calls `on_line` for each printed line.
pub(crate) fn run_watched(command: &mut Command, on_line: impl FnMut(&str)) -> Result<()> {
    eprintln!("+ {}", shown(command));
    watch(command, on_line)
}

/// Like [`run_watched`], without printing the command.
pub(crate) fn watch(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", shown(command)))?;
    // Not `lines()`: the output of a test may be invalid UTF-8.
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(|out| out.split(b'\n'))
    {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        on_line(&line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// Runs the command and returns its standard output. An error includes its standard error.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}`: {}\n{}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs the command and returns status and output, even if it failed.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("start {}", shown(command)))
}

/// Path of an installed program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
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
