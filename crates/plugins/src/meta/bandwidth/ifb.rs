// SPDX-License-Identifier: Apache-2.0
//! The ifb that queues the packets from a container: its name, its owner, creation and removal.
//!
//! The Go plugin uses the same name for all interfaces of a container on a network, so that a
//! second interface fails. Here the first interface gets that name, so that each plugin finds and
//! removes the other's ifb; further interfaces get names of their own. Link group, MAC address and
//! alias identify the owner. An ifb of the Go plugin has neither group nor alias.

use std::collections::HashSet;

use cni::{Attachment, Code, Error, Request};
use kernel::link::{self, Kind, Link, NewLink};
use kernel::tc::{self, Handle, Verdict};
use kernel::{IfIndex, IfName, MacAddr, Netlink};

use crate::attach::names;
use crate::attach::undo::Undo;
use crate::compat;
use crate::error::Context;

const PREFIX: &str = "bwp";
/// Maximum length of an alias: `IFALIASZ` of linux/if.h without the NUL byte.
const MAX_ALIAS: usize = 255;

/// One below the minimum MTU of IPv6: the kernel then sets up no IPv6 addresses, routes and groups,
/// which would take as long as creating the interface. The MTU does not limit redirected packets.
pub(super) const MAX_MTU: u32 = 1279;

/// An ifb that was created.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewIfb {
    pub name: IfName,
    pub mac: MacAddr,
    pub index: IfIndex,
}

/// The name that the Go plugin uses.
pub(super) fn go_name(network: &str, container_id: &str) -> IfName {
    hashed(&[network, container_id])
}

/// The name of an attachment's ifb if another interface of the container has the Go plugin's name.
fn own_name(network: &str, attachment: &Attachment) -> IfName {
    // None of these words can contain a slash.
    hashed(&[network, "/", &attachment.container_id, "/", &attachment.ifname])
}

/// The possible names of an attachment's ifb, in the order to try.
fn names(network: &str, attachment: &Attachment) -> [IfName; 2] {
    [go_name(network, &attachment.container_id), own_name(network, attachment)]
}

/// The MAC address of an attachment's ifb. The kernel sets it when it creates the interface, the
/// alias only later: the address identifies the owner from the start.
fn mac(network: &str, attachment: &Attachment) -> MacAddr {
    let Attachment { container_id, ifname } = attachment;
    let [a, b, c, d, e, f, ..] =
        names::digest(&[PREFIX, network, container_id, ifname]).to_be_bytes();
    MacAddr([(a & 0xfc) | 0x02, b, c, d, e, f])
}

fn hashed(words: &[&str]) -> IfName {
    let name = compat::names::hashed(PREFIX, words, 15);
    name.parse().expect("15 letters and digits are a valid name")
}

/// A name for an ifb in a new network namespace.
pub(super) fn probe_name() -> IfName {
    hashed(&[])
}

/// The alias of an attachment's ifb.
pub(super) fn tag(network: &str, attachment: &Attachment) -> String {
    let Attachment { container_id, ifname } = attachment;
    let mut tag = format!("{}{container_id} {ifname}", network_tag(network));
    let end = (0..=MAX_ALIAS.min(tag.len())).rev().find(|at| tag.is_char_boundary(*at));
    tag.truncate(end.unwrap_or(0));
    tag
}

fn network_tag(network: &str) -> String {
    format!("podwire bandwidth {network} ")
}

/// Whether an ifb belongs to this attachment.
fn is_of(link: &Link, network: &str, attachment: &Attachment) -> bool {
    is_of_network(link, network) && Owner::of(network, attachment).has(link)
}

/// The two properties that identify the ifb of an attachment.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Owner {
    mac: MacAddr,
    tag: String,
}

impl Owner {
    fn of(network: &str, attachment: &Attachment) -> Self {
        Self { mac: mac(network, attachment), tag: tag(network, attachment) }
    }

    /// A killed ADD leaves an ifb without an alias; earlier versions used random MAC addresses. A
    /// truncated alias may belong to several attachments.
    fn has(&self, link: &Link) -> bool {
        let is_tagged =
            self.tag.len() < MAX_ALIAS && link.alias.as_deref() == Some(self.tag.as_str());
        link.mac == Some(self.mac) || is_tagged
    }
}

/// Whether the Go plugin may have created this ifb.
fn may_be_go(link: &Link) -> bool {
    link.is_kind("ifb") && link.group == 0 && link.alias.is_none()
}

/// One queue per direction is enough for one container. The effective queue is that of the token
/// bucket.
pub(super) fn creation(name: IfName, mtu: u32, owner: Option<(MacAddr, u32)>) -> kernel::Request {
    let mut new = NewLink::new(name, Kind::Ifb);
    new.mtu = Some(mtu);
    new.queues = Some(1);
    new.txqlen = Some(0);
    new.mac = owner.map(|(mac, _)| mac);
    new.group = owner.map(|(_, group)| group);
    link::create(&new)
}

