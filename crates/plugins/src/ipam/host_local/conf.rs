// SPDX-License-Identifier: Apache-2.0
//! The configuration of host-local: ranges from three sources and requested addresses from three
//! others.

use std::net::IpAddr;
use std::path::PathBuf;

use cni::{Cidr, Code, Error, Request, Route};
use ipam::{Range, RangeConf, RangeSet};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The parsed configuration.
#[derive(Debug)]
pub(super) struct HostLocal {
    /// Each set provides one address.
    pub sets: Vec<RangeSet>,
    /// Addresses that must be among the assigned ones.
    pub requested: Vec<IpAddr>,
    /// Routes of the result.
    pub routes: Vec<Route>,
    /// The resolv.conf file for the DNS settings of the result.
    pub resolv_conf: Option<PathBuf>,
    /// The directory of the reservations, with a subdirectory for each network.
    pub data_dir: PathBuf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct NetConf {
    ipam: Option<IpamConf>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
    args: ArgsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct IpamConf {
    // One range without a set, as in the first versions.
    subnet: Option<Cidr>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<RangeEntry>>,
    routes: Vec<Route>,
    data_dir: Option<PathBuf>,
    resolv_conf: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeEntry {
    subnet: Cidr,
    #[serde(default)]
    range_start: Option<IpAddr>,
    #[serde(default)]
    range_end: Option<IpAddr>,
    #[serde(default)]
    gateway: Option<IpAddr>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConf {
    ip_ranges: Vec<Vec<RangeEntry>>,
    ips: Vec<RequestedIp>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct ArgsConf {
    cni: CniArgsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct CniArgsConf {
    ips: Vec<RequestedIp>,
}

/// An address with or without a prefix length. The length is ignored: the range defines it.
#[derive(Debug, Clone, Copy)]
struct RequestedIp(IpAddr);

impl<'de> Deserialize<'de> for RequestedIp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RequestedIp, D::Error> {
        let text = String::deserialize(from)?;
        parse_address(&text)
            .map(RequestedIp)
            .ok_or_else(|| serde::de::Error::custom("expected an address such as 10.1.2.3"))
    }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    let address = match text.parse::<IpNet>() {
        Ok(net) => net.addr(),
        Err(_) => text.parse().ok()?,
    };
    Some(address.to_canonical())
}

impl HostLocal {
    pub(super) fn parse(request: &Request) -> Result<HostLocal, Error> {
        let conf: NetConf = request.conf()?;
        let ipam = conf.ipam.ok_or_else(super::super::no_ipam_key)?;
        let mut requested = requested_in_env(request)?;
        requested.extend(conf.args.cni.ips.iter().map(|ip| ip.0));
        requested.extend(conf.runtime_config.ips.iter().map(|ip| ip.0));
        let (single, data_dir) = (ipam.single_range(), data_dir(ipam.data_dir));
        let entries = [conf.runtime_config.ip_ranges, single, ipam.ranges].concat();
        Ok(HostLocal {
            sets: parse_sets(request, entries)?,
            requested,
            routes: ipam.routes,
            resolv_conf: ipam.resolv_conf,
            data_dir,
        })
    }
}

/// The directory of the reservations, for verbs that must work even if the ranges are invalid.
pub(super) fn data_dir_of(request: &Request) -> Result<PathBuf, Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Outer {
        ipam: Inner,
    }
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Inner {
        data_dir: Option<PathBuf>,
    }
    request.conf::<Outer>().map(|conf| data_dir(conf.ipam.data_dir))
}

fn data_dir(configured: Option<PathBuf>) -> PathBuf {
    configured.unwrap_or_else(|| DEFAULT_DATA_DIR.into())
}

impl IpamConf {
    fn single_range(&self) -> Vec<Vec<RangeEntry>> {
        let Some(subnet) = self.subnet else { return Vec::new() };
        let (range_start, range_end, gateway) = (self.range_start, self.range_end, self.gateway);
        vec![vec![RangeEntry { subnet, range_start, range_end, gateway }]]
    }
}

fn requested_in_env(request: &Request) -> Result<Vec<IpAddr>, Error> {
    if request.raw_args.is_empty() {
        return Ok(Vec::new());
    }
    let args = request.args()?;
    args.allow_only(&["IP"])?;
    let Some(text) = args.get("IP").filter(|text| !text.is_empty()) else { return Ok(Vec::new()) };
    let address = parse_address(text).ok_or_else(|| {
        let msg = format!("invalid IP address {text}");
        let details = "IP in CNI_ARGS must be an address such as 10.1.2.3";
        Error::new(Code::BAD_ENVIRONMENT, msg).with_details(details)
    })?;
    Ok(vec![address])
}

fn parse_sets(request: &Request, entries: Vec<Vec<RangeEntry>>) -> Result<Vec<RangeSet>, Error> {
    if entries.is_empty() {
        return Err(Error::invalid_config("no IP ranges specified")
            .with_details("key \"ipam.ranges\" or \"ipam.subnet\" must be set"));
    }
    let mut sets = Vec::with_capacity(entries.len());
    for (at, ranges) in entries.into_iter().enumerate() {
        let set = parse_set(ranges).map_err(|cause| {
            Error::because(Code::INVALID_CONFIG, format!("invalid range set {at}"), &cause)
        })?;
        sets.push(set);
    }
    ipam::check_disjoint(&sets).map_err(|cause| {
        Error::invalid_config(cause.to_string()).with_details("key \"ipam.ranges\"")
    })?;
    let firsts = sets.iter().map(|set| set.ranges()[0].start());
    super::super::one_address_per_family_before_0_3_0(request, firsts)?;
    Ok(sets)
}

fn parse_set(ranges: Vec<RangeEntry>) -> Result<RangeSet, ipam::Error> {
    let parse = |range: RangeEntry| {
        let RangeEntry { subnet: Cidr(subnet), range_start, range_end, gateway } = range;
        Range::new(RangeConf { subnet, range_start, range_end, gateway })
    };
    RangeSet::new(ranges.into_iter().map(parse).collect::<Result<_, _>>()?)
}
