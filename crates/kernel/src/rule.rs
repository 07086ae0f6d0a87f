// SPDX-License-Identifier: Apache-2.0
//! Policy routing rules, which select the routing table for a packet.

use ::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, u32_at};
use ipnet::IpNet;

use crate::error::Result;
use crate::netlink_ip::{self, put_ip};
use crate::request::{Netlink, Request};
use crate::types::{Family, IfName};

const RTM_NEWRULE: u16 = 32; // linux/rtnetlink.h
const RTM_DELRULE: u16 = 33; // linux/rtnetlink.h
const RTM_GETRULE: u16 = 34; // linux/rtnetlink.h

const FRA_DST: u16 = 1; // linux/fib_rules.h
const FRA_SRC: u16 = 2; // linux/fib_rules.h
const FRA_IIFNAME: u16 = 3; // linux/fib_rules.h
const FRA_PRIORITY: u16 = 6; // linux/fib_rules.h
const FRA_FWMARK: u16 = 10; // linux/fib_rules.h
const FRA_TABLE: u16 = 15; // linux/fib_rules.h
const FRA_FWMASK: u16 = 16; // linux/fib_rules.h
const FRA_OIFNAME: u16 = 17; // linux/fib_rules.h
const FRA_PROTOCOL: u16 = 21; // linux/fib_rules.h
const FIB_RULE_INVERT: u32 = 2; // linux/fib_rules.h

/// Looks up the table (`FR_ACT_TO_TBL`, linux/fib_rules.h).
pub const ACTION_TABLE: u8 = 1;

/// Length of `struct fib_rule_hdr`.
const HEADER_LEN: usize = 12;

/// A rule, to be added or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Address family of the packets.
    pub family: Family,
    /// Position in the order of rules. `None` leaves the choice to the kernel, which puts the rule
    /// before all others.
    pub priority: Option<u32>,
    /// Matches packets from these sources.
    pub from: Option<IpNet>,
    /// Matches packets to these destinations.
    pub to: Option<IpNet>,
    /// Matches packets with this mark under this mask.
    pub mark: Option<(u32, u32)>,
    /// Matches packets that arrive through this link.
    pub iif: Option<IfName>,
    /// Matches packets of sockets bound to this link.
    pub oif: Option<IfName>,
    /// Inverts the match.
    pub invert: bool,
    /// Routing table to look up.
    pub table: u32,
    /// Action (`FR_ACT_*`).
    pub action: u8,
    /// Protocol that added the rule (`RTPROT_*`).
    pub protocol: u8,
}

impl Rule {
    /// Returns a rule that looks up a table for all packets of an address family.
    pub fn new(family: Family, table: u32) -> Self {
        Self {
            family,
            priority: None,
            from: None,
            to: None,
            mark: None,
            iif: None,
            oif: None,
            invert: false,
            table,
            action: ACTION_TABLE,
            protocol: 0,
        }
    }
}

/// Adds a rule; fails if an equal rule exists.
pub fn add(rule: &Rule) -> Request {
    let message = message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule);
    Request::new("add rule", object(rule), message)
}

/// Removes the first rule that matches all given attributes.
pub fn remove(rule: &Rule) -> Request {
    Request::new("remove rule", object(rule), message(RTM_DELRULE, 0, rule))
}

/// Lists the rules of an address family.
pub fn list(nl: &Netlink, family: Family) -> Result<Vec<Rule>> {
    let mut header = [0; HEADER_LEN];
    header[0] = family.number();
    let mut message = Message::new(RTM_GETRULE, 0);
    message.header(&header);
    nl.dump("list rules", &message, |payload| parse(payload, family))
}

fn object(rule: &Rule) -> String {
    let mut text = String::new();
    for (word, prefix) in [("from", rule.from), ("to", rule.to)] {
        if let Some(prefix) = prefix {
            text += &format!("{word} {prefix} ");
        }
    }
    text + &format!("lookup {}", rule.table)
}

