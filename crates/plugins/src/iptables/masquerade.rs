// SPDX-License-Identifier: Apache-2.0
//! `ipMasq` with the rules of the Go plugins: a chain for each container of a network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Attachment, Error};
use ipnet::IpNet;

use super::{Family, Rule, Saved, change, family_of, host, quoted, read};
use crate::go_names::hashed;

/// What a container's chain should do.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub network: &'a str,
    pub container: &'a str,
    /// Addresses with their networks.
    pub own: Vec<IpNet>,
    /// Where they are seen as they are.
    pub exclude: &'a [IpNet],
    pub fully_random: bool,
}

/// Makes the chains, all or none.
pub fn add(wanted: &Wanted) -> Result<(), Error> {
    for family in families(wanted) {
        let added = change(family, "nat", |saved| additions(saved, wanted, family));
        added.inspect_err(|_| take_back(wanted))?;
    }
    Ok(())
}

/// Removes what an ADD made that failed; another interface of the container keeps its own.
pub fn take_back(wanted: &Wanted) {
    let own: Vec<IpAddr> = wanted.own.iter().map(IpNet::addr).collect();
    if !own.is_empty() {
        // The failure is the one to tell.
        let _ = remove(wanted.network, wanted.container, &own);
    }
}

/// Removes a container's chain, or only what is for these addresses, where others need the chain.
pub fn remove(network: &str, container: &str, addresses: &[IpAddr]) -> Result<(), Error> {
    let removed = [Family::V4, Family::V6].map(|family| {
        change(family, "nat", |saved| removals(saved, &chain(network, container), addresses))
    });
    Error::all(removed)
}

/// Removes the chains of a network's containers that are not in the list.
pub fn gc(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let valid: BTreeSet<String> =
        valid.iter().map(|one| chain(network, &one.container_id)).collect();
    let removed = [Family::V4, Family::V6].map(|family| {
        change(family, "nat", |saved| {
            let stale = stale_chains(saved, network, &valid);
            stale.iter().map(|chain| removals(saved, chain, &[])).collect()
        })
    });
    Error::all(removed)
}

/// The first rule that is missing.
pub fn missing(wanted: &Wanted) -> Result<Option<String>, Error> {
    for family in families(wanted) {
        let saved = read(family, "nat")?;
        let rules = rules(wanted, family);
        if let Some(rule) = rules.iter().find(|rule| !saved.has(rule)) {
            return Ok(Some(format!("{} {}", rule.chain, rule.words.join(" "))));
        }
    }
    Ok(None)
}

fn families(wanted: &Wanted) -> impl Iterator<Item = Family> {
    let has = |family| wanted.own.iter().any(|net| family_of(net.addr()) == family);
    [Family::V4, Family::V6].into_iter().filter(move |family| has(*family))
}

fn chain(network: &str, container: &str) -> String {
    hashed("CNI-", &[network, container], 28)
}

fn rules(wanted: &Wanted, family: Family) -> Vec<Rule> {
    let chain = chain(wanted.network, wanted.container);
    let comment = format!("name: {} id: {}", quoted(wanted.network), quoted(wanted.container));
    let is_ours = |net: &&IpNet| family_of(net.addr()) == family;
    let own: Vec<&IpNet> = wanted.own.iter().filter(is_ours).collect();
    let kept = own.iter().copied().chain(wanted.exclude.iter().filter(is_ours));
    let kept =
        kept.map(|net| Rule::new(&chain, &format!("-d {}", net.trunc()), &comment, "ACCEPT"));
    let mut rules: Vec<Rule> = kept.collect();
    let multicast = if family == Family::V4 { "! -d 224.0.0.0/4" } else { "! -d ff00::/8" };
    let target = if wanted.fully_random { "MASQUERADE --random-fully" } else { "MASQUERADE" };
    rules.push(Rule::new(&chain, multicast, &comment, target));
    for net in own {
        let from = format!("-s {}", host(net.addr()));
        rules.push(Rule::new("POSTROUTING", &from, &comment, &chain));
    }
    rules
}

fn additions(saved: &Saved, wanted: &Wanted, family: Family) -> String {
    let mut lines = saved.add_chains(&[&chain(wanted.network, wanted.container)]);
    for rule in rules(wanted, family) {
        lines += &saved.append(&rule);
    }
    lines
}

fn removals(saved: &Saved, chain: &str, addresses: &[IpAddr]) -> String {
    let shown: Vec<String> = addresses.iter().map(|one| host(*one)).collect();
    let is_jump = |rule: &Rule| rule.target() == Some(chain);
    let is_known = |from: &str| shown.iter().any(|one| one == from);
    let is_going =
        |rule: &Rule| is_jump(rule) && (shown.is_empty() || rule.after("-s").is_none_or(is_known));
    let lines = saved.remove_rules(is_going);
    if saved.rules.iter().any(|rule| is_jump(rule) && !is_going(rule)) {
        return lines;
    }
    lines + &saved.remove_chain(chain)
}

/// Comments tell network and container.
fn stale_chains(saved: &Saved, network: &str, valid: &BTreeSet<String>) -> BTreeSet<String> {
    let beginning = format!("name: {} id: ", quoted(network));
    let jumps = saved.rules.iter().filter(|rule| rule.chain == "POSTROUTING");
    let of_network = jumps.filter(|rule| {
        rule.after("--comment").is_some_and(|comment| comment.starts_with(&beginning))
    });
    let targets = of_network.filter_map(Rule::target).filter(|target| target.starts_with("CNI-"));
    targets.filter(|target| !valid.contains(*target)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted<'static> {
        let own = vec!["10.1.0.2/24".parse().unwrap()];
        Wanted { network: "net", container: "cid", own, exclude: &[], fully_random: false }
    }

    const ADDED: &str = "-N CNI-f74d2f3ccf98e525d41d0c61
-A CNI-f74d2f3ccf98e525d41d0c61 -d 10.1.0.0/24 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j ACCEPT
-A CNI-f74d2f3ccf98e525d41d0c61 ! -d 224.0.0.0/4 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j MASQUERADE
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j CNI-f74d2f3ccf98e525d41d0c61
";

    #[test]
    fn additions_are_those_of_the_go_plugins() {
        let lines = additions(&Saved::default(), &wanted(), Family::V4);
        assert_eq!(lines, ADDED);
        let there = Saved::read(&lines.replace("-N ", ":"));
        assert_eq!(additions(&there, &wanted(), Family::V4), "");
        assert_eq!(stale_chains(&there, "net", &BTreeSet::new()).len(), 1);
        assert_eq!(stale_chains(&there, "ne", &BTreeSet::new()).len(), 0);
        let chain = chain("net", "cid");
        assert_eq!(stale_chains(&there, "net", &BTreeSet::from([chain.clone()])).len(), 0);
        let removal = removals(&there, &chain, &["10.1.0.2".parse().unwrap()]);
        assert!(removal.ends_with(&format!("-F {chain}\n-X {chain}\n")), "{removal}");
        assert_eq!(removals(&there, &chain, &["10.1.0.9".parse().unwrap()]), "");
    }
}
