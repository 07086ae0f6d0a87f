// SPDX-License-Identifier: Apache-2.0
//! Adds, replaces and removes queueing disciplines and classes.

use ::netlink::{Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use super::{
    Handle, Header, RTM_DELQDISC, RTM_NEWQDISC, RTM_NEWTCLASS, TCA_HTB_CEIL64, TCA_HTB_INIT,
    TCA_HTB_PARMS, TCA_HTB_RATE64, TCA_KIND, TCA_OPTIONS, TCA_TBF_BURST, TCA_TBF_PARMS,
    TCA_TBF_RATE64,
};
use crate::request::Request;
use crate::types::IfIndex;

const TC_LINKLAYER_ETHERNET: u8 = 1; // linux/pkt_sched.h
/// Length of a tick of the packet scheduler's clock (`PSCHED_SHIFT` of net/pkt_sched.h, also in
/// `/proc/net/psched`); the same in every kernel since 2.6.31.
const TICK_NANOS: u64 = 64;
const HTB_VERSION: u32 = 3; // linux/pkt_sched.h, TC_HTB_PROTOVER
/// Number of bytes that a class sends in its turn. The value does not matter for a single class,
/// but without it the kernel derives one from the rate and logs a warning.
const HTB_QUANTUM: u32 = 60_000;

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Burst in bytes.
    pub burst: u32,
}

/// Returns the time to fill a bucket in the kernel's ticks. It is computed in whole microseconds
/// first, as by `tc` and the Go plugins. `None` if it is zero or does not fit into 32 bits.
pub(crate) fn ticks_of(bucket: Bucket) -> Option<u32> {
    let micros = u128::from(bucket.burst) * 1_000_000 / u128::from(bucket.rate.max(1));
    let ticks = micros * 1000 / u128::from(TICK_NANOS);
    u32::try_from(ticks).ok().filter(|ticks| *ticks != 0)
}

/// A queueing discipline to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qdisc {
    /// One token bucket for all packets, with a queue limit in bytes.
    Tbf(Bucket, u32),
    /// Classes with token buckets. Packets without a matching filter go to the class with this
    /// minor number; with 0 they are not limited.
    Htb(u16),
    /// A queue with a limit in bytes.
    Bfifo(u32),
    /// No queue, only a parent for filters of incoming packets.
    Ingress,
}

impl Qdisc {
    /// Returns the kernel's name of the discipline.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tbf(..) => "tbf",
            Self::Htb(_) => "htb",
            Self::Bfifo(_) => "bfifo",
            Self::Ingress => "ingress",
        }
    }
}

/// Adds a queueing discipline; fails if the parent already has one with a handle.
pub fn add_qdisc(link: IfIndex, parent: Handle, handle: Handle, qdisc: &Qdisc) -> Request {
    let message = qdisc_message(NLM_F_EXCL, Header::new(link, handle, parent), qdisc);
    Request::new("add qdisc", object(qdisc.name(), link, parent), message)
}

/// Adds a queueing discipline or replaces the existing one. One with the same handle must be of the
/// same kind and is changed, which an `htb` does not support.
pub fn replace_qdisc(link: IfIndex, parent: Handle, handle: Handle, qdisc: &Qdisc) -> Request {
    let message = qdisc_message(NLM_F_REPLACE, Header::new(link, handle, parent), qdisc);
    Request::new("replace qdisc", object(qdisc.name(), link, parent), message)
}

/// Removes the queueing discipline of a parent, with its classes and filters.
pub fn remove_qdisc(link: IfIndex, parent: Handle) -> Request {
    let message = Header::new(link, Handle(0), parent).start(RTM_DELQDISC, 0);
    Request::new("remove qdisc", format!("of {link} at {parent}"), message)
}

/// Adds a class of an `htb` discipline, or changes the one with that handle. The class cannot
/// borrow.
pub fn replace_class(link: IfIndex, parent: Handle, handle: Handle, bucket: Bucket) -> Request {
    let header = Header::new(link, handle, parent);
    let mut message = header.start(RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_REPLACE);
    message.str(TCA_KIND, "htb").nest(TCA_OPTIONS, |options| put_class(options, bucket));
    Request::new("replace class", object("htb", link, handle), message)
}

fn object(name: &str, link: IfIndex, parent: Handle) -> String {
    format!("{name} of {link} at {parent}")
}

