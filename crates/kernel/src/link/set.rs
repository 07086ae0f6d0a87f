// SPDX-License-Identifier: Apache-2.0
//! Changes of existing links.

use std::os::fd::{AsRawFd, BorrowedFd};

use ::netlink::Message;

use super::{
    IFF_ALLMULTI, IFF_PROMISC, IFF_UP, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_BR_VLAN_FILTERING,
    IFLA_BRPORT_ISOLATED, IFLA_BRPORT_LEARNING, IFLA_BRPORT_MODE, IFLA_BRPORT_NEIGH_SUPPRESS,
    IFLA_BRPORT_UNICAST_FLOOD, IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_MTU, IFLA_NET_NS_FD, IFLA_TXQLEN, Ipip, PortOptions, RTM_NEWLINK, RTM_SETLINK, Target,
    Vxlan, message_for,
};
use crate::netlink_ip::AF_INET;
use crate::request::Request;
use crate::types::{IfIndex, IfName, MacAddr};

const IFLA_INET_CONF: u16 = 1; // linux/if_link.h

/// Forwards packets from the link: `net.ipv4.conf.*.forwarding` (`IPV4_DEVCONF_FORWARDING`,
/// linux/ip.h).
pub const FORWARDING: u16 = 1;
/// Answers ARP for other hosts: `net.ipv4.conf.*.proxy_arp` (`IPV4_DEVCONF_PROXY_ARP`, linux/ip.h).
pub const PROXY_ARP: u16 = 3;
/// Checks source addresses: `net.ipv4.conf.*.rp_filter` (`IPV4_DEVCONF_RP_FILTER`, linux/ip.h).
pub const RP_FILTER: u16 = 8;
/// Announces addresses: `net.ipv4.conf.*.arp_notify` (`IPV4_DEVCONF_ARP_NOTIFY`, linux/ip.h).
/// The kernel announces when the link goes up, so set it and add the addresses before that.
pub const ARP_NOTIFY: u16 = 22;
/// Routes 127.0.0.0/8: `net.ipv4.conf.*.route_localnet` (`IPV4_DEVCONF_ROUTE_LOCALNET`,
/// linux/ip.h).
pub const ROUTE_LOCALNET: u16 = 26;

/// Brings a link up.
pub fn set_up(link: impl Into<Target>) -> Request {
    set_flags("set link up", link.into(), IFF_UP, IFF_UP)
}

/// Brings a link up and then sets entries of `net.ipv4.conf.<link>`, in one message. The kernel
/// changes the flags first.
pub fn set_up_with_inet_conf(link: impl Into<Target>, entries: &[(u16, u32)]) -> Request {
    let link = link.into();
    let mut message = message_for(RTM_SETLINK, link, IFF_UP, IFF_UP);
    put_inet_conf(&mut message, entries);
    Request::new("set link up", link.to_string(), message)
}

/// Brings a link down.
pub fn set_down(link: impl Into<Target>) -> Request {
    set_flags("set link down", link.into(), 0, IFF_UP)
}

/// Sets promiscuous mode on or off.
pub fn set_promisc(link: impl Into<Target>, on: bool) -> Request {
    set_flags("set promiscuity of", link.into(), if on { IFF_PROMISC } else { 0 }, IFF_PROMISC)
}

/// Sets the MAC address.
pub fn set_mac(link: impl Into<Target>, mac: MacAddr) -> Request {
    request("set MAC address of", link.into(), |m| {
        m.bytes(IFLA_ADDRESS, &mac.0);
    })
}

/// Sets the MTU.
pub fn set_mtu(link: impl Into<Target>, mtu: u32) -> Request {
    request("set MTU of", link.into(), |m| {
        m.u32(IFLA_MTU, mtu);
    })
}

/// Puts a link into a bridge or VRF.
pub fn set_master(link: impl Into<Target>, master: IfIndex) -> Request {
    request("set master of", link.into(), |m| {
        m.u32(IFLA_MASTER, master.0);
    })
}

