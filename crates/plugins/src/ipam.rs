// SPDX-License-Identifier: Apache-2.0
//! Plugins that assign addresses.

pub(crate) mod calico_ipam;
pub mod dhcp;
pub(crate) mod host_local;
pub(crate) mod static_addresses;

use std::net::IpAddr;

use cni::{Error, Request, Version};

/// The error if the key `ipam` is missing.
fn no_ipam_key() -> Error {
    Error::invalid_config("IPAM config missing 'ipam' key")
}

/// Results before version 0.3.0 can hold only one address per family.
fn one_address_per_family_before_0_3_0(
    request: &Request,
    addresses: impl Iterator<Item = IpAddr>,
) -> Result<(), Error> {
    if request.version >= Version::V0_3_0 {
        return Ok(());
    }
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.partition(IpAddr::is_ipv4);
    if v4.len() <= 1 && v6.len() <= 1 {
        return Ok(());
    }
    let version = request.version;
    let msg = format!("CNI version {version} does not support more than 1 address per family");
    Err(Error::invalid_config(msg))
}
