// SPDX-License-Identifier: Apache-2.0
//! The daemon's arguments: the Go daemon's, written as Go writes them, and one more.

use std::path::PathBuf;
use std::time::Duration;

use super::super::conf::DEFAULT_SOCKET;

/// Where leases are kept.
const DEFAULT_LEASE_DIR: &str = "/var/lib/cni/dhcp";

/// What can be said.
pub const USAGE: &str = "\
usage: dhcp daemon [flags]
  -pidfile path        write the process id to this file (an absolute path)
  -hostprefix path     put this before the paths of socket and namespaces
  -socketpath path     listen here (/run/cni/dhcp.sock)
  -leasedir path       keep leases here (/var/lib/cni/dhcp)
  -broadcast           ask servers to answer to everybody on the link
  -timeout time        wait this long for a server after its offer (10s)
  -resendmax time      longest pause between two messages (62s)
  -resendtimeout time  give up an ADD after this long (3m28s)
A time is written as 10s, 500ms or 1m30s.";

/// The arguments as understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// Where to write the process id.
    pub pidfile: Option<PathBuf>,
    /// What stands before the paths of namespaces.
    pub host_prefix: String,
    /// Where to listen, prefix included.
    pub socket: PathBuf,
    /// Where leases are kept.
    pub lease_dir: PathBuf,
    /// Servers answer to everybody.
    pub broadcast: bool,
    /// Patience after an offer.
    pub timeout: Duration,
    /// Longest pause.
    pub resend_max: Duration,
    /// Patience of an ADD.
    pub resend_timeout: Duration,
}

/// What the caller wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// To know what can be said.
    Help,
    /// A daemon.
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
    /// Reads the arguments, or says what is wrong with them.
    pub fn parse(words: &[String]) -> Result<Wish, String> {
        let mut flags = Flags::default();
        let mut socket = String::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let unknown = || format!("{word:?} is no flag of the daemon");
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let (name, joined) = match flag.ok_or_else(unknown)?.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag.unwrap_or_default(), None),
            };
            if matches!(name, "h" | "help") {
                return Ok(Wish::Help);
            }
            if name == "broadcast" {
                flags.broadcast = truth(joined.as_deref().unwrap_or("true"))?;
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
            _ => Ok(Wish::Run(flags)),
        }
    }
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("-broadcast is {text:?}, expected true or false")),
    }
}

/// A time as Go writes it: numbers, each with a unit.
fn duration(name: &str, text: &str) -> Result<Duration, String> {
    let wrong = || format!("-{name} is {text:?}, expected a time such as 10s, 500ms or 1m30s");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = behind;
    }
    if total.is_zero() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match Flags::parse(&words)? {
            Wish::Run(flags) => Ok(flags),
            Wish::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn flags_of_the_go_daemon() {
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
    fn what_is_wrong_is_named() {
        let check = |line: &str, words: &str| {
            let problem = parse(line).unwrap_err();
            assert!(problem.contains(words), "{line}: {problem}");
        };
        check("-pidfile p", "-pidfile is \"p\", expected an absolute path");
        check("-timeout 10", "-timeout is \"10\", expected a time");
        check("-timeout 0s", "-timeout is \"0s\"");
        check("-timeout", "-timeout needs a value");
        check("-broadcast=maybe", "expected true or false");
        check("-colour red", "\"-colour\" is no flag");
        check("extra", "\"extra\" is no flag");
    }
}
