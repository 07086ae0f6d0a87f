// SPDX-License-Identifier: Apache-2.0
//! Several attributes of a link changed by one message.

use super::{
    IFF_ALLMULTI, IFF_PROMISC, IFLA_ADDRESS, IFLA_MTU, IFLA_TXQLEN, RTM_SETLINK, Target,
    message_for,
};
use crate::request::Request;
use crate::types::MacAddr;

/// Attributes to change; what is not given stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Hardware address.
    pub mac: Option<MacAddr>,
    /// MTU.
    pub mtu: Option<u32>,
    /// Take all frames.
    pub promisc: Option<bool>,
    /// Take all multicast frames.
    pub allmulti: Option<bool>,
    /// Transmit queue length.
    pub txqlen: Option<u32>,
}

impl Attributes {
    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Sets all that is given. The kernel takes one after the other: when it refuses one, those before
/// it (hardware address, MTU, flags, queue length, in this order) have been set.
pub fn set(link: impl Into<Target>, attributes: &Attributes) -> Request {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::IfIndex;

    #[test]
    fn bytes() {
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
            set(IfIndex(7), &all).message.to_bytes()[16..],
            [
                0, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, // ifinfomsg
                10, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, // IFLA_ADDRESS
                8, 0, 4, 0, 0x78, 5, 0, 0, // IFLA_MTU
                8, 0, 13, 0, 0xf4, 1, 0, 0, // IFLA_TXQLEN
            ]
        );
        assert!(Attributes::default().is_empty() && !all.is_empty());
    }
}
