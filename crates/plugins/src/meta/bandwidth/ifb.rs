// SPDX-License-Identifier: Apache-2.0
//! The ifb that what a container sends is queued at: its name, whose it is, and its end.
//!
//! Its name is the Go plugin's for `eth0`, so that either removes the other's. The Go plugin has one name for
//! all interfaces of a container on a network; here the others have names of their own. Group and alias
//! tell ours from the Go plugin's, and whose they are.

use std::collections::HashSet;

use cni::{Attachment, Code, Error, Request};
use kernel::link::{self, Kind, Link, NewLink};
use kernel::{IfIndex, IfName, MacAddr, Netlink};

use crate::fault::OrFault;
use crate::undo::Undo;
use crate::{go_names, identity};

const PREFIX: &str = "bwp";
/// The longest alias (`IFALIASZ` of linux/if.h, with its NUL).
const MAX_ALIAS: usize = 255;

/// One below the least that IPv6 works with: the kernel then makes no IPv6 of an interface's own, with
/// its addresses, routes and groups, which would take as long as the interface itself. What is redirected
/// to an interface is not held against its MTU.
const MTU: u32 = 1279;

/// One that was made.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub name: IfName,
    pub mac: MacAddr,
    pub index: IfIndex,
}

/// The name that the Go plugin gives.
fn go_name(network: &str, container_id: &str) -> IfName {
    hashed(&[network, container_id])
}

/// The name of an attachment's ifb.
pub fn name(network: &str, attachment: &Attachment) -> IfName {
    match attachment.ifname.as_str() {
        "eth0" => go_name(network, &attachment.container_id),
        // None of the words can hold a slash.
        other => hashed(&[network, "/", &attachment.container_id, "/", other]),
    }
}

fn hashed(words: &[&str]) -> IfName {
    let name = go_names::hashed(PREFIX, words, 15);
    name.parse().expect("15 letters and digits are a valid name")
}

/// Any name, for a namespace where nobody else is.
pub fn probe_name() -> IfName {
    hashed(&[])
}

/// What the alias says of whose it is.
pub fn tag(network: &str, attachment: &Attachment) -> String {
    let Attachment { container_id, ifname } = attachment;
    let mut tag = format!("{}{container_id} {ifname}", network_tag(network));
    let end = (0..=MAX_ALIAS.min(tag.len())).rev().find(|at| tag.is_char_boundary(*at));
    tag.truncate(end.unwrap_or(0));
    tag
}

fn network_tag(network: &str) -> String {
    format!("podwire bandwidth {network} ")
}

/// Whether an ifb is this attachment's. One without an alias is what an ADD left that was killed.
fn is_of(link: &Link, network: &str, attachment: &Attachment) -> bool {
    let is_tagged = link.alias.as_ref().is_none_or(|alias| *alias == tag(network, attachment));
    link.is_kind("ifb") && link.group == identity::group(network) && is_tagged
}

/// Whether it may be one that the Go plugin made.
fn is_gos(link: &Link) -> bool {
    link.is_kind("ifb") && link.group == 0 && link.alias.is_none()
}

/// One queue each way: the packets of one container. The queue that counts is the token bucket's.
pub fn creation(name: IfName, owner: Option<(MacAddr, u32)>) -> kernel::Request {
    let mut new = NewLink::new(name, Kind::Ifb);
    new.mtu = Some(MTU);
    new.queues = Some(1);
    new.txqlen = Some(0);
    new.mac = owner.map(|(mac, _)| mac);
    new.group = owner.map(|(_, group)| group);
    link::create(&new)
}

/// Makes the attachment's ifb, down. What an earlier ADD has left makes way.
pub fn create<'a>(
    host: &'a Netlink,
    request: &Request,
    undo: &mut Undo<'a>,
) -> Result<Made, Error> {
    let attachment = request.attachment();
    let name = name(&request.network, &attachment);
    let mac = MacAddr::random().or_fault("choose a hardware address")?;
    let owner = Some((mac, identity::group(&request.network)));
    let try_create = || host.apply([creation(name, owner)]);
    let made = match try_create() {
        Err(error) if error.is_exists() => {
            make_way(host, request, name)?;
            try_create()
        }
        other => other,
    };
    made.or_fault("create the interface for what the container sends")?;
    undo.push(move || drop(host.apply([link::remove(name)])));
    let index = link::index_of(host, name).or_fault("look for the new interface")?;
    Ok(Made { name, mac, index })
}

