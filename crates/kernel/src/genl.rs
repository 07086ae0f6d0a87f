// SPDX-License-Identifier: Apache-2.0
//! Generic netlink: families that get their number when they are loaded.

use ::netlink::{Attrs, Errno, Error, Message, Socket};

const GENL_ID_CTRL: u16 = 0x10; // linux/genetlink.h
const CTRL_CMD_GETFAMILY: u8 = 3; // linux/genetlink.h
const CTRL_ATTR_FAMILY_ID: u16 = 1; // linux/genetlink.h
const CTRL_ATTR_FAMILY_NAME: u16 = 2; // linux/genetlink.h
const CTRL_VERSION: u8 = 2; // of the family "nlctrl"

/// `struct genlmsghdr`.
pub(crate) const HEADER_LEN: usize = 4;

/// The number of a family; none if this kernel does not have it. Asking loads its module.
pub(crate) fn number_of(socket: &Socket, family: &str) -> Result<Option<u16>, Error> {
    match socket.get(&question(family)) {
        Ok((_, payload)) => Ok(Attrs::after(&payload, HEADER_LEN)
            .find_kind(CTRL_ATTR_FAMILY_ID)
            .and_then(|attr| attr.u16())),
        Err(cause) if cause.errno == Errno::NOENT => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// A message of a family with its fixed header.
pub(crate) fn message(family: u16, command: u8, version: u8) -> Message {
    let mut message = Message::new(family, 0);
    message.header(&[command, version, 0, 0]);
    message
}

fn question(family: &str) -> Message {
    let mut message = message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_VERSION);
    message.str(CTRL_ATTR_FAMILY_NAME, family);
    message
}

#[cfg(test)]
mod tests {
    use ::netlink::Protocol;

    use super::*;

    #[test]
    fn bytes() {
        // genl ctrl get name nlctrl
        assert_eq!(
            question("nlctrl").to_bytes(),
            [
                32, 0, 0, 0, 16, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                3, 2, 0, 0, // genlmsghdr
                11, 0, 2, 0, b'n', b'l', b'c', b't', b'r', b'l', 0, 0,
            ]
        );
    }

    #[test]
    fn the_family_of_families_has_its_fixed_number() {
        let socket = Socket::open(Protocol::Generic).unwrap();
        assert_eq!(number_of(&socket, "nlctrl").unwrap(), Some(GENL_ID_CTRL));
        assert_eq!(number_of(&socket, "no-such").unwrap(), None);
    }
}