/// Takes a link out of its bridge or VRF.
pub fn set_no_master(link: impl Into<Target>) -> Request {
    request("unset master of", link.into(), |m| {
        m.u32(IFLA_MASTER, 0);
    })
}

/// Renames a link. This waits for an RCU grace period, so create links under their final name
/// instead.
pub fn set_name(index: IfIndex, name: IfName) -> Request {
    request("rename link", index.into(), |m| {
        m.str(IFLA_IFNAME, name.as_str());
    })
}

/// Sets the alias, a text of up to 255 bytes. An empty text removes it.
pub fn set_alias(link: impl Into<Target>, alias: &str) -> Request {
    // Without a trailing NUL: the kernel would store a single NUL as an alias of one byte.
    request("set alias of", link.into(), |m| {
        m.bytes(IFLA_IFALIAS, alias.as_bytes());
    })
}

/// Sets options of a bridge port. The kernel ignores them in the message that creates the link. A
/// request by name can be sent together with the creation.
pub fn set_port(link: impl Into<Target>, options: &PortOptions) -> Request {
    let options = [
        (IFLA_BRPORT_MODE, options.hairpin),
        (IFLA_BRPORT_ISOLATED, options.isolated),
        (IFLA_BRPORT_LEARNING, options.learning),
        (IFLA_BRPORT_UNICAST_FLOOD, options.flood),
        (IFLA_BRPORT_NEIGH_SUPPRESS, options.neigh_suppress),
    ];
    let link = link.into();
    // RTM_SETLINK ignores IFLA_LINKINFO.
    let mut message = message_for(RTM_NEWLINK, link, 0, 0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_SLAVE_KIND, "bridge").nest(IFLA_INFO_SLAVE_DATA, |data| {
            for (kind, value) in options {
                if let Some(on) = value {
                    data.u8(kind, u8::from(on));
                }
            }
        });
    });
    Request::new("set bridge port options of", link.to_string(), message)
}

/// Sets VLAN filtering of a bridge on or off.
pub fn set_vlan_filtering(bridge: impl Into<Target>, on: bool) -> Request {
    let bridge = bridge.into();
    let mut message = message_for(RTM_NEWLINK, bridge, 0, 0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, "bridge").nest(IFLA_INFO_DATA, |data| {
            data.u8(IFLA_BR_VLAN_FILTERING, u8::from(on));
        });
    });
    Request::new("set VLAN filtering of", bridge.to_string(), message)
}

/// Sets entries of `net.ipv4.conf.<link>` (such as [`ARP_NOTIFY`]) without procfs.
pub fn set_inet_conf(link: impl Into<Target>, entries: &[(u16, u32)]) -> Request {
    request("set IPv4 configuration of", link.into(), |m| put_inet_conf(m, entries))
}

/// Attributes to change; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// MAC address.
    pub mac: Option<MacAddr>,
    /// MTU.
    pub mtu: Option<u32>,
    /// Receive all frames.
    pub promisc: Option<bool>,
    /// Receive all multicast frames.
    pub allmulti: Option<bool>,
    /// Transmit queue length.
    pub txqlen: Option<u32>,
}

impl Attributes {
    /// Returns whether no attribute is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Sets attributes. The kernel sets them one by one, in the order MAC address, MTU, flags, queue
/// length. If it rejects one, those before it stay set.
pub fn set_attributes(link: impl Into<Target>, attributes: &Attributes) -> Request {
    let link = link.into();
    let (mut flags, mut change) = (0, 0);
    for (flag, on) in [(IFF_PROMISC, attributes.promisc), (IFF_ALLMULTI, attributes.allmulti)] {
        if let Some(on) = on {
            change |= flag;
            flags |= if on { flag } else { 0 };
        }
    }
    let mut message = message_for(RTM_SETLINK, link, flags, change);
    if let Some(mac) = attributes.mac {
        message.bytes(IFLA_ADDRESS, &mac.0);
    }
    if let Some(mtu) = attributes.mtu {
        message.u32(IFLA_MTU, mtu);
    }
    if let Some(txqlen) = attributes.txqlen {
        message.u32(IFLA_TXQLEN, txqlen);
    }
    Request::new("set attributes of", link.to_string(), message)
}

/// New namespace and names of a link; `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Relocation<'a> {
    /// New namespace.
    pub netns: Option<BorrowedFd<'a>>,
    /// New name.
    pub name: Option<IfName>,
    /// New alias; an empty text removes it.
    pub alias: Option<&'a str>,
    /// New group.
    pub group: Option<u32>,
}

