// SPDX-License-Identifier: Apache-2.0
//! `dhcp daemon`: manages the leases of all containers of this machine. One thread handles plugins, DHCP servers and
//! timers. It has sockets in a container's namespace only while it waits for a reply, so that it does not keep the
//! namespace alive.

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

use self::attachment::LeasedAttachment;
use self::connections::ListenSocket;
use self::event_loop::Daemon;
use self::flags::{Flags, Invocation};
use self::store::Store;
use super::protocol::AttachmentKey;
use crate::error::Context;

/// Runs the daemon with the arguments that follow `dhcp daemon`.
pub fn command_line(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    match Flags::parse(&words) {
        Ok(Invocation::Help) => {
            log::line(flags::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Invocation::Run(flags)) => match run(&flags) {
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

/// Releases leases without a daemon, from the files that the last daemon left in the default directory. If that fails,
/// the next daemon releases them, or they expire.
pub fn release_without(key: &AttachmentKey) {
    let flags = Flags::default();
    let store = Store::new(&flags.lease_dir);
    let Some(record) = store.find(key) else { return };
    LeasedAttachment::for_release(record, &flags).end(Instant::now());
    store.remove(key);
}

fn run(flags: &Flags) -> Result<(), Error> {
    kernel::daemon::raise_file_limit().context("prepare")?;
    let signals = TerminationSignals::open().context("prepare for signals")?;
    let store = Store::new(&flags.lease_dir);
    let socket = ListenSocket::open(&flags.socket)?;
    let served =
        write_pidfile(flags).and_then(|()| Daemon::new(flags, store, &socket, &signals).run());
    socket.close();
    if let Some(pidfile) = &flags.pidfile {
        // Best effort: the file may be gone, and the daemon exits anyway.
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
    pub(super) fn line(text: &str) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Writes a line about an attachment.
    pub(super) fn attachment(attachment: &str, text: impl Display) {
        line(&format!("{attachment}: {text}"));
    }
}
