// SPDX-License-Identifier: Apache-2.0
//! The bridge of the node's pods, which has the gateway address of the node's subnet. The first pod creates it. It may be
//! removed and re-created at any time.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use kernel::events::{Event, Events, Object, Topic};
use kernel::socket::multicast::{BUFFER_LEN, MulticastSocket, ReceivedPacket};
use kernel::{Family, IfIndex, MacAddr, Netlink, Received, addr, link};
use tokio::io::unix::AsyncFd;

use super::igmp;
use super::relay::gateway;
use crate::async_fd::register;

/// The bridge with its packet sockets.
#[derive(Debug)]
pub(super) struct Bridge {
    pub index: IfIndex,
    mac: MacAddr,
    v4: AsyncFd<MulticastSocket>,
    v6: AsyncFd<MulticastSocket>,
}

impl Bridge {
    /// Opens the sockets.
    pub(super) fn open(index: IfIndex, mac: MacAddr) -> kernel::Result<Self> {
        let [v4, v6] =
            Family::ALL.map(|family| register(MulticastSocket::open(index, mac, family)?));
        Ok(Self { index, mac, v4: v4?, v6: v6? })
    }

    /// Waits for a packet from a pod.
    pub(super) async fn ready(&self) -> io::Result<()> {
        tokio::select! {
            ready = self.v4.readable() => ready?.clear_ready(),
            ready = self.v6.readable() => ready?.clear_ready(),
        }
        Ok(())
    }

    /// Returns the next packet; `None` if none is waiting.
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

    /// Asks all pods for their groups.
    pub(super) fn query(&self) -> io::Result<()> {
        let (to, query) = igmp::igmp_query();
        self.send(Family::V4, to, &query)?;
        let (to, query) = igmp::mld_query(self.mac);
        self.send(Family::V6, to, &query)
    }

    fn frames(&self, family: Family) -> &MulticastSocket {
        match family {
            Family::V4 => self.v4.get_ref(),
            Family::V6 => self.v6.get_ref(),
        }
    }
}

/// Creates a buffer for one packet.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; BUFFER_LEN]
}

/// Finds the bridge and watches for its changes.
#[derive(Debug)]
pub(super) struct BridgeWatcher {
    netlink: Netlink,
    events: AsyncFd<Events>,
    gateways: Vec<IpAddr>,
}

impl BridgeWatcher {
    /// Watches for the bridge of these subnets.
    pub(super) fn open(subnets: &[IpNet]) -> kernel::Result<Self> {
        let gateways = subnets.iter().filter_map(|subnet| gateway(*subnet));
        Ok(Self {
            netlink: Netlink::open()?,
            events: register(Events::listen(&[Topic::Links, Topic::Addrs])?)?,
            gateways: gateways.collect(),
        })
    }

    /// Waits for an event.
    pub(super) async fn ready(&self) -> io::Result<()> {
        self.events.readable().await?.clear_ready();
        Ok(())
    }

    /// Reads all events and returns whether one may concern the bridge.
    pub(super) fn has_changed(&mut self, known: Option<IfIndex>) -> kernel::Result<bool> {
        let gateways = &self.gateways;
        let mut has_relevant = false;
        loop {
            let received = self.events.get_mut().receive(Instant::now(), |event| {
                has_relevant |= is_relevant(&event, known, gateways);
            })?;
            match received {
                Received::Events => {}
                Received::Overrun => has_relevant = true,
                Received::Deadline => return Ok(has_relevant),
            }
        }
    }

    /// Returns index and MAC address of the bridge, if it is up.
    pub(super) fn find(&self) -> kernel::Result<Option<(IfIndex, MacAddr)>> {
        let all = addr::list(&self.netlink, None)?;
        for one in all.iter().filter(|one| self.gateways.contains(&one.prefix.addr())) {
            let link = link::by_index(&self.netlink, one.index)?;
            if let Some(link) = link.filter(|link| link.is_kind("bridge") && link.is_up()) {
                return Ok(link.mac.map(|mac| (link.index, mac)));
            }
        }
        Ok(None)
    }
}

fn is_relevant(event: &Event, known: Option<IfIndex>, gateways: &[IpAddr]) -> bool {
    match &event.object {
        Object::Addr(addr) => gateways.contains(&addr.prefix.addr()),
        Object::Link(link) => Some(link.index) == known || link.is_kind("bridge"),
        _ => false,
    }
}
