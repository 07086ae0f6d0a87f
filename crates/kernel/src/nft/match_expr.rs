// SPDX-License-Identifier: Apache-2.0
//! Building blocks for rules. Each doc comment quotes the text that `nft` prints for the
//! expressions.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{CtKey, Expr, Fib, MetaKey, Op, PayloadBase, Reg, TableFamily};
use crate::types::Family;

const NFPROTO_IPV4: u8 = 2; // linux/netfilter.h
const NFPROTO_IPV6: u8 = 10; // linux/netfilter.h
const RTN_LOCAL: u32 = 2; // linux/rtnetlink.h
const IPS_DST_NAT: u32 = 1 << 5; // linux/netfilter/nf_conntrack_common.h
const ESTABLISHED_OR_RELATED: u32 = 1 << 1 | 1 << 2; // NF_CT_STATE_BIT, the same header

impl Family {
    /// Returns the table family for packets of this address family only: `ip` or `ip6`.
    pub fn table_family(self) -> TableFamily {
        match self {
            Family::V4 => TableFamily::Ip,
            Family::V6 => TableFamily::Ip6,
        }
    }

    /// `meta nfproto ipv4`
    pub fn match_nfproto(self) -> [Expr; 2] {
        let number = match self {
            Family::V4 => NFPROTO_IPV4,
            Family::V6 => NFPROTO_IPV6,
        };
        [Expr::Meta(MetaKey::NfProto, Reg(0)), Expr::Cmp(Reg(0), Op::Eq, vec![number])]
    }

    /// Number of registers that an address fills.
    pub fn address_registers(self) -> u32 {
        self.address_len() / 4
    }

    fn address_len(self) -> u32 {
        match self {
            Family::V4 => 4,
            Family::V6 => 16,
        }
    }

    /// `ip saddr`
    pub fn load_source(self, to: Reg) -> Expr {
        let offset = if self == Family::V4 { 12 } else { 8 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len(), to }
    }

    /// `ip daddr`
    pub fn load_destination(self, to: Reg) -> Expr {
        let offset = if self == Family::V4 { 16 } else { 24 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len(), to }
    }
}

/// `th dport`
pub fn load_destination_port(to: Reg) -> Expr {
    Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to }
}

/// Compares the address in the register with a network: inside for [`Op::Eq`], outside for
/// [`Op::Neq`].
pub fn match_network(reg: Reg, op: Op, network: IpNet) -> Vec<Expr> {
    let address = octets(network.network());
    let compare = Expr::Cmp(reg, op, address.clone());
    if network.prefix_len() == network.max_prefix_len() {
        return vec![compare];
    }
    let xor = vec![0; address.len()];
    vec![Expr::Bitwise { reg, mask: octets(network.netmask()), xor }, compare]
}

/// `ip saddr @set`, where `load` puts the address into the first register.
pub fn match_set(family: Family, load: Expr, set: &str) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: set.to_owned(), key: Reg(0), inverted: false };
    [&family.match_nfproto()[..], &[load, lookup]].concat()
}

/// Returns an address in network byte order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns an interface name as a set key: padded with zeroes to IFNAMSIZ bytes.
pub fn ifname_key(name: &str) -> [u8; 16] {
    let mut key = [0; 16];
    for (to, from) in key.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    key
}

/// `fib daddr type local`
pub fn match_local_destination() -> [Expr; 2] {
    let local = RTN_LOCAL.to_ne_bytes().to_vec();
    [Expr::Fib(Fib::DestinationType, Reg(0)), Expr::Cmp(Reg(0), Op::Eq, local)]
}

/// `ct status dnat`
pub fn match_dnat_status() -> [Expr; 3] {
    match_any_bit(Expr::Ct(CtKey::Status, Reg(0)), IPS_DST_NAT)
}

/// `ct state established,related`
pub fn match_established() -> [Expr; 3] {
    match_any_bit(Expr::Ct(CtKey::State, Reg(0)), ESTABLISHED_OR_RELATED)
}

fn match_any_bit(load: Expr, bits: u32) -> [Expr; 3] {
    let mask = bits.to_ne_bytes().to_vec();
    let is_not_zero = Expr::Cmp(Reg(0), Op::Neq, vec![0; 4]);
    [load, Expr::Bitwise { reg: Reg(0), mask, xor: vec![0; 4] }, is_not_zero]
}
