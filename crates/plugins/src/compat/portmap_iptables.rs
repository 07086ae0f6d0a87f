// SPDX-License-Identifier: Apache-2.0
//! The backend `iptables` of portmap. It makes the same chains, rules and comments as the Go
//! plugin, so that each can remove the other's rules. A chain for all containers jumps to one chain
//! per container; a mark selects the connections to masquerade.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Attachment, Error, Request};
use ipnet::IpNet;
use kernel::Family;

use crate::compat::iptables::{Rule, Saved, change, family_of, host, read};
use crate::compat::names::hashed;
use crate::meta::portmap::conf::{HostPort, Mapping, Mark, Portmap, Protocol, Verbatim};

const TABLE: &str = "nat";
/// The chain that jumps to the containers' chains.
const ALL: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Limit of the match `multiport`.
const MAX_PORTS_PER_RULE: usize = 15;
/// Limit of the match `comment`.
const MAX_COMMENT_LEN: usize = 255;

/// The desired chain of a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DesiredRules<'a> {
    pub network: &'a str,
    pub container: &'a str,
    pub portmap: &'a Portmap,
    pub verbatim: &'a Verbatim,
    /// The container's addresses with their prefix lengths, at most one per family.
    pub own: &'a [IpNet],
}

/// Makes the chains of all addresses, or none.
pub(crate) fn add(desired: &DesiredRules) -> Result<(), Error> {
    for own in desired.own {
        let added = change(family_of(own.addr()), TABLE, |saved| additions(saved, desired, *own));
        added.inspect_err(|_| rollback(desired))?;
    }
    Ok(())
}

/// Removes the rules of a failed ADD; another interface of the container keeps its own.
pub(crate) fn rollback(desired: &DesiredRules) {
    for own in desired.own {
        // The error that caused the rollback is the one to report.
        let _ = change(family_of(own.addr()), TABLE, |saved| own_removals(saved, desired, *own));
    }
}

/// Removes a container's chain.
pub(crate) fn remove(network: &str, container: &str) -> Result<(), Error> {
    let removed = FAMILIES
        .map(|family| change(family, TABLE, |saved| removals(saved, &chain(network, container))));
    Error::join(removed.into_iter().filter_map(Result::err).collect())
}

