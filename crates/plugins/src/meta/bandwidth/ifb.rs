// SPDX-License-Identifier: Apache-2.0
//! The ifb that what a container sends is queued at: its name, whose it is, and its end.
//!
//! The Go plugin has one name for all interfaces of a container on a network, so that a second one fails. Here
//! the interface that comes first gets that name, so that each plugin finds and removes the other's ifb, and
//! further ones get names of their own. Group, hardware address and alias tell the owner; the Go plugin's
//! ifbs have neither group nor alias.

use std::collections::HashSet;

use cni::{Attachment, Code, Error, Request};
use kernel::link::{self, Kind, Link, NewLink};
use kernel::tc::{self, Handle, Verdict};
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
pub fn go_name(network: &str, container_id: &str) -> IfName {
    hashed(&[network, container_id])
}

/// The name of an attachment's ifb if another interface of the container has the Go plugin's name.
fn own_name(network: &str, attachment: &Attachment) -> IfName {
    // None of the words can hold a slash.
    hashed(&[network, "/", &attachment.container_id, "/", &attachment.ifname])
}

/// The names to try for an attachment, in this order.
fn names(network: &str, attachment: &Attachment) -> [IfName; 2] {
    [go_name(network, &attachment.container_id), own_name(network, attachment)]
}

/// The hardware address of an attachment's ifb. The kernel sets it when it creates the interface, and an alias
/// only afterwards: it tells the owner from the first moment on.
fn mac(network: &str, attachment: &Attachment) -> MacAddr {
    let Attachment { container_id, ifname } = attachment;
    let [a, b, c, d, e, f, ..] =
        identity::digest(&[PREFIX, network, container_id, ifname]).to_be_bytes();
    MacAddr([(a & 0xfc) | 0x02, b, c, d, e, f])
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

/// Whether an ifb is this attachment's.
fn is_of(link: &Link, network: &str, attachment: &Attachment) -> bool {
    is_of_network(link, network) && Owner::of(network, attachment).has(link)
}

/// The two marks of an attachment's ifb.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Owner {
    mac: MacAddr,
    tag: String,
}

impl Owner {
    fn of(network: &str, attachment: &Attachment) -> Self {
        Self { mac: mac(network, attachment), tag: tag(network, attachment) }
    }

    /// An ADD that was killed leaves an ifb without an alias; earlier versions chose hardware addresses at
    /// random. An alias that was cut off may belong to several attachments.
    fn has(&self, link: &Link) -> bool {
        let is_tagged =
            self.tag.len() < MAX_ALIAS && link.alias.as_deref() == Some(self.tag.as_str());
        link.mac == Some(self.mac) || is_tagged
    }
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

/// Makes the attachment's ifb, down, for the host's end `link`. What an earlier ADD has left makes way.
pub fn create<'a>(
    host: &'a Netlink,
    request: &Request,
    link: IfIndex,
    undo: &mut Undo<'a>,
) -> Result<Made, Error> {
    let attachment = request.attachment();
    let mac = mac(&request.network, &attachment);
    let owner = Some((mac, identity::group(&request.network)));
    let [first, second] = names(&request.network, &attachment);
    let mut name = first;
    let try_create = |name| host.apply([creation(name, owner)]);
    let mut made = try_create(name);
    for next in [second, second] {
        if !made.as_ref().is_err_and(kernel::Error::already_exists) {
            break;
        }
        if !make_way(host, request, link, name)? {
            name = next;
        }
        made = try_create(name);
    }
    made.or_fault("create the interface for what the container sends")?;
    undo.push(move || drop(host.apply([link::remove(name)])));
    let index = link::index_of(host, name).or_fault("look for the new interface")?;
    Ok(Made { name, mac, index })
}

/// Removes what an earlier ADD of this attachment left under a name. `false` if the name belongs to another
/// interface of the container.
fn make_way(host: &Netlink, request: &Request, end: IfIndex, name: IfName) -> Result<bool, Error> {
    let found = link::by_name(host, name).or_fault("look at an interface")?;
    let Some(found) = found else { return Ok(true) };
    let is_own = is_of(&found, &request.network, &request.attachment());
    if is_own || is_gos(&found) && is_redirected_to(host, end, found.index) {
        host.apply([link::remove(found.index)]).or_fault("remove what an earlier ADD left")?;
        return Ok(true);
    }
    if is_gos(&found) || is_of_network(&found, &request.network) {
        return Ok(false);
    }
    let whose = found.alias.unwrap_or_else(|| "somebody else's".to_owned());
    Err(Error::internal(format!("interface {name} is in the way: it is {whose}")))
}

