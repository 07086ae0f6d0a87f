// SPDX-License-Identifier: Apache-2.0
//! Links (network interfaces) as values. The modules below create, read, change and remove them.

mod create;
mod kind;
mod list;
mod remove;
mod set;

use std::fmt;

use ::netlink::Message;

use crate::types::{IfIndex, IfName, MacAddr};

pub use self::create::{NewLink, create, is_supported};
pub use self::kind::{Ipip, IpvlanMode, Kind, MacvlanMode, Peer, Vxlan};
pub(crate) use self::list::parse;
pub use self::list::{
    by_index, by_name, by_name_in, index_of, list, list_in, list_of_kind, list_of_master, monitor,
    name_of, wait_until,
};
pub use self::remove::{remove, remove_in_background};
pub use self::set::{
    ARP_NOTIFY, Attributes, FORWARDING, PROXY_ARP, ROUTE_LOCALNET, RP_FILTER, Relocation, relocate,
    set_alias, set_attributes, set_down, set_inet_conf, set_ipip, set_mac, set_master, set_mtu,
    set_name, set_no_master, set_port, set_promisc, set_up, set_up_with_inet_conf,
    set_vlan_filtering, set_vxlan,
};

pub(crate) const RTM_NEWLINK: u16 = 16; // linux/rtnetlink.h
pub(crate) const RTM_DELLINK: u16 = 17; // linux/rtnetlink.h
pub(crate) const RTM_GETLINK: u16 = 18; // linux/rtnetlink.h
pub(crate) const RTM_SETLINK: u16 = 19; // linux/rtnetlink.h

const IFLA_ADDRESS: u16 = 1; // linux/if_link.h
const IFLA_IFNAME: u16 = 3; // linux/if_link.h
const IFLA_MTU: u16 = 4; // linux/if_link.h
const IFLA_LINK: u16 = 5; // linux/if_link.h
pub(crate) const IFLA_MASTER: u16 = 10; // linux/if_link.h
const IFLA_TXQLEN: u16 = 13; // linux/if_link.h
const IFLA_LINKINFO: u16 = 18; // linux/if_link.h
const IFLA_IFALIAS: u16 = 20; // linux/if_link.h
pub(crate) const IFLA_AF_SPEC: u16 = 26; // linux/if_link.h
const IFLA_GROUP: u16 = 27; // linux/if_link.h
const IFLA_NET_NS_FD: u16 = 28; // linux/if_link.h

const IFLA_INFO_KIND: u16 = 1; // linux/if_link.h
const IFLA_INFO_DATA: u16 = 2; // linux/if_link.h
const IFLA_INFO_SLAVE_KIND: u16 = 4; // linux/if_link.h
const IFLA_INFO_SLAVE_DATA: u16 = 5; // linux/if_link.h

const IFLA_BR_VLAN_FILTERING: u16 = 7; // linux/if_link.h
const IFLA_BRPORT_MODE: u16 = 4; // linux/if_link.h, "mode" is hairpin
const IFLA_BRPORT_LEARNING: u16 = 8; // linux/if_link.h
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9; // linux/if_link.h
const IFLA_BRPORT_NEIGH_SUPPRESS: u16 = 32; // linux/if_link.h
const IFLA_BRPORT_ISOLATED: u16 = 33; // linux/if_link.h

const IFF_UP: u32 = 0x1; // linux/if.h
const IFF_LOOPBACK: u32 = 0x8; // linux/if.h
const IFF_PROMISC: u32 = 0x100; // linux/if.h
const IFF_ALLMULTI: u32 = 0x200; // linux/if.h
const IFF_LOWER_UP: u32 = 0x1_0000; // linux/if.h

/// Length of `struct ifinfomsg`.
pub(crate) const IFINFO_LEN: usize = 16;

