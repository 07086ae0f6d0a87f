// SPDX-License-Identifier: Apache-2.0
//! Changing links that exist.

use ::netlink::Message;

use super::{
    IFF_PROMISC, IFF_UP, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_BR_VLAN_FILTERING, IFLA_BRPORT_ISOLATED,
    IFLA_BRPORT_LEARNING, IFLA_BRPORT_MODE, IFLA_BRPORT_NEIGH_SUPPRESS, IFLA_BRPORT_UNICAST_FLOOD,
    IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, PortOptions, RTM_NEWLINK,
    RTM_SETLINK, Target, message_for,
};
use crate::netlink_ip::AF_INET;
use crate::request::Request;
use crate::types::{IfIndex, IfName, MacAddr};

const IFLA_INET_CONF: u16 = 1; // linux/if_link.h

/// Answer ARP for others: `net.ipv4.conf.*.proxy_arp` (`IPV4_DEVCONF_PROXY_ARP`, linux/ip.h).
pub const PROXY_ARP: u16 = 3;
/// Check sources: `net.ipv4.conf.*.rp_filter` (`IPV4_DEVCONF_RP_FILTER`, linux/ip.h).
pub const RP_FILTER: u16 = 8;
/// Announce addresses: `net.ipv4.conf.*.arp_notify` (`IPV4_DEVCONF_ARP_NOTIFY`, linux/ip.h).
/// It acts when the link goes up, so set it and add the addresses before.
pub const ARP_NOTIFY: u16 = 22;
/// Route 127/8: `net.ipv4.conf.*.route_localnet` (`IPV4_DEVCONF_ROUTE_LOCALNET`, linux/ip.h).
pub const ROUTE_LOCALNET: u16 = 26;

/// Brings a link up.
pub fn set_up(link: impl Into<Target>) -> Request {
    set_flags("set link up", link.into(), IFF_UP, IFF_UP)
}

/// Brings a link up and then sets its IPv4 switches, as [`set_inet_conf`] does, in one message: the
/// kernel changes the flags first.
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

/// Makes a link take all frames, or not.
pub fn set_promisc(link: impl Into<Target>, on: bool) -> Request {
    set_flags("set promiscuity of", link.into(), if on { IFF_PROMISC } else { 0 }, IFF_PROMISC)
}

/// Sets the hardware address.
pub fn set_mac(link: impl Into<Target>, mac: MacAddr) -> Request {
    set("set MAC address of", link.into(), |m| {
        m.bytes(IFLA_ADDRESS, &mac.0);
    })
}

/// Sets the MTU.
pub fn set_mtu(link: impl Into<Target>, mtu: u32) -> Request {
    set("set MTU of", link.into(), |m| {
        m.u32(IFLA_MTU, mtu);
    })
}

/// Puts a link into a bridge or VRF.
pub fn set_master(link: impl Into<Target>, master: IfIndex) -> Request {
    set("set master of", link.into(), |m| {
        m.u32(IFLA_MASTER, master.0);
    })
}

/// Takes a link out of its bridge or VRF.
pub fn set_no_master(link: impl Into<Target>) -> Request {
    set("unset master of", link.into(), |m| {
        m.u32(IFLA_MASTER, 0);
    })
}

/// Renames a link: dear (an RCU grace period), so create it under its final name instead.
pub fn set_name(index: IfIndex, name: IfName) -> Request {
    set("rename link", index.into(), |m| {
        m.str(IFLA_IFNAME, name.as_str());
    })
}

/// Sets the alias, a free text of up to 255 bytes; an empty one removes it.
pub fn set_alias(link: impl Into<Target>, alias: &str) -> Request {
    // A NUL alone would be stored as an alias of one byte.
    set("set alias of", link.into(), |m| {
        m.bytes(IFLA_IFALIAS, alias.as_bytes());
    })
}

/// Sets options of a bridge port. They cannot be given at birth: the kernel ignores slave data
/// in the message that creates the link. By name it can be pipelined behind the creation.
pub fn set_port(link: impl Into<Target>, options: &PortOptions) -> Request {
    let options = [
        (IFLA_BRPORT_MODE, options.hairpin),
        (IFLA_BRPORT_ISOLATED, options.isolated),
        (IFLA_BRPORT_LEARNING, options.learning),
        (IFLA_BRPORT_UNICAST_FLOOD, options.flood),
        (IFLA_BRPORT_NEIGH_SUPPRESS, options.neigh_suppress),
    ];
    let link = link.into();
    // RTM_SETLINK does not look into IFLA_LINKINFO.
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

/// Switches a bridge's VLAN filtering.
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
    set("set IPv4 configuration of", link.into(), |m| put_inet_conf(m, entries))
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

fn set(op: &'static str, link: Target, fill: impl FnOnce(&mut Message)) -> Request {
    let mut message = message_for(RTM_SETLINK, link, 0, 0);
    fill(&mut message);
    Request::new(op, link.to_string(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(request: &Request, kind: u16, expected: &[u8]) {
        let bytes = request.message.to_bytes();
        assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), kind);
        assert_eq!(bytes[16..], *expected, "{}", request.op);
    }

    #[test]
    fn bytes() {
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
    fn bytes_of_conf() {
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
}