/// Moves an existing link to another namespace, renames it, and sets its alias and group, in one
/// message. For links that podwire creates, creation in the final namespace is cheaper.
///
/// The kernel moves the link first, which sets it down and removes its addresses. If the new name
/// is taken in the other namespace, the request fails: the link does not move if its old name is
/// taken there too, otherwise it moves and keeps the old name. The index changes if another link in
/// that namespace has it.
pub fn relocate(index: IfIndex, relocation: &Relocation<'_>) -> Request {
    let mut message = message_for(RTM_SETLINK, Target::Index(index), 0, 0);
    if let Some(netns) = relocation.netns {
        message.i32(IFLA_NET_NS_FD, netns.as_raw_fd());
    }
    if let Some(name) = relocation.name {
        message.str(IFLA_IFNAME, name.as_str());
    }
    if let Some(alias) = relocation.alias {
        message.bytes(IFLA_IFALIAS, alias.as_bytes());
    }
    if let Some(group) = relocation.group {
        message.u32(IFLA_GROUP, group);
    }
    let object = relocation.name.map_or_else(|| index.to_string(), |name| name.to_string());
    Request::new("move link", object, message)
}

/// Changes the underlay link, local address, group and learning of a VXLAN link. The kernel cannot
/// change its other attributes, and rejects a request that contains the port.
pub fn set_vxlan(link: impl Into<Target>, vxlan: &Vxlan) -> Request {
    change_tunnel(link.into(), "vxlan", |data| vxlan.put_changeable(data))
}

/// Changes an IPIP link. A remote address cannot be added or removed.
pub fn set_ipip(link: impl Into<Target>, ipip: &Ipip) -> Request {
    change_tunnel(link.into(), "ipip", |data| ipip.put(data))
}

fn change_tunnel(link: Target, kind: &str, put: impl FnOnce(&mut Message)) -> Request {
    // RTM_SETLINK ignores IFLA_LINKINFO.
    let mut message = message_for(RTM_NEWLINK, link, 0, 0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, put);
    });
    Request::new("change tunnel", link.to_string(), message)
}

fn put_inet_conf(message: &mut Message, entries: &[(u16, u32)]) {
    message.nest(IFLA_AF_SPEC, |spec| {
        spec.nest(u16::from(AF_INET), |inet| {
            inet.nest(IFLA_INET_CONF, |conf| {
                for (id, value) in entries {
                    conf.u32(*id, *value);
                }
            });
        });
    });
}

fn set_flags(op: &'static str, link: Target, flags: u32, change: u32) -> Request {
    Request::new(op, link.to_string(), message_for(RTM_SETLINK, link, flags, change))
}