/// A link as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Link {
    pub index: IfIndex,
    pub name: IfName,
    /// `veth`, `bridge`, …; `None` for hardware and the loopback.
    pub kind: Option<String>,
    /// Attributes of its kind.
    pub detail: Detail,
    /// MAC address, if the link has one of six bytes.
    pub mac: Option<MacAddr>,
    pub mtu: u32,
    /// Flags (`IFF_*`).
    pub flags: u32,
    /// Operational state.
    pub operstate: OperState,
    /// Bridge or VRF that the link belongs to.
    pub master: Option<IfIndex>,
    /// Peer of a veth, or parent of a macvlan or VLAN: an index in the namespace `link_netnsid`.
    pub link: Option<IfIndex>,
    /// ID of the namespace of `link`, as this namespace numbers it; `None` if it is this one.
    pub link_netnsid: Option<i32>,
    /// Text set by `ip link set alias`.
    pub alias: Option<String>,
    /// Link group; 0 is the default group.
    pub group: u32,
    /// Number of users that requested promiscuous mode.
    pub promiscuity: u32,
    /// Transmit queue length.
    pub txqlen: u32,
    /// Options of the bridge port, if the link is one.
    pub port: Option<PortOptions>,
    /// IPv6 setting `accept_ra`: accept addresses and routes from routers. `None` without IPv6.
    pub accept_ra: Option<u32>,
}

impl Link {
    /// Returns whether the link is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Returns whether the link has a carrier. A bridge has one if a port is up.
    pub fn has_carrier(&self) -> bool {
        self.flags & IFF_LOWER_UP != 0
    }

    /// Returns whether the link is the loopback.
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// Returns whether promiscuous mode was set on the link. Packet sockets do not count.
    pub fn is_promisc(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Returns whether reception of all multicast frames was set on the link.
    pub fn is_allmulti(&self) -> bool {
        self.flags & IFF_ALLMULTI != 0
    }

    /// Returns whether the link is of this kind.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// Attributes of one kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// A kind whose attributes are not parsed.
    #[default]
    None,
    /// A bridge.
    Bridge {
        /// The bridge filters VLANs.
        vlan_filtering: bool,
    },
    /// A macvlan; `None` for an unknown mode.
    Macvlan(Option<MacvlanMode>),
    /// An ipvlan; `None` for an unknown mode.
    Ipvlan(Option<IpvlanMode>),
    /// A VLAN with its ID.
    Vlan(u16),
    /// A VRF with its routing table.
    Vrf(u32),
    /// A VXLAN.
    Vxlan(Vxlan),
    /// An IPIP tunnel.
    Ipip(Ipip),
}

/// Operational state of RFC 2863 (`IF_OPER_*`, `linux/if.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not report it; the state of the loopback and of some tunnels.
    Unknown,
    /// The hardware is gone.
    NotPresent,
    /// Down.
    Down,
    /// A lower device, such as the peer of a veth, is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting for an external event.
    Dormant,
    /// Packets pass.
    Up,
}

/// Options of a bridge port. When setting, `None` leaves an option unchanged; when reading, `None`
/// means that the kernel did not report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortOptions {
    /// Send frames back out of the port that they came from.
    pub hairpin: Option<bool>,
    /// Block traffic to other isolated ports.
    pub isolated: Option<bool>,
    /// Learn source MAC addresses.
    pub learning: Option<bool>,
    /// Flood unicast frames to unknown destinations.
    pub flood: Option<bool>,
    /// Answer ARP and ND for known neighbours instead of flooding.
    pub neigh_suppress: Option<bool>,
}

/// The link that a request changes, by index, or by name if the index is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Index.
    Index(IfIndex),
    /// Name; the kernel looks it up when it applies the request.
    Name(IfName),
}

impl From<IfIndex> for Target {
    fn from(index: IfIndex) -> Self {
        Self::Index(index)
    }
}

impl From<IfName> for Target {
    fn from(name: IfName) -> Self {
        Self::Name(name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Builds a `struct ifinfomsg`. The kernel sets the flags whose bits are set in `change`.
pub(crate) fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO_LEN] {
    let mut header = [0; IFINFO_LEN];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// Starts a message about one link. The kernel sets the flags whose bits are set in `change`.
fn message_for(kind: u16, target: Target, flags: u32, change: u32) -> Message {
    let mut message = Message::new(kind, 0);
    match target {
        Target::Index(index) => message.header(&ifinfo(index.0, flags, change)),
        Target::Name(name) => {
            message.header(&ifinfo(0, flags, change)).str(IFLA_IFNAME, name.as_str())
        }
    };
    message
}
