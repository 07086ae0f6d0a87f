// SPDX-License-Identifier: Apache-2.0
//! The rules of the Go plugin firewall: a chain for all containers, with two rules an address, and
//! chains that keep bridges apart.

use std::net::IpAddr;

use cni::Error;

use super::{Family, Rule, Saved, change, family_of, host, read};

const ALL: &str = "CNI-FORWARD";
const STAGES: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

/// A bridge that has an ingress policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policed<'a> {
    pub bridge: &'a str,
    pub isolated: bool,
}

/// Lets packets of these addresses pass.
pub fn add(addresses: &[IpAddr], admin: &str, policed: Option<Policed>) -> Result<(), Error> {
    each_family(addresses, |family, own| {
        change(family, "filter", |saved| additions(saved, own, admin, policed))
    })
}

/// Removes the rules of those of the addresses that are to go, which may depend on whether the rules are
/// ours.
pub fn remove(addresses: &[IpAddr], is_going: impl Fn(IpAddr, bool) -> bool) -> Result<(), Error> {
    each_family(addresses, |family, own| {
        change(family, "filter", |saved| removals(saved, own, &is_going))
    })
}

/// The first rule that is missing.
pub fn missing(
    addresses: &[IpAddr],
    admin: &str,
    policed: Option<Policed>,
) -> Result<Option<String>, Error> {
    let mut missing = None;
    each_family(addresses, |family, own| {
        let saved = read(family, "filter")?;
        let rules = [jump_to_all(), jump_to_admin(admin)].into_iter();
        let rules = rules.chain(own.iter().flat_map(|one| rules_of(*one)));
        let kept_apart = policed.map(isolation).into_iter().flatten().flatten();
        let found = rules.chain(kept_apart).find(|rule| !saved.has(rule));
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

/// Later insertions come before earlier ones, and the policy must come before all else.
fn additions(saved: &Saved, own: &[IpAddr], admin: &str, policed: Option<Policed>) -> String {
    let mut lines = saved.add_chains(&[ALL, admin]);
    lines += &saved.insert(&jump_to_all());
    lines += &saved.insert(&jump_to_admin(admin));
    for rule in own.iter().flat_map(|one| rules_of(*one)) {
        lines += &saved.append(&rule);
    }
    let Some(policed) = policed else { return lines };
    let [at_head, at_end] = isolation(policed);
    lines += &saved.add_chains(&STAGES);
    lines += &at_head.iter().map(|rule| saved.insert(rule)).collect::<String>();
    lines + &at_end.iter().map(|rule| saved.append(rule)).collect::<String>()
}

fn removals(saved: &Saved, own: &[IpAddr], is_going: impl Fn(IpAddr, bool) -> bool) -> String {
    let going = own.iter().filter(|one| is_going(**one, is_ours(saved, **one)));
    let going: Vec<Rule> = going.flat_map(|one| rules_of(*one)).collect();
    let own = Saved { rules: going, ..Saved::default() };
    saved.remove_rules(|rule| own.has(rule))
}

fn jump_to_all() -> Rule {
    Rule::new("FORWARD", "", "CNI firewall plugin rules", ALL)
}

fn jump_to_admin(admin: &str) -> Rule {
    Rule::new(ALL, "", "CNI firewall plugin admin overrides", admin)
}

/// The Go plugin has the one for answers first. The order is of no consequence for packets, and tells whose
/// rules they are: nothing else does.
fn rules_of(address: IpAddr) -> [Rule; 2] {
    let all = format!("-s {}", host(address));
    let answers = format!("-d {} -m conntrack --ctstate RELATED,ESTABLISHED", host(address));
    [Rule::new(ALL, &all, "", "ACCEPT"), Rule::new(ALL, &answers, "", "ACCEPT")]
}

fn is_ours(saved: &Saved, address: IpAddr) -> bool {
    let [all, answers] = rules_of(address).map(|rule| saved.position(&rule));
    all.is_some() && (answers.is_none() || all < answers)
}

/// What keeps a bridge apart: rules for the heads of their chains, and for the ends.
fn isolation(Policed { bridge, isolated }: Policed) -> [Vec<Rule>; 2] {
    let shown = if isolated { "isolated" } else { "same-bridge" };
    let comment = |policy: &str| format!("CNI firewall plugin rules (ingressPolicy: {policy})");
    let (own, both) = (comment(shown), comment("same-bridge|isolated"));
    let [first, second] = STAGES;
    let mut at_head = vec![
        Rule::new("FORWARD", "", &both, first),
        Rule::new(first, &format!("-i {bridge} ! -o {bridge}"), &own, second),
    ];
    if isolated {
        at_head.push(Rule::new(first, &format!("-i {bridge} -o {bridge}"), &own, "DROP"));
    }
    at_head.push(Rule::new(second, &format!("-o {bridge}"), &both, "DROP"));
    let at_end = STAGES.map(|stage| Rule::new(stage, "", &both, "RETURN"));
    [at_head, at_end.to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_those_of_the_go_plugin() {
        let own = ["10.1.0.2".parse().unwrap()];
        let policed = Some(Policed { bridge: "br0", isolated: true });
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
        assert_eq!(additions(&Saved::default(), &own, "CNI-ADMIN", policed), expected);
    }

    #[test]
    fn rules_tell_whose_they_are() {
        let address: IpAddr = "10.1.0.2".parse().unwrap();
        let [all, answers] = rules_of(address);
        let there = |rules: &[&Rule]| Saved {
            rules: rules.iter().map(|rule| (*rule).clone()).collect(),
            ..Saved::default()
        };
        for (rules, ours) in [(vec![&all, &answers], true), (vec![&answers, &all], false)] {
            let saved = there(&rules);
            assert_eq!(is_ours(&saved, address), ours);
            let removal = removals(&saved, &[address], |_, is_ours| is_ours);
            assert_eq!(removal.lines().count(), if ours { 2 } else { 0 }, "{removal}");
        }
        assert!(!is_ours(&Saved::default(), address));
    }
}
