// SPDX-License-Identifier: Apache-2.0
//! The backend `iptables`: the chains, rules and comments of the Go plugin, so that either removes what
//! the other made. A chain for all containers leads to one for each, and a mark tells which connections
//! are to be masqueraded.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Attachment, Error, Request};
use ipnet::IpNet;
use kernel::Family;

use super::conf::{HostPort, Mapping, Mark, Portmap, Protocol, Verbatim};
use crate::go_names::hashed;
use crate::iptables::{Rule, Saved, change, family_of, host, read};

const TABLE: &str = "nat";
const ALL: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The match `multiport` takes no more.
const PORTS_A_RULE: usize = 15;
/// The match `comment` takes no more.
const COMMENT_LEN: usize = 255;

/// What a container's chain should do.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub network: &'a str,
    pub container: &'a str,
    pub portmap: &'a Portmap,
    pub verbatim: &'a Verbatim,
    /// Addresses with their networks, one of a family at most.
    pub own: &'a [IpNet],
}

/// Makes the chains, all or none.
pub fn add(wanted: &Wanted) -> Result<(), Error> {
    for own in wanted.own {
        let added = change(family_of(own.addr()), TABLE, |saved| additions(saved, wanted, *own));
        added.inspect_err(|_| take_back(wanted))?;
    }
    Ok(())
}

/// Removes what an ADD made that failed; another interface of the container keeps its own.
pub fn take_back(wanted: &Wanted) {
    for own in wanted.own {
        // The failure is the one to tell.
        let _ = change(family_of(own.addr()), TABLE, |saved| own_removals(saved, wanted, *own));
    }
}

/// Removes a container's chain.
pub fn remove(network: &str, container: &str) -> Result<(), Error> {
    let removed = FAMILIES
        .map(|family| change(family, TABLE, |saved| removals(saved, &chain(network, container))));
    Error::join(removed.into_iter().filter_map(Result::err).collect())
}

/// Removes the chains of a network's containers that are not in the list.
pub fn gc(request: &Request, valid: &[Attachment]) -> Result<(), Error> {
    let network = &request.network;
    let valid: BTreeSet<String> =
        valid.iter().map(|one| chain(network, &one.container_id)).collect();
    let removed = FAMILIES.map(|family| {
        change(family, TABLE, |saved| {
            let stale = stale_chains(saved, network, &valid);
            stale.iter().map(|chain| removals(saved, chain)).collect()
        })
    });
    Error::join(removed.into_iter().filter_map(Result::err).collect())
}

/// The first rule that is missing.
pub fn missing(wanted: &Wanted) -> Result<Option<String>, Error> {
    for own in wanted.own {
        let saved = read(family_of(own.addr()), TABLE)?;
        let shared = shared(wanted).into_iter().map(|(_, rule)| rule).chain(jumps_to_all());
        let plain = shared.chain(mappings(wanted, *own)).filter(|rule| !saved.has(rule));
        let entries = entries(wanted, *own).into_iter().filter(|rule| !has_entry(&saved, rule));
        if let Some(rule) = plain.chain(entries).next() {
            return Ok(Some(format!("{} {}", rule.chain, rule.words.join(" "))));
        }
    }
    Ok(None)
}

fn chain(network: &str, container: &str) -> String {
    hashed("CNI-DN-", &[network, container], 28)
}

fn comment(network: &str, container: &str) -> String {
    let comment = format!("dnat name: \"{network}\" id: \"{container}\"");
    if comment.len() <= COMMENT_LEN {
        return comment;
    }
    let beginning: String = comment.chars().take(COMMENT_LEN - 3).collect();
    beginning + "..."
}

/// Where a rule of the shared chains goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the rules that `ipMasq` makes.
    Head,
    End,
}

