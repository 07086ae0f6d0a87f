// SPDX-License-Identifier: Apache-2.0
//! `struct virtio_net_hdr`, which precedes each packet of the interface. It tells the receiver of
//! the packet, this program or the kernel, to segment the packet or to fill in its checksum.

pub(crate) const LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1; // linux/virtio_net.h
const GSO_NONE: u8 = 0; // linux/virtio_net.h
const GSO_TCPV4: u8 = 1; // linux/virtio_net.h
const GSO_TCPV6: u8 = 4; // linux/virtio_net.h
const GSO_UDP_L4: u8 = 5; // linux/virtio_net.h
const GSO_ECN: u8 = 0x80; // linux/virtio_net.h

/// Header of a packet that needs neither segmentation nor a checksum.
pub(crate) const PLAIN: [u8; LEN] = [0; LEN];

/// The parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub gso: Option<Gso>,
    pub checksum: Option<Checksum>,
}

/// Segmentation: the packet stands for several segments with a payload of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gso {
    pub kind: Kind,
    pub size: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    TcpV4,
    TcpV6,
    Udp,
}

/// A checksum to fill in: it covers the bytes from `start` on and belongs at `start + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub start: usize,
    pub offset: usize,
}

impl Vnet {
    /// Returns `None` for a kind of GSO packet that the interface was not configured for.
    pub(crate) fn parse(header: &[u8; LEN]) -> Option<Vnet> {
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let kind = match header[1] & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCPV4 => Some(Kind::TcpV4),
            GSO_TCPV6 => Some(Kind::TcpV6),
            GSO_UDP_L4 => Some(Kind::Udp),
            _ => return None,
        };
        let (start, offset) = (usize::from(field(6)), usize::from(field(8)));
        Some(Vnet {
            gso: kind.map(|kind| Gso { kind, size: field(4) }),
            checksum: (header[0] & F_NEEDS_CSUM != 0).then_some(Checksum { start, offset }),
        })
    }

    /// Encodes the header for a packet whose own headers have this length.
    pub(crate) fn bytes(self, headers: u16) -> [u8; LEN] {
        let mut bytes = PLAIN;
        let mut set = |at: usize, value: u16| {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        };
        set(2, headers);
        if let Some(gso) = self.gso {
            set(4, gso.size);
        }
        if let Some(Checksum { start, offset }) = self.checksum {
            set(6, super::short(start));
            set(8, super::short(offset));
            bytes[0] = F_NEEDS_CSUM;
        }
        bytes[1] = match self.gso.map(|gso| gso.kind) {
            None => GSO_NONE,
            Some(Kind::TcpV4) => GSO_TCPV4,
            Some(Kind::TcpV6) => GSO_TCPV6,
            Some(Kind::Udp) => GSO_UDP_L4,
        };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips() {
        let checksum = Some(Checksum { start: 20, offset: 16 });
        for kind in [Kind::TcpV4, Kind::TcpV6, Kind::Udp] {
            let vnet = Vnet { gso: Some(Gso { kind, size: 1400 }), checksum };
            assert_eq!(Vnet::parse(&vnet.bytes(40)), Some(vnet));
        }
        let plain = Vnet { gso: None, checksum: None };
        assert_eq!(Vnet::parse(&PLAIN), Some(plain));
        assert_eq!(plain.bytes(0), PLAIN);
    }

    #[test]
    fn ecn_flag_is_ignored_and_unknown_kind_is_rejected() {
        let mut header = PLAIN;
        header[1] = GSO_TCPV4 | GSO_ECN;
        assert_eq!(Vnet::parse(&header).unwrap().gso.unwrap().kind, Kind::TcpV4);
        header[1] = 3; // UFO
        assert_eq!(Vnet::parse(&header), None);
    }
}
