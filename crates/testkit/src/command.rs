// SPDX-License-Identifier: Apache-2.0
//! Starts outside programs. No other module of the tests does so.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Returns a command with an empty stdin.
#[expect(clippy::disallowed_methods, reason = "tests verify results with outside tools")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs a program and returns its stdout; panics with its stderr if it fails.
#[track_caller]
pub fn run(program: &str, args: &[&str]) -> String {
    match try_run(program, args) {
        Ok(stdout) => stdout,
        Err(why) => panic!("{why}"),
    }
}

/// Runs a program. Returns its stdout, or an error with the command line, status and output.
pub fn try_run(program: &str, args: &[&str]) -> Result<String, String> {
    let shown = || format!("{program} {}", args.join(" "));
    let output = command(program)
        .args(args)
        .output()
        .map_err(|cause| format!("cannot start `{}`: {cause}", shown()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(stdout.into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{}`: {}\n{stdout}{stderr}", shown(), output.status))
}

/// Returns whether a program succeeds. Panics if it cannot be started.
#[track_caller]
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    match command(program).args(args).output() {
        Ok(output) => output.status.success(),
        Err(cause) => panic!("cannot start `{program} {}`: {cause}", args.join(" ")),
    }
}

/// Runs a program that prints JSON, such as `ip -j addr` or `nft -j list ruleset`.
#[track_caller]
pub fn json(program: &str, args: &[&str]) -> Value {
    let text = run(program, args);
    match parse(&text) {
        Ok(value) => value,
        Err(cause) => panic!("`{program} {}` printed no JSON: {cause}\n{text}", args.join(" ")),
    }
}

/// Parses the output of `ip -j`, which prints nothing if there is no entry, and an empty object for each
/// entry that a filter excluded.
fn parse(text: &str) -> Result<Value, serde_json::Error> {
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    let mut value = serde_json::from_str(text)?;
    if let Value::Array(entries) = &mut value {
        entries.retain(|entry| entry.as_object().is_none_or(|fields| !fields.is_empty()));
    }
    Ok(value)
}

/// A running program, killed when the value is dropped.
#[derive(Debug)]
pub struct Daemon(Child);

impl Daemon {
    /// Starts a program in the background.
    #[track_caller]
    pub fn start(program: &str, args: &[&str]) -> Daemon {
        match command(program).args(args).spawn() {
            Ok(child) => Daemon(child),
            Err(cause) => panic!("cannot start `{program} {}`: {cause}", args.join(" ")),
        }
    }

    /// Returns the process ID, for `/proc/<id>/ns/net`.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_entries_of_ip_are_dropped() {
        fn check(text: &str, expected: &Value) {
            assert_eq!(&parse(text).unwrap(), expected, "{text:?}");
        }
        check("", &json!([]));
        check("\n", &json!([]));
        check("[{},{\"ifname\":\"lo\"},{}]", &json!([{"ifname": "lo"}]));
        check("{\"nftables\":[]}", &json!({"nftables": []}));
    }

    #[test]
    fn error_contains_status_and_stderr() {
        let why = try_run("sh", &["-c", "echo out; echo err >&2; exit 3"]).unwrap_err();
        for part in ["sh -c", "exit status: 3", "out", "err"] {
            assert!(why.contains(part), "{part} is missing in {why}");
        }
        let why = try_run("no-such-program", &[]).unwrap_err();
        assert!(why.contains("cannot start `no-such-program"), "{why}");
    }

    #[test]
    fn dropped_daemon_is_killed() {
        let daemon = Daemon::start("sleep", &["1000"]);
        let proc = format!("/proc/{}", daemon.id());
        assert!(std::fs::exists(&proc).unwrap());
        drop(daemon);
        assert!(!std::fs::exists(&proc).unwrap());
    }
}
