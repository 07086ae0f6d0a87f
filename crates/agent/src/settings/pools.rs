// SPDX-License-Identifier: Apache-2.0
//! The options of address pools.

use ipam::pool::{Mode, Pool, PoolConf};
use ipnet::IpNet;

use super::Error;
use super::model::Pods;
use super::values::RawValues;
use crate::pools::change;

/// Names of the pools that Calico creates at its first start.
const NAMES: [&str; 2] = ["default-ipv4-ippool", "default-ipv6-ippool"];

pub(super) fn parse(values: &RawValues) -> Result<Pods, Error> {
    let mode = values.last("pods");
    let pools = pools(values)?;
    match mode.as_str() {
        "bridged" if !pools.is_empty() => {
            Err(Error::new(values.place("pool-cidr"), "requires --pods routed"))
        }
        "bridged" => Ok(Pods::Bridged),
        "routed" if values.switch("dry-run")? => {
            Err(Error::new(values.place("dry-run"), "not possible with --pods routed"))
        }
        "routed" if values.switch("multicast")? => {
            Err(Error::new(values.place("multicast"), "not possible with --pods routed"))
        }
        "routed" => Ok(Pods::Routed { pools }),
        other => Err(values.invalid("pods", other, "bridged or routed")),
    }
}

/// Returns whether packets from routed pods to nodes keep their source address. Felix's setting
/// `natOutgoingExclusions` has the same two values under other names.
pub(super) fn excludes_nodes(values: &RawValues) -> Result<bool, Error> {
    match values.last("pool-nat-exclusions").as_str() {
        "pools" => Ok(false),
        "pools-and-nodes" => Ok(true),
        other => Err(values.invalid("pool-nat-exclusions", other, "pools or pools-and-nodes")),
    }
}

fn pools(values: &RawValues) -> Result<Vec<PoolConf>, Error> {
    let (ipip, vxlan) = encapsulation(values)?;
    let mut pools: Vec<PoolConf> = Vec::new();
    for text in values.list("pool-cidr") {
        let cidr: IpNet = text.parse().map_err(|_| {
            values.invalid("pool-cidr", &text, "address ranges such as 10.244.0.0/16")
        })?;
        let is_ipv6 = matches!(cidr, IpNet::V6(_));
        let earlier = pools.iter().filter(|pool| matches!(pool.cidr, IpNet::V6(_)) == is_ipv6);
        let name = match earlier.count() {
            0 => NAMES[usize::from(is_ipv6)].to_owned(),
            count => format!("{}-{}", NAMES[usize::from(is_ipv6)], count + 1),
        };
        // There is no IPIP for IPv6, and Calico does not masquerade IPv6.
        let ipip = if is_ipv6 { Mode::Never } else { ipip };
        let pool = PoolConf { ipip, vxlan, nat_outgoing: !is_ipv6, ..PoolConf::new(&name, cidr) };
        Pool::new(pool.clone())
            .map_err(|error| Error::new(values.place("pool-cidr"), error.to_string()))?;
        pools.push(pool);
    }
    Ok(pools)
}

/// Returns the modes of IPIP and of VXLAN.
fn encapsulation(values: &RawValues) -> Result<(Mode, Mode), Error> {
    let text = values.last("pool-encapsulation");
    change::modes(&text).map_err(|_| values.invalid("pool-encapsulation", &text, change::MODES))
}