/// Removes the chains of a network's containers that are not valid.
pub(crate) fn gc(request: &Request, valid: &[Attachment]) -> Result<(), Error> {
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

/// Returns the first missing rule.
pub(crate) fn missing(desired: &DesiredRules) -> Result<Option<String>, Error> {
    for own in desired.own {
        let saved = read(family_of(own.addr()), TABLE)?;
        let shared = shared(desired).into_iter().map(|(_, rule)| rule).chain(jumps_to_all());
        let plain = shared.chain(mappings(desired, *own)).filter(|rule| !saved.has(rule));
        let jumps = jumps(desired, *own).into_iter().filter(|rule| !has_jump(&saved, rule));
        if let Some(rule) = plain.chain(jumps).next() {
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
    if comment.len() <= MAX_COMMENT_LEN {
        return comment;
    }
    let start: String = comment.chars().take(MAX_COMMENT_LEN - 3).collect();
    start + "..."
}

/// The position of a rule of the shared chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the rules of `ipMasq`.
    Head,
    End,
}

/// The rules that mark connections and masquerade marked ones; none if another chain does both. In
/// order of creation, because a rule can jump only to an existing chain.
fn shared(desired: &DesiredRules) -> Vec<(At, Rule)> {
    let Mark::Bit(bit) = &desired.verbatim.mark else { return Vec::new() };
    if !desired.portmap.snat {
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

/// The rules of the shared chain that jump to the container's chain. They list the ports of all
/// mappings, also of mappings for the other family, as the Go plugin's CHECK expects.
fn jumps(desired: &DesiredRules, own: IpNet) -> Vec<Rule> {
    let chain = chain(desired.network, desired.container);
    let comment = comment(desired.network, desired.container);
    let listed = &desired.verbatim.listed;
    let mut protocols: Vec<Protocol> = listed.iter().map(|(protocol, _)| *protocol).collect();
    protocols.sort_by_key(|protocol| protocol.as_str());
    protocols.dedup();
    let mut rules = Vec::new();
    for protocol in protocols {
        let of_protocol = listed.iter().filter(|(other, _)| *other == protocol);
        let ports: Vec<String> = of_protocol.map(|(_, port)| port.to_string()).collect();
        for ports in ports.chunks(MAX_PORTS_PER_RULE) {
            // For iptables, the order of the matches is part of a rule's identity.
            let ports = ports.join(",");
            let start = ["-p", protocol.as_str(), "-m", "comment", "--comment", &comment];
            let mut words: Vec<String> = start.map(str::to_owned).to_vec();
            words.extend(["-m", "multiport", "--dports", &ports].map(str::to_owned));
            words.extend_from_slice(desired.verbatim.conditions(Family::of(own.addr())));
            words.extend(["-j", &chain].map(str::to_owned));
            rules.push(Rule { chain: ALL.to_owned(), words });
        }
    }
    rules
}

/// Compares without the conditions, which iptables prints differently from how they were written.
fn has_jump(saved: &Saved, rule: &Rule) -> bool {
    let identity = |rule: &Rule| {
        ["-p", "--comment", "--dports", "-j"].map(|option| rule.after(option).map(str::to_owned))
    };
    saved.rules.iter().any(|other| other.chain == rule.chain && identity(other) == identity(rule))
}

/// The rules of the container's chain: which connections are marked, and their destinations.
fn mappings(desired: &DesiredRules, own: IpNet) -> Vec<Rule> {
    let Portmap { snat, masq_all, mappings, .. } = desired.portmap;
    let chain = chain(desired.network, desired.container);
    let mark = match &desired.verbatim.mark {
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

fn additions(saved: &Saved, desired: &DesiredRules, own: IpNet) -> String {
    let mut lines = String::new();
    for (at, rule) in shared(desired) {
        lines += &match at {
            At::Head => saved.insert(&rule),
            At::End => saved.add_chains(&[&rule.chain]) + &saved.append(&rule),
        };
    }
    lines += &saved.add_chains(&[ALL]);
    for rule in jumps_to_all() {
        lines += &saved.append(&rule);
    }
    lines + &container_additions(saved, desired, own)
}

/// Replaces rules that a killed ADD left, but keeps those of another interface of the container.
fn container_additions(saved: &Saved, desired: &DesiredRules, own: IpNet) -> String {
    let chain = chain(desired.network, desired.container);
    let mut lines = saved.add_chains(&[&chain]);
    let mut kept = saved.clone();
    if rules_of_others(saved, &chain, own).is_empty() {
        let is_removed = |rule: &Rule| rule.target() == Some(chain.as_str());
        lines += &saved.remove_rules(is_removed);
        if saved.chains.contains(&chain) {
            lines += &format!("-F {chain}\n");
        }
        kept.rules.retain(|rule| rule.chain != chain && !is_removed(rule));
    }
    for rule in mappings(desired, own) {
        lines += &kept.append(&rule);
    }
    for rule in jumps(desired, own).iter().filter(|rule| !has_jump(&kept, rule)) {
        lines += &Saved::default().append(rule);
    }
    lines
}

/// The rules of a container's chain for its other addresses.
fn rules_of_others<'a>(saved: &'a Saved, chain: &str, own: IpNet) -> Vec<&'a Rule> {
    let own_end = std::net::SocketAddr::new(own.addr(), 0).to_string();
    let own_end = own_end.trim_end_matches('0');
    let is_for_other = |rule: &&Rule| {
        let to = rule.after("--to-destination").filter(|_| rule.chain == chain);
        to.is_some_and(|to| !to.starts_with(own_end))
    };
    saved.rules.iter().filter(is_for_other).collect()
}

/// Keeps the marks and jumps that the ports of another interface need.
fn own_removals(saved: &Saved, desired: &DesiredRules, own: IpNet) -> String {
    let chain = chain(desired.network, desired.container);
    let others = rules_of_others(saved, &chain, own);
    if others.is_empty() {
        return removals(saved, &chain);
    }
    let is_same_port = |rule: &Rule| {
        let port =
            |rule: &Rule| ["-d", "-p", "--dport"].map(|word| rule.after(word).map(str::to_owned));
        rule.after("--to-destination").is_none()
            && others.iter().any(|other| port(other) == port(rule))
    };
    let is_listed = |rule: &Rule| {
        let ports: Vec<&str> =
            rule.after("--dports").into_iter().flat_map(|list| list.split(',')).collect();
        others.iter().any(|other| {
            other.after("-p") == rule.after("-p")
                && other.after("--dport").is_some_and(|port| ports.contains(&port))
        })
    };
    let mut own_mappings = mappings(desired, own);
    own_mappings.retain(|rule| !is_same_port(rule));
    let own_mappings = Saved { rules: own_mappings, ..Saved::default() };
    let mut own_jumps = jumps(desired, own);
    own_jumps.retain(|rule| !is_listed(rule));
    let own_jumps = Saved { rules: own_jumps, ..Saved::default() };
    saved.remove_rules(|rule| own_mappings.has(rule) || has_jump(&own_jumps, rule))
}

fn removals(saved: &Saved, chain: &str) -> String {
    saved.remove_rules(|rule| rule.target() == Some(chain)) + &saved.remove_chain(chain)
}

/// The comments name network and container.
fn stale_chains(saved: &Saved, network: &str, valid: &BTreeSet<String>) -> BTreeSet<String> {
    let prefix = format!("dnat name: \"{network}\" id: \"");
    let is_of_network = |rule: &&Rule| {
        rule.chain == ALL
            && rule.after("--comment").is_some_and(|comment| comment.starts_with(&prefix))
    };
    let targets = saved.rules.iter().filter(is_of_network).filter_map(Rule::target);
    let targets = targets.filter(|target| target.starts_with("CNI-DN-"));
    targets.filter(|target| !valid.contains(*target)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
