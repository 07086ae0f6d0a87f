// SPDX-License-Identifier: Apache-2.0
//! Keys that are nearly right. Plugins pass over what they do not know, as others may add keys of theirs; who
//! mistypes one learns it here.

use cni::runtime::NetworkList;
use plugins::registry::PLUGINS;
use serde_json::{Map, Value};

/// Every key of our plugins.
const KEYS: &str = "
    type name cniVersion cniVersions capabilities runtimeConfig args prevResult plugins delegate ipam
    dns nameservers domain search options
    routes dst gw mtu advmss priority table scope
    ranges subnet rangeStart rangeEnd gateway resolvConf dataDir addresses address
    families daemonSocketPath provide option value fromArg request skipDefault
    bridge isGateway isDefaultGateway forceAddress hairpinMode promiscMode portIsolation enabledad
    disableContainerInterface macspoofchk vlan vlanTrunk id minID maxID preserveDefaultVlan
    ipMasq ipMasqBackend ipMasqOptions ipv4 ipv6 exclude fullyRandom
    master mode mac linkInContainer bcqueuelen vlanId vrfname
    device hwaddr kernelpath pciBusID useInterfaceNetwork
    multiQueue owner group selinuxContext
    backend snat masqAll markMasqBit externalSetMarkChain conditionsV4 conditionsV6
    ingressPolicy iptablesAdminChainName firewalldZone markBit
    ingressRate ingressBurst egressRate egressBurst latency shapedSubnets unshapedSubnets
    sysctl promisc allmulti txQLen gateways addSourceHints
    subnetFile agentSocket anotherAwesomeArg
";

/// What is under them is named by others.
const FREE: [&str; 5] = ["args", "capabilities", "prevResult", "runtimeConfig", "sysctl"];

/// A line for each key of a plugin of ours that looks like another one.
pub fn misspelt(list: &NetworkList) -> Vec<String> {
    let mut lines = Vec::new();
    let is_ours = |kind: &str| PLUGINS.iter().any(|plugin| plugin.name == kind);
    for plugin in list.plugins.iter().filter(|plugin| is_ours(&plugin.kind)) {
        let (kind, network) = (&plugin.kind, &list.name);
        in_object(&plugin.config, &mut |key, meant| {
            lines.push(format!(
                "plugin {kind:?} of network {network:?} passes over key {key:?}: \
                 did you mean {meant:?}?"
            ));
        });
    }
    lines
}

fn in_object(object: &Map<String, Value>, tell: &mut impl FnMut(&str, &str)) {
    for (key, value) in object {
        let is = |other: &str| key.eq_ignore_ascii_case(other);
        if KEYS.split_whitespace().any(is) {
            if !FREE.into_iter().any(is) {
                in_value(value, tell);
            }
        } else if let Some(meant) = cni::near(key, KEYS.split_whitespace()) {
            tell(key, meant);
        }
    }
}

fn in_value(value: &Value, tell: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Object(object) => in_object(object, tell),
        Value::Array(values) => values.iter().for_each(|value| in_value(value, tell)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn told(plugin: &str) -> Vec<String> {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "n", "plugins": [{plugin}]}}"#);
        misspelt(&NetworkList::parse(text.as_bytes(), None).unwrap())
    }

    #[test]
    fn keys_that_are_nearly_right_are_told() {
        let plugin = r#"{"type": "bridge", "isGatway": true, "ISGATEWAY": true, "podman_args": {},
            "args": {"mtuu": 1}, "ipam": {"type": "host-local", "range": [[{"rangStart": "x"}]],
            "ranges": [[{"rangStart": "x"}]]}}"#;
        let line = |key: &str, meant: &str| {
            format!(
                "plugin \"bridge\" of network \"n\" passes over key {key:?}: did you mean {meant:?}?"
            )
        };
        let found: BTreeSet<String> = told(plugin).into_iter().collect();
        let wanted = [("isGatway", "isGateway"), ("range", "ranges"), ("rangStart", "rangeStart")];
        assert_eq!(found, wanted.map(|(key, meant)| line(key, meant)).into());
    }

    #[test]
    fn plugins_of_others_are_left_alone() {
        assert_eq!(told(r#"{"type": "calico", "isGatway": true}"#), Vec::<String>::new());
    }

    fn pages() -> Vec<String> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plugins");
        let pages = std::fs::read_dir(dir).unwrap().map(|page| page.unwrap().path());
        pages.map(|page| std::fs::read_to_string(page).unwrap()).collect()
    }

    #[test]
    fn every_key_of_the_pages_tables_is_known() {
        let mut missing = BTreeSet::new();
        for page in pages() {
            let tables = page.split("| key | type | default | meaning |\n|---|---|---|---|\n");
            let rows = tables.skip(1).flat_map(|table| table.split("\n\n").next().unwrap().lines());
            let columns = rows.filter_map(|row| row.split('|').nth(1));
            let words = columns.flat_map(|column| column.split([' ', '`', ',', '.', '[', ']']));
            missing.extend(words.map(str::to_owned));
        }
        missing.retain(|word| !word.is_empty() && !KEYS.split_whitespace().any(|key| key == word));
        // A port mapping is told by the runtime.
        let of_the_runtime = ["containerPort", "hostIP", "hostPort", "protocol"];
        assert_eq!(missing, of_the_runtime.map(str::to_owned).into());
    }

    #[test]
    fn networks_of_the_pages_have_no_such_key() {
        let mut count = 0;
        for page in pages() {
            for block in page.split("```json\n").skip(1) {
                let text = block.split("```").next().unwrap();
                if let Ok(list) = NetworkList::parse(text.as_bytes(), None) {
                    assert_eq!(misspelt(&list), Vec::<String>::new());
                    count += 1;
                }
            }
        }
        assert!(count >= 10, "{count}");
    }
}
