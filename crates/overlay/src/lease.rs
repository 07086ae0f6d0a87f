// SPDX-License-Identifier: Apache-2.0
//! What a node tells the others, in flannel's words: its subnets, the address it is reached under,
//! and what its backend needs. In etcd the subnets are the key, the rest the value; in Kubernetes
//! they are podCIDRs and [`annotations`].
//!
//! What one node has written wrongly is an [`Error`] of its lease and no one else's.

pub mod annotations;
mod key;
mod value;

use gojson::DecodeError;

pub use self::key::KeyError;
use crate::backend::BackendData;
use crate::cidr::{Addresses, Prefixes};

/// A node's place in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Where its pods are.
    pub subnets: Prefixes,
    pub attributes: Attributes,
}

/// What a node tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Where it is reached.
    pub public: Addresses,
    pub data: BackendData,
}

/// Why something is no lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the lease's value is no JSON: {0}")]
    Json(String),
    #[error(transparent)]
    Value(#[from] DecodeError),
    #[error("the node has no podCIDR yet")]
    NoPodCidr,
}

impl Lease {
    /// Reads a key and its value.
    pub fn parse(key: &str, value: &[u8]) -> Result<Self, Error> {
        let subnets = parse_key(key)?;
        Ok(Self { subnets, attributes: Attributes::parse(value)? })
    }

    /// Its key, without the prefix that all keys have.
    pub fn key(&self) -> String {
        print_key(&self.subnets)
    }
}

/// The subnets that a key is about. What stands before its last `/` does not matter. A key whose
/// value cannot be read still takes its subnets away from others.
pub fn parse_key(key: &str) -> Result<Prefixes, KeyError> {
    key::parse(key)
}

/// The key of some subnets, such as `10.5.10.0-24&fd00:5:0:19::-64`.
pub fn print_key(subnets: &Prefixes) -> String {
    key::print(subnets)
}

impl Attributes {
    /// Reads a value of the store.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        value::parse(value)
    }

    /// The value for the store: compact, with keys in flannel's order.
    pub fn print(&self) -> String {
        value::print(self)
    }
}
