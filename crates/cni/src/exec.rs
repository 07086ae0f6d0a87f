// SPDX-License-Identifier: Apache-2.0
//! Runs plugins as processes, with a time limit, and tools that a configuration names. Shipped code starts programs
//! only here.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::Value;

use crate::delegate::DEPTH_VARIABLE;
use crate::error::{Code, Error};

/// The environment variables of the specification for one call.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "named after the variables")]
pub struct Variables<'a> {
    pub command: &'a str,
    pub container_id: &'a str,
    pub netns: &'a str,
    pub ifname: &'a str,
    pub args: &'a str,
    pub path: &'a str,
    /// PODWIRE_DELEGATION_DEPTH; 0 for a plugin that a runtime starts.
    pub depth: u32,
}

/// Attempts to start a program that an installer is still writing: exec fails with ETXTBSY until the file is closed.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum size of a plugin's output. Protects the memory of the runtime from a broken plugin.
const OUTPUT_LIMIT: usize = 16 << 20;
/// Maximum time to wait for a killed process. A process that hangs in the kernel outlives it.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Runs a plugin and returns its output.
///
/// With a timeout the plugin gets its own process group, which is killed at the deadline. Without a timeout the plugin
/// stays in the caller's group: a delegating plugin sets no timeout, and killing its group also kills the delegate.
///
/// The plugin's standard error goes to this process's standard error if the plugin succeeds, and into the error if it
/// fails. Background processes that the plugin leaves running are neither awaited nor killed.
pub fn run(
    program: &Path,
    variables: &Variables,
    stdin: &[u8],
    timeout: Option<Duration>,
) -> Result<Vec<u8>, Error> {
    let failed = |doing: &str, cause: io::Error| {
        Error::because(Code::INTERNAL, format!("{doing} plugin {}", program.display()), &cause)
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let group = if timeout.is_some() { Group::Own } else { Group::Caller };
    let mut child =
        start(program, variables, deadline, group).map_err(|cause| failed("start", cause))?;
    let finished = communicate(&mut child, stdin, deadline);
    let (output, status) = match finished {
        Ok(Some(finished)) => finished,
        Ok(None) => {
            kill(&mut child, group);
            return Err(timed_out(program, variables.command, timeout));
        }
        Err(cause) => {
            kill(&mut child, group);
            return Err(failed("communicate with", cause));
        }
    };
    if !status.success() {
        return Err(explain_failure(program, status, &output));
    }
    // Standard error may be closed, which does not affect the result.
    let _ = io::stderr().write_all(&output.stderr);
    Ok(output.stdout)
}

/// Runs a system tool found in PATH, `/usr/sbin` or `/sbin` and returns its output. The tool and its children are killed
/// at the deadline.
pub fn run_tool(
    name: &str,
    args: &[&str],
    stdin: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let argv: Vec<String> = [name].iter().chain(args).map(|word| (*word).to_owned()).collect();
    run_command(&argv, &[], stdin, timeout)
}

/// Runs a command that an administrator configured, with `env` in addition to this process's environment. The program
/// is given by path, or by name like a system tool.
pub fn run_command(
    argv: &[String],
    env: &[(&str, String)],
    stdin: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let (name, args) = argv.split_first().ok_or_else(|| Error::internal("no command"))?;
    let failed = |doing: &str, cause: io::Error| {
        Error::because(Code::INTERNAL, format!("{doing} {name}"), &cause)
    };
    let by_path = Some(PathBuf::from(name)).filter(|_| name.contains('/'));
    let program = by_path.or_else(|| find_tool(name)).ok_or_else(|| {
        Error::internal(format!("there is no program {name}"))
            .with_details("searched in PATH, /usr/sbin and /sbin")
    })?;
    let deadline = Instant::now().checked_add(timeout);
    let mut child = start_tool(&program, args, env).map_err(|cause| failed("start", cause))?;
    match communicate(&mut child, stdin, deadline) {
        Ok(Some((output, status))) if status.success() => Ok(output.stdout),
        Ok(Some((output, status))) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(Error::internal(format!("{name} failed: {status}"))
                .with_details(shorten(stderr.trim()).into_owned()))
        }
        Ok(None) => {
            kill(&mut child, Group::Own);
            let seconds = timeout.as_secs_f64();
            let msg = format!("{name} did not finish in {seconds} s");
            Err(Error::new(Code::TRY_LATER, msg).with_details("its process was killed"))
        }
        Err(cause) => {
            kill(&mut child, Group::Own);
            Err(failed("communicate with", cause))
        }
    }
}

/// Returns whether a system tool of this name exists.
pub fn has_tool(name: &str) -> bool {
    find_tool(name).is_some()
}

fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let admin_dirs = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let directories = std::env::split_paths(&path).chain(admin_dirs);
    let mut files = directories.filter(|dir| dir.is_absolute()).map(|dir| dir.join(name));
    files.find(|file| file.is_file())
}

#[expect(
    clippy::disallowed_methods,
    reason = "iptables and commands in configurations are programs"
)]
fn start_tool(program: &Path, args: &[String], env: &[(&str, String)]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).spawn()
}

/// Parses the JSON that a plugin printed for ADD. Empty output is an error, as in the reference library.
pub(crate) fn parse_output(printed: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(printed).map_err(|cause| {
        let details = match String::from_utf8_lossy(printed).trim() {
            "" => "it printed nothing".to_owned(),
            text => format!("it printed: {}", shorten(text)),
        };
        Error::because(Code::DECODE, "result of a plugin", &cause).with_details(details)
    })
}

/// The process group that a plugin runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Own,
    Caller,
}

#[derive(Default)]
struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

