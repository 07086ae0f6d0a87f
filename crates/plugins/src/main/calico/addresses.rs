// SPDX-License-Identifier: Apache-2.0
//! The pod's addresses: the configuration for the IPAM plugin, and the parts of its result that
//! calico uses.

use std::net::IpAddr;
use std::sync::Arc;

use cni::{CniResult, Code, Error, IpConfig, Request};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::conf::Calico;
use crate::attach::ipam;
use crate::attach::undo::Undo;
use crate::meta::flannel::daemon;

/// Values of `subnet` that stand for the subnets of this node.
const POD_CIDR: [&str; 2] = ["usePodCidr", "usePodCidrIPv6"];

/// The request for the IPAM plugin of ADD, CHECK and STATUS.
pub(super) fn request<'a>(
    request: &Request<'a>,
    calico: &Calico,
    code: Code,
) -> Result<Request<'a>, Error> {
    let mut read = None;
    let mut subnet = |is_v6: bool| {
        let file = &calico.ipam.subnet_file;
        let env = match &read {
            Some(env) => env,
            None => read.insert(daemon::read(file).map_err(|error| error.to_cni(code))?),
        };
        let found = env.subnets.iter().find(|subnet| subnet.addr().is_ipv6() == is_v6);
        found.map(|subnet| subnet.trunc().to_string()).ok_or_else(|| {
            let value = POD_CIDR[usize::from(is_v6)];
            let (family, file) = (if is_v6 { 6 } else { 4 }, file.display());
            let msg = format!("key \"ipam.subnet\" is {value:?}: {file} has no IPv{family} subnet");
            Error::invalid_config(msg)
        })
    };
    let mut config = with_subnets(request, &mut subnet)?;
    let annotations = &calico.annotations;
    if let Some(Value::Object(ipam)) = config.get_mut("ipam") {
        ipam.extend(annotations.ipam.clone());
    }
    if !annotations.addresses.is_empty() {
        let runtime = config.entry("runtimeConfig").or_insert_with(|| json!({}));
        runtime["ips"] = json!(annotations.addresses);
    }
    Ok(to_ipam(request, config))
}

/// The request for the IPAM plugin of DEL and GC, which need no valid subnets.
pub(super) fn removal_request<'a>(request: &Request<'a>) -> Result<Request<'a>, Error> {
    let any = |is_v6| Ok(if is_v6 { "::/0" } else { "0.0.0.0/0" }.to_owned());
    Ok(to_ipam(request, with_subnets(request, &mut { any })?))
}

/// CNI_ARGS have keys of Kubernetes, which IPAM plugins refuse without IgnoreUnknown.
fn to_ipam<'a>(request: &Request<'a>, config: Map<String, Value>) -> Request<'a> {
    let raw_args = match request.raw_args.as_str() {
        "" => String::new(),
        args => format!("IgnoreUnknown=1;{args}"),
    };
    Request { config: Arc::new(config), raw_args, ..request.clone() }
}

type Subnet<'a> = &'a mut dyn FnMut(bool) -> Result<String, Error>;

/// The configuration with the subnets of this node in place of `usePodCidr`. Only host-local has
/// subnets.
fn with_subnets(request: &Request, subnet: Subnet) -> Result<Map<String, Value>, Error> {
    let mut config = (*request.config).clone();
    let kind = request.ipam_type()?;
    let Some(Value::Object(mut ipam)) = gojson::take(&mut config, "ipam") else {
        return Ok(config);
    };
    if kind == Some("host-local") {
        replace(&mut ipam, subnet)?;
        let ranges = ipam.iter_mut().filter(|(key, _)| key.eq_ignore_ascii_case("ranges"));
        let sets = ranges.filter_map(|(_, sets)| sets.as_array_mut()).flatten();
        for range in sets.filter_map(Value::as_array_mut).flatten() {
            range.as_object_mut().map_or(Ok(()), |range| replace(range, subnet))?;
        }
    }
    config.insert("ipam".to_owned(), Value::Object(ipam));
    Ok(config)
}

fn replace(range: &mut Map<String, Value>, subnet: Subnet) -> Result<(), Error> {
    for (key, value) in range.iter_mut() {
        let Value::String(text) = value else { continue };
        let at = POD_CIDR.iter().position(|name| text.eq_ignore_ascii_case(name));
        if let Some(at) = at.filter(|_| key.eq_ignore_ascii_case("subnet")) {
            *text = subnet(at == 1)?;
        }
    }
    Ok(())
}

/// Requests the addresses, unless an annotation sets them. Each gets the prefix length of a single
/// address, and no gateway.
pub(super) fn assign<'a>(
    calico: &Calico,
    request: &'a Request<'a>,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let fixed = &calico.annotations.addresses_without_ipam;
    let mut result = if fixed.is_empty() {
        let result = ipam::add(request)?.unwrap_or_default();
        undo.push(move || drop(ipam::del(request)));
        result
    } else {
        let ips = fixed.iter().map(|address| IpConfig::new((*address).into(), None));
        CniResult { ips: ips.collect(), ..CniResult::default() }
    };
    let requested = calico.annotations.addresses.iter();
    let has = |address: &IpAddr| result.ips.iter().any(|ip| ip.address.addr() == *address);
    if let Some(missing) = requested.into_iter().find(|address| !has(address)) {
        let msg = format!("the IPAM plugin did not assign the requested address {missing}");
        return Err(Error::internal(msg));
    }
    for ip in &mut result.ips {
        ip.address = IpNet::from(ip.address.addr());
        ip.gateway = None;
        ip.interface = Some(super::CONTAINER);
    }
    Ok(result)
}