fn request(op: &'static str, link: Target, fill: impl FnOnce(&mut Message)) -> Request {
    let mut message = message_for(RTM_SETLINK, link, 0, 0);
    fill(&mut message);
    Request::new(op, link.to_string(), message)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn check(request: &Request, kind: u16, expected: &[u8]) {
        let bytes = request.message.to_bytes();
        assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), kind);
        assert_eq!(bytes[16..], *expected, "{}", request.op);
    }

    #[test]
    fn set_up_promisc_and_port_have_golden_bytes() {
        let name: IfName = "eth0".parse().unwrap();
        // ip link set eth0 up
        check(
            &set_up(name),
            RTM_SETLINK,
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, // ifinfomsg
                9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // IFLA_IFNAME
            ],
        );
        // ip link set <index 7> promisc off
        check(
            &set_promisc(IfIndex(7), false),
            RTM_SETLINK,
            &[0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        );
        // ip link set <index 7> type bridge_slave hairpin on isolated off
        let options =
            PortOptions { hairpin: Some(true), isolated: Some(false), ..PortOptions::default() };
        check(
            &set_port(IfIndex(7), &options),
            RTM_NEWLINK,
            &[
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                36, 0, 18, 0x80, 11, 0, 4, 0, b'b', b'r', b'i', b'd', b'g', b'e', 0, 0, //
                20, 0, 5, 0x80, 5, 0, 4, 0, 1, 0, 0, 0, 5, 0, 33, 0, 0, 0, 0, 0,
            ],
        );
    }

    #[test]
    fn inet_conf_has_golden_bytes() {
        // sysctl net.ipv4.conf.<index 7>.arp_notify=1
        check(
            &set_inet_conf(IfIndex(7), &[(ARP_NOTIFY, 1)]),
            RTM_SETLINK,
            &[
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                20, 0, 26, 0x80, 16, 0, 2, 0x80, 12, 0, 1, 0x80, 8, 0, 22, 0, 1, 0, 0, 0,
            ],
        );
        // The same with `ip link set <index 7> up`.
        check(
            &set_up_with_inet_conf(IfIndex(7), &[(ARP_NOTIFY, 1)]),
            RTM_SETLINK,
            &[
                0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, //
                20, 0, 26, 0x80, 16, 0, 2, 0x80, 12, 0, 1, 0x80, 8, 0, 22, 0, 1, 0, 0, 0,
            ],
        );
    }

    #[test]
    fn attributes_have_golden_bytes() {
        // ip link set <index 7> address 02:00:00:00:00:01 mtu 1400 promisc on allmulticast off
        //   txqueuelen 500
        let all = Attributes {
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: Some(1400),
            promisc: Some(true),
            allmulti: Some(false),
            txqlen: Some(500),
        };
        assert_eq!(
            set_attributes(IfIndex(7), &all).message.to_bytes()[16..],
            [
                0, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, // ifinfomsg
                10, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, // IFLA_ADDRESS
                8, 0, 4, 0, 0x78, 5, 0, 0, // IFLA_MTU
                8, 0, 13, 0, 0xf4, 1, 0, 0, // IFLA_TXQLEN
            ]
        );
        assert!(Attributes::default().is_empty() && !all.is_empty());
    }

    #[test]
    fn relocation_has_golden_bytes() {
        let stdin = std::io::stdin();
        let relocation = Relocation {
            netns: Some(stdin.as_fd()),
            name: Some("eth0".parse().unwrap()),
            alias: Some("a"),
            group: Some(5),
        };
        // ip link set <index 7> netns <fd 0> name eth0 alias a group 5
        let bytes = relocate(IfIndex(7), &relocation).message.to_bytes();
        let expected = [
            0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg
            8, 0, 28, 0, 0, 0, 0, 0, // IFLA_NET_NS_FD
            9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // IFLA_IFNAME
            5, 0, 20, 0, b'a', 0, 0, 0, // IFLA_IFALIAS
            8, 0, 27, 0, 5, 0, 0, 0, // IFLA_GROUP
        ];
        assert_eq!(bytes[16..], expected);
    }

    #[test]
    fn vxlan_change_has_golden_bytes() {
        // ip link set <index 7> type vxlan id 1 dev <index 2> local 192.0.2.1 nolearning
        let vxlan = Vxlan {
            link: Some(IfIndex(2)),
            local: Some("192.0.2.1".parse().unwrap()),
            ..Vxlan::new(1)
        };
        assert_eq!(
            set_vxlan(IfIndex(7), &vxlan).message.to_bytes()[4..],
            [
                16, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, // RTM_NEWLINK
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg
                52, 0, 18, 0x80, 10, 0, 1, 0, b'v', b'x', b'l', b'a', b'n', 0, 0, 0, //
                36, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, // IFLA_VXLAN_ID
                8, 0, 3, 0, 2, 0, 0, 0, // IFLA_VXLAN_LINK
                8, 0, 4, 0, 192, 0, 2, 1, // IFLA_VXLAN_LOCAL
                5, 0, 7, 0, 0, 0, 0, 0, // IFLA_VXLAN_LEARNING
            ]
        );
    }
}
