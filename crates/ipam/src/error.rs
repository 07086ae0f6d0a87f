// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with a range or a set; each text names the key, the value and what is allowed.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{Range, RangeSet};

/// Why a range or a range set was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("subnet {subnet} is too small to allocate from; its prefix may be at most /{most}")]
    TooSmall { subnet: IpNet, most: u8 },

    #[error("subnet {subnet} has host bits set; the network address is {network}")]
    HostBits { subnet: IpNet, network: IpNet },

    #[error("rangeStart {start} is not in subnet {subnet}")]
    StartOutside { start: IpAddr, subnet: IpNet },

    #[error("rangeEnd {end} is not in subnet {subnet}")]
    EndOutside { end: IpAddr, subnet: IpNet },

    #[error("rangeStart {start} is after rangeEnd {end}")]
    Reversed { start: IpAddr, end: IpAddr },

    #[error("range {start}-{end} holds IPv4-mapped addresses; write it as an IPv4 range")]
    Mapped { start: IpAddr, end: IpAddr },

    #[error("a range set must hold at least one range")]
    EmptySet,

    #[error("ranges {first} and {second} are of different families; a set holds only one")]
    MixedFamilies { first: Box<Range>, second: Box<Range> },

    #[error("ranges {first} and {second} of one set overlap")]
    Overlap { first: Box<Range>, second: Box<Range> },

    #[error("range set {first} ({first_set}) overlaps with {second} ({second_set})")]
    SetsOverlap { first: usize, first_set: RangeSet, second: usize, second_set: RangeSet },
}
