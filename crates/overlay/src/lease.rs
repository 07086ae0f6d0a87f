// SPDX-License-Identifier: Apache-2.0
//! The lease of a node, in flannel's format: its subnets, its public addresses, and the data of its
//! backend. In a key-value store the key holds the subnets and the value holds the rest. In Kubernetes
//! they are podCIDRs and [`annotations`].
//!
//! An [`Error`] in one node's lease does not affect the leases of other nodes.

pub mod annotations;
mod key;
mod value;

use gojson::DecodeError;

pub use self::key::KeyError;
use crate::backend::BackendData;
use crate::cidr::{Addresses, Prefixes};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Subnets of the node's pods.
    pub subnets: Prefixes,
    pub attributes: Attributes,
}

/// The part of a lease that a node publishes about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Addresses by which peers reach the node.
    pub public: Addresses,
    pub data: BackendData,
}

/// Reason why a lease cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the lease's value is not JSON: {0}")]
    Json(String),
    #[error(transparent)]
    Value(#[from] DecodeError),
    #[error("the node has no podCIDR yet")]
    NoPodCidr,
}

impl Lease {
    /// Parses a key of the store and its value.
    pub fn parse(key: &str, value: &[u8]) -> Result<Self, Error> {
        let subnets = parse_key(key)?;
        Ok(Self { subnets, attributes: Attributes::parse(value)? })
    }

    /// Returns the key of the lease, without the prefix that all keys of the store have.
    pub fn key(&self) -> String {
        print_key(&self.subnets)
    }
}

/// Returns the subnets of a key. The text before its last `/` is ignored. A key takes its subnets even
/// if its value cannot be parsed.
pub fn parse_key(key: &str) -> Result<Prefixes, KeyError> {
    key::parse(key)
}

/// Returns the key of these subnets, such as `10.5.10.0-24&fd00:5:0:19::-64`.
pub fn print_key(subnets: &Prefixes) -> String {
    key::print(subnets)
}

impl Attributes {
    /// Parses a value of the store.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        value::parse(value)
    }

    /// Returns the value for the store: compact JSON with keys in flannel's order.
    pub fn print(&self) -> String {
        value::print(self)
    }
}
