// SPDX-License-Identifier: Apache-2.0
//! Generic netlink, whose families get their ID when they are loaded.

use ::netlink::{Attrs, Errno, Error, Message, Socket};

const GENL_ID_CTRL: u16 = 0x10; // linux/genetlink.h
const CTRL_CMD_GETFAMILY: u8 = 3; // linux/genetlink.h
const CTRL_ATTR_FAMILY_ID: u16 = 1; // linux/genetlink.h
const CTRL_ATTR_FAMILY_NAME: u16 = 2; // linux/genetlink.h
const CTRL_VERSION: u8 = 2; // of the family "nlctrl"

/// Length of `struct genlmsghdr`.
pub(crate) const HEADER_LEN: usize = 4;

/// Returns the ID of a family; `None` if the kernel does not have it. The request loads the
/// family's module.
pub(crate) fn family_id(socket: &Socket, family: &str) -> Result<Option<u16>, Error> {
    match socket.get(&family_request(family)) {
        Ok((_, payload)) => Ok(Attrs::after(&payload, HEADER_LEN)
            .find_kind(CTRL_ATTR_FAMILY_ID)
            .and_then(|attr| attr.u16())),
        Err(cause) if cause.errno == Errno::NOENT => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// Starts a message of a family.
pub(crate) fn message(family: u16, command: u8, version: u8) -> Message {
    let mut message = Message::new(family, 0);
    message.header(&[command, version, 0, 0]);
    message
}

fn family_request(family: &str) -> Message {
    let mut message = message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_VERSION);
    message.str(CTRL_ATTR_FAMILY_NAME, family);
    message
}

#[cfg(test)]
mod tests {
    use ::netlink::Protocol;

    use super::*;

    #[test]
    fn family_request_has_golden_bytes() {
        // genl ctrl get name nlctrl
        assert_eq!(
            family_request("nlctrl").to_bytes(),
            [
                32, 0, 0, 0, 16, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                3, 2, 0, 0, // genlmsghdr
                11, 0, 2, 0, b'n', b'l', b'c', b't', b'r', b'l', 0, 0,
            ]
        );
    }

    #[test]
    fn control_family_has_its_fixed_id() {
        let socket = Socket::open(Protocol::Generic).unwrap();
        assert_eq!(family_id(&socket, "nlctrl").unwrap(), Some(GENL_ID_CTRL));
        assert_eq!(family_id(&socket, "no-such").unwrap(), None);
    }
}
