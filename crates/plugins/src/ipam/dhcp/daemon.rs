// SPDX-License-Identifier: Apache-2.0
//! `dhcp daemon`: holds the leases of all containers of this machine. One thread waits for callers,
//! servers and the clock; sockets are open in a container's namespace only while an answer is
//! awaited, so that a namespace can go away without us.

mod attachment;
mod connections;
mod event_loop;
mod family_lease;
mod flags;
mod interface;
mod store;
mod transport;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use cni::{Code, Error};
use kernel::daemon::TerminationSignals;

use self::attachment::Held;
use self::connections::Listening;
use self::event_loop::Daemon;
use self::flags::{Flags, Wish};
use self::store::Store;
use super::protocol::Key;
use crate::error::Context;

/// Runs the daemon with these arguments, those behind the word `daemon`.
pub fn command_line(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    match Flags::parse(&words) {
        Ok(Wish::Help) => {
            log::line(flags::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Wish::Run(flags)) => match run(&flags) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                log::line(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        },
        Err(problem) => {
            log::line(&format!("error: {problem}\n{}", flags::USAGE));
            ExitCode::from(2)
        }
    }
}

/// Gives leases back where no daemon runs that could: those that the last one left in the usual
/// directory. What cannot be done is left to the next daemon, or to the server's own clock.
pub fn release_without(key: &Key) {
    let flags = Flags::default();
    let store = Store::new(&flags.lease_dir);
    let Some(record) = store.find(key) else { return };
    Held::leaving(record, &flags).end(Instant::now());
    store.remove(key);
}

fn run(flags: &Flags) -> Result<(), Error> {
    kernel::daemon::raise_file_limit().context("prepare")?;
    let signals = TerminationSignals::open().context("prepare to be ended")?;
    let store = Store::new(&flags.lease_dir);
    let listening = Listening::open(&flags.socket)?;
    let served =
        write_pidfile(flags).and_then(|()| Daemon::new(flags, store, &listening, &signals).run());
    listening.close();
    if let Some(pidfile) = &flags.pidfile {
        // What is gone is fine, and at the end nobody is left to be told.
        let _ = std::fs::remove_file(pidfile);
    }
    served
}

fn write_pidfile(flags: &Flags) -> Result<(), Error> {
    let Some(pidfile) = &flags.pidfile else { return Ok(()) };
    std::fs::write(pidfile, std::process::id().to_string()).map_err(|cause| {
        Error::because(Code::IO, format!("write pidfile {}", pidfile.display()), &cause)
    })
}

/// Log lines of the daemon.
mod log {
    use std::fmt::Display;
    use std::io::{self, Write};

    /// Writes a line to standard error. Errors are ignored: the daemon works without a log.
    pub fn line(text: &str) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Writes a line about an attachment.
    pub fn about(attachment: &str, text: impl Display) {
        line(&format!("{attachment}: {text}"));
    }
}
