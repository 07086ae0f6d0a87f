// SPDX-License-Identifier: Apache-2.0
//! Creating links in one message: final name, master, namespace and state from birth.
//! A later rename or move waits for an RCU grace period, 80 times dearer.

use std::os::fd::{AsRawFd, BorrowedFd};

use ::netlink::{Message, NLM_F_CREATE, NLM_F_EXCL};

use super::{
    IFF_UP, IFLA_ADDRESS, IFLA_BR_VLAN_FILTERING, IFLA_GROUP, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_NET_NS_FD, IFLA_TXQLEN,
    Ipip, RTM_NEWLINK, Vxlan, ifinfo,
};
use crate::request::Request;
use crate::types::{IfIndex, IfName, MacAddr};

const IFLA_NUM_TX_QUEUES: u16 = 31; // linux/if_link.h
const IFLA_NUM_RX_QUEUES: u16 = 32; // linux/if_link.h
const VETH_INFO_PEER: u16 = 1; // linux/veth.h
const IFLA_MACVLAN_MODE: u16 = 1; // linux/if_link.h
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7; // linux/if_link.h
const IFLA_IPVLAN_MODE: u16 = 1; // linux/if_link.h
const IFLA_VLAN_ID: u16 = 1; // linux/if_link.h
const IFLA_VRF_TABLE: u16 = 1; // linux/if_link.h

/// A link to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// Its final name.
    pub name: IfName,
    /// What it is.
    pub kind: Kind<'a>,
    /// Its MTU; the kernel's choice if none.
    pub mtu: Option<u32>,
    /// Its hardware address; the kernel's choice if none.
    pub mac: Option<MacAddr>,
    /// Born up.
    pub up: bool,
    /// The bridge or VRF it is born into.
    pub master: Option<IfIndex>,
    /// The namespace it is born in; the socket's if none. `parent` and `master` stay indices
    /// of the socket's namespace.
    pub netns: Option<BorrowedFd<'a>>,
    /// The link underneath: macvlan, ipvlan and VLAN need one.
    pub parent: Option<IfIndex>,
    /// Transmit and receive queues, each; the kernel's choice (for a veth one a CPU) if none.
    pub queues: Option<u32>,
    /// Transmit queue length.
    pub txqlen: Option<u32>,
    /// The group it is born into, for `ip link show group`; a veth's peer stays in the default one.
    pub group: Option<u32>,
    /// Its index; the kernel's choice if none. With an index, kernels before 6.15 no longer take a
    /// link of the same name in the socket's namespace for the one to be born in `netns`; they then
    /// look for the index in both namespaces.
    pub index: Option<IfIndex>,
}

impl<'a> NewLink<'a> {
    /// A link of this name and kind, down, all else the kernel's choice; a veth gets one
    /// queue each way, as it does not use more without XDP.
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

/// Kinds of links we make.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'a> {
    /// A pair; the other end is described here.
    Veth(Peer<'a>),
    /// A bridge.
    Bridge {
        /// Filter VLANs; the kernel's choice if none.
        vlan_filtering: Option<bool>,
    },
    /// A device that swallows all.
    Dummy,
    /// An intermediate functional block, for shaping what comes in.
    Ifb,
    /// A macvlan on `parent`.
    Macvlan {
        /// How it sees its siblings.
        mode: MacvlanMode,
        /// How many broadcasts may wait to be copied; the kernel's choice if none.
        bc_queue_len: Option<u32>,
    },
    /// An ipvlan on `parent`.
    Ipvlan(IpvlanMode),
    /// An 802.1Q VLAN on `parent`.
    Vlan(u16),
    /// A VRF with this routing table.
    Vrf(u32),
    /// A VXLAN.
    Vxlan(Vxlan),
    /// An IPIP tunnel.
    Ipip(Ipip),
    /// A WireGuard tunnel; keys and peers are told by [`crate::wireguard`].
    Wireguard,
}

/// The other end of a veth pair. It cannot be born up: `veth_open` of an end whose peer is not
/// registered yet fails with `ENOTCONN`.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Its final name.
    pub name: IfName,
    /// Its hardware address; the kernel's choice if none.
    pub mac: Option<MacAddr>,
    /// Its MTU; the kernel's choice if none.
    pub mtu: Option<u32>,
    /// The namespace it is born in; the socket's if none.
    pub netns: Option<BorrowedFd<'a>>,
}

/// How macvlans of one parent see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// Not at all.
    Private,
    /// Through the switch outside.
    Vepa,
    /// Directly.
    Bridge,
    /// There is only one.
    Passthru,
}

impl MacvlanMode {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru];
        all.into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u32 {
        // MACVLAN_MODE_* of linux/if_link.h
        match self {
            Self::Private => 1,
            Self::Vepa => 2,
            Self::Bridge => 4,
            Self::Passthru => 8,
        }
    }
}

/// On which layer an ipvlan chooses the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Ethernet, with broadcast.
    L2,
    /// IP, without broadcast.
    L3,
    /// IP, through the host's netfilter.
    L3s,
}

