// SPDX-License-Identifier: Apache-2.0
//! `bandwidth`: limits the rates at which a container sends and receives, at the host end of its
//! veth pair.

mod check;
pub(crate) mod conf;
mod host_end;
mod ifb;
mod shape;

use cni::{CniResult, Code, Error, Interface, Plugin, Request, Version};
use kernel::link::{self, Link};
use kernel::tc::{self, Handle, Qdisc};
use kernel::{IfIndex, Netlink, Netns};

use self::conf::{Bandwidth, Limit};
use self::shape::Plan;
use crate::attach::prev_result;
use crate::attach::undo::{Undo, or_undo};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "bandwidth",
    about: "limits the bandwidth of a container",
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
    let bandwidth = Bandwidth::parse(request)?;
    let result = prev_result::required(request, "must be called as chained plugin")?;
    if bandwidth.limits_nothing() {
        return Ok(result);
    }
    let host = Netlink::open().context("open a netlink socket")?;
    let end = host_end::of_add(&host, request, &result)?;
    or_undo(|undo| build(request, &bandwidth, &host, &end, result, undo))
}

/// Whether ADD has anything to limit. `false` for an invalid configuration: ADD reports the error.
pub(crate) fn limits(request: &Request) -> bool {
    Bandwidth::parse(request).is_ok_and(|bandwidth| !bandwidth.limits_nothing())
}

fn build<'a>(
    request: &Request,
    bandwidth: &Bandwidth,
    host: &'a Netlink,
    end: &Link,
    mut result: CniResult,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let link = end.index;
    let mut plan = Plan::default();
    if let Some(limit) = &bandwidth.egress {
        let ifb = ifb::create(host, request, end, undo)?;
        let parent = filter_parent(host, link, ifb.index, &mut plan, undo)?;
        shape_ifb(&mut plan, request, ifb.index, limit);
        plan.make.extend(shape::egress_requests(link, parent, ifb.index, &bandwidth.subnets));
        result.interfaces.push(Interface {
            name: ifb.name.to_string(),
            mac: ifb.mac.to_string(),
            ..Interface::default()
        });
    }
    if let Some(limit) = &bandwidth.ingress {
        shape::limit_ingress(&mut plan, link, limit, &bandwidth.subnets);
        undo.push(move || drop(host.apply([tc::remove_qdisc(link, Handle::ROOT)])));
    }
    plan.apply(host).context("limit the container's bandwidth")?;
    Ok(result)
}

/// The qdisc is set before the ifb is up: replacing it on an interface that is up waits for a grace
/// period.
fn shape_ifb(plan: &mut Plan, request: &Request, index: IfIndex, limit: &Limit) {
    let tbf = Qdisc::Tbf(limit.bucket, limit.queue);
    plan.make.extend([
        link::set_alias(index, &ifb::tag(&request.network, &request.attachment())),
        tc::replace_qdisc(index, Handle::ROOT, shape::TBF, &tbf),
        link::set_up(index),
    ]);
}

/// Returns the parent of the filters for packets from the container. An existing qdisc of another
/// program is kept: `clsact` may hold the programs of policy agents, and replacing it would disable
/// them.
fn filter_parent<'a>(
    host: &'a Netlink,
    link: IfIndex,
    ifb: IfIndex,
    plan: &mut Plan,
    undo: &mut Undo<'a>,
) -> Result<Handle, Error> {
    let parent = Handle::INGRESS_QDISC;
    let ingress = tc::add_qdisc(link, Handle::INGRESS, parent, &Qdisc::Ingress);
    match host.apply([ingress]) {
        Ok(()) => {
            undo.push(move || drop(host.apply([tc::remove_qdisc(link, Handle::INGRESS)])));
            return Ok(parent);
        }
        Err(error) if error.already_exists() => {}
        Err(error) => return Err(error).context("limit the container's egress"),
    }
    let parent = existing_parent(host, link)?.unwrap_or(parent);
    // Filters that a killed ADD left.
    plan.clear.extend(filter_removals(host, link, parent, None));
    undo.push(move || drop(host.apply_each(filter_removals(host, link, parent, Some(ifb)))));
    Ok(parent)
}

/// The requests that remove the plugin's filters, as far as the filters can be read.
fn filter_removals(
    host: &Netlink,
    link: IfIndex,
    parent: Handle,
    ifb: Option<IfIndex>,
) -> Vec<kernel::Request> {
    let found = tc::filters_of(host, link, parent).unwrap_or_default();
    shape::filter_removals(link, parent, ifb, &found)
}

/// The parent of ingress filters, if there is a qdisc for them.
fn existing_parent(host: &Netlink, link: IfIndex) -> Result<Option<Handle>, Error> {
    let found = tc::qdisc_at(host, link, Handle::INGRESS).context("look for filters")?;
    Ok(found.map(|found| match found.kind.as_str() {
        "clsact" => Handle::CLSACT_INGRESS,
        _ => Handle::INGRESS_QDISC,
    }))
}

/// Tries the limits in a new network namespace. Only limits of the network configuration are tried:
/// a container without limits from the runtime needs none of the kernel's features.
fn status(request: &Request) -> Result<(), Error> {
    let bandwidth = Bandwidth::parse(request)?;
    if bandwidth.limits_nothing() {
        return Ok(());
    }
    probe(&bandwidth).map_err(|cause| {
        let doing = "this kernel cannot limit bandwidth";
        Error::because(Code::NOT_AVAILABLE, doing, &cause).with_details(
            "it needs ifb, sch_tbf, sch_ingress, cls_u32 and act_mirred; with subnets also sch_htb",
        )
    })
}

fn probe(bandwidth: &Bandwidth) -> kernel::Result<()> {
    let nl = Netns::new_anonymous()?.netlink()?;
    let (name, loopback) = (ifb::probe_name(), IfIndex(1));
    let limit = Limit::for_probe();
    let mut plan = Plan::default();
    if bandwidth.egress.is_some() {
        let parent = Handle::INGRESS_QDISC;
        let ingress = tc::add_qdisc(loopback, Handle::INGRESS, parent, &Qdisc::Ingress);
        nl.apply([ifb::creation(name, ifb::MAX_MTU, None), ingress])?;
        let index = link::index_of(&nl, name)?;
        plan.make.extend(shape::egress_requests(loopback, parent, index, &bandwidth.subnets));
        let tbf = Qdisc::Tbf(limit.bucket, limit.queue);
        plan.make.push(tc::replace_qdisc(index, Handle::ROOT, shape::TBF, &tbf));
    }
    if bandwidth.ingress.is_some() {
        shape::limit_ingress(&mut plan, loopback, &limit, &bandwidth.subnets);
    }
    plan.apply(&nl)
}
