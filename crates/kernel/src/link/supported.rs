// SPDX-License-Identifier: Apache-2.0
//! Asking the kernel for a kind of link without making one.

use ::netlink::{Message, NLM_F_CREATE, NLM_F_EXCL};

use super::{
    IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_NEWLINK, ifinfo, remove,
};
use crate::error::Result;
use crate::request::{Netlink, Request};
use crate::types::IfName;

const PROBE: &str = "podwire-probe";

/// Whether this kernel can make links of a kind. The question is a creation that must fail: the
/// kernel looks for the kind, and loads its module, before it finds the hardware address too short.
/// Only a kind that has no such addresses at all (wireguard) is made, and removed.
pub fn is_supported(nl: &Netlink, kind: &str) -> Result<bool> {
    match nl.apply([question(kind)]) {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno == crate::Errno::INVAL => Ok(true),
        Err(error) => Err(error),
        Ok(()) => nl.apply([remove(probe())]).map(|()| true),
    }
}

fn probe() -> IfName {
    PROBE.parse().expect("the name of the probe is a name of a link")
}

fn question(kind: &str) -> Request {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    message.header(&ifinfo(0, 0, 0)).str(IFLA_IFNAME, PROBE);
    message.bytes(IFLA_ADDRESS, &[2, 0, 0]);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind);
    });
    Request::new("ask for links of kind", kind.to_owned(), message)
}