fn qdisc_message(flag: u16, header: Header, qdisc: &Qdisc) -> Message {
    let mut message = header.start(RTM_NEWQDISC, NLM_F_CREATE | flag);
    message.str(TCA_KIND, qdisc.name());
    match *qdisc {
        Qdisc::Tbf(bucket, limit) => {
            message.nest(TCA_OPTIONS, |options| put_tbf(options, bucket, limit));
        }
        Qdisc::Htb(default) => {
            // struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
            let fields = [HTB_VERSION, 10, u32::from(default), 0, 0];
            message.nest(TCA_OPTIONS, |options| {
                options.bytes(TCA_HTB_INIT, &joined(&fields));
            });
        }
        // struct tc_fifo_qopt
        Qdisc::Bfifo(limit) => drop(message.u32(TCA_OPTIONS, limit)),
        Qdisc::Ingress => {}
    }
    message
}

/// Writes a `struct tc_tbf_qopt`.
fn put_tbf(options: &mut Message, bucket: Bucket, limit: u32) {
    let ticks = ticks_of(bucket);
    let mut parms = ratespec(bucket.rate).to_vec();
    parms.extend_from_slice(&[0; RATESPEC_LEN]);
    parms.extend_from_slice(&joined(&[limit, ticks.unwrap_or(u32::MAX), 0]));
    options.bytes(TCA_TBF_PARMS, &parms);
    put_rate64(options, TCA_TBF_RATE64, bucket.rate);
    if ticks.is_none() {
        // The kernel prefers the burst in bytes to the ticks.
        options.u32(TCA_TBF_BURST, bucket.burst);
    }
}

/// Writes a `struct tc_htb_opt` whose ceiling equals the rate.
fn put_class(options: &mut Message, bucket: Bucket) {
    let is_below_a_second = u64::from(bucket.burst) < bucket.rate;
    let ticks = ticks_of(bucket).unwrap_or(if is_below_a_second { 1 } else { u32::MAX });
    let mut parms = ratespec(bucket.rate).to_vec();
    parms.extend_from_slice(&ratespec(bucket.rate));
    // buffer, cbuffer, quantum, level, prio
    parms.extend_from_slice(&joined(&[ticks, ticks, HTB_QUANTUM, 0, 0]));
    options.bytes(TCA_HTB_PARMS, &parms);
    put_rate64(options, TCA_HTB_RATE64, bucket.rate);
    put_rate64(options, TCA_HTB_CEIL64, bucket.rate);
}

const RATESPEC_LEN: usize = 12;

/// Builds a `struct tc_ratespec`. With the link layer Ethernet the kernel needs no rate table.
fn ratespec(rate: u64) -> [u8; RATESPEC_LEN] {
    let mut spec = [0; RATESPEC_LEN];
    spec[1] = TC_LINKLAYER_ETHERNET;
    spec[8..].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    spec
}

fn put_rate64(options: &mut Message, kind: u16, rate: u64) {
    if rate > u64::from(u32::MAX) {
        options.u64(kind, rate);
    }
}

