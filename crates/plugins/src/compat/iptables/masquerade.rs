// SPDX-License-Identifier: Apache-2.0
//! `ipMasq` with the rules of the Go plugins: a chain for each container of a network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Attachment, Error};
use ipnet::IpNet;

use super::{Family, Rule, Saved, change, family_of, host, quoted, read};
use crate::compat::names::hashed;

/// The desired chain of a container.
#[derive(Debug, Clone)]
pub(crate) struct DesiredRules<'a> {
    pub network: &'a str,
    pub container: &'a str,
    /// The container's addresses with their prefix lengths.
    pub own: Vec<IpNet>,
    /// Destinations that are not masqueraded.
    pub exclude: &'a [IpNet],
    pub fully_random: bool,
}

/// Makes the chains of both families, or none.
pub(crate) fn add(desired: &DesiredRules) -> Result<(), Error> {
    for family in families(desired) {
        let added = change(family, "nat", |saved| additions(saved, desired, family));
        added.inspect_err(|_| rollback(desired))?;
    }
    Ok(())
}

/// Removes the rules of a failed ADD; another interface of the container keeps its own.
pub(crate) fn rollback(desired: &DesiredRules) {
    let own: Vec<IpAddr> = desired.own.iter().map(IpNet::addr).collect();
    if !own.is_empty() {
        // The error that caused the rollback is the one to report.
        let _ = remove(desired.network, desired.container, &own);
    }
}

/// Removes a container's chain, or only the rules of these addresses if another interface uses the
/// chain.
pub(crate) fn remove(network: &str, container: &str, addresses: &[IpAddr]) -> Result<(), Error> {
    let removed = [Family::V4, Family::V6].map(|family| {
        change(family, "nat", |saved| removals(saved, &chain(network, container), addresses))
    });
    Error::all(removed)
}

/// Removes the chains of a network's containers that are not valid.
pub(crate) fn gc(network: &str, valid: &[Attachment]) -> Result<(), Error> {
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

/// Returns the first missing rule.
pub(crate) fn missing(desired: &DesiredRules) -> Result<Option<String>, Error> {
    for family in families(desired) {
        let saved = read(family, "nat")?;
        let rules = rules(desired, family);
        if let Some(rule) = rules.iter().find(|rule| !saved.has(rule)) {
            return Ok(Some(format!("{} {}", rule.chain, rule.words.join(" "))));
        }
    }
    Ok(None)
}

fn families(desired: &DesiredRules) -> impl Iterator<Item = Family> {
    let has = |family| desired.own.iter().any(|net| family_of(net.addr()) == family);
    [Family::V4, Family::V6].into_iter().filter(move |family| has(*family))
}

fn chain(network: &str, container: &str) -> String {
    hashed("CNI-", &[network, container], 28)
}

fn rules(desired: &DesiredRules, family: Family) -> Vec<Rule> {
    let chain = chain(desired.network, desired.container);
    let comment = format!("name: {} id: {}", quoted(desired.network), quoted(desired.container));
    let is_of_family = |net: &&IpNet| family_of(net.addr()) == family;
    let own: Vec<&IpNet> = desired.own.iter().filter(is_of_family).collect();
    let excluded = own.iter().copied().chain(desired.exclude.iter().filter(is_of_family));
    let excluded =
        excluded.map(|net| Rule::new(&chain, &format!("-d {}", net.trunc()), &comment, "ACCEPT"));
    let mut rules: Vec<Rule> = excluded.collect();
    let multicast = if family == Family::V4 { "! -d 224.0.0.0/4" } else { "! -d ff00::/8" };
    let target = if desired.fully_random { "MASQUERADE --random-fully" } else { "MASQUERADE" };
    rules.push(Rule::new(&chain, multicast, &comment, target));
    for net in own {
        let from = format!("-s {}", host(net.addr()));
        rules.push(Rule::new("POSTROUTING", &from, &comment, &chain));
    }
    rules
}

fn additions(saved: &Saved, desired: &DesiredRules, family: Family) -> String {
    let mut lines = saved.add_chains(&[&chain(desired.network, desired.container)]);
    for rule in rules(desired, family) {
        lines += &saved.append(&rule);
    }
    lines
}

fn removals(saved: &Saved, chain: &str, addresses: &[IpAddr]) -> String {
    let shown: Vec<String> = addresses.iter().map(|one| host(*one)).collect();
    let is_jump = |rule: &Rule| rule.target() == Some(chain);
    let is_listed = |from: &str| shown.iter().any(|one| one == from);
    let is_removed =
        |rule: &Rule| is_jump(rule) && (shown.is_empty() || rule.after("-s").is_none_or(is_listed));
    let lines = saved.remove_rules(is_removed);
    if saved.rules.iter().any(|rule| is_jump(rule) && !is_removed(rule)) {
        return lines;
    }
    lines + &saved.remove_chain(chain)
}

/// The comments name network and container.
fn stale_chains(saved: &Saved, network: &str, valid: &BTreeSet<String>) -> BTreeSet<String> {
    let prefix = format!("name: {} id: ", quoted(network));
    let jumps = saved.rules.iter().filter(|rule| rule.chain == "POSTROUTING");
    let of_network = jumps
        .filter(|rule| rule.after("--comment").is_some_and(|comment| comment.starts_with(&prefix)));
    let targets = of_network.filter_map(Rule::target).filter(|target| target.starts_with("CNI-"));
    targets.filter(|target| !valid.contains(*target)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired() -> DesiredRules<'static> {
        let own = vec!["10.1.0.2/24".parse().unwrap()];
        DesiredRules { network: "net", container: "cid", own, exclude: &[], fully_random: false }
    }

    const ADDED: &str = "-N CNI-f74d2f3ccf98e525d41d0c61
-A CNI-f74d2f3ccf98e525d41d0c61 -d 10.1.0.0/24 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j ACCEPT
-A CNI-f74d2f3ccf98e525d41d0c61 ! -d 224.0.0.0/4 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j MASQUERADE
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"name: \\\"net\\\" id: \\\"cid\\\"\" -j CNI-f74d2f3ccf98e525d41d0c61
";

    #[test]
    fn additions_match_the_go_plugins() {
        let lines = additions(&Saved::default(), &desired(), Family::V4);
        assert_eq!(lines, ADDED);
        let saved = Saved::parse(&lines.replace("-N ", ":"));
        assert_eq!(additions(&saved, &desired(), Family::V4), "");
        assert_eq!(stale_chains(&saved, "net", &BTreeSet::new()).len(), 1);
        assert_eq!(stale_chains(&saved, "ne", &BTreeSet::new()).len(), 0);
        let chain = chain("net", "cid");
        assert_eq!(stale_chains(&saved, "net", &BTreeSet::from([chain.clone()])).len(), 0);
        let removal = removals(&saved, &chain, &["10.1.0.2".parse().unwrap()]);
        assert!(removal.ends_with(&format!("-F {chain}\n-X {chain}\n")), "{removal}");
        assert_eq!(removals(&saved, &chain, &["10.1.0.9".parse().unwrap()]), "");
    }
}
