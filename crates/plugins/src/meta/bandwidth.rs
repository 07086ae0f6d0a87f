// SPDX-License-Identifier: Apache-2.0
//! `bandwidth`: limits what a container sends and receives, at the host end of its veth pair.

mod check;
mod conf;
mod host_end;
mod ifb;
mod shape;

use cni::{CniResult, Code, Error, Interface, Plugin, Request, Version};
use kernel::link;
use kernel::tc::{self, Handle, Qdisc};
use kernel::{IfIndex, Netlink, Netns};

use self::conf::{Bandwidth, Limit};
use self::shape::Plan;
use crate::fault::OrFault;
use crate::undo::{Undo, or_undo};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "bandwidth",
    about: "limits what a container sends and receives",
    versions: &[
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ],
    add,
    del: ifb::del,
    check: check::check,
    status,
    gc: ifb::gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let bandwidth = Bandwidth::understand(request)?;
    let result = prev_result(request)?;
    if bandwidth.limits_nothing() {
        return Ok(result);
    }
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let link = host_end::index(&host, request, &result)?;
    or_undo(|undo| build(request, &bandwidth, &host, link, result, undo))
}

/// Whether ADD has anything to limit. A configuration that cannot be understood has not: ADD tells.
pub fn limits(request: &Request) -> bool {
    Bandwidth::understand(request).is_ok_and(|bandwidth| !bandwidth.limits_nothing())
}

fn prev_result(request: &Request) -> Result<CniResult, Error> {
    request.prev_result()?.ok_or_else(|| {
        let msg = match request.command {
            cni::Command::Check => "must be called as a chained plugin",
            _ => "must be called as chained plugin",
        };
        Error::invalid_config(msg).with_details("prevResult is missing")
    })
}

fn build<'a>(
    request: &Request,
    bandwidth: &Bandwidth,
    host: &'a Netlink,
    link: IfIndex,
    mut result: CniResult,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let mut plan = Plan::default();
    if let Some(limit) = &bandwidth.egress {
        let made = ifb::create(host, request, link, undo)?;
        let place = filter_place(host, link, made.index, &mut plan, undo)?;
        shape_ifb(&mut plan, request, made.index, limit);
        plan.make.extend(shape::filters_from(link, place, made.index, &bandwidth.subnets));
        result.interfaces.push(Interface {
            name: made.name.to_string(),
            mac: made.mac.to_string(),
            ..Interface::default()
        });
    }
    if let Some(limit) = &bandwidth.ingress {
        shape::towards(&mut plan, link, limit, &bandwidth.subnets);
        undo.push(move || drop(host.apply([tc::remove_qdisc(link, Handle::ROOT)])));
    }
    plan.apply(host).or_fault("limit the container's bandwidth")?;
    Ok(result)
}

/// Before it is up: an interface that is up waits for a grace period when its queue is replaced.
fn shape_ifb(plan: &mut Plan, request: &Request, index: IfIndex, limit: &Limit) {
    let tbf = Qdisc::Tbf(limit.bucket, limit.queue);
    plan.make.extend([
        link::set_alias(index, &ifb::tag(&request.network, &request.attachment())),
        tc::replace_qdisc(index, Handle::ROOT, shape::TBF, &tbf),
        link::set_up(index),
    ]);
}

/// Where filters of what the container sends go. Where others have made a place already, they keep
/// it: `clsact` holds programs of policy agents, and to replace it would turn those off.
fn filter_place<'a>(
    host: &'a Netlink,
    link: IfIndex,
    ifb: IfIndex,
    plan: &mut Plan,
    undo: &mut Undo<'a>,
) -> Result<Handle, Error> {
    let place = Handle::INGRESS_QDISC;
    let ingress = tc::add_qdisc(link, Handle::INGRESS, place, &Qdisc::Ingress);
    match host.apply([ingress]) {
        Ok(()) => {
            undo.push(move || drop(host.apply([tc::remove_qdisc(link, Handle::INGRESS)])));
            return Ok(place);
        }
        Err(error) if error.already_exists() => {}
        Err(error) => return Err(error).or_fault("limit what the container sends"),
    }
    let place = place_of(host, link)?.unwrap_or(place);
    // What an ADD that was killed has left.
    plan.clear.extend(our_filters(host, link, place, None));
    undo.push(move || drop(host.apply_each(our_filters(host, link, place, Some(ifb)))));
    Ok(place)
}

/// The removal of our filters, as far as they can be seen.
fn our_filters(
    host: &Netlink,
    link: IfIndex,
    place: Handle,
    ifb: Option<IfIndex>,
) -> Vec<kernel::Request> {
    let found = tc::filters_of(host, link, place).unwrap_or_default();
    shape::removal_of_filters(link, place, ifb, &found)
}

/// Where filters of incoming packets are, if there is a place for them.
fn place_of(host: &Netlink, link: IfIndex) -> Result<Option<Handle>, Error> {
    let found = tc::qdisc_at(host, link, Handle::INGRESS).or_fault("look for filters")?;
    Ok(found.map(|found| match found.kind.as_str() {
        "clsact" => Handle::CLSACT_INGRESS,
        _ => Handle::INGRESS_QDISC,
    }))
}

/// Whether the kernel can do it is found out by doing it, in a namespace that nobody else sees. Only limits of the
/// configuration are tried: a container without limits of the runtime's needs none of it.
fn status(request: &Request) -> Result<(), Error> {
    let bandwidth = Bandwidth::understand(request)?;
    if bandwidth.limits_nothing() {
        return Ok(());
    }
    try_out(&bandwidth).map_err(|cause| {
        let doing = "this kernel cannot limit bandwidth";
        Error::because(Code::NOT_AVAILABLE, doing, &cause).with_details(
            "it needs ifb, sch_tbf, sch_ingress, cls_u32 and act_mirred; with subnets also sch_htb",
        )
    })
}

fn try_out(bandwidth: &Bandwidth) -> kernel::Result<()> {
    let nl = Netns::new_anonymous()?.netlink()?;
    let (name, loopback) = (ifb::probe_name(), IfIndex(1));
    let limit = Limit::for_probes();
    let mut plan = Plan::default();
    if bandwidth.egress.is_some() {
        let place = Handle::INGRESS_QDISC;
        let ingress = tc::add_qdisc(loopback, Handle::INGRESS, place, &Qdisc::Ingress);
        nl.apply([ifb::creation(name, None), ingress])?;
        let index = link::index_of(&nl, name)?;
        plan.make.extend(shape::filters_from(loopback, place, index, &bandwidth.subnets));
        let tbf = Qdisc::Tbf(limit.bucket, limit.queue);
        plan.make.push(tc::replace_qdisc(index, Handle::ROOT, shape::TBF, &tbf));
    }
    if bandwidth.ingress.is_some() {
        shape::towards(&mut plan, loopback, &limit, &bandwidth.subnets);
    }
    plan.apply(&nl)
}
