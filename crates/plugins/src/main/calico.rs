// SPDX-License-Identifier: Apache-2.0
//! `calico`: connects each pod to the host by its own veth pair, with single routed addresses, as
//! Calico does. Interface names, MAC addresses, routes and results are Calico's, so that its pods and
//! those of this plugin can be on one node.

mod addresses;
mod annotations;
mod conf;
mod extras;
pub mod flags;
mod host_end;
mod keys;
mod names;
mod pod_end;

use cni::{BeforeLinkUp, CniResult, Code, Error, Interface, Plugin, Request, Version};
use kernel::{Netlink, Netns, link};

use self::conf::Calico;
use self::host_end::Pair;
pub(crate) use self::keys::Keys;
pub(crate) use self::names::pod;
pub(crate) use self::pod_end::gateway;
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{check, ipam, netns, veth};
use crate::error::Context;
use crate::host_sysctl;

pub const PLUGIN: Plugin = Plugin {
    name: "calico",
    about: "connects each pod to the host by a veth pair with routed addresses, as Calico does",
    versions: Version::ALL,
    add,
    del,
    check: check_attachment,
    status,
    gc,
};

/// Index of the pod's interface in the result: host end, pod.
const CONTAINER: usize = 1;

fn add(request: &Request) -> Result<CniResult, Error> {
    let calico = Calico::parse(request)?;
    calico.require_nodename(Code::TRY_LATER)?;
    let ipam_request = addresses::request(request, &calico, Code::TRY_LATER)?;
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    let mtu = calico.mtu(&host)?;
    or_undo(|undo| build(request, &ipam_request, &calico, &host, &ns, mtu, undo))
}

fn build<'a>(
    request: &'a Request<'a>,
    ipam_request: &'a Request<'a>,
    calico: &Calico,
    host: &'a Netlink,
    ns: &Netns,
    mtu: Option<u32>,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let mut result = addresses::assign(calico, ipam_request, undo)?;
    let has_hook = request.delegation.before_link_up.is_some() || calico.extras.limits_bandwidth();
    let pair = host_end::create(host, ns, request, calico, mtu, !has_hook)?;
    undo.push(move || veth::rollback(host, pair.host));
    result.interfaces = interfaces(request, &pair, mtu);
    if has_hook {
        result = before_link_up(request, calico, result, undo)?;
        host.apply([link::set_up(pair.host)]).context("bring the host end up")?;
    }
    host_end::configure(host, request, calico, pair.host, &result.ips)?;
    pod_end::configure(ns, calico, &pair, &result.ips)?;
    result = calico.extras.map_ports(request, result, undo)?;
    // Last, because it is not undone: other networks may rely on it at once.
    host_sysctl::enable_forwarding(result.ips.iter().map(|ip| ip.address.addr()))?;
    Ok(result)
}

/// Calico's result has no MAC address of the host end, because all are equal.
fn interfaces(request: &Request, pair: &Pair, mtu: Option<u32>) -> Vec<Interface> {
    let host = Interface { name: pair.host.to_string(), ..Interface::default() };
    let container = Interface {
        name: pair.container.to_string(),
        mac: pair.container_mac.to_string(),
        mtu: mtu.unwrap_or_default(),
        sandbox: request.netns.clone(),
        ..Interface::default()
    };
    vec![host, container]
}

/// Runs the work that other plugins do before the host end is up.
fn before_link_up<'a>(
    request: &'a Request<'a>,
    calico: &Calico,
    result: CniResult,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    if let Some(BeforeLinkUp(hook)) = request.delegation.before_link_up {
        hook(&result.interfaces)?;
    }
    match calico.extras.limits_bandwidth() {
        true => calico.extras.limit(request, result, undo),
        false => Ok(result),
    }
}

fn del(request: &Request) -> Result<(), Error> {
    // First, so that the background child that removes the interface also waits for this change.
    let extras = extras::each(request, |plugin| plugin.del);
    let ipam_request = addresses::removal_request(request)?;
    let removed = ipam::del_with_interface(&ipam_request, || host_end::remove(request));
    Error::all([removed, extras])
}

fn check_attachment(request: &Request) -> Result<(), Error> {
    let calico = Calico::parse(request)?;
    let ipam_request = addresses::request(request, &calico, Code::TRY_LATER)?;
    if calico.annotations.addresses_without_ipam.is_empty() {
        let checked = ipam::check(&ipam_request);
        // The agent's journal has no addresses that Calico assigned.
        if checked.is_err() && !is_of_calico(request)? {
            checked?;
        }
    }
    let result = request.required_prev_result()?;
    let inside = netns::open(request)?.netlink();
    let inside = inside.context("open a socket in the pod's namespace")?;
    let expected = check::container_interface(&result, request)?;
    let container = check::interface(&inside, expected, "veth")?;
    check::mtu(&container, expected, None, request.version)?;
    let host = Netlink::open().context("open a netlink socket")?;
    let on_host = result.interfaces.iter().find(|interface| interface.sandbox.is_empty());
    let Some(on_host) = on_host else {
        return Err(Error::internal("prevResult has no interface on the host"));
    };
    let end = host_end::check(&host, on_host, &container, &result.ips)?;
    let owner = names::owner(&end, &request.network, &request.attachment());
    pod_end::check(&inside, &container, &calico, &result, owner == names::Owner::This)?;
    calico.extras.check(request)
}

/// Returns whether Calico created the pod's interface, and assigned its addresses.
fn is_of_calico(request: &Request) -> Result<bool, Error> {
    let from_pools = request.config["ipam"]["type"] == "calico-ipam";
    let result = request.required_prev_result()?;
    let on_host = result.interfaces.iter().find(|interface| interface.sandbox.is_empty());
    let Some(name) = on_host.and_then(|interface| interface.name.parse().ok()) else {
        return Ok(false);
    };
    let host = Netlink::open().context("open a netlink socket")?;
    let link = link::by_name(&host, name).context("look up the host end")?;
    let owner = link.map(|link| names::owner(&link, &request.network, &request.attachment()));
    Ok(from_pools && owner == Some(names::Owner::Untagged))
}

fn status(request: &Request) -> Result<(), Error> {
    let calico = Calico::parse(request)?;
    calico.require_nodename(Code::NOT_AVAILABLE)?;
    let host = Netlink::open().context("open a netlink socket")?;
    if !link::is_supported(&host, "veth").context("ask the kernel for its features")? {
        return Err(Error::new(Code::NOT_AVAILABLE, "this kernel has no veth interfaces"));
    }
    let unavailable = |error: Error| match error.code {
        Code::TRY_LATER => Error { code: Code::NOT_AVAILABLE, ..error },
        _ => error,
    };
    calico.mtu(&host).map_err(unavailable)?;
    let ipam_request = addresses::request(request, &calico, Code::NOT_AVAILABLE)?;
    ipam::status(&ipam_request)?;
    extras::each(request, |plugin| plugin.status)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let ipam_request = addresses::removal_request(request)?;
    let removed = ipam::gc_with_interfaces(&ipam_request, || {
        host_end::remove_stale(&request.network, &valid)
    });
    Error::all([removed, extras::each(request, |plugin| plugin.gc)])
}