/// Whether what comes in at the host's end goes to this ifb.
fn is_redirected_to(host: &Netlink, end: IfIndex, ifb: IfIndex) -> bool {
    let filters = tc::filters_of(host, end, Handle::INGRESS_QDISC).unwrap_or_default();
    filters.iter().any(|filter| filter.verdict == Verdict::Redirect(ifb))
}

/// The attachment's ifb: ours, or the Go plugin's.
pub fn find(host: &Netlink, request: &Request) -> kernel::Result<Option<Link>> {
    let (network, attachment) = (&request.network, request.attachment());
    let [first, second] = names(network, &attachment);
    let under_first = link::by_name(host, first)?;
    if let Some(found) = under_first.as_ref().filter(|one| is_of(one, network, &attachment)) {
        return Ok(Some(found.clone()));
    }
    let under_second = link::by_name(host, second)?;
    let own = under_second.filter(|one| is_of(one, network, &attachment));
    Ok(own.or(under_first.filter(|one| is_gos(one) && may_be_gos(request))))
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
            found.map_or(Ok(()), |found| link::remove_in_background(&host, found.index))
        })
        .or_fault("remove the interface for what the container sent")
}

/// GC. The Go plugin's are left: nothing about them tells which network they belong to.
pub fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let found = link::list_of_kind(&host, "ifb").or_fault("list the host's interfaces")?;
    let network = &request.network;
    let valid: Vec<Owner> = valid.iter().map(|one| Owner::of(network, one)).collect();
    let macs: HashSet<MacAddr> = valid.iter().map(|one| one.mac).collect();
    let tags: HashSet<&str> = valid.iter().map(|one| one.tag.as_str()).collect();
    let is_kept = |one: &Link| {
        one.mac.is_some_and(|mac| macs.contains(&mac))
            || one.alias.as_deref().is_some_and(|alias| tags.contains(alias))
    };
    let removals = found
        .iter()
        .filter(|one| is_of_network(one, network) && !is_kept(one))
        .map(|one| link::remove(one.index));
    let failures = host.apply_each(removals).into_iter().filter_map(Result::err);
    let failures = failures
        .filter(|error| !error.is_not_found())
        .map(|cause| Error::because(Code::INTERNAL, "remove a stale interface", &cause));
    Error::join(failures.collect())
}

fn is_of_network(link: &Link, network: &str) -> bool {
    let tag = network_tag(network);
    link.is_kind("ifb")
        && link.name.as_str().starts_with(PREFIX)
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
    fn first_name_is_gos_and_the_second_follows_from_the_interface() {
        // printf netcid | sha512sum
        let go = go_name("net", "cid");
        assert_eq!(go.as_str(), "bwpf74d2f3ccf98");
        let [eth0, net1] = ["eth0", "net1"].map(|ifname| names("net", &attachment(ifname)));
        assert_eq!((eth0[0], net1[0]), (go, go));
        assert!(eth0[1] != net1[1] && ![eth0[1], net1[1]].contains(&go));
        // The name that earlier versions gave.
        assert_eq!(net1[1], hashed(&["net/cid/net1"]));
    }

    #[test]
    fn hardware_addresses_tell_interfaces_apart() {
        let macs = ["eth0", "net1"].map(|ifname| mac("net", &attachment(ifname)));
        assert_ne!(macs[0], macs[1]);
        assert!(macs.iter().all(|mac| mac.is_unicast() && mac.0[0] & 2 != 0));
    }

    #[test]
    fn tags_fit_the_kernel() {
        assert_eq!(tag("net", &attachment("eth0")), "podwire bandwidth net cid eth0");
        let long = Attachment { container_id: "c".repeat(300), ..attachment("eth0") };
        assert_eq!(tag("net", &long).len(), MAX_ALIAS);
    }
}
