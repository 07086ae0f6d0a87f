// SPDX-License-Identifier: Apache-2.0
//! Links (network interfaces): what one looks like; the verbs are in the files below.

mod attributes;
mod change;
mod create;
mod place;
mod read;
mod remove;
mod supported;
mod tunnel;
mod wait;

use std::fmt;

use ::netlink::Message;

use crate::types::{IfIndex, IfName, MacAddr};

pub use self::attributes::{Attributes, set};
pub use self::change::{
    ARP_NOTIFY, PROXY_ARP, ROUTE_LOCALNET, RP_FILTER, set_alias, set_down, set_inet_conf, set_mac,
    set_master, set_mtu, set_name, set_no_master, set_port, set_promisc, set_up,
    set_up_with_inet_conf, set_vlan_filtering,
};
pub use self::create::{IpvlanMode, Kind, MacvlanMode, NewLink, Peer, create};
pub use self::place::{Place, put};
pub(crate) use self::read::parse;
pub use self::read::{
    by_index, by_name, by_name_in, index_of, list, list_in, list_of_kind, list_of_master, name_of,
};
pub use self::remove::{remove, remove_in_background};
pub use self::supported::is_supported;
pub use self::tunnel::{Ipip, VXLAN_PORT, Vxlan, set_ipip, set_vxlan};
pub use self::wait::{monitor, wait_until};

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

/// `struct ifinfomsg`.
pub(crate) const IFINFO_LEN: usize = 16;

/// A link as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: IfName,
    /// `veth`, `bridge`, …; none for hardware and the loopback.
    pub kind: Option<String>,
    /// What only its kind has.
    pub detail: Detail,
    /// Its hardware address, if it has one of six bytes.
    pub mac: Option<MacAddr>,
    /// Its MTU.
    pub mtu: u32,
    /// `IFF_*`.
    pub flags: u32,
    /// Whether packets pass.
    pub operstate: OperState,
    /// The bridge or VRF it is in.
    pub master: Option<IfIndex>,
    /// A veth's peer, a macvlan's or VLAN's parent: an index in the namespace `link_netnsid`.
    pub link: Option<IfIndex>,
    /// Our number for the other namespace `link` lies in; none if it is this one.
    pub link_netnsid: Option<i32>,
    /// The text `ip link set alias` writes.
    pub alias: Option<String>,
    /// The group it is in; 0 unless somebody says otherwise.
    pub group: u32,
    /// How many want it promiscuous.
    pub promiscuity: u32,
    /// Transmit queue length.
    pub txqlen: u32,
    /// Its options as a bridge port, if it is one.
    pub port: Option<PortOptions>,
    /// IPv6: whether it takes addresses and routes from routers (`accept_ra`); none without IPv6.
    pub accept_ra: Option<u32>,
}

impl Link {
    /// Administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Something is plugged in: for a bridge, a port that is up.
    pub fn has_carrier(&self) -> bool {
        self.flags & IFF_LOWER_UP != 0
    }

    /// The loopback.
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// Somebody has set it promiscuous; a program that only listens does not count.
    pub fn is_promisc(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Somebody has set it to take all multicast frames.
    pub fn is_allmulti(&self) -> bool {
        self.flags & IFF_ALLMULTI != 0
    }

    /// Of this kind.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// What only one kind of link has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// A kind we know nothing more about.
    #[default]
    None,
    /// A bridge.
    Bridge {
        /// Whether it filters VLANs.
        vlan_filtering: bool,
    },
    /// A macvlan; none for a mode we do not know.
    Macvlan(Option<MacvlanMode>),
    /// An ipvlan; none for a mode we do not know.
    Ipvlan(Option<IpvlanMode>),
    /// A VLAN and its number.
    Vlan(u16),
    /// A VRF and its routing table.
    Vrf(u32),
    /// A VXLAN.
    Vxlan(Vxlan),
    /// An IPIP tunnel.
    Ipip(Ipip),
}

/// `IF_OPER_*` (`linux/if.h`), after RFC 2863.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not say; the loopback and bare tunnels stay here.
    Unknown,
    /// The hardware is gone.
    NotPresent,
    /// Down.
    Down,
    /// Something underneath, such as a veth's peer, is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting for an external event.
    Dormant,
    /// Packets pass.
    Up,
}

/// Options of a bridge port. To set: only those given are changed. When read: all the kernel
/// showed are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortOptions {
    /// Send a frame back out of the port it came from.
    pub hairpin: Option<bool>,
    /// No traffic to other isolated ports.
    pub isolated: Option<bool>,
    /// Learn source addresses.
    pub learning: Option<bool>,
    /// Flood unicast frames with unknown destination.
    pub flood: Option<bool>,
    /// Answer for neighbours the bridge knows instead of flooding.
    pub neigh_suppress: Option<bool>,
}

/// Which link a change is for: its index, or its name if the index is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// By index.
    Index(IfIndex),
    /// By name, looked up by the kernel when the request is carried out.
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

/// `struct ifinfomsg`: flags are changed where `change` has a bit.
pub(crate) fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO_LEN] {
    let mut header = [0; IFINFO_LEN];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// A message about one link, its flags changed where `change` has a bit.
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
