// SPDX-License-Identifier: Apache-2.0
//! The rules of the Go plugin firewall: a chain for all containers with two rules per address, and
//! chains that isolate bridges.

use std::net::IpAddr;

use cni::Error;

use super::{Family, Rule, Saved, change, family_of, host, read};

/// The chain with the rules of all containers.
const ALL: &str = "CNI-FORWARD";
const STAGES: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

/// A bridge with an ingress policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BridgePolicy<'a> {
    pub bridge: &'a str,
    pub isolated: bool,
}

/// Accepts packets from and replies to these addresses.
pub(crate) fn add(
    addresses: &[IpAddr],
    admin: &str,
    policy: Option<BridgePolicy>,
) -> Result<(), Error> {
    each_family(addresses, |family, own| {
        change(family, "filter", |saved| additions(saved, own, admin, policy))
    })
}

/// Removes the rules of the addresses that `is_removed` selects. Its second argument tells whether
/// this backend made the rules.
pub(crate) fn remove(
    addresses: &[IpAddr],
    is_removed: impl Fn(IpAddr, bool) -> bool,
) -> Result<(), Error> {
    each_family(addresses, |family, own| {
        change(family, "filter", |saved| removals(saved, own, &is_removed))
    })
}

/// Returns the first missing rule.
pub(crate) fn missing(
    addresses: &[IpAddr],
    admin: &str,
    policy: Option<BridgePolicy>,
) -> Result<Option<String>, Error> {
    let mut missing = None;
    each_family(addresses, |family, own| {
        let saved = read(family, "filter")?;
        let rules = [jump_to_all(), jump_to_admin(admin)].into_iter();
        let rules = rules.chain(own.iter().flat_map(|one| rules_of(*one)));
        let isolation = policy.map(isolation).into_iter().flatten().flatten();
        let found = rules.chain(isolation).find(|rule| !saved.has(rule));
        missing =
            missing.take().or(found.map(|rule| format!("{} {}", rule.chain, rule.words.join(" "))));
        Ok(())
    })?;
    Ok(missing)
}

fn each_family(
    addresses: &[IpAddr],
    mut body: impl FnMut(Family, &[IpAddr]) -> Result<(), Error>,
) -> Result<(), Error> {
    for family in [Family::V4, Family::V6] {
        let own: Vec<IpAddr> =
            addresses.iter().copied().filter(|one| family_of(*one) == family).collect();
        if !own.is_empty() {
            body(family, &own)?;
        }
    }
    Ok(())
}

/// A later insertion ends up before an earlier one; the policy must come first in its chain.
fn additions(saved: &Saved, own: &[IpAddr], admin: &str, policy: Option<BridgePolicy>) -> String {
    let mut lines = saved.add_chains(&[ALL, admin]);
    lines += &saved.insert(&jump_to_all());
    lines += &saved.insert(&jump_to_admin(admin));
    for rule in own.iter().flat_map(|one| rules_of(*one)) {
        lines += &saved.append(&rule);
    }
    let Some(policy) = policy else { return lines };
    let [inserted, appended] = isolation(policy);
    lines += &saved.add_chains(&STAGES);
    lines += &inserted.iter().map(|rule| saved.insert(rule)).collect::<String>();
    lines + &appended.iter().map(|rule| saved.append(rule)).collect::<String>()
}

fn removals(saved: &Saved, own: &[IpAddr], is_removed: impl Fn(IpAddr, bool) -> bool) -> String {
    let removed = own.iter().filter(|one| is_removed(**one, is_own(saved, **one)));
    let removed: Vec<Rule> = removed.flat_map(|one| rules_of(*one)).collect();
    let removed = Saved { rules: removed, ..Saved::default() };
    saved.remove_rules(|rule| removed.has(rule))
}

fn jump_to_all() -> Rule {
    Rule::new("FORWARD", "", "CNI firewall plugin rules", ALL)
}

fn jump_to_admin(admin: &str) -> Rule {
    Rule::new(ALL, "", "CNI firewall plugin admin overrides", admin)
}

/// The Go plugin adds the rule for replies first. The order does not matter for packets, but it is
/// the only thing that tells which program made the rules.
fn rules_of(address: IpAddr) -> [Rule; 2] {
    let all = format!("-s {}", host(address));
    let replies = format!("-d {} -m conntrack --ctstate RELATED,ESTABLISHED", host(address));
    [Rule::new(ALL, &all, "", "ACCEPT"), Rule::new(ALL, &replies, "", "ACCEPT")]
}

/// Whether this backend, and not the Go plugin, made the rules of the address.
fn is_own(saved: &Saved, address: IpAddr) -> bool {
    let [all, replies] = rules_of(address).map(|rule| saved.position(&rule));
    all.is_some() && (replies.is_none() || all < replies)
}

/// The rules that isolate a bridge: those to insert at the head of their chains, and those to
/// append.
fn isolation(BridgePolicy { bridge, isolated }: BridgePolicy) -> [Vec<Rule>; 2] {
    let shown = if isolated { "isolated" } else { "same-bridge" };
    let comment = |policy: &str| format!("CNI firewall plugin rules (ingressPolicy: {policy})");
    let (own, both) = (comment(shown), comment("same-bridge|isolated"));
    let [first, second] = STAGES;
    let mut inserted = vec![
        Rule::new("FORWARD", "", &both, first),
        Rule::new(first, &format!("-i {bridge} ! -o {bridge}"), &own, second),
    ];
    if isolated {
        inserted.push(Rule::new(first, &format!("-i {bridge} -o {bridge}"), &own, "DROP"));
    }
    inserted.push(Rule::new(second, &format!("-o {bridge}"), &both, "DROP"));
    let appended = STAGES.map(|stage| Rule::new(stage, "", &both, "RETURN"));
    [inserted, appended.to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_match_the_go_plugin() {
        let own = ["10.1.0.2".parse().unwrap()];
        let policy = Some(BridgePolicy { bridge: "br0", isolated: true });
        let expected = "-N CNI-FORWARD
-N CNI-ADMIN
-I FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD
-I CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN
-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-I FORWARD -m comment --comment \"CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)\" -j CNI-ISOLATION-STAGE-1
-I CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: isolated)\" -j CNI-ISOLATION-STAGE-2
-I CNI-ISOLATION-STAGE-1 -i br0 -o br0 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: isolated)\" -j DROP
-I CNI-ISOLATION-STAGE-2 -o br0 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)\" -j DROP
-A CNI-ISOLATION-STAGE-1 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)\" -j RETURN
-A CNI-ISOLATION-STAGE-2 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)\" -j RETURN
";
        assert_eq!(additions(&Saved::default(), &own, "CNI-ADMIN", policy), expected);
    }

    #[test]
    fn order_of_rules_identifies_their_program() {
        let address: IpAddr = "10.1.0.2".parse().unwrap();
        let [all, replies] = rules_of(address);
        let saved_with = |rules: &[&Rule]| Saved {
            rules: rules.iter().map(|rule| (*rule).clone()).collect(),
            ..Saved::default()
        };
        for (rules, expected) in [(vec![&all, &replies], true), (vec![&replies, &all], false)] {
            let saved = saved_with(&rules);
            assert_eq!(is_own(&saved, address), expected);
            let removal = removals(&saved, &[address], |_, is_own| is_own);
            assert_eq!(removal.lines().count(), if expected { 2 } else { 0 }, "{removal}");
        }
        assert!(!is_own(&Saved::default(), address));
    }
}
