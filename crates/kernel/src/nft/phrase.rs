// SPDX-License-Identifier: Apache-2.0
//! Parts that rules are put together from, named after what `nft` prints for them.

use std::net::IpAddr;

use super::{CtKey, Expr, Fib, MetaKey, Op, PayloadBase, Reg, TableFamily};
use ipnet::IpNet;

const NFPROTO_IPV4: u8 = 2; // linux/netfilter.h
const NFPROTO_IPV6: u8 = 10; // linux/netfilter.h
const RTN_LOCAL: u32 = 2; // linux/rtnetlink.h
const IPS_DST_NAT: u32 = 1 << 5; // linux/netfilter/nf_conntrack_common.h
const ESTABLISHED_OR_RELATED: u32 = 1 << 1 | 1 << 2; // NF_CT_STATE_BIT, the same header

/// IPv4 or IPv6: what differs between the twins of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Ip {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Ip::V4 } else { Ip::V6 }
    }

    /// The family as NAT wants it.
    pub fn family(self) -> TableFamily {
        match self {
            Ip::V4 => TableFamily::Ip,
            Ip::V6 => TableFamily::Ip6,
        }
    }

    /// `meta nfproto ipv4`
    pub fn only(self) -> [Expr; 2] {
        let number = match self {
            Ip::V4 => NFPROTO_IPV4,
            Ip::V6 => NFPROTO_IPV6,
        };
        [Expr::Meta(MetaKey::NfProto, Reg(0)), Expr::Cmp(Reg(0), Op::Eq, vec![number])]
    }

    /// Registers that an address fills.
    pub fn registers(self) -> u32 {
        self.len() / 4
    }

    fn len(self) -> u32 {
        match self {
            Ip::V4 => 4,
            Ip::V6 => 16,
        }
    }

    /// `ip saddr`
    pub fn source(self, to: Reg) -> Expr {
        let offset = if self == Ip::V4 { 12 } else { 8 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.len(), to }
    }

    /// `ip daddr`
    pub fn destination(self, to: Reg) -> Expr {
        let offset = if self == Ip::V4 { 16 } else { 24 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.len(), to }
    }
}

/// `th dport`
pub fn destination_port(to: Reg) -> Expr {
    Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to }
}

/// An address in the register is in a network, or is not.
pub fn in_network(reg: Reg, op: Op, network: IpNet) -> Vec<Expr> {
    let address = octets(network.network());
    let compare = Expr::Cmp(reg, op, address.clone());
    if network.prefix_len() == network.max_prefix_len() {
        return vec![compare];
    }
    let xor = vec![0; address.len()];
    vec![Expr::Bitwise { reg, mask: octets(network.netmask()), xor }, compare]
}

/// `ip saddr @set`: an address that is loaded into the first register is in a set.
pub fn is_in(family: Ip, load: Expr, set: &str) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: set.to_owned(), key: Reg(0), inverted: false };
    [&family.only()[..], &[load, lookup]].concat()
}

/// An address as it is on the wire.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The name of an interface as a key.
pub fn ifname(name: &str) -> [u8; 16] {
    let mut key = [0; 16];
    for (to, from) in key.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    key
}

/// `fib daddr type local`
pub fn to_this_host() -> [Expr; 2] {
    let local = RTN_LOCAL.to_ne_bytes().to_vec();
    [Expr::Fib(Fib::DestinationType, Reg(0)), Expr::Cmp(Reg(0), Op::Eq, local)]
}

/// `ct status dnat`
pub fn destination_was_changed() -> [Expr; 3] {
    has_bits(Expr::Ct(CtKey::Status, Reg(0)), IPS_DST_NAT)
}

/// `ct state established,related`
pub fn is_answer() -> [Expr; 3] {
    has_bits(Expr::Ct(CtKey::State, Reg(0)), ESTABLISHED_OR_RELATED)
}

fn has_bits(load: Expr, bits: u32) -> [Expr; 3] {
    let mask = bits.to_ne_bytes().to_vec();
    let any = Expr::Cmp(Reg(0), Op::Neq, vec![0; 4]);
    [load, Expr::Bitwise { reg: Reg(0), mask, xor: vec![0; 4] }, any]
}
