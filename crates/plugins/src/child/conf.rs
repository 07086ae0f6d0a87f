// SPDX-License-Identifier: Apache-2.0
//! The keys that these plugins share: as written, and as understood.

use cni::{CniResult, Error, Request};
use kernel::link::{Kind, Link};
use kernel::{MacAddr, Netlink, Netns};
use serde::Deserialize;

use super::parent::Parent;
use crate::dns::DnsConf;
use crate::fault::OrFault;
use crate::pod::{self, Dad};
use crate::veth;

/// What the network wants of a container's interface.
#[derive(Debug, Clone)]
pub struct Child {
    /// What it is.
    pub kind: Kind<'static>,
    /// What it hangs on.
    pub parent: Parent,
    /// That is in the container too, and not on the host.
    pub in_container: bool,
    /// Its MTU; the kernel's choice if none.
    pub mtu: Option<u32>,
    /// Its hardware address.
    pub mac: Mac,
    /// IPv6 duplicate detection.
    pub dad: Dad,
    /// Addresses by the plugin before this one, in place of an IPAM plugin's.
    pub given: Option<CniResult>,
    /// Overrides the IPAM plugin's.
    pub dns: DnsConf,
}

/// Where the hardware address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mac {
    /// It is the interface's own: this one, or one of our choice.
    Own(Option<MacAddr>),
    /// The kernel gives it the master's.
    OfParent,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ChildConf {
    master: String,
    mtu: i64,
    link_in_container: bool,
    enabledad: bool,
    dns: DnsConf,
}

impl Child {
    /// Reads the shared keys. Without a `master` it is the interface of the default route.
    pub fn understand(request: &Request, kind: Kind<'static>, mac: Mac) -> Result<Child, Error> {
        let conf: ChildConf = request.conf()?;
        let parent = Parent::understand(&conf.master)?;
        let mtu = u32::try_from(conf.mtu).map_err(|_| {
            // The error tells the largest MTU, where it can be known by now.
            let socket = match conf.link_in_container {
                true => pod::open(request).ok().and_then(|ns| ns.netlink().ok()),
                false => Netlink::open().ok(),
            };
            let found = socket.and_then(|nl| parent.find(&nl, conf.link_in_container).ok());
            wrong_mtu(conf.mtu, found.flatten().as_ref())
        })?;
        Ok(Child {
            kind,
            parent,
            in_container: conf.link_in_container,
            mtu: Some(mtu).filter(|mtu| *mtu != 0),
            mac,
            dad: if conf.enabledad { Dad::Wait } else { Dad::Skip },
            given: None,
            dns: conf.dns,
        })
    }

    /// The socket of the namespace that the master is in.
    pub fn socket(&self, ns: &Netns) -> Result<Netlink, Error> {
        let socket = if self.in_container { ns.netlink() } else { Netlink::open() };
        socket.or_fault("open a netlink socket")
    }

    /// The MTU, which may not be above the master's: what is longer would be dropped there.
    pub fn mtu_on(&self, parent: &Link) -> Result<Option<u32>, Error> {
        let is_wrong = |mtu: &u32| !(veth::LEAST_MTU..=parent.mtu).contains(mtu);
        let Some(wrong) = self.mtu.filter(is_wrong) else { return Ok(self.mtu) };
        Err(wrong_mtu(wrong.into(), Some(parent)))
    }
}

fn wrong_mtu(written: i64, parent: Option<&Link>) -> Error {
    let (most, of) = match parent {
        Some(parent) => {
            (format!("({})", parent.mtu), format!("{}, the MTU of {}", parent.mtu, parent.name))
        }
        None => (String::new(), "the MTU of the master".to_owned()),
    };
    let least = veth::LEAST_MTU;
    Error::invalid_config(format!("invalid MTU {written}, must be [0, master MTU{most}]"))
        .with_details(format!(
            "key \"mtu\" is {written}, allowed are {least} to {of}, and 0 for the default"
        ))
}
