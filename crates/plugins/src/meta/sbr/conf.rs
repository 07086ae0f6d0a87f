// SPDX-License-Identifier: Apache-2.0
//! The configuration of sbr.

use std::net::IpAddr;

use cni::{Error, Request};
use serde::Deserialize;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SbrConf {
    table: Option<u32>,
    gateways: Vec<String>,
    add_source_hints: bool,
}

/// The parsed configuration.
#[derive(Debug, Default)]
pub(super) struct Sbr {
    /// An existing table: only rules are added.
    pub table: Option<u32>,
    /// Override the gateways of the result; at most one per family.
    pub gateways: Vec<IpAddr>,
    /// Direct routes stay in the main table.
    pub add_source_hints: bool,
}

impl Sbr {
    pub(super) fn parse(request: &Request) -> Result<Sbr, Error> {
        let conf: SbrConf = request.conf_or("failed to parse network configuration")?;
        if conf.table == Some(0) {
            let msg = "key \"table\" is 0, allowed are 1 to 4294967295";
            return Err(Error::invalid_config(msg));
        }
        let mut gateways: Vec<IpAddr> = Vec::new();
        for text in &conf.gateways {
            let gateway = text.parse::<IpAddr>().map(|ip| ip.to_canonical()).map_err(|_| {
                Error::invalid_config(format!("invalid static gateway IP address: {text}"))
                    .with_details("key \"gateways\"")
            })?;
            let same = gateways.iter().find(|other| other.is_ipv4() == gateway.is_ipv4());
            if let Some(first) = same {
                let family = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
                let msg = format!(
                    "gateways list contains multiple {family} addresses: {first} and {gateway}"
                );
                return Err(Error::invalid_config(msg)
                    .with_details("key \"gateways\" takes one IPv4 and one IPv6 address"));
            }
            gateways.push(gateway);
        }
        Ok(Sbr { table: conf.table, gateways, add_source_hints: conf.add_source_hints })
    }

    /// The gateway for packets from an address.
    pub(super) fn gateway(&self, source: IpAddr, default: Option<IpAddr>) -> Option<IpAddr> {
        let is_same_family = |gateway: &&IpAddr| gateway.is_ipv4() == source.is_ipv4();
        self.gateways.iter().find(is_same_family).copied().or(default)
    }
}

/// The table for DEL; `None` if the configuration is invalid.
pub(super) fn table_of(request: &Request) -> Option<u32> {
    request.conf::<SbrConf>().ok().and_then(|conf| conf.table)
}
