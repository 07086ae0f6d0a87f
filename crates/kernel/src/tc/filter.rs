// SPDX-License-Identifier: Apache-2.0
//! `u32` filters, which send all packets, or those from or to a prefix, to a class or out of
//! another link.

use ::netlink::{Attr, Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, u32_at};
use ipnet::IpNet;

use super::{Handle, Header, RTM_DELTFILTER, RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS};
use crate::netlink_ip;
use crate::request::Request;
use crate::types::{Family, IfIndex};

const TCA_U32_CLASSID: u16 = 1; // linux/pkt_cls.h
const TCA_U32_SEL: u16 = 5; // linux/pkt_cls.h
const TCA_U32_ACT: u16 = 7; // linux/pkt_cls.h
const TC_U32_TERMINAL: u8 = 1; // linux/pkt_cls.h
const TCA_ACT_KIND: u16 = 1; // linux/pkt_cls.h
const TCA_ACT_OPTIONS: u16 = 2; // linux/pkt_cls.h
const TCA_MIRRED_PARMS: u16 = 2; // linux/tc_act/tc_mirred.h
const TCA_EGRESS_REDIR: u32 = 1; // linux/tc_act/tc_mirred.h
const TC_ACT_STOLEN: u32 = 4; // linux/pkt_cls.h

const ETH_P_ALL: u16 = 0x0003; // linux/if_ether.h
const ETH_P_IP: u16 = 0x0800; // linux/if_ether.h
const ETH_P_IPV6: u16 = 0x86dd; // linux/if_ether.h

/// Lengths of `struct tc_u32_sel` and of `struct tc_u32_key`, which follows it once per key.
const SEL_LEN: usize = 16;
const KEY_LEN: usize = 16;

/// A filter, to be added or as read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Position in the order of filters. All filters of a priority have the same
    /// [`Match::protocol`].
    pub priority: u16,
    /// Packets that the filter matches.
    pub packets: Match,
    /// Target of the packets.
    pub verdict: Verdict,
}

/// Packets that a filter matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Match {
    /// All packets, IP or not.
    All,
    /// Packets with an address in this prefix.
    Prefix(Side, IpNet),
}

impl Match {
    /// Returns the protocol (`ETH_P_*`): all, IPv4 or IPv6.
    pub fn protocol(&self) -> u16 {
        match self {
            Self::All => ETH_P_ALL,
            Self::Prefix(_, IpNet::V4(_)) => ETH_P_IP,
            Self::Prefix(_, IpNet::V6(_)) => ETH_P_IPV6,
        }
    }
}

/// An address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
}

impl Side {
    const ALL: [Self; 2] = [Self::Source, Self::Destination];

    /// Returns the offset of the address in the IP header.
    fn offset(self, family: Family) -> u32 {
        match (family, self) {
            (Family::V4, Self::Source) => 12,
            (Family::V4, Self::Destination) => 16,
            (Family::V6, Self::Source) => 8,
            (Family::V6, Self::Destination) => 24,
        }
    }
}

/// Target of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// To a class; packets at ingress continue normally.
    Class(Handle),
    /// Out of this link, as if sent there.
    Redirect(IfIndex),
}

/// Adds a filter after the others of its priority.
pub fn add_filter(link: IfIndex, parent: Handle, filter: &Filter) -> Request {
    let header = header(link, parent, filter.priority, filter.packets.protocol());
    let mut message = header.start(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL);
    message.str(TCA_KIND, "u32").nest(TCA_OPTIONS, |options| {
        if let Verdict::Class(class) = filter.verdict {
            options.u32(TCA_U32_CLASSID, class.0);
        }
        options.bytes(TCA_U32_SEL, &selector(filter.packets));
        if let Verdict::Redirect(to) = filter.verdict {
            options.nest(TCA_U32_ACT, |actions| put_redirect(actions, to));
        }
    });
    Request::new("add filter", format!("of {link} at {parent}"), message)
}

/// Removes all filters of a priority and [`Match::protocol`].
pub fn remove_filters(link: IfIndex, parent: Handle, priority: u16, protocol: u16) -> Request {
    let message = header(link, parent, priority, protocol).start(RTM_DELTFILTER, 0);
    Request::new("remove filters", format!("of {link} at {parent}"), message)
}

fn header(link: IfIndex, parent: Handle, priority: u16, protocol: u16) -> Header {
    let info = u32::from(priority) << 16 | u32::from(protocol.to_be());
    Header { info, ..Header::new(link, Handle(0), parent) }
}

