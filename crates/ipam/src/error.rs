// SPDX-License-Identifier: Apache-2.0
//! Errors in ranges and range sets. Each text names the key, the value and the rule.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{Range, RangeSet};

/// The reason why a range or a range set is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("Network {subnet} too small to allocate from; its prefix may be at most /{max}")]
    TooSmall { subnet: IpNet, max: u8 },

    #[error(
        "Network has host bits set. For a subnet mask of length {} the network address is {}; \
         subnet is {subnet}",
        .subnet.prefix_len(), .network.addr()
    )]
    HostBits { subnet: IpNet, network: IpNet },

    #[error("RangeStart {start} not in network {subnet}")]
    StartOutside { start: IpAddr, subnet: IpNet },

    #[error("RangeEnd {end} not in network {subnet}")]
    EndOutside { end: IpAddr, subnet: IpNet },

    #[error("RangeStart {start} not in network {subnet}: it is after rangeEnd {end}")]
    Reversed { start: IpAddr, end: IpAddr, subnet: IpNet },

    #[error("range {start}-{end} holds IPv4-mapped addresses; write it as an IPv4 range")]
    Mapped { start: IpAddr, end: IpAddr },

    #[error("empty range set: it must hold at least one range")]
    EmptySet,

    #[error("mixed address families: {first} and {second}; a set holds only one")]
    MixedFamilies { first: Box<Range>, second: Box<Range> },

    #[error("subnets {first} and {second} overlap")]
    Overlap { first: Box<Range>, second: Box<Range> },

    #[error("range set {first} overlaps with {second}: {first_set} and {second_set}")]
    SetsOverlap { first: usize, first_set: RangeSet, second: usize, second_set: RangeSet },
}
