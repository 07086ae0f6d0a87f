// SPDX-License-Identifier: Apache-2.0
//! `struct virtio_net_hdr`: what the kernel says before each packet of the interface about work that is
//! left to us, and what we say before each that we give it.

pub(crate) const LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1; // linux/virtio_net.h
const GSO_NONE: u8 = 0; // linux/virtio_net.h
const GSO_TCPV4: u8 = 1; // linux/virtio_net.h
const GSO_TCPV6: u8 = 4; // linux/virtio_net.h
const GSO_UDP_L4: u8 = 5; // linux/virtio_net.h
const GSO_ECN: u8 = 0x80; // linux/virtio_net.h

/// What stands before one packet that is as it should be.
pub(crate) const NOTHING: [u8; LEN] = [0; LEN];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub large: Option<Large>,
    pub checksum: Option<Checksum>,
}

/// A packet that stands for several, whose payload is of this size each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Large {
    pub kind: Kind,
    pub size: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    TcpV4,
    TcpV6,
    Udp,
}

/// A checksum that is not yet there: of all from `start`, to be put at `start + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub start: usize,
    pub offset: usize,
}

impl Vnet {
    /// `None` for a kind of packet that we have not asked for.
    pub(crate) fn of(header: &[u8; LEN]) -> Option<Vnet> {
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
            large: kind.map(|kind| Large { kind, size: field(4) }),
            checksum: (header[0] & F_NEEDS_CSUM != 0).then_some(Checksum { start, offset }),
        })
    }

    /// As bytes, for a packet with this much before its payload.
    pub(crate) fn bytes(self, headers: u16) -> [u8; LEN] {
        let mut bytes = NOTHING;
        let mut set = |at: usize, value: u16| {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        };
        set(2, headers);
        if let Some(large) = self.large {
            set(4, large.size);
        }
        if let Some(Checksum { start, offset }) = self.checksum {
            set(6, super::short(start));
            set(8, super::short(offset));
            bytes[0] = F_NEEDS_CSUM;
        }
        bytes[1] = match self.large.map(|large| large.kind) {
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
    fn header_is_read_as_it_is_written() {
        let checksum = Some(Checksum { start: 20, offset: 16 });
        for kind in [Kind::TcpV4, Kind::TcpV6, Kind::Udp] {
            let vnet = Vnet { large: Some(Large { kind, size: 1400 }), checksum };
            assert_eq!(Vnet::of(&vnet.bytes(40)), Some(vnet));
        }
        let nothing = Vnet { large: None, checksum: None };
        assert_eq!(Vnet::of(&NOTHING), Some(nothing));
        assert_eq!(nothing.bytes(0), NOTHING);
    }

    #[test]
    fn congestion_mark_is_no_kind_and_unknown_kinds_are_refused() {
        let mut header = NOTHING;
        header[1] = GSO_TCPV4 | GSO_ECN;
        assert_eq!(Vnet::of(&header).unwrap().large.unwrap().kind, Kind::TcpV4);
        header[1] = 3; // UFO
        assert_eq!(Vnet::of(&header), None);
    }
}
