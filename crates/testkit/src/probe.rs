// SPDX-License-Identifier: Apache-2.0
//! Packets from one place of the lab to another.

use std::net::IpAddr;
use std::time::Duration;

use crate::ns::Ns;
use crate::wait::wait_some;

/// One echo request, answered within a second. For "must not get through": what must is not to depend
/// on how busy the machine is.
pub fn can_ping(from: &Ns, to: IpAddr) -> bool {
    ping_once(from, to, "1").is_ok()
}

/// One echo request, with all the time that a busy machine takes for the answer. For "the first packet
/// gets through".
pub fn answers(from: &Ns, to: IpAddr) -> bool {
    ping_once(from, to, "20").is_ok()
}

/// Panics unless `to` answers before long. Tried more than once, since an IPv6
/// address or a bridge port may need a moment before it is usable.
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
