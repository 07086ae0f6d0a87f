// SPDX-License-Identifier: Apache-2.0
//! Traffic control: queueing disciplines, classes and filters, as far as traffic shaping needs
//! them.

mod filter;
mod list;
mod qdisc;

use std::fmt;

use ::netlink::{Message, u32_at};

use crate::types::IfIndex;

pub use self::filter::{Filter, Match, Side, Verdict, add_filter, remove_filters};
pub use self::list::{ObservedBucket, ObservedQdisc, class_by_handle, filters_of, qdisc_at};
pub use self::qdisc::{Bucket, Qdisc, add_qdisc, remove_qdisc, replace_class, replace_qdisc};

const RTM_NEWQDISC: u16 = 36; // linux/rtnetlink.h
const RTM_DELQDISC: u16 = 37; // linux/rtnetlink.h
const RTM_GETQDISC: u16 = 38; // linux/rtnetlink.h
const RTM_NEWTCLASS: u16 = 40; // linux/rtnetlink.h
const RTM_GETTCLASS: u16 = 42; // linux/rtnetlink.h
const RTM_NEWTFILTER: u16 = 44; // linux/rtnetlink.h
const RTM_DELTFILTER: u16 = 45; // linux/rtnetlink.h
const RTM_GETTFILTER: u16 = 46; // linux/rtnetlink.h

const TCA_KIND: u16 = 1; // linux/rtnetlink.h
const TCA_OPTIONS: u16 = 2; // linux/rtnetlink.h

const TCA_TBF_PARMS: u16 = 1; // linux/pkt_sched.h
const TCA_TBF_RATE64: u16 = 4; // linux/pkt_sched.h
const TCA_TBF_BURST: u16 = 6; // linux/pkt_sched.h

const TCA_HTB_PARMS: u16 = 1; // linux/pkt_sched.h
const TCA_HTB_INIT: u16 = 2; // linux/pkt_sched.h
const TCA_HTB_RATE64: u16 = 6; // linux/pkt_sched.h
const TCA_HTB_CEIL64: u16 = 7; // linux/pkt_sched.h

/// Length of `struct tcmsg`.
const HEADER_LEN: usize = 20;

/// Handle of a queueing discipline (`1:`) or of a class (`1:2`); also the parent that one is
/// attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

impl Handle {
    /// Parent of a link's egress discipline (`TC_H_ROOT`, linux/pkt_sched.h).
    pub const ROOT: Self = Self(0xffff_ffff);
    /// Parent of a link's ingress discipline (`TC_H_INGRESS`, linux/pkt_sched.h).
    pub const INGRESS: Self = Self(0xffff_fff1);
    /// Handle of the ingress discipline.
    pub const INGRESS_QDISC: Self = Self::new(0xffff, 0);
    /// Parent of ingress filters if the ingress discipline is `clsact` (`TC_H_MIN_INGRESS`).
    pub const CLSACT_INGRESS: Self = Self::new(0xffff, 0xfff2);

    /// Builds the handle `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.0 >> 16, self.0 & 0xffff) {
            (Self::ROOT, ..) => f.write_str("root"),
            (Self::INGRESS, ..) => f.write_str("ingress"),
            (_, major, 0) => write!(f, "{major:x}:"),
            (_, major, minor) => write!(f, "{major:x}:{minor:x}"),
        }
    }
}

/// `struct tcmsg`, the header of messages about disciplines, classes and filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    link: IfIndex,
    handle: Handle,
    parent: Handle,
    info: u32,
}

impl Header {
    fn new(link: IfIndex, handle: Handle, parent: Handle) -> Self {
        Self { link, handle, parent, info: 0 }
    }

    fn start(self, kind: u16, flags: u16) -> Message {
        let mut bytes = [0; HEADER_LEN];
        let fields = [self.link.0, self.handle.0, self.parent.0, self.info];
        for (to, from) in bytes[4..].chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let mut message = Message::new(kind, flags);
        message.header(&bytes);
        message
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self {
            link: IfIndex(u32_at(payload, 4)?),
            handle: Handle(u32_at(payload, 8)?),
            parent: Handle(u32_at(payload, 12)?),
            info: u32_at(payload, 16)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_displayed_as_by_tc() {
        let check = |handle: Handle, text: &str| assert_eq!(handle.to_string(), text);
        check(Handle::ROOT, "root");
        check(Handle::INGRESS, "ingress");
        check(Handle::INGRESS_QDISC, "ffff:");
        check(Handle::CLSACT_INGRESS, "ffff:fff2");
        check(Handle::new(0x10, 0x1a), "10:1a");
    }
}