fn message(kind: u16, nlm_flags: u16, rule: &Rule) -> Message {
    let mut message = Message::new(kind, nlm_flags);
    let mut header = [0; HEADER_LEN];
    header[0] = rule.family.number();
    header[1] = rule.to.map_or(0, |to| to.prefix_len());
    header[2] = rule.from.map_or(0, |from| from.prefix_len());
    header[4] = u8::try_from(rule.table).unwrap_or(0);
    header[7] = rule.action;
    let flags = if rule.invert { FIB_RULE_INVERT } else { 0 };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    message.header(&header);
    for (kind, prefix) in [(FRA_DST, rule.to), (FRA_SRC, rule.from)] {
        if let Some(prefix) = prefix.filter(|prefix| prefix.prefix_len() > 0) {
            put_ip(&mut message, kind, prefix.network());
        }
    }
    for (kind, name) in [(FRA_IIFNAME, rule.iif), (FRA_OIFNAME, rule.oif)] {
        if let Some(name) = name {
            message.str(kind, name.as_str());
        }
    }
    if let Some(priority) = rule.priority {
        message.u32(FRA_PRIORITY, priority);
    }
    if let Some((mark, mask)) = rule.mark {
        message.u32(FRA_FWMARK, mark).u32(FRA_FWMASK, mask);
    }
    if rule.table > u32::from(u8::MAX) {
        message.u32(FRA_TABLE, rule.table);
    }
    if rule.protocol != 0 {
        message.u8(FRA_PROTOCOL, rule.protocol);
    }
    message
}

fn parse(payload: &[u8], family: Family) -> Option<Rule> {
    if *payload.first()? != family.number() {
        return None;
    }
    let attrs = Attrs::after(payload, HEADER_LEN);
    let number = |kind| attrs.find_kind(kind).and_then(|attr| attr.u32());
    let name = |kind| attrs.find_kind(kind).and_then(|attr| IfName::from_kernel(attr.text()));
    let prefix = |kind, len| {
        attrs
            .find_kind(kind)
            .and_then(|attr| netlink_ip::prefix(netlink_ip::ip(attr.payload)?, len))
    };
    let mask = number(FRA_FWMASK);
    Some(Rule {
        family,
        // The kernel omits the priority 0, which the rule of the local table has.
        priority: Some(number(FRA_PRIORITY).unwrap_or(0)),
        from: prefix(FRA_SRC, *payload.get(2)?),
        to: prefix(FRA_DST, *payload.get(1)?),
        mark: mask.map(|mask| (number(FRA_FWMARK).unwrap_or(0), mask)).filter(|(_, m)| *m != 0),
        iif: name(FRA_IIFNAME),
        oif: name(FRA_OIFNAME),
        invert: u32_at(payload, 8)? & FIB_RULE_INVERT != 0,
        table: number(FRA_TABLE).unwrap_or(u32::from(*payload.get(4)?)),
        action: *payload.get(7)?,
        protocol: attrs.find_kind(FRA_PROTOCOL).and_then(|attr| attr.u8()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn source_rule_has_golden_bytes() {
        // ip rule add from 10.1.2.3/32 lookup 100 priority 50
        let rule = Rule {
            from: Some("10.1.2.3/32".parse().unwrap()),
            priority: Some(50),
            ..Rule::new(Family::V4, 100)
        };
        assert_eq!(
            add(&rule).message.to_bytes(),
            [
                44, 0, 0, 0, 32, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 0, 32, 0, 100, 0, 0, 1, 0, 0, 0, 0, // fib_rule_hdr
                8, 0, 2, 0, 10, 1, 2, 3, // FRA_SRC
                8, 0, 6, 0, 50, 0, 0, 0, // FRA_PRIORITY
            ]
        );
        assert_eq!(add(&rule).object(), "from 10.1.2.3/32 lookup 100");
    }

    #[test]
    fn mark_and_link_rule_has_golden_bytes() {
        // ip rule del not iif eth0 fwmark 0x1/0xff lookup 1000
        let rule = Rule {
            mark: Some((1, 0xff)),
            iif: Some("eth0".parse().unwrap()),
            invert: true,
            ..Rule::new(Family::V6, 1000)
        };
        assert_eq!(
            remove(&rule).message.to_bytes()[16..],
            [
                10, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, //
                9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // FRA_IIFNAME
                8, 0, 10, 0, 1, 0, 0, 0, 8, 0, 16, 0, 0xff, 0, 0, 0, // FRA_FWMARK, FRA_FWMASK
                8, 0, 15, 0, 0xe8, 3, 0, 0, // FRA_TABLE
            ]
        );
    }

    proptest! {
        #[test]
        fn parser_never_panics(mut bytes: Vec<u8>) {
            if let Some(first) = bytes.first_mut() {
                *first = 2;
            }
            let _ = parse(&bytes, Family::V4);
        }
    }
}
