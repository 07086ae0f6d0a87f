// SPDX-License-Identifier: Apache-2.0
//! Packets from one place of the lab to another.

use std::net::IpAddr;
use std::time::Duration;

use crate::ns::Ns;
use crate::wait::wait_some;

/// One echo request, answered within a second. For "must not get through".
pub fn can_ping(from: &Ns, to: IpAddr) -> bool {
    ping_once(from, to).is_ok()
}

/// Panics unless `to` answers within five seconds. Tried more than once, since an IPv6
/// address or a bridge port may need a moment before it is usable.
#[track_caller]
pub fn ping(from: &Ns, to: IpAddr) {
    let mut last = String::new();
    let answered = wait_some(Duration::from_secs(5), || match ping_once(from, to) {
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

fn ping_once(from: &Ns, to: IpAddr) -> Result<String, String> {
    from.try_exec("ping", &["-n", "-c", "1", "-W", "1", &to.to_string()])
}
