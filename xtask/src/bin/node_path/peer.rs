// SPDX-License-Identifier: Apache-2.0
//! A fictitious peer: its lease in the store and its kernel objects.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use kernel::fdb::{self, Fdb};
use kernel::neigh::{self, Neigh};
use kernel::nexthop::{self, Nexthop};
use kernel::route::{self, Route};
use kernel::{Family, IfIndex, MacAddr, Request};

use super::Outcome;

const PREFIX: &str = "/coreos.com/network/subnets";
/// First next-hop ID, far above those of an agent.
const NEXTHOPS: u32 = 3 << 29;
/// Route protocol that no program uses.
const PROTOCOL: u8 = 211;

#[derive(Debug)]
pub(crate) struct Peer {
    number: u32,
    pub(crate) subnet: Ipv4Net,
    public: Ipv4Addr,
    mac: MacAddr,
}

impl Peer {
    pub(crate) fn new(number: usize) -> Outcome<Peer> {
        let number = u32::try_from(number)?;
        let base = u32::from(Ipv4Addr::new(10, 1, 0, 0));
        let subnet = Ipv4Net::new(Ipv4Addr::from(base + (number << 8)), 24)?;
        let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + number);
        let [_, x, y, z] = number.to_be_bytes();
        Ok(Peer { number, subnet, public, mac: MacAddr([2, 0, 0, x, y, z]) })
    }

    pub(crate) fn key(&self) -> String {
        format!("{PREFIX}/{}-{}", self.subnet.network(), self.subnet.prefix_len())
    }

    pub(crate) fn value(&self) -> String {
        let data = format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, self.mac);
        let public = self.public;
        format!(
            r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}"#
        )
    }

    /// The requests of an agent for this peer, in the same order.
    pub(crate) fn requests(&self, tunnel: IfIndex) -> Vec<Request> {
        let (gateway, id) = (self.subnet.network().into(), NEXTHOPS + self.number);
        let nexthop = Nexthop::dev(id, Family::V4, tunnel, PROTOCOL);
        let nexthop = Nexthop { gateway: Some(gateway), onlink: true, ..nexthop };
        let route = Route { nexthop: Some(id), ..Route::new(self.subnet.into()) };
        vec![
            fdb::replace(&Fdb::vxlan(tunnel, self.mac, self.public.into())),
            neigh::replace(&Neigh::permanent(tunnel, gateway, self.mac)),
            nexthop::add(&nexthop),
            route::add(&route),
        ]
    }
}