fn selector(packets: Match) -> Vec<u8> {
    let keys = match packets {
        Match::All => vec![key(&[0; 4], &[0; 4], 0)],
        Match::Prefix(side, IpNet::V4(prefix)) => {
            let (mask, value) = (prefix.netmask().octets(), prefix.network().octets());
            vec![key(&mask, &value, side.offset(Family::V4))]
        }
        Match::Prefix(side, IpNet::V6(prefix)) => {
            let (mask, value) = (prefix.netmask().octets(), prefix.network().octets());
            let words =
                mask.chunks(4).zip(value.chunks(4)).zip((side.offset(Family::V6)..).step_by(4));
            let all = words.map(|((mask, value), offset)| (mask, value, offset));
            // The first word is kept even if its mask is zero: its offset says which address is
            // meant.
            let needed = all.enumerate().filter(|(at, (mask, ..))| *at == 0 || **mask != [0; 4]);
            needed.map(|(_, (mask, value, offset))| key(mask, value, offset)).collect()
        }
    };
    let mut bytes = vec![0; SEL_LEN];
    bytes[0] = TC_U32_TERMINAL;
    bytes[2] = u8::try_from(keys.len()).unwrap_or(0);
    bytes.extend(keys.concat());
    bytes
}

/// Builds a key: mask and value in network byte order, offset in host byte order.
fn key(mask: &[u8], value: &[u8], offset: u32) -> Vec<u8> {
    [mask, value, &offset.to_ne_bytes(), &[0; 4]].concat()
}

fn put_redirect(actions: &mut Message, to: IfIndex) {
    // struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
    let fields = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to.0];
    let parms: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    // The attribute type is the position of the action.
    actions.nest(1, |action| {
        action.str(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
            options.bytes(TCA_MIRRED_PARMS, &parms);
        });
    });
}

/// Parses a filter; `None` if this module could not have created it.
pub(super) fn parse(payload: &[u8]) -> Option<Filter> {
    let header = Header::parse(payload)?;
    let attrs = Attrs::after(payload, super::HEADER_LEN);
    if attrs.find_kind(TCA_KIND)?.str() != Some("u32") {
        return None;
    }
    let options = attrs.find_kind(TCA_OPTIONS)?.nested();
    let protocol = u16::from_be((header.info & 0xffff) as u16);
    let packets = parse_selector(protocol, options.find_kind(TCA_U32_SEL)?.payload)?;
    let class = options.find_kind(TCA_U32_CLASSID).and_then(|class| class.u32()).map(Handle);
    let verdict = match options.find_kind(TCA_U32_ACT) {
        Some(actions) => Verdict::Redirect(parse_redirect(&actions)?),
        None => Verdict::Class(class.unwrap_or(Handle(0))),
    };
    Some(Filter { priority: (header.info >> 16) as u16, packets, verdict })
}

/// Returns the link that the first action redirects to.
fn parse_redirect(actions: &Attr<'_>) -> Option<IfIndex> {
    let action = actions.nested().next()?.nested();
    if action.find_kind(TCA_ACT_KIND)?.str() != Some("mirred") {
        return None;
    }
    let parms = action.find_kind(TCA_ACT_OPTIONS)?.nested().find_kind(TCA_MIRRED_PARMS)?.payload;
    (u32_at(parms, 20)? == TCA_EGRESS_REDIR).then_some(IfIndex(u32_at(parms, 24)?))
}

