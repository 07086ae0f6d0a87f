// SPDX-License-Identifier: Apache-2.0
//! What systemd is told: that the service is up, what it is doing, that it is alive. The protocol is
//! that of `sd_notify(3)`; who calls has looked for it in the environment.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use text::escape;
use tokio::time::timeout;

use crate::status::{Status, StatusHub};

/// While it waits for its network, a service is given that much longer to start, again and again.
const LONGER: Duration = Duration::from_secs(60);

/// Numbers of peers in the status line may be that old.
const REFRESH: Duration = Duration::from_secs(30);

/// Who is told.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// `address` is the value of NOTIFY_SOCKET: a path, or a name after an `@`.
    pub fn new(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Notifier> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => {
                let words = format!("NOTIFY_SOCKET is {address:?}, expected a path or @name");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Notifier { socket, address, watchdog })
    }

    /// Tells that the service is on its way out.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Tells what is on the hub until it is dropped.
    pub async fn keep(&self, hub: &StatusHub) {
        let mut changes = hub.changes();
        let mut is_up = false;
        let wait = self.watchdog.map_or(REFRESH, |interval| (interval / 2).min(REFRESH));
        loop {
            let status = hub.summary();
            let mut message = format!("STATUS={}", line(&status));
            if status.ready && !is_up {
                is_up = true;
                message += "\nREADY=1";
            }
            if !is_up {
                message += &format!("\nEXTEND_TIMEOUT_USEC={}", LONGER.as_micros());
            }
            if self.watchdog.is_some() && status.healthy {
                message += "\nWATCHDOG=1";
            }
            self.send(&message);
            // Either way there is something to tell.
            let _ = timeout(wait, changes.next()).await;
        }
    }

    /// Nobody may be listening any more, and there is nobody else to tell that.
    fn send(&self, message: &str) {
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }
}

/// How often systemd wants to hear of this process: WATCHDOG_USEC, unless WATCHDOG_PID is another's.
pub fn watchdog(usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let micros = usec?.parse().ok().filter(|micros| *micros > 0)?;
    Some(Duration::from_micros(micros))
}

/// One line for `systemctl status`.
fn line(status: &Status) -> String {
    let said = match (&status.session, &status.reasons[..]) {
        // The first one says that there is none, and the others why.
        (None, [_, why, more @ ..]) => {
            let all: Vec<&str> = [why].into_iter().chain(more).map(String::as_str).collect();
            format!("waiting for the network: {}", all.join("; "))
        }
        (_, [_, ..]) => status.reasons.join("; "),
        (Some(session), []) => {
            let subnets: Vec<String> =
                session.lease.subnets.iter().map(ToString::to_string).collect();
            let (backend, peers) = (&session.backend, status.peer_counts.total);
            format!("ready: {} over {backend}, {peers} peers", subnets.join(" and "))
        }
        (None, []) => "waiting for the network".to_owned(),
    };
    escape::line(&said.replace(['\r', '\n'], " ")).into_owned()
}

#[cfg(test)]
mod tests;
