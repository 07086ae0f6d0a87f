// SPDX-License-Identifier: Apache-2.0
//! The bridge of a node's pods: the one that has the gateway address of its subnet. It comes with the first pod, and
//! may go and come again.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use kernel::events::{Event, Events, Object, Topic};
use kernel::socket::multicast::{BUFFER_LEN, MulticastSocket, ReceivedPacket};
use kernel::{Family, IfIndex, MacAddr, Netlink, Received, addr, link};
use tokio::io::unix::AsyncFd;

use super::relay::gateway;
use super::reports;
use crate::watched::watched;

/// The bridge, and the sockets on it.
#[derive(Debug)]
pub(super) struct Bridge {
    pub index: IfIndex,
    mac: MacAddr,
    v4: AsyncFd<MulticastSocket>,
    v6: AsyncFd<MulticastSocket>,
}

impl Bridge {
    /// Listens to it.
    pub(super) fn open(index: IfIndex, mac: MacAddr) -> kernel::Result<Self> {
        let [v4, v6] =
            Family::ALL.map(|family| watched(MulticastSocket::open(index, mac, family)?));
        Ok(Self { index, mac, v4: v4?, v6: v6? })
    }

    /// Waits until a pod sends something.
    pub(super) async fn ready(&self) -> io::Result<()> {
        tokio::select! {
            ready = self.v4.readable() => ready?.clear_ready(),
            ready = self.v6.readable() => ready?.clear_ready(),
        }
        Ok(())
    }

    /// The next packet that is there.
    pub(super) fn receive(
        &self,
        family: Family,
        buffer: &mut [u8],
    ) -> io::Result<Option<ReceivedPacket>> {
        self.frames(family).receive(buffer)
    }

    pub(super) fn send(&self, family: Family, to: MacAddr, packet: &[u8]) -> io::Result<()> {
        self.frames(family).send(to, packet)
    }

    /// Asks all pods which groups they are in.
    pub(super) fn ask(&self) -> io::Result<()> {
        let (to, query) = reports::igmp_query();
        self.send(Family::V4, to, &query)?;
        let (to, query) = reports::mld_query(self.mac);
        self.send(Family::V6, to, &query)
    }

    fn frames(&self, family: Family) -> &MulticastSocket {
        match family {
            Family::V4 => self.v4.get_ref(),
            Family::V6 => self.v6.get_ref(),
        }
    }
}

/// Room for one packet.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; BUFFER_LEN]
}

/// Looks for the bridge, and hears when to look again.
#[derive(Debug)]
pub(super) struct Lookout {
    netlink: Netlink,
    events: AsyncFd<Events>,
    gateways: Vec<IpAddr>,
}

impl Lookout {
    /// For the bridge of these subnets.
    pub(super) fn open(subnets: &[IpNet]) -> kernel::Result<Self> {
        let gateways = subnets.iter().filter_map(|subnet| gateway(*subnet));
        Ok(Self {
            netlink: Netlink::open()?,
            events: watched(Events::listen(&[Topic::Links, Topic::Addrs])?)?,
            gateways: gateways.collect(),
        })
    }

    /// Waits until something has changed on the node.
    pub(super) async fn ready(&self) -> io::Result<()> {
        self.events.readable().await?.clear_ready();
        Ok(())
    }

    /// Whether what has changed may be the bridge.
    pub(super) fn has_changed(&mut self, known: Option<IfIndex>) -> kernel::Result<bool> {
        let gateways = &self.gateways;
        let mut is_it = false;
        loop {
            let received = self.events.get_mut().receive(Instant::now(), |event| {
                is_it |= concerns(&event, known, gateways);
            })?;
            match received {
                Received::Events => {}
                Received::Overrun => is_it = true,
                Received::Deadline => return Ok(is_it),
            }
        }
    }

    /// The bridge as it is now.
    pub(super) fn find(&self) -> kernel::Result<Option<(IfIndex, MacAddr)>> {
        let all = addr::list(&self.netlink, None)?;
        for found in all.iter().filter(|found| self.gateways.contains(&found.prefix.addr())) {
            let link = link::by_index(&self.netlink, found.index)?;
            if let Some(link) = link.filter(|link| link.is_kind("bridge") && link.is_up()) {
                return Ok(link.mac.map(|mac| (link.index, mac)));
            }
        }
        Ok(None)
    }
}

fn concerns(event: &Event, known: Option<IfIndex>, gateways: &[IpAddr]) -> bool {
    match &event.object {
        Object::Addr(found) => gateways.contains(&found.prefix.addr()),
        Object::Link(link) => Some(link.index) == known || link.is_kind("bridge"),
        _ => false,
    }
}