/// Creates the attachment's ifb for the host end `end`, and leaves it down. It has the MTU of the
/// host end, up to [`MAX_MTU`]. An ifb of an earlier ADD is replaced.
pub(super) fn create<'a>(
    host: &'a Netlink,
    request: &Request,
    end: &Link,
    undo: &mut Undo<'a>,
) -> Result<NewIfb, Error> {
    let attachment = request.attachment();
    let mac = mac(&request.network, &attachment);
    let owner = Some((mac, names::network_group(&request.network)));
    let [first, second] = names(&request.network, &attachment);
    let mut name = first;
    let mtu = end.mtu.min(MAX_MTU);
    let try_create = |name| host.apply([creation(name, mtu, owner)]);
    let mut created = try_create(name);
    for next in [second, second] {
        if !created.as_ref().is_err_and(kernel::Error::already_exists) {
            break;
        }
        if !remove_leftover(host, request, end.index, name)? {
            name = next;
        }
        created = try_create(name);
    }
    created.context("create the interface for the container's egress")?;
    undo.push(move || drop(host.apply([link::remove(name)])));
    let index = link::index_of(host, name).context("look for the new interface")?;
    Ok(NewIfb { name, mac, index })
}

/// Removes an ifb of this name that an earlier ADD of the attachment left. Returns `false` if the
/// ifb belongs to another interface of the container.
fn remove_leftover(
    host: &Netlink,
    request: &Request,
    end: IfIndex,
    name: IfName,
) -> Result<bool, Error> {
    let found = link::by_name(host, name).context("look at an interface")?;
    let Some(found) = found else { return Ok(true) };
    let is_own = is_of(&found, &request.network, &request.attachment());
    if is_own || may_be_go(&found) && is_redirected_to(host, end, found.index) {
        host.apply([link::remove(found.index)]).context("remove the ifb of an earlier ADD")?;
        return Ok(true);
    }
    if may_be_go(&found) || is_of_network(&found, &request.network) {
        return Ok(false);
    }
    let owner = found.alias.unwrap_or_else(|| "another program".to_owned());
    Err(Error::internal(format!("interface {name} exists already and belongs to {owner}")))
}

/// Whether the packets that arrive at the host end are redirected to this ifb.
fn is_redirected_to(host: &Netlink, end: IfIndex, ifb: IfIndex) -> bool {
    let filters = tc::filters_of(host, end, Handle::INGRESS_QDISC).unwrap_or_default();
    filters.iter().any(|filter| filter.verdict == Verdict::Redirect(ifb))
}

/// Finds the attachment's ifb, created by this plugin or by the Go plugin.
pub(super) fn find(host: &Netlink, request: &Request) -> kernel::Result<Option<Link>> {
    let (network, attachment) = (&request.network, request.attachment());
    let [first, second] = names(network, &attachment);
    let under_first = link::by_name(host, first)?;
    if let Some(found) = under_first.as_ref().filter(|one| is_of(one, network, &attachment)) {
        return Ok(Some(found.clone()));
    }
    let under_second = link::by_name(host, second)?;
    let own = under_second.filter(|one| is_of(one, network, &attachment));
    Ok(own.or(under_first.filter(|one| may_be_go(one) && is_listed(request))))
}

/// Whether the Go plugin's ifb belongs to this interface. If a container has several interfaces on
/// a network, only the result tells which one. Without a result the answer is yes, as in the Go
/// plugin.
fn is_listed(request: &Request) -> bool {
    let Ok(Some(result)) = request.prev_result() else { return true };
    let name = go_name(&request.network, &request.container_id);
    result.interfaces.iter().any(|one| one.name == name.as_str())
}

/// DEL. The limits at the host end disappear with the host end, which another plugin removes.
pub(super) fn del(request: &Request) -> Result<(), Error> {
    Netlink::open()
        .and_then(|host| {
            let found = find(&host, request)?;
            found.map_or(Ok(()), |found| link::remove_in_background(&host, found.index))
        })
        .context("remove the interface for the container's egress")
}

/// GC. The ifbs of the Go plugin are kept, because they do not show which network they belong to.
pub(super) fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let host = Netlink::open().context("open a netlink socket")?;
    let found = link::list_of_kind(&host, "ifb").context("list the host's interfaces")?;
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
        && link.group == names::network_group(network)
        && link.alias.as_ref().is_none_or(|alias| alias.starts_with(&tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(ifname: &str) -> Attachment {
        Attachment { container_id: "cid".into(), ifname: ifname.into() }
    }

    #[test]
    fn first_name_is_the_name_of_the_go_plugin() {
        // printf netcid | sha512sum
        let go = go_name("net", "cid");
        assert_eq!(go.as_str(), "bwpf74d2f3ccf98");
        let [eth0, net1] = ["eth0", "net1"].map(|ifname| names("net", &attachment(ifname)));
        assert_eq!((eth0[0], net1[0]), (go, go));
        assert!(eth0[1] != net1[1] && ![eth0[1], net1[1]].contains(&go));
        // The name in earlier versions.
        assert_eq!(net1[1], hashed(&["net/cid/net1"]));
    }

    #[test]
    fn mac_addresses_are_unique_and_local() {
        let macs = ["eth0", "net1"].map(|ifname| mac("net", &attachment(ifname)));
        assert_ne!(macs[0], macs[1]);
        assert!(macs.iter().all(|mac| mac.is_unicast() && mac.0[0] & 2 != 0));
    }

    #[test]
    fn alias_is_truncated_to_the_limit() {
        assert_eq!(tag("net", &attachment("eth0")), "podwire bandwidth net cid eth0");
        let long = Attachment { container_id: "c".repeat(300), ..attachment("eth0") };
        assert_eq!(tag("net", &long).len(), MAX_ALIAS);
    }
}
