// SPDX-License-Identifier: Apache-2.0
//! Creation of links in one message: final name, master, namespace and state from the start. A
//! later rename or move waits for an RCU grace period and costs 80 times as much.

use std::os::fd::{AsRawFd, BorrowedFd};

use ::netlink::{Message, NLM_F_CREATE, NLM_F_EXCL};

use super::kind::put_kind;
use super::{
    IFF_UP, IFLA_ADDRESS, IFLA_GROUP, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_MTU, IFLA_NET_NS_FD, IFLA_TXQLEN, Kind, RTM_NEWLINK, ifinfo, remove,
};
use crate::error::Result;
use crate::request::{Netlink, Request};
use crate::types::{IfIndex, IfName, MacAddr};

const IFLA_NUM_TX_QUEUES: u16 = 31; // linux/if_link.h
const IFLA_NUM_RX_QUEUES: u16 = 32; // linux/if_link.h

/// Name of the link that [`is_supported`] tries to create.
const PROBE: &str = "podwire-probe";

/// A link to create.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// Final name.
    pub name: IfName,
    /// Kind and its attributes.
    pub kind: Kind<'a>,
    /// MTU; `None` leaves the choice to the kernel.
    pub mtu: Option<u32>,
    /// MAC address; `None` leaves the choice to the kernel.
    pub mac: Option<MacAddr>,
    /// Create the link up.
    pub up: bool,
    /// Bridge or VRF.
    pub master: Option<IfIndex>,
    /// Namespace; `None` for that of the socket. `parent` and `master` are always indices of the
    /// socket's namespace.
    pub netns: Option<BorrowedFd<'a>>,
    /// Parent link; macvlan, ipvlan and VLAN need one.
    pub parent: Option<IfIndex>,
    /// Number of transmit queues and of receive queues; `None` leaves the choice to the kernel,
    /// which gives a veth one per CPU.
    pub queues: Option<u32>,
    /// Transmit queue length.
    pub txqlen: Option<u32>,
    /// Group, for `ip link show group`. The peer of a veth stays in the default group.
    pub group: Option<u32>,
    /// Index; `None` leaves the choice to the kernel. Kernels before 6.15 fail if the socket's
    /// namespace has a link of the same name, even if the new link goes to `netns`. With an index
    /// they look for that index instead, in both namespaces.
    pub index: Option<IfIndex>,
}

impl<'a> NewLink<'a> {
    /// Returns a link of this name and kind that is down, with the kernel's defaults. A veth gets
    /// one queue each way, because it uses more only with XDP.
    pub fn new(name: IfName, kind: Kind<'a>) -> Self {
        let queues = matches!(kind, Kind::Veth(_)).then_some(1);
        Self {
            name,
            kind,
            mtu: None,
            mac: None,
            up: false,
            master: None,
            netns: None,
            parent: None,
            queues,
            txqlen: None,
            group: None,
            index: None,
        }
    }
}

/// Creates a link; fails if the name is taken. Set the alias, alternative names and bridge port
/// options afterwards: the kernel ignores them in this message.
pub fn create(link: &NewLink<'_>) -> Request {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    let flags = if link.up { IFF_UP } else { 0 };
    let index = link.index.map_or(0, |index| index.0);
    message.header(&ifinfo(index, flags, flags)).str(IFLA_IFNAME, link.name.as_str());
    put_common(&mut message, link.mac, link.mtu, link.queues, link.netns);
    if let Some(txqlen) = link.txqlen {
        message.u32(IFLA_TXQLEN, txqlen);
    }
    if let Some(group) = link.group {
        message.u32(IFLA_GROUP, group);
    }
    if let Some(parent) = link.parent {
        message.u32(IFLA_LINK, parent.0);
    }
    if let Some(master) = link.master {
        message.u32(IFLA_MASTER, master.0);
    }
    message.nest(IFLA_LINKINFO, |info| {
        put_kind(info, &link.kind, link.queues);
    });
    Request::new("create link", link.name.to_string(), message)
}

pub(super) fn put_common(
    message: &mut Message,
    mac: Option<MacAddr>,
    mtu: Option<u32>,
    queues: Option<u32>,
    netns: Option<BorrowedFd<'_>>,
) {
    if let Some(mac) = mac {
        message.bytes(IFLA_ADDRESS, &mac.0);
    }
    if let Some(mtu) = mtu {
        message.u32(IFLA_MTU, mtu);
    }
    if let Some(queues) = queues {
        message.u32(IFLA_NUM_TX_QUEUES, queues).u32(IFLA_NUM_RX_QUEUES, queues);
    }
    if let Some(netns) = netns {
        message.i32(IFLA_NET_NS_FD, netns.as_raw_fd());
    }
}

