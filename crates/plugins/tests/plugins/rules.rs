// SPDX-License-Identifier: Apache-2.0
//! Reads nf_tables rulesets with `nft`.

use serde_json::Value;
use testkit::Ns;

/// All sets and maps of a namespace, printed by `nft`.
pub fn sets(ns: &Ns) -> Vec<Value> {
    let listed = ns.exec("nft", &["-j", "list", "ruleset"]);
    let listed: Value = serde_json::from_str(&listed).expect("nft prints JSON");
    let objects = listed["nftables"].as_array().expect("a list of objects");
    let sets = objects.iter().filter_map(|one| one.get("set").or_else(|| one.get("map")));
    sets.cloned().collect()
}

/// All elements of all sets and maps of a namespace, as `table set element`, sorted.
pub fn elements(ns: &Ns) -> Vec<String> {
    let mut found = Vec::new();
    for set in sets(ns) {
        let name = |key: &str| set[key].as_str().unwrap_or_default().to_owned();
        for element in set["elem"].as_array().into_iter().flatten() {
            found.push(format!("{} {} {element}", name("table"), name("name")));
        }
    }
    found.sort();
    found
}

/// Elements of sets and maps whose name starts with `prefix`.
pub fn elements_of(ns: &Ns, prefix: &str) -> Vec<String> {
    let mut found = elements(ns);
    found.retain(|one| one.split(' ').nth(1).is_some_and(|set| set.starts_with(prefix)));
    found
}

/// The ruleset without elements and counters.
pub fn ruleset_without_elements(ns: &Ns) -> String {
    ns.exec("nft", &["--terse", "--stateless", "list", "ruleset"])
}

/// The ruleset printed by `nft`.
pub fn ruleset(ns: &Ns) -> String {
    ns.exec("nft", &["list", "ruleset"])
}

/// Names of chains that start with `prefix`.
pub fn chains(ns: &Ns, prefix: &str) -> Vec<String> {
    let words: Vec<String> = ruleset(ns).split_whitespace().map(str::to_owned).collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == "chain");
    pairs.map(|pair| pair[1].clone()).filter(|name| name.starts_with(prefix)).collect()
}

/// Returns true if `nft` can load its own output. Administrators save rulesets and load them at
/// boot.
pub fn can_be_reloaded(ns: &Ns) -> bool {
    let saved = format!("/run/{}.nft", ns.name());
    std::fs::write(&saved, ruleset(ns)).expect("write a file in /run");
    ns.try_exec("nft", &["--check", "-f", &saved]).is_ok()
}