impl IpvlanMode {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s].into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u16 {
        // IPVLAN_MODE_* of linux/if_link.h
        match self {
            Self::L2 => 0,
            Self::L3 => 1,
            Self::L3s => 2,
        }
    }
}

/// Creates a link; fails if the name is taken. Alias, alternative names and bridge port options
/// are verbs of their own: in this message the kernel takes no notice of them.
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
        info.str(IFLA_INFO_KIND, link.kind.name());
        put_kind(info, link);
    });
    Request::new("create link", link.name.to_string(), message)
}

impl Kind<'_> {
    /// The kernel's word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Veth(_) => "veth",
            Self::Bridge { .. } => "bridge",
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Vlan(_) => "vlan",
            Self::Vrf(_) => "vrf",
            Self::Vxlan(_) => "vxlan",
            Self::Ipip(_) => "ipip",
            Self::Wireguard => "wireguard",
        }
    }
}

fn put_common(
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

fn put_kind(info: &mut Message, link: &NewLink<'_>) {
    match link.kind {
        Kind::Veth(peer) => info.nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |m| {
                m.header(&ifinfo(0, 0, 0)).str(IFLA_IFNAME, peer.name.as_str());
                put_common(m, peer.mac, peer.mtu, link.queues, peer.netns);
            });
        }),
        Kind::Bridge { vlan_filtering: Some(on) } => info.nest(IFLA_INFO_DATA, |data| {
            data.u8(IFLA_BR_VLAN_FILTERING, u8::from(on));
        }),
        Kind::Bridge { vlan_filtering: None } | Kind::Dummy | Kind::Ifb | Kind::Wireguard => info,
        Kind::Macvlan { mode, bc_queue_len } => info.nest(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_MACVLAN_MODE, mode.number());
            if let Some(len) = bc_queue_len {
                data.u32(IFLA_MACVLAN_BC_QUEUE_LEN, len);
            }
        }),
        Kind::Ipvlan(mode) => info.nest(IFLA_INFO_DATA, |data| {
            data.u16(IFLA_IPVLAN_MODE, mode.number());
        }),
        Kind::Vlan(id) => info.nest(IFLA_INFO_DATA, |data| {
            data.u16(IFLA_VLAN_ID, id);
        }),
        Kind::Vrf(table) => info.nest(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_VRF_TABLE, table);
        }),
        Kind::Vxlan(vxlan) => info.nest(IFLA_INFO_DATA, |data| vxlan.put(data)),
        Kind::Ipip(ipip) => info.nest(IFLA_INFO_DATA, |data| ipip.put(data)),
    };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn check(link: &NewLink<'_>, expected: &[u8]) {
        assert_eq!(create(link).message.to_bytes()[32..], *expected, "after nlmsghdr, ifinfomsg");
    }

    #[test]
    fn bytes_of_veth() {
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
    fn bytes_of_vlan() {
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
    fn bytes_of_a_link_with_an_index() {
        // ip link add name x index 77 type dummy
        let link =
            NewLink { index: Some(IfIndex(77)), ..NewLink::new("x".parse().unwrap(), Kind::Dummy) };
        let bytes = create(&link).message.to_bytes();
        assert_eq!(bytes[16..32], [0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn bytes_of_the_data_of_each_kind() {
        let check = |kind: Kind<'_>, word: &str, data: &[u8]| {
            let bytes = create(&NewLink::new("x".parse().unwrap(), kind)).message.to_bytes();
            assert_eq!(kind.name(), word);
            assert!(bytes.ends_with(data), "{word}: {bytes:?}");
        };
        // ip link add x type bridge vlan_filtering 1
        let filtering = Kind::Bridge { vlan_filtering: Some(true) };
        check(filtering, "bridge", &[12, 0, 2, 0x80, 5, 0, 7, 0, 1, 0, 0, 0]);
        check(Kind::Bridge { vlan_filtering: None }, "bridge", b"bridge\0\0");
        // ip link add x type macvlan mode passthru
        let passthru = Kind::Macvlan { mode: MacvlanMode::Passthru, bc_queue_len: None };
        check(passthru, "macvlan", &[12, 0, 2, 0x80, 8, 0, 1, 0, 8, 0, 0, 0]);
        // ip link add x type macvlan mode private bcqueuelen 500
        let queue = Kind::Macvlan { mode: MacvlanMode::Private, bc_queue_len: Some(500) };
        let data = [20, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 7, 0, 0xf4, 1, 0, 0];
        check(queue, "macvlan", &data);
        // ip link add x type ipvlan mode l3s
        let l3s = Kind::Ipvlan(IpvlanMode::L3s);
        check(l3s, "ipvlan", &[12, 0, 2, 0x80, 6, 0, 1, 0, 2, 0, 0, 0]);
        // ip link add x type vrf table 1000
        check(Kind::Vrf(1000), "vrf", &[12, 0, 2, 0x80, 8, 0, 1, 0, 0xe8, 3, 0, 0]);
        check(Kind::Dummy, "dummy", b"dummy\0\0\0");
        check(Kind::Ifb, "ifb", b"ifb\0");
    }
}