fn parse_selector(protocol: u16, selector: &[u8]) -> Option<Match> {
    let count = usize::from(*selector.get(2)?);
    let keys = selector.get(SEL_LEN..)?.chunks_exact(KEY_LEN).take(count);
    let family = match protocol {
        ETH_P_ALL => {
            let is_all = keys.clone().all(|key| key[..4] == [0; 4]);
            return is_all.then_some(Match::All);
        }
        ETH_P_IP => Family::V4,
        ETH_P_IPV6 => Family::V6,
        _ => return None,
    };
    let first = u32_at(keys.clone().next()?, 8)?;
    let side = Side::ALL.into_iter().find(|side| side.offset(family) == first)?;
    let len = if family == Family::V4 { 4 } else { 16 };
    let (mut mask, mut value) = (vec![0; len], vec![0; len]);
    for key in keys {
        let at = usize::try_from(u32_at(key, 8)?.checked_sub(first)?).ok()?;
        mask.get_mut(at..)?.get_mut(..4)?.copy_from_slice(&key[..4]);
        value.get_mut(at..)?.get_mut(..4)?.copy_from_slice(&key[4..8]);
    }
    let prefix = IpNet::with_netmask(netlink_ip::ip(&value)?, netlink_ip::ip(&mask)?).ok()?;
    Some(Match::Prefix(side, prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REDIRECT: Filter =
        Filter { priority: 1, packets: Match::All, verdict: Verdict::Redirect(IfIndex(9)) };

    fn prefix(side: Side, text: &str) -> Filter {
        let packets = Match::Prefix(side, text.parse().unwrap());
        Filter { priority: 2, packets, verdict: Verdict::Class(Handle::new(2, 1)) }
    }

    #[test]
    fn redirect_has_golden_bytes() {
        // tc filter add dev <index 7> parent ffff: protocol all prio 1 u32 match u32 0 0
        //   action mirred egress redirect dev <index 9>
        let request = add_filter(IfIndex(7), Handle::INGRESS_QDISC, &REDIRECT);
        assert_eq!(
            request.message.to_bytes(),
            [
                140, 0, 0, 0, 44, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 3, 1, 0, // tcmsg
                8, 0, 1, 0, b'u', b'3', b'2', 0, // TCA_KIND
                96, 0, 2, 0x80, // TCA_OPTIONS
                36, 0, 5, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // TCA_U32_SEL
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // one key
                56, 0, 7, 0x80, 52, 0, 1, 0x80, // TCA_U32_ACT, the first
                11, 0, 1, 0, b'm', b'i', b'r', b'r', b'e', b'd', 0, 0, // TCA_ACT_KIND
                36, 0, 2, 0x80, 32, 0, 2, 0, // TCA_ACT_OPTIONS, TCA_MIRRED_PARMS
                0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // tc_gen
                1, 0, 0, 0, 9, 0, 0, 0, // egress redirect, index
            ]
        );
    }

    #[test]
    fn prefix_filters_have_golden_bytes() {
        // tc filter add dev <index 7> parent 2: protocol ip prio 2 u32 match ip src 10.2.0.0/15
        //   flowid 2:1
        let filter = prefix(Side::Source, "10.2.0.0/15");
        let added = add_filter(IfIndex(7), Handle::new(2, 0), &filter).message.to_bytes();
        assert_eq!(added[32..36], [8, 0, 2, 0], "protocol and priority");
        assert_eq!(
            added[44..],
            [
                48, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 2, 0, // TCA_OPTIONS, TCA_U32_CLASSID
                36, 0, 5, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // TCA_U32_SEL
                255, 254, 0, 0, 10, 2, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
        // ... protocol ipv6 prio 2 u32 match ip6 dst fd00:1::/40 flowid 2:1
        let filter = prefix(Side::Destination, "fd00:1::/40");
        let added = add_filter(IfIndex(7), Handle::new(2, 0), &filter).message.to_bytes();
        assert_eq!(added[32..36], [0x86, 0xdd, 2, 0]);
        assert_eq!(
            added[76..],
            [
                255, 255, 255, 255, 0xfd, 0, 0, 1, 24, 0, 0, 0, 0, 0, 0, 0, //
                255, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
        let removed =
            remove_filters(IfIndex(7), Handle::new(2, 0), 2, ETH_P_IPV6).message.to_bytes();
        assert_eq!(removed[4..6], [45, 0]);
        assert_eq!(removed[32..], [0x86, 0xdd, 2, 0]);
    }

    #[test]
    fn filters_round_trip() {
        let texts =
            ["0.0.0.0/0", "10.2.0.0/15", "192.0.2.1/32", "::/0", "fd00:1::/40", "fd00::1/128"];
        let prefixes = texts.iter().flat_map(|text| Side::ALL.map(|side| prefix(side, text)));
        for filter in prefixes.chain([REDIRECT]) {
            let bytes = add_filter(IfIndex(7), Handle::INGRESS_QDISC, &filter).message.to_bytes();
            assert_eq!(parse(&bytes[16..]), Some(filter));
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>, at in 36_usize..140, byte: u8) {
            let _ = parse(&bytes);
            let mut near = add_filter(IfIndex(7), Handle::ROOT, &REDIRECT).message.to_bytes();
            near[at] = byte;
            let _ = parse(&near[16..]);
        }

        #[test]
        fn selector_parser_never_panics(bytes: Vec<u8>) {
            for protocol in [ETH_P_ALL, ETH_P_IP, ETH_P_IPV6] {
                let _ = parse_selector(protocol, &bytes);
            }
        }
    }
}