/// Marks, and masquerades what is marked; nothing where another chain does both. A rule can jump to what
/// is there only: the order is that of making them.
fn shared(wanted: &Wanted) -> Vec<(At, Rule)> {
    let Mark::Bit(bit) = &wanted.verbatim.mark else { return Vec::new() };
    if !wanted.portmap.snat {
        return Vec::new();
    }
    let mark = 1u32 << bit;
    let set = format!("MARK --set-xmark {mark:#x}/{mark:#x}");
    let is_set = format!("-m mark --mark {mark:#x}/{mark:#x}");
    vec![
        (At::End, Rule::new(SET_MARK, "", "CNI portfwd masquerade mark", &set)),
        (At::End, Rule::new(MASQUERADE, &is_set, "", "MASQUERADE")),
        (At::Head, Rule::new("POSTROUTING", "", "CNI portfwd requiring masquerade", MASQUERADE)),
    ]
}

fn jumps_to_all() -> [Rule; 2] {
    ["PREROUTING", "OUTPUT"].map(|from| Rule::new(from, "-m addrtype --dst-type LOCAL", "", ALL))
}

/// The rules of the shared chain that lead to the container's. The ports of all mappings are named, also
/// of those for addresses of the other family, as the Go plugin's CHECK wants it.
fn entries(wanted: &Wanted, own: IpNet) -> Vec<Rule> {
    let chain = chain(wanted.network, wanted.container);
    let comment = comment(wanted.network, wanted.container);
    let listed = &wanted.verbatim.listed;
    let mut protocols: Vec<Protocol> = listed.iter().map(|(protocol, _)| *protocol).collect();
    protocols.sort_by_key(|protocol| protocol.as_str());
    protocols.dedup();
    let mut rules = Vec::new();
    for protocol in protocols {
        let of_protocol = listed.iter().filter(|(other, _)| *other == protocol);
        let ports: Vec<String> = of_protocol.map(|(_, port)| port.to_string()).collect();
        for ports in ports.chunks(PORTS_A_RULE) {
            // iptables tells rules apart by the order of their matches too.
            let ports = ports.join(",");
            let about = ["-p", protocol.as_str(), "-m", "comment", "--comment", &comment];
            let mut words: Vec<String> = about.map(str::to_owned).to_vec();
            words.extend(["-m", "multiport", "--dports", &ports].map(str::to_owned));
            words.extend_from_slice(wanted.verbatim.conditions(Family::of(own.addr())));
            words.extend(["-j", &chain].map(str::to_owned));
            rules.push(Rule { chain: ALL.to_owned(), words });
        }
    }
    rules
}

/// Conditions are printed in another way than they are written.
fn has_entry(saved: &Saved, rule: &Rule) -> bool {
    let known = |rule: &Rule| {
        ["-p", "--comment", "--dports", "-j"].map(|option| rule.after(option).map(str::to_owned))
    };
    saved.rules.iter().any(|other| other.chain == rule.chain && known(other) == known(rule))
}

/// Which connections are marked, and where each goes.
fn mappings(wanted: &Wanted, own: IpNet) -> Vec<Rule> {
    let Portmap { snat, masq_all, mappings, .. } = wanted.portmap;
    let chain = chain(wanted.network, wanted.container);
    let mark = match &wanted.verbatim.mark {
        Mark::Bit(_) => SET_MARK,
        Mark::By(chain) => chain,
    };
    let family = Family::of(own.addr());
    let mut rules = Vec::new();
    for Mapping { from, to } in mappings.iter().filter(|one| one.from.family == family) {
        let packets = packets(from);
        let marked =
            |source: &str| Rule::new(&chain, format!("{source}{packets}").trim(), "", mark);
        match (*snat, *masq_all) {
            (false, _) => {}
            (true, true) => rules.push(marked("")),
            (true, false) => {
                rules.push(marked(&format!("-s {} ", own.trunc())));
                if family == Family::V4 {
                    rules.push(marked("-s 127.0.0.1/32 "));
                }
            }
        }
        let to = std::net::SocketAddr::new(own.addr(), *to);
        rules.push(Rule::new(&chain, &packets, "", &format!("DNAT --to-destination {to}")));
    }
    rules
}

fn packets(HostPort { address, protocol, port, .. }: &HostPort) -> String {
    let to = address.map(|address: IpAddr| format!("-d {} ", host(address))).unwrap_or_default();
    let protocol = protocol.as_str();
    format!("{to}-p {protocol} -m {protocol} --dport {port}")
}

