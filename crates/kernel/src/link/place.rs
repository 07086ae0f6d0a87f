// SPDX-License-Identifier: Apache-2.0
//! Moving links that exist to another namespace. For what we make ourselves a birth in the right place
//! is cheaper; hardware has been born already.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{
    IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_NET_NS_FD, RTM_SETLINK, Target, message_for,
};
use crate::request::Request;
use crate::types::{IfIndex, IfName};

/// Where a link should be, and under what names; what is not given stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'a> {
    /// The namespace.
    pub netns: Option<BorrowedFd<'a>>,
    /// The name there.
    pub name: Option<IfName>,
    /// The alias; an empty one removes it.
    pub alias: Option<&'a str>,
    /// The group.
    pub group: Option<u32>,
}

/// Puts a link in its place, in one message. The kernel moves first (which sets the link down and takes
/// its addresses), then renames, then does the rest. Under a name that the other namespace has already
/// it is not moved at all, if its old name is taken there too; if not, it is moved and keeps the old
/// one. Its index changes where another link there has the same.
pub fn put(index: IfIndex, place: &Place<'_>) -> Request {
    let mut message = message_for(RTM_SETLINK, Target::Index(index), 0, 0);
    if let Some(netns) = place.netns {
        message.i32(IFLA_NET_NS_FD, netns.as_raw_fd());
    }
    if let Some(name) = place.name {
        message.str(IFLA_IFNAME, name.as_str());
    }
    if let Some(alias) = place.alias {
        message.bytes(IFLA_IFALIAS, alias.as_bytes());
    }
    if let Some(group) = place.group {
        message.u32(IFLA_GROUP, group);
    }
    let object = place.name.map_or_else(|| index.to_string(), |name| name.to_string());
    Request::new("move link", object, message)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn bytes() {
        let stdin = std::io::stdin();
        let place = Place {
            netns: Some(stdin.as_fd()),
            name: Some("eth0".parse().unwrap()),
            alias: Some("a"),
            group: Some(5),
        };
        // ip link set <index 7> netns <fd 0> name eth0 alias a group 5
        let bytes = put(IfIndex(7), &place).message.to_bytes();
        let expected = [
            0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg
            8, 0, 28, 0, 0, 0, 0, 0, // IFLA_NET_NS_FD
            9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // IFLA_IFNAME
            5, 0, 20, 0, b'a', 0, 0, 0, // IFLA_IFALIAS
            8, 0, 27, 0, 5, 0, 0, 0, // IFLA_GROUP
        ];
        assert_eq!(bytes[16..], expected);
    }
}
