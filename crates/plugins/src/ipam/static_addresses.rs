// SPDX-License-Identifier: Apache-2.0
//! `static`: assigns the addresses that the configuration or the runtime names, without a record of
//! them.

use std::net::IpAddr;

use cni::{CniResult, Code, Dns, Error, IpConfig, Plugin, Request, Route, Version};
use ipnet::IpNet;
use serde::Deserialize;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "static",
    about: "assigns the addresses of the configuration",
    versions: Version::ALL,
    add,
    del: |_| Ok(()),
    check,
    status: |request| parse(request).map(drop),
    gc: |_| Ok(()),
};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct StaticConf {
    ipam: Option<IpamConf>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: IpsConf,
    args: ArgsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct IpamConf {
    addresses: Vec<AddressConf>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Debug, Deserialize)]
struct AddressConf {
    address: String,
    gateway: Option<IpAddr>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct ArgsConf {
    cni: IpsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct IpsConf {
    ips: Vec<String>,
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let (ipam, ips) = parse(request)?;
    Ok(CniResult { ips, routes: ipam.routes, dns: ipam.dns, ..CniResult::default() })
}

/// The addresses come from the runtime, else from `args`, else from the configuration and CNI_ARGS.
fn parse(request: &Request) -> Result<(IpamConf, Vec<IpConfig>), Error> {
    let conf: StaticConf = request.conf()?;
    let ipam = conf.ipam.ok_or_else(super::no_ipam_key)?;
    let configured = with_env_args(&ipam, request)?;
    let ips = match (conf.runtime_config.ips.as_slice(), conf.args.cni.ips.as_slice()) {
        ([], []) => configured,
        ([], from_args) => parse_cidrs(from_args)?,
        (from_runtime, _) => parse_cidrs(from_runtime)?,
    };
    super::one_address_per_family_before_0_3_0(request, ips.iter().map(|ip| ip.address.addr()))?;
    Ok((ipam, ips))
}

fn with_env_args(ipam: &IpamConf, request: &Request) -> Result<Vec<IpConfig>, Error> {
    let mut ips = Vec::with_capacity(ipam.addresses.len());
    for entry in &ipam.addresses {
        let msg = "the 'address' field is expected to be in CIDR notation";
        let address = parse_cidr(msg, Code::INVALID_CONFIG, &entry.address)?;
        ips.push(IpConfig::new(address, entry.gateway));
    }
    if request.raw_args.is_empty() {
        return Ok(ips);
    }
    let args = request.args()?;
    args.allow_only(&["IP", "GATEWAY"])?;
    for text in list(args.get("IP")) {
        let msg = "the 'ip' field is expected to be in CIDR notation";
        let address = parse_cidr(msg, Code::BAD_ENVIRONMENT, text)?;
        ips.push(IpConfig::new(address, None));
    }
    for text in list(args.get("GATEWAY")) {
        let gateway: IpAddr = text.parse().map_err(|_| {
            Error::new(Code::BAD_ENVIRONMENT, format!("invalid gateway address: {text}"))
                .with_details("GATEWAY in CNI_ARGS must be an address")
        })?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    Ok(ips)
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn parse_cidrs(texts: &[String]) -> Result<Vec<IpConfig>, Error> {
    let msg = "an entry in the 'ips' field is NOT in CIDR notation";
    texts
        .iter()
        .map(|text| Ok(IpConfig::new(parse_cidr(msg, Code::INVALID_CONFIG, text)?, None)))
        .collect()
}

/// The error is the Go plugin's text, which names the field, the value and what is expected.
fn parse_cidr(msg: &str, code: Code, text: &str) -> Result<IpNet, Error> {
    text.parse().map_err(|_| Error::new(code, format!("{msg}, got: '{text}'")))
}

/// Each address must be in the previous result, with its gateway.
fn check(request: &Request) -> Result<(), Error> {
    let (_, ips) = parse(request)?;
    let result = request.required_prev_result()?;
    for IpConfig { address, gateway, .. } in ips {
        let is_match =
            |ip: &IpConfig| ip.address == address && (gateway.is_none() || ip.gateway == gateway);
        if !result.ips.iter().any(is_match) {
            let ip = address.addr();
            return Err(Error::internal(format!(
                "static: Failed to match addr {ip} on interface {}",
                request.ifname
            ))
            .with_details(format!("address {address} is not in prevResult")));
        }
    }
    Ok(())
}
