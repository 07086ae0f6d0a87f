// SPDX-License-Identifier: Apache-2.0
//! Pings between namespaces of the lab.

use std::net::IpAddr;
use std::time::Duration;

use crate::ns::Ns;
use crate::wait::wait_some;

/// Returns whether one echo request is answered within a second. Use it to assert that there is no
/// connectivity. For the opposite use [`ping`] or [`answers`], which tolerate a busy machine.
pub fn can_ping(from: &Ns, to: IpAddr) -> bool {
    ping_once(from, to, "1").is_ok()
}

/// Returns whether one echo request is answered, with enough time for a busy machine. Use it to assert
/// that the first packet gets through.
pub fn answers(from: &Ns, to: IpAddr) -> bool {
    ping_once(from, to, "20").is_ok()
}

/// Pings `to` repeatedly and panics unless it answers within 30 seconds. An IPv6 address or a bridge port
/// may need a moment before it is usable.
#[track_caller]
pub fn ping(from: &Ns, to: IpAddr) {
    let mut last = String::new();
    let answered = wait_some(Duration::from_secs(30), || match ping_once(from, to, "1") {
        Ok(text) => Some(text),
        Err(why) => {
            last = why;
            None
        }
    });
    if answered.is_none() {
        let state = ["addr", "route", "neigh"].map(|what| from.ip(&[what])).concat();
        panic!("no answer from {to}: {last}\nthe sender has\n{state}");
    }
}

fn ping_once(from: &Ns, to: IpAddr, seconds: &str) -> Result<String, String> {
    from.try_exec("ping", &["-n", "-c", "1", "-W", seconds, &to.to_string()])
}