fn joined(fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 125_000;

    #[test]
    fn ticks_equal_those_of_tc() {
        let check = |rate, burst, ticks| assert_eq!(ticks_of(Bucket { rate, burst }), ticks);
        // tc qdisc add dev lo root tbf rate 20mbit burst 32kb latency 25ms: 13107 µs
        check(20 * MBIT, 32_768, Some(204_796));
        check(1, 1, Some(15_625_000));
        // Less than a microsecond, and more than 274 seconds: the burst is sent in bytes.
        check(100_000 * MBIT, 1500, None);
        check(MBIT, i32::MAX as u32 / 8, None);
        check(0, 1, Some(15_625_000));
    }

    #[test]
    fn tbf_has_golden_bytes() {
        // tc qdisc replace dev <index 7> root handle 1: tbf rate 20mbit burst 32kb limit 65536
        let bucket = Bucket { rate: 20 * MBIT, burst: 32_768 };
        let handle = Handle::new(1, 0);
        let request = replace_qdisc(IfIndex(7), Handle::ROOT, handle, &Qdisc::Tbf(bucket, 65_536));
        assert_eq!(
            request.message.to_bytes(),
            [
                88, 0, 0, 0, 36, 0, 0x01, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 255, 255, 255, 255, 0, 0, 0, 0, // tcmsg
                8, 0, 1, 0, b't', b'b', b'f', 0, // TCA_KIND
                44, 0, 2, 0x80, 40, 0, 1, 0, // TCA_OPTIONS, TCA_TBF_PARMS
                0, 1, 0, 0, 0, 0, 0, 0, 0xa0, 0x25, 0x26, 0, // rate
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // peakrate
                0, 0, 1, 0, 0xfc, 0x1f, 3, 0, 0, 0, 0, 0, // limit, buffer, mtu
            ]
        );
        assert_eq!(request.object(), "tbf of #7 at root");
    }

    #[test]
    fn rate_above_32_bits_has_golden_bytes() {
        let bucket = Bucket { rate: 1 << 33, burst: 0x1000 };
        let request =
            add_qdisc(IfIndex(7), Handle::ROOT, Handle::new(1, 0), &Qdisc::Tbf(bucket, 1));
        let bytes = request.message.to_bytes();
        let tail = [
            12, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0, // TCA_TBF_RATE64
            8, 0, 6, 0, 0, 0x10, 0, 0, // TCA_TBF_BURST
        ];
        assert!(bytes.ends_with(&tail), "{bytes:?}");
        assert_eq!(bytes[4..8], [36, 0, 0x01, 0x06], "create, exclusively");
        assert_eq!(bytes[60..64], [255; 4], "rate");
    }

    #[test]
    fn htb_and_class_have_golden_bytes() {
        // tc qdisc replace dev <index 7> root handle 2: htb default 1
        let request = replace_qdisc(IfIndex(7), Handle::ROOT, Handle::new(2, 0), &Qdisc::Htb(1));
        assert_eq!(
            request.message.to_bytes()[36..],
            [
                8, 0, 1, 0, b'h', b't', b'b', 0, // TCA_KIND
                28, 0, 2, 0x80, 24, 0, 2, 0, // TCA_OPTIONS, TCA_HTB_INIT
                3, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
        // tc class replace dev <index 7> parent 2: classid 2:1 htb rate 1mbit burst 12500
        let bucket = Bucket { rate: MBIT, burst: 12_500 };
        let class = replace_class(IfIndex(7), Handle::new(2, 0), Handle::new(2, 1), bucket);
        let bytes = class.message.to_bytes();
        assert_eq!(bytes[16..36], [0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(
            bytes[44..],
            [
                52, 0, 2, 0x80, 48, 0, 1, 0, // TCA_OPTIONS, TCA_HTB_PARMS
                0, 1, 0, 0, 0, 0, 0, 0, 0x48, 0xe8, 1, 0, // rate
                0, 1, 0, 0, 0, 0, 0, 0, 0x48, 0xe8, 1, 0, // ceil
                0x84, 0xd7, 0x17, 0, 0x84, 0xd7, 0x17, 0, // buffer, cbuffer: 100 ms
                0x60, 0xea, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // quantum, level, prio
            ]
        );
    }

    #[test]
    fn ingress_bfifo_and_removal_have_golden_bytes() {
        // tc qdisc add dev <index 7> ingress
        let (parent, handle) = (Handle::INGRESS, Handle::INGRESS_QDISC);
        let request = add_qdisc(IfIndex(7), parent, handle, &Qdisc::Ingress).message.to_bytes();
        assert_eq!(request[20..36], [7, 0, 0, 0, 0, 0, 255, 255, 0xf1, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(request[36..], *b"\x0c\0\x01\0ingress\0");
        // tc qdisc add dev <index 7> parent 2:1 handle 10: bfifo limit 4096
        let (parent, handle) = (Handle::new(2, 1), Handle::new(0x10, 0));
        let request = add_qdisc(IfIndex(7), parent, handle, &Qdisc::Bfifo(4096)).message.to_bytes();
        assert_eq!(request[36..], *b"\x0a\0\x01\0bfifo\0\0\0\x08\0\x02\0\0\x10\0\0");
        // tc qdisc del dev <index 7> root
        let request = remove_qdisc(IfIndex(7), Handle::ROOT).message.to_bytes();
        assert_eq!(request[4..8], [37, 0, 1, 0]);
        assert_eq!(
            request[16..],
            [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]
        );
    }
}
