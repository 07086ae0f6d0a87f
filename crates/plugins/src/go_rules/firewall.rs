// SPDX-License-Identifier: Apache-2.0
//! Rules that let a container's packets pass. They name nothing but its addresses.

use std::net::IpAddr;

use kernel::nft::{Batch, Nft, ObservedRule};

use super::{FAMILIES, family_of, is_about, remove, table};

const CHAIN: &str = "CNI-FORWARD";
/// They keep bridges apart.
const STAGES: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

/// Removes the rules for those of the addresses that are to go, which may depend on whether the rules are
/// ours.
pub fn remove_firewall(
    nft: &Nft,
    addresses: &[IpAddr],
    is_going: impl Fn(IpAddr, bool) -> bool,
) -> kernel::Result<()> {
    for family in FAMILIES {
        let own: Vec<IpAddr> =
            addresses.iter().copied().filter(|one| family_of(*one) == family).collect();
        let filter = table(family, "filter");
        if own.is_empty() || !nft.has_chain(filter, CHAIN)? {
            continue;
        }
        remove(nft, || {
            let mut batch = Batch::new();
            let mut rules = nft.rules(filter, CHAIN)?;
            rules.retain(ObservedRule::accepts);
            for address in &own {
                let about: Vec<&ObservedRule> =
                    rules.iter().filter(|rule| is_about(rule, *address)).collect();
                let Some(first) = about.first() else { continue };
                if is_going(*address, !is_for_answers(first)) {
                    about.iter().for_each(|rule| batch.remove_rule(filter, CHAIN, rule.handle));
                }
            }
            Ok(batch)
        })?;
    }
    Ok(())
}

/// The Go plugin has the one for answers first, and our backend `iptables` the other one.
fn is_for_answers(rule: &ObservedRule) -> bool {
    rule.exprs.iter().any(|(name, _)| matches!(name.as_str(), "match" | "ct"))
}

/// Whether there are rules for an address, one for each direction, that packets come to.
pub fn has_firewall(nft: &Nft, address: IpAddr) -> kernel::Result<bool> {
    let filter = table(family_of(address), "filter");
    let rules = nft.rules(filter, CHAIN)?;
    let count = rules.iter().filter(|rule| rule.accepts() && is_about(rule, address)).count();
    if count < 2 {
        return Ok(false);
    }
    let forward = nft.rules(filter, "FORWARD")?;
    Ok(forward.iter().any(|rule| rule.target.as_deref() == Some(CHAIN)))
}

/// Whether a bridge is kept apart from others, for packets of this address's family.
pub fn has_isolation(nft: &Nft, address: IpAddr, bridge: &str) -> kernel::Result<bool> {
    let filter = table(family_of(address), "filter");
    let is_jump = |rule: &ObservedRule, to| rule.target.as_deref() == Some(to);
    let is_about = |rule: &ObservedRule| {
        rule.compared().any(|name| name.strip_prefix(bridge.as_bytes()).is_some_and(is_padding))
    };
    let [forward, first, second] =
        ["FORWARD", STAGES[0], STAGES[1]].map(|chain| nft.rules(filter, chain));
    Ok(forward?.iter().any(|rule| is_jump(rule, STAGES[0]))
        && first?.iter().any(|rule| is_jump(rule, STAGES[1]) && is_about(rule))
        && second?.iter().any(is_about))
}

fn is_padding(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == 0)
}
