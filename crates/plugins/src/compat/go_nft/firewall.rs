// SPDX-License-Identifier: Apache-2.0
//! Rules of the plugin firewall. They match the container's addresses and nothing else.

use std::net::IpAddr;

use kernel::nft::{Batch, Nft, ObservedRule};

use super::{FAMILIES, family_of, matches_address, remove, table};

const CHAIN: &str = "CNI-FORWARD";
/// The chains that isolate bridges.
const STAGES: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

/// Removes the rules of the addresses that `is_removed` selects. Its second argument tells whether
/// our backend `iptables` made the rules.
pub(crate) fn remove_firewall(
    nft: &Nft,
    addresses: &[IpAddr],
    is_removed: impl Fn(IpAddr, bool) -> bool,
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
                let matching: Vec<&ObservedRule> =
                    rules.iter().filter(|rule| matches_address(rule, *address)).collect();
                let Some(first) = matching.first() else { continue };
                if is_removed(*address, !is_for_replies(first)) {
                    matching.iter().for_each(|rule| batch.remove_rule(filter, CHAIN, rule.handle));
                }
            }
            Ok(batch)
        })?;
    }
    Ok(())
}

/// The Go plugin adds the rule for replies first, our backend `iptables` adds it second.
fn is_for_replies(rule: &ObservedRule) -> bool {
    rule.exprs.iter().any(|(name, _)| matches!(name.as_str(), "match" | "ct"))
}

/// Whether the rules for an address exist, one per direction, and are reachable from FORWARD.
pub(crate) fn has_firewall(nft: &Nft, address: IpAddr) -> kernel::Result<bool> {
    let filter = table(family_of(address), "filter");
    let rules = nft.rules(filter, CHAIN)?;
    let is_own = |rule: &&ObservedRule| rule.accepts() && matches_address(rule, address);
    let count = rules.iter().filter(is_own).count();
    if count < 2 {
        return Ok(false);
    }
    let forward = nft.rules(filter, "FORWARD")?;
    Ok(forward.iter().any(|rule| rule.target.as_deref() == Some(CHAIN)))
}

/// Whether a bridge is isolated from others, for packets of this address's family.
pub(crate) fn has_isolation(nft: &Nft, address: IpAddr, bridge: &str) -> kernel::Result<bool> {
    let filter = table(family_of(address), "filter");
    let is_jump = |rule: &ObservedRule, to| rule.target.as_deref() == Some(to);
    let matches_bridge = |rule: &ObservedRule| {
        rule.compared().any(|name| name.strip_prefix(bridge.as_bytes()).is_some_and(is_padding))
    };
    let [forward, first, second] =
        ["FORWARD", STAGES[0], STAGES[1]].map(|chain| nft.rules(filter, chain));
    Ok(forward?.iter().any(|rule| is_jump(rule, STAGES[0]))
        && first?.iter().any(|rule| is_jump(rule, STAGES[1]) && matches_bridge(rule))
        && second?.iter().any(matches_bridge))
}

fn is_padding(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == 0)
}
