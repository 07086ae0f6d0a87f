// SPDX-License-Identifier: Apache-2.0
//! Device features that can be switched on and off, with the names of `ethtool -k`.

use ::netlink::{Attrs, Errno, Message, Protocol, Socket};

use crate::error::{Error, Result};
use crate::genl;
use crate::types::IfIndex;

/// Checksum offload: the device computes TCP and UDP checksums; below a tunnel, its underlay device
/// does.
pub const TX_CHECKSUM: &str = "tx-checksum-ip-generic";

const FAMILY: &str = "ethtool"; // linux/ethtool_netlink.h, ETHTOOL_GENL_NAME
const VERSION: u8 = 1; // linux/ethtool_netlink.h, ETHTOOL_GENL_VERSION
const ETHTOOL_MSG_FEATURES_GET: u8 = 11; // linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_SET: u8 = 12; // linux/ethtool_netlink.h

const ETHTOOL_A_FEATURES_HEADER: u16 = 1; // linux/ethtool_netlink.h
const ETHTOOL_A_FEATURES_WANTED: u16 = 3; // linux/ethtool_netlink.h
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4; // linux/ethtool_netlink.h
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1; // linux/ethtool_netlink.h
const ETHTOOL_A_BITSET_BITS: u16 = 3; // linux/ethtool_netlink.h
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1; // linux/ethtool_netlink.h
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2; // linux/ethtool_netlink.h
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3; // linux/ethtool_netlink.h

/// An ethtool socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ethtool {
    socket: Socket,
    family: u16,
}

impl Ethtool {
    /// Opens a socket in the calling thread's namespace. Fails with [`Error::is_unsupported`] on
    /// kernels before 5.6.
    pub fn open() -> Result<Self> {
        let fail = |cause| Error::new("open ethtool socket", "", cause);
        let socket = Socket::open(Protocol::Generic).map_err(fail)?;
        let none = "this kernel has no netlink interface of ethtool";
        match genl::family_id(&socket, FAMILY).map_err(fail)? {
            Some(family) => Ok(Self { socket, family }),
            None => Err(fail(::netlink::Error::explained(Errno::OPNOTSUPP, none))),
        }
    }

    /// Returns whether a feature is on.
    pub fn is_on(&self, link: IfIndex, feature: &str) -> Result<bool> {
        let mut message = genl::message(self.family, ETHTOOL_MSG_FEATURES_GET, VERSION);
        put_link(&mut message, link);
        let (_, payload) = self
            .socket
            .get(&message)
            .map_err(|cause| Error::new("read features of", link.to_string(), cause))?;
        let active = Attrs::after(&payload, genl::HEADER_LEN).find_kind(ETHTOOL_A_FEATURES_ACTIVE);
        Ok(active.is_some_and(|bits| has_bit(&bits.nested(), feature)))
    }

    /// Switches a feature on or off. The kernel also switches features that depend on it.
    pub fn set(&self, link: IfIndex, feature: &str, on: bool) -> Result<()> {
        let fail = |cause| Error::new("switch feature of", link.to_string(), cause);
        let failures = self.socket.request(&[switch_message(self.family, link, feature, on)]);
        match failures.map_err(fail)?.into_iter().next() {
            Some(failure) => Err(fail(failure.error)),
            None => Ok(()),
        }
    }
}

fn switch_message(family: u16, link: IfIndex, feature: &str, on: bool) -> Message {
    let mut message = genl::message(family, ETHTOOL_MSG_FEATURES_SET, VERSION);
    put_link(&mut message, link);
    message.nest(ETHTOOL_A_FEATURES_WANTED, |set| {
        set.nest(ETHTOOL_A_BITSET_BITS, |bits| {
            bits.nest(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                bit.str(ETHTOOL_A_BITSET_BIT_NAME, feature);
                if on {
                    bit.flag(ETHTOOL_A_BITSET_BIT_VALUE);
                }
            });
        });
    });
    message
}

fn put_link(message: &mut Message, link: IfIndex) {
    message.nest(ETHTOOL_A_FEATURES_HEADER, |header| {
        header.u32(ETHTOOL_A_HEADER_DEV_INDEX, link.0);
    });
}

/// Returns whether a bit set contains a feature. A set without a mask lists only the bits that are
/// set.
fn has_bit(set: &Attrs<'_>, feature: &str) -> bool {
    let Some(bits) = set.find_kind(ETHTOOL_A_BITSET_BITS) else { return false };
    bits.nested().any(|bit| {
        let name = bit.nested().find_kind(ETHTOOL_A_BITSET_BIT_NAME);
        name.is_some_and(|name| name.text() == feature.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_has_golden_bytes() {
        // ethtool -K <index 7> tso off, by the feature's own name
        assert_eq!(
            switch_message(0x15, IfIndex(7), "tso", false).to_bytes()[16..],
            [
                12, 1, 0, 0, // genlmsghdr
                12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0, // the link
                20, 0, 3, 0x80, 16, 0, 3, 0x80, 12, 0, 1, 0x80, 8, 0, 2, 0, b't', b's', b'o', 0,
            ]
        );
        // The value `on` is an additional flag.
        assert!(switch_message(0x15, IfIndex(7), "tso", true).to_bytes().ends_with(&[4, 0, 3, 0]));
    }
}
