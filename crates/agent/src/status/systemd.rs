// SPDX-License-Identifier: Apache-2.0
//! Notifications to systemd: the service is up, its status line, and the watchdog. The protocol is that of
//! `sd_notify(3)`. The caller reads the environment.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use text::escape;
use tokio::time::timeout;

use crate::status::{Status, StatusHub};

/// Start timeout that the agent asks for, again and again, while it waits for its network.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum age of the number of peers in the status line.
const REFRESH: Duration = Duration::from_secs(30);

/// The notification socket of systemd.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// `address` is the value of NOTIFY_SOCKET: a path, or an abstract name after an `@`.
    pub fn new(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Notifier> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => {
                let problem = format!("NOTIFY_SOCKET is {address:?}, expected a path or @name");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Notifier { socket, address, watchdog })
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Reports the status of the hub until it is dropped.
    pub async fn run(&self, hub: &StatusHub) {
        let mut changes = hub.changes();
        let mut is_up = false;
        let wait = self.watchdog.map_or(REFRESH, |interval| (interval / 2).min(REFRESH));
        loop {
            let status = hub.summary();
            let mut message = format!("STATUS={}", status_line(&status));
            if status.ready && !is_up {
                is_up = true;
                message += "\nREADY=1";
            }
            if !is_up {
                message += &format!("\nEXTEND_TIMEOUT_USEC={}", START_TIMEOUT.as_micros());
            }
            if self.watchdog.is_some() && status.healthy {
                message += "\nWATCHDOG=1";
            }
            self.send(&message);
            // After a change and after a timeout alike, the next message is due.
            let _ = timeout(wait, changes.next()).await;
        }
    }

    /// Ignores errors: a missing listener cannot be reported anywhere else.
    fn send(&self, message: &str) {
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }
}

/// Returns the watchdog interval from WATCHDOG_USEC. WATCHDOG_PID, if set, must name this process.
pub fn watchdog(usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let micros = usec?.parse().ok().filter(|micros| *micros > 0)?;
    Some(Duration::from_micros(micros))
}

/// Formats the status line for `systemctl status`.
fn status_line(status: &Status) -> String {
    let text = match (&status.membership.network, &status.reasons[..]) {
        // The first reason only says that the node has not joined. The others say why.
        (None, [_, why, more @ ..]) => {
            let all: Vec<&str> = [why].into_iter().chain(more).map(String::as_str).collect();
            format!("waiting for the network: {}", all.join("; "))
        }
        (_, [_, ..]) => status.reasons.join("; "),
        (Some(network), []) => {
            let subnets: Vec<String> =
                network.lease.subnets.iter().map(ToString::to_string).collect();
            let (backend, peers) = (&network.backend, status.peers.counts.total);
            format!("ready: {} over {backend}, {peers} peers", subnets.join(" and "))
        }
        (None, []) => "waiting for the network".to_owned(),
    };
    escape::line(&text.replace(['\r', '\n'], " ")).into_owned()
}

#[cfg(test)]
mod tests;
