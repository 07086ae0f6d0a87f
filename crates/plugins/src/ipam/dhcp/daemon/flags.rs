// SPDX-License-Identifier: Apache-2.0
//! The daemon's arguments in Go's syntax: those of the Go daemon, and `-leasedir`.

use std::path::PathBuf;
use std::time::Duration;

use super::super::conf::DEFAULT_SOCKET;

/// Default directory of leases.
const DEFAULT_LEASE_DIR: &str = "/var/lib/cni/dhcp";

/// Help text.
pub(super) const USAGE: &str = "\
usage: dhcp daemon [flags]
  -pidfile path        write the process ID to this file (an absolute path)
  -hostprefix path     prefix for the paths of socket and namespaces
  -socketpath path     listen on this socket (/run/cni/dhcp.sock)
  -leasedir path       directory of the leases (/var/lib/cni/dhcp)
  -broadcast           ask servers to broadcast their replies
  -timeout time        maximum time to wait for a server after its offer (10s)
  -resendmax time      maximum delay between two messages (62s)
  -resendtimeout time  maximum time for an ADD (3m28s)
Write a time as 10s, 500ms or 1m30s.";

/// The parsed arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    /// File for the process ID.
    pub pidfile: Option<PathBuf>,
    /// Prefix for the paths of namespaces.
    pub host_prefix: String,
    /// Path of the socket, including the prefix.
    pub socket: PathBuf,
    /// Directory of the leases.
    pub lease_dir: PathBuf,
    /// Ask servers to broadcast their replies.
    pub broadcast: bool,
    /// Maximum time to wait for a server after its offer.
    pub timeout: Duration,
    /// Maximum delay between two messages.
    pub resend_max: Duration,
    /// Maximum time for an ADD.
    pub resend_timeout: Duration,
}

/// The requested operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Invocation {
    /// Print the help text.
    Help,
    /// Run the daemon.
    Run(Flags),
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            pidfile: None,
            host_prefix: String::new(),
            socket: DEFAULT_SOCKET.into(),
            lease_dir: DEFAULT_LEASE_DIR.into(),
            broadcast: false,
            timeout: Duration::from_secs(10),
            resend_max: Duration::from_secs(62),
            resend_timeout: Duration::from_secs(208),
        }
    }
}

impl Flags {
    /// Parses the arguments. The error names the invalid one.
    pub(super) fn parse(words: &[String]) -> Result<Invocation, String> {
        let mut flags = Flags::default();
        let mut socket = String::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let unknown = || format!("{word:?} is not a flag of the daemon");
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let (name, joined) = match flag.ok_or_else(unknown)?.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag.unwrap_or_default(), None),
            };
            if matches!(name, "h" | "help") {
                return Ok(Invocation::Help);
            }
            if name == "broadcast" {
                flags.broadcast = boolean(joined.as_deref().unwrap_or("true"))?;
                continue;
            }
            let mut value = || {
                joined
                    .clone()
                    .or_else(|| words.next().cloned())
                    .ok_or(format!("{word} needs a value"))
            };
            match name {
                "pidfile" => {
                    flags.pidfile = Some(value()?).filter(|path| !path.is_empty()).map(Into::into);
                }
                "hostprefix" => flags.host_prefix = value()?,
                "socketpath" => socket = value()?,
                "leasedir" => flags.lease_dir = value()?.into(),
                "timeout" => flags.timeout = duration(name, &value()?)?,
                "resendmax" => flags.resend_max = duration(name, &value()?)?,
                "resendtimeout" => flags.resend_timeout = duration(name, &value()?)?,
                _ => return Err(unknown()),
            }
        }
        let socket = if socket.is_empty() { DEFAULT_SOCKET } else { &socket };
        flags.socket = format!("{}{socket}", flags.host_prefix).into();
        match &flags.pidfile {
            Some(path) if !path.is_absolute() => {
                Err(format!("-pidfile is {:?}, expected an absolute path", path.display()))
            }
            _ => Ok(Invocation::Run(flags)),
        }
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("-broadcast is {text:?}, expected true or false")),
    }
}

/// Parses a time in Go's format: numbers, each with a unit.
fn duration(name: &str, text: &str) -> Result<Duration, String> {
    let invalid = || format!("-{name} is {text:?}, expected a time such as 10s, 500ms or 1m30s");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    if total.is_zero() { Err(invalid()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match Flags::parse(&words)? {
            Invocation::Run(flags) => Ok(flags),
            Invocation::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn flags_of_the_go_daemon_are_parsed() {
        let flags = parse("").unwrap();
        assert_eq!(flags.socket, PathBuf::from("/run/cni/dhcp.sock"));
        assert_eq!(flags.resend_timeout, Duration::from_secs(208));
        let flags = parse(
            "-pidfile /run/p --hostprefix=/host -socketpath /s -broadcast -timeout=1m30s \
             -resendmax 1.5s -resendtimeout 500ms -leasedir /l",
        );
        let flags = flags.unwrap();
        assert_eq!(flags.socket, PathBuf::from("/host/s"));
        assert!(flags.broadcast);
        assert_eq!(flags.timeout, Duration::from_secs(90));
        assert_eq!(flags.resend_max, Duration::from_millis(1500));
        assert_eq!(flags.resend_timeout, Duration::from_millis(500));
    }

    #[test]
    fn invalid_flag_is_named() {
        let check = |line: &str, expected: &str| {
            let problem = parse(line).unwrap_err();
            assert!(problem.contains(expected), "{line}: {problem}");
        };
        check("-pidfile p", "-pidfile is \"p\", expected an absolute path");
        check("-timeout 10", "-timeout is \"10\", expected a time");
        check("-timeout 0s", "-timeout is \"0s\"");
        check("-timeout", "-timeout needs a value");
        check("-broadcast=maybe", "expected true or false");
        check("-colour red", "\"-colour\" is not a flag");
        check("extra", "\"extra\" is not a flag");
    }
}