fn additions(saved: &Saved, wanted: &Wanted, own: IpNet) -> String {
    let mut lines = String::new();
    for (at, rule) in shared(wanted) {
        lines += &match at {
            At::Head => saved.insert(&rule),
            At::End => saved.add_chains(&[&rule.chain]) + &saved.append(&rule),
        };
    }
    lines += &saved.add_chains(&[ALL]);
    for rule in jumps_to_all() {
        lines += &saved.append(&rule);
    }
    lines + &of_container(saved, wanted, own)
}

/// What an ADD left that was killed is replaced, but not what is for another interface of the container.
fn of_container(saved: &Saved, wanted: &Wanted, own: IpNet) -> String {
    let chain = chain(wanted.network, wanted.container);
    let mut lines = saved.add_chains(&[&chain]);
    let mut kept = saved.clone();
    if of_others(saved, &chain, own).is_empty() {
        let is_going = |rule: &Rule| rule.target() == Some(chain.as_str());
        lines += &saved.remove_rules(is_going);
        if saved.chains.contains(&chain) {
            lines += &format!("-F {chain}\n");
        }
        kept.rules.retain(|rule| rule.chain != chain && !is_going(rule));
    }
    for rule in mappings(wanted, own) {
        lines += &kept.append(&rule);
    }
    for rule in entries(wanted, own).iter().filter(|rule| !has_entry(&kept, rule)) {
        lines += &Saved::default().append(rule);
    }
    lines
}

/// The rules of a container's chain that lead to other addresses of it.
fn of_others<'a>(saved: &'a Saved, chain: &str, own: IpNet) -> Vec<&'a Rule> {
    let own_end = std::net::SocketAddr::new(own.addr(), 0).to_string();
    let own_end = own_end.trim_end_matches('0');
    let leads_elsewhere = |rule: &&Rule| {
        let to = rule.after("--to-destination").filter(|_| rule.chain == chain);
        to.is_some_and(|to| !to.starts_with(own_end))
    };
    saved.rules.iter().filter(leads_elsewhere).collect()
}

/// Marks and jumps that the ports of another interface need stay with them.
fn own_removals(saved: &Saved, wanted: &Wanted, own: IpNet) -> String {
    let chain = chain(wanted.network, wanted.container);
    let others = of_others(saved, &chain, own);
    if others.is_empty() {
        return removals(saved, &chain);
    }
    let is_same_port = |rule: &Rule| {
        let about =
            |rule: &Rule| ["-d", "-p", "--dport"].map(|word| rule.after(word).map(str::to_owned));
        rule.after("--to-destination").is_none()
            && others.iter().any(|other| about(other) == about(rule))
    };
    let is_listed = |rule: &Rule| {
        let ports: Vec<&str> =
            rule.after("--dports").into_iter().flat_map(|list| list.split(',')).collect();
        others.iter().any(|other| {
            other.after("-p") == rule.after("-p")
                && other.after("--dport").is_some_and(|port| ports.contains(&port))
        })
    };
    let mut mapped = mappings(wanted, own);
    mapped.retain(|rule| !is_same_port(rule));
    let mapped = Saved { rules: mapped, ..Saved::default() };
    let mut entered = entries(wanted, own);
    entered.retain(|rule| !is_listed(rule));
    let entered = Saved { rules: entered, ..Saved::default() };
    saved.remove_rules(|rule| mapped.has(rule) || has_entry(&entered, rule))
}

fn removals(saved: &Saved, chain: &str) -> String {
    saved.remove_rules(|rule| rule.target() == Some(chain)) + &saved.remove_chain(chain)
}

/// Comments tell network and container.
fn stale_chains(saved: &Saved, network: &str, valid: &BTreeSet<String>) -> BTreeSet<String> {
    let beginning = format!("dnat name: \"{network}\" id: \"");
    let is_of_network = |rule: &&Rule| {
        rule.chain == ALL
            && rule.after("--comment").is_some_and(|comment| comment.starts_with(&beginning))
    };
    let targets = saved.rules.iter().filter(is_of_network).filter_map(Rule::target);
    let targets = targets.filter(|target| target.starts_with("CNI-DN-"));
    targets.filter(|target| !valid.contains(*target)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