/// Returns whether the kernel can create links of a kind. The request is a creation that must fail:
/// the kernel looks for the kind, and loads its module, before it rejects the MAC address as too
/// short. A kind without MAC addresses (wireguard) is created and removed again.
pub fn is_supported(nl: &Netlink, kind: &str) -> Result<bool> {
    match nl.apply([invalid_creation(kind)]) {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno == crate::Errno::INVAL => Ok(true),
        Err(error) => Err(error),
        Ok(()) => nl.apply([remove(probe())]).map(|()| true),
    }
}

fn probe() -> IfName {
    PROBE.parse().expect("the constant is a valid interface name")
}

fn invalid_creation(kind: &str) -> Request {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    message.header(&ifinfo(0, 0, 0)).str(IFLA_IFNAME, PROBE);
    message.bytes(IFLA_ADDRESS, &[2, 0, 0]);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind);
    });
    Request::new("probe for links of kind", kind.to_owned(), message)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::link::Peer;

    fn check(link: &NewLink<'_>, expected: &[u8]) {
        assert_eq!(create(link).message.to_bytes()[32..], *expected, "after nlmsghdr, ifinfomsg");
    }

    #[test]
    fn veth_has_golden_bytes() {
        // ip link add veth0 address 02:00:00:00:00:01 mtu 1400 numtxqueues 1 numrxqueues 1
        //   master <index 5> up type veth peer name eth0 numtxqueues 1 numrxqueues 1
        //   netns <descriptor 1>
        let stdout = std::io::stdout();
        let name = "eth0".parse().unwrap();
        let peer = Peer { name, mac: None, mtu: None, netns: Some(stdout.as_fd()) };
        let link = NewLink {
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: Some(1400),
            up: true,
            master: Some(IfIndex(5)),
            ..NewLink::new("veth0".parse().unwrap(), Kind::Veth(peer))
        };
        let bytes = create(&link).message.to_bytes();
        assert_eq!(
            bytes[..32],
            [
                164, 0, 0, 0, 16, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
                0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, // ifinfomsg: IFF_UP
            ]
        );
        check(
            &link,
            &[
                10, 0, 3, 0, b'v', b'e', b't', b'h', b'0', 0, 0, 0, // IFLA_IFNAME
                10, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, // IFLA_ADDRESS
                8, 0, 4, 0, 0x78, 5, 0, 0, // IFLA_MTU
                8, 0, 31, 0, 1, 0, 0, 0, 8, 0, 32, 0, 1, 0, 0, 0, // one queue each way
                8, 0, 10, 0, 5, 0, 0, 0, // IFLA_MASTER
                76, 0, 18, 0x80, // IFLA_LINKINFO
                9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0, // IFLA_INFO_KIND
                60, 0, 2, 0x80, 56, 0, 1, 0x80, // IFLA_INFO_DATA, VETH_INFO_PEER
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg: not up
                9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // IFLA_IFNAME
                8, 0, 31, 0, 1, 0, 0, 0, 8, 0, 32, 0, 1, 0, 0, 0, // one queue each way
                8, 0, 28, 0, 1, 0, 0, 0, // IFLA_NET_NS_FD
            ],
        );
    }

    #[test]
    fn vlan_has_golden_bytes() {
        // ip link add link <index 3> name v0 type vlan id 100
        let vlan = NewLink {
            parent: Some(IfIndex(3)),
            ..NewLink::new("v0".parse().unwrap(), Kind::Vlan(100))
        };
        check(
            &vlan,
            &[
                7, 0, 3, 0, b'v', b'0', 0, 0, // IFLA_IFNAME
                8, 0, 5, 0, 3, 0, 0, 0, // IFLA_LINK
                28, 0, 18, 0x80, 9, 0, 1, 0, b'v', b'l', b'a', b'n', 0, 0, 0,
                0, // IFLA_INFO_KIND
                12, 0, 2, 0x80, 6, 0, 1, 0, 100, 0, 0, 0, // IFLA_VLAN_ID
            ],
        );
    }

    #[test]
    fn link_with_index_has_golden_bytes() {
        // ip link add name x index 77 type dummy
        let link =
            NewLink { index: Some(IfIndex(77)), ..NewLink::new("x".parse().unwrap(), Kind::Dummy) };
        let bytes = create(&link).message.to_bytes();
        assert_eq!(bytes[16..32], [0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