fn make_way(host: &Netlink, request: &Request, name: IfName) -> Result<(), Error> {
    let found = link::by_name(host, name).or_fault("look at an interface")?;
    let Some(found) = found else { return Ok(()) };
    if !is_of(&found, &request.network, &request.attachment()) && !is_gos(&found) {
        let whose = found.alias.unwrap_or_else(|| "somebody else's".to_owned());
        return Err(Error::internal(format!("interface {name} is in the way: it is {whose}")));
    }
    host.apply([link::remove(found.index)]).or_fault("remove what an earlier ADD left")
}

/// The attachment's ifb: ours, or the Go plugin's.
pub fn find(host: &Netlink, request: &Request) -> kernel::Result<Option<Link>> {
    let (network, attachment) = (&request.network, request.attachment());
    let ours = name(network, &attachment);
    if let Some(found) = link::by_name(host, ours)? {
        // Under a name that only we give, an ifb without our marks is nobody's we know.
        let is_gos = ours == go_name(network, &request.container_id) && is_gos(&found);
        return Ok(Some(found).filter(|one| is_gos || is_of(one, network, &attachment)));
    }
    if ours == go_name(network, &request.container_id) || !may_be_gos(request) {
        return Ok(None);
    }
    let found = link::by_name(host, go_name(network, &request.container_id))?;
    Ok(found.filter(is_gos))
}

/// Of a container with several interfaces on a network, the Go plugin's ifb can be any one's. The result
/// tells; without one it is taken for this one's, as the Go plugin does.
fn may_be_gos(request: &Request) -> bool {
    let Ok(Some(result)) = request.prev_result() else { return true };
    let name = go_name(&request.network, &request.container_id);
    result.interfaces.iter().any(|one| one.name == name.as_str())
}

/// DEL. What limits the host end goes with it, and that is another plugin's.
pub fn del(request: &Request) -> Result<(), Error> {
    Netlink::open()
        .and_then(|host| {
            let found = find(&host, request)?;
            found.map_or(Ok(()), |found| link::remove_detached(&host, found.index))
        })
        .or_fault("remove the interface for what the container sent")
}

/// GC. The Go plugin's are left: nothing about them tells which network they belong to.
pub fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let found = link::list_of_kind(&host, "ifb").or_fault("list the host's interfaces")?;
    let network = &request.network;
    let kept: HashSet<IfName> = valid.iter().map(|one| name(network, one)).collect();
    let removals = found
        .iter()
        .filter(|one| is_of_network(one, network) && !kept.contains(&one.name))
        .map(|one| link::remove(one.index));
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}

fn is_of_network(link: &Link, network: &str) -> bool {
    let tag = network_tag(network);
    link.name.as_str().starts_with(PREFIX)
        && link.group == identity::group(network)
        && link.alias.as_ref().is_none_or(|alias| alias.starts_with(&tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(ifname: &str) -> Attachment {
        Attachment { container_id: "cid".into(), ifname: ifname.into() }
    }

    #[test]
    fn names_are_gos_for_the_first_interface() {
        // printf netcid | sha512sum
        assert_eq!(name("net", &attachment("eth0")).as_str(), "bwpf74d2f3ccf98");
        assert_eq!(go_name("net", "cid").as_str(), "bwpf74d2f3ccf98");
        let others = [name("net", &attachment("net1")), name("net", &attachment("net2"))];
        assert!(others[0] != others[1] && !others.contains(&go_name("net", "cid")));
    }

    #[test]
    fn tags_fit_the_kernel() {
        assert_eq!(tag("net", &attachment("eth0")), "podwire bandwidth net cid eth0");
        let long = Attachment { container_id: "c".repeat(300), ..attachment("eth0") };
        assert_eq!(tag("net", &long).len(), MAX_ALIAS);
    }
}
