// SPDX-License-Identifier: Apache-2.0
//! Changes of the node's nf_tables rules and forwarding sysctls.

use std::fmt;

use ipnet::IpNet;
use kernel::Family;

/// One change. Names of tables and chains include the family, such as `ip nat POSTROUTING`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    CreateTable(String),
    RecreateTable {
        table: String,
        damage: TableDamage,
    },
    RemoveTable(String),
    SetElements {
        set: &'static str,
        networks: Vec<IpNet>,
    },
    RewriteChain(&'static str),
    /// Adds an accept rule to the chain FORWARD of iptables, or moves it. `packets` is the direction
    /// and the network.
    SetForwardRule {
        family: Family,
        packets: String,
    },
    RemoveForwardRule {
        family: Family,
        packets: String,
    },
    /// Removes a rule of flannel from a chain that is not flannel's.
    RemoveFlannelRule {
        chain: String,
    },
    RemoveFlannelChain(String),
    RemoveFlannelTable(String),
    /// Sets a forwarding sysctl to 1.
    EnableForwarding {
        sysctl: String,
    },
}

/// A difference of the agent's table that only a new table can remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableDamage {
    Dormant,
    MissingChain(&'static str),
    ForeignChain(String),
    MissingSet(&'static str),
    ForeignSet(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iptables = |family: &Family| match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        match self {
            Self::CreateTable(table) => write!(f, "create table {table}"),
            Self::RecreateTable { table, damage } => {
                write!(f, "re-create table {table}: {damage}")
            }
            Self::RemoveTable(table) => write!(f, "remove table {table}"),
            Self::SetElements { set, networks } => {
                let networks: Vec<String> = networks.iter().map(IpNet::to_string).collect();
                write!(f, "set elements of set {set}: {}", networks.join(", "))
            }
            Self::RewriteChain(chain) => write!(f, "rewrite chain {chain}"),
            Self::SetForwardRule { family, packets } => {
                write!(f, "set {} rule for packets {packets}", iptables(family))
            }
            Self::RemoveForwardRule { family, packets } => {
                write!(f, "remove {} rule for packets {packets}", iptables(family))
            }
            Self::RemoveFlannelRule { chain } => {
                write!(f, "remove flannel's rule from chain {chain}")
            }
            Self::RemoveFlannelChain(chain) => write!(f, "remove flannel's chain {chain}"),
            Self::RemoveFlannelTable(table) => write!(f, "remove flannel's table {table}"),
            Self::EnableForwarding { sysctl } => write!(f, "set {sysctl} to 1"),
        }
    }
}

impl fmt::Display for TableDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dormant => f.write_str("table is dormant"),
            Self::MissingChain(chain) => write!(f, "chain {chain} is missing or changed"),
            Self::ForeignChain(chain) => write!(f, "unexpected chain {chain}"),
            Self::MissingSet(set) => write!(f, "set {set} is missing or changed"),
            Self::ForeignSet(set) => write!(f, "unexpected set {set}"),
        }
    }
}