#[expect(clippy::disallowed_methods, reason = "plugins that are not built in are programs")]
fn start(
    program: &Path,
    variables: &Variables,
    deadline: Option<Instant>,
    group: Group,
) -> io::Result<Child> {
    let mut command = Command::new(program);
    command
        .env("CNI_COMMAND", variables.command)
        .env("CNI_CONTAINERID", variables.container_id)
        .env("CNI_NETNS", variables.netns)
        .env("CNI_IFNAME", variables.ifname)
        .env("CNI_ARGS", variables.args)
        .env("CNI_PATH", variables.path)
        .env_remove(DEPTH_VARIABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if variables.depth > 0 {
        command.env(DEPTH_VARIABLE, variables.depth.to_string());
    }
    if group == Group::Own {
        command.process_group(0);
    }
    for _ in 1..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                // The kernel has no event for the close of a file that was open for writing, so poll.
                let pause = Instant::now() + BUSY_PAUSE;
                wait(&mut [], Some(deadline.map_or(pause, |deadline| deadline.min(pause))))?;
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    return Err(error);
                }
            }
            other => return other,
        }
    }
    command.spawn()
}

/// Writes the input and reads the output until the child exits. Returns `None` if the deadline passes first.
fn communicate(
    child: &mut Child,
    stdin: &[u8],
    deadline: Option<Instant>,
) -> io::Result<Option<(Output, ExitStatus)>> {
    let mut input = child.stdin.take().map(|pipe| (pipe, stdin));
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut output = Output::default();
    loop {
        let mut watched = vec![PollFd::new(&pidfd, PollFlags::IN)];
        watched.extend(stdout.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        watched.extend(stderr.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        watched.extend(input.as_ref().map(|(pipe, _)| PollFd::new(pipe, PollFlags::OUT)));
        if !wait(&mut watched, deadline)? {
            return Ok(None);
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        if ready.next() == Some(true) {
            break;
        }
        if stdout.is_some() && ready.next() == Some(true) {
            read_some(&mut stdout, &mut output.stdout)?;
        }
        if stderr.is_some() && ready.next() == Some(true) {
            read_some(&mut stderr, &mut output.stderr)?;
        }
        if input.is_some() && ready.next() == Some(true) {
            input = write_some(input)?;
        }
    }
    // The pipes now contain everything the plugin wrote. Do not wait for their end: a background process of the
    // plugin may keep them open.
    drain(&mut stdout, &mut output.stdout)?;
    drain(&mut stderr, &mut output.stderr)?;
    child.wait().map(|status| Some((output, status)))
}

/// Waits until one of the descriptors is ready. Returns false at the deadline.
fn wait(watched: &mut [PollFd], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll(watched, left.map(timespec).as_ref()) {
            Ok(0) if left.is_some() => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn read_some<P: Read>(pipe: &mut Option<P>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let Some(open) = pipe else { return Ok(()) };
    match open.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(_) if into.len() > OUTPUT_LIMIT => {
            let text = format!("it printed more than {OUTPUT_LIMIT} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(count) => into.extend_from_slice(&buffer[..count]),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Reads the bytes that are in a pipe now, but not what other processes write later.
fn drain<P: Read + AsFd>(pipe: &mut Option<P>, into: &mut Vec<u8>) -> io::Result<()> {
    let Some(open) = pipe.as_ref() else { return Ok(()) };
    let available = usize::try_from(ioctl_fionread(open)?).unwrap_or(OUTPUT_LIMIT);
    let end = into.len() + available;
    while pipe.is_some() && into.len() < end {
        read_some(pipe, into)?;
    }
    Ok(())
}

/// Writes at most what a pipe accepts without blocking. Returns `None` when all input is written or the plugin has
/// closed its standard input, which is allowed.
fn write_some<P: Write>(input: Option<(P, &[u8])>) -> io::Result<Option<(P, &[u8])>> {
    let Some((mut pipe, rest)) = input else { return Ok(None) };
    let chunk = &rest[..rest.len().min(rustix::pipe::PIPE_BUF)];
    match pipe.write(chunk) {
        Ok(count) if count < rest.len() => Ok(Some((pipe, &rest[count..]))),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some((pipe, rest))),
        Err(error) => Err(error),
    }
}

/// Kills a process, or its whole group if it has its own, and reaps it.
fn kill(child: &mut Child, group: Group) {
    // Both fail if the process has already exited.
    if group == Group::Own {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    }
    let _ = child.kill();
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
    let grace = Instant::now() + KILL_GRACE;
    if let Ok(true) = wait(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(grace)) {
        let _ = child.wait();
    }
}

fn timed_out(program: &Path, command: &str, timeout: Option<Duration>) -> Error {
    let seconds = timeout.unwrap_or_default().as_secs_f64();
    let msg = format!("plugin {} did not finish {command} in {seconds} s", program.display());
    Error::new(Code::TRY_LATER, msg).with_details("its process was killed")
}

fn explain_failure(program: &Path, status: ExitStatus, output: &Output) -> Error {
    // Go's skeleton prints a result and then an error if the command fails after the result was printed.
    let printed = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let printed_error =
        printed.map_while(Result::ok).filter_map(|value| Error::from_json(&value)).last();
    if let Some(error) = printed_error {
        return error;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let details = match (stdout.trim(), stderr.trim()) {
        ("", "") => "it printed nothing".to_owned(),
        ("", stderr) => format!("standard error: {}", shorten(stderr)),
        (stdout, _) => format!("its output is not a CNI error: {}", shorten(stdout)),
    };
    Error::internal(format!("plugin {} failed: {status}", program.display())).with_details(details)
}

/// Shortens output, which may be very long.
fn shorten(text: &str) -> Cow<'_, str> {
    text::shorten(text, 4000)
}
