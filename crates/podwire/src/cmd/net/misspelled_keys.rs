// SPDX-License-Identifier: Apache-2.0
//! Warnings about misspelled keys. Plugins ignore unknown keys, because other programs may add their
//! own; these warnings show a typing error.

use cni::runtime::NetworkList;
use plugins::registry::PLUGINS;
use serde_json::{Map, Value};

/// All keys of podwire's plugins.
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
    num_queues device_type nodename nodename_file nodename_file_optional require_mtu_file hostname
    container_settings allow_ip_forwarding feature_control ip_addrs_no_ipam floating_ips policy
    include_default_routes subnet_file agent_socket agent_state_dir
    assign_ipv4 assign_ipv6 ipv4_pools ipv6_pools
    datastore_type etcd_endpoints etcd_discovery_srv etcd_key_file etcd_cert_file etcd_ca_cert_file
    etcd_scheme etcd_authority kubernetes kubeconfig node_name k8s_api_root k8s_auth_token
    k8s_client_certificate k8s_client_key k8s_certificate_authority calico_api_group qps burst
    log_level log_file_path log_file_max_size log_file_max_age log_file_max_count ipam_lock_file
    policy_setup_timeout_seconds endpoint_status_dir readiness_gates
";

/// Keys whose values have arbitrary keys.
const OPAQUE: [&str; 5] = ["args", "capabilities", "prevResult", "runtimeConfig", "sysctl"];

/// One warning for each unknown key of podwire's plugins that resembles a known key.
pub(crate) fn find(list: &NetworkList) -> Vec<String> {
    let mut lines = Vec::new();
    let is_ours = |kind: &str| PLUGINS.iter().any(|plugin| plugin.name == kind);
    for plugin in list.plugins.iter().filter(|plugin| is_ours(&plugin.kind)) {
        let (kind, network) = (&plugin.kind, &list.name);
        in_object(&plugin.config, &mut |key, meant| {
            lines.push(format!(
                "plugin {kind:?} of network {network:?} ignores unknown key {key:?} \
                 (did you mean {meant:?}?)"
            ));
        });
    }
    lines
}

fn in_object(object: &Map<String, Value>, report: &mut impl FnMut(&str, &str)) {
    for (key, value) in object {
        let is = |other: &str| key.eq_ignore_ascii_case(other);
        if KEYS.split_whitespace().any(is) {
            if !OPAQUE.into_iter().any(is) {
                in_value(value, report);
            }
        } else if let Some(meant) = text::suggest(key, KEYS.split_whitespace()) {
            report(key, meant);
        }
    }
}

fn in_value(value: &Value, report: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Object(object) => in_object(object, report),
        Value::Array(values) => values.iter().for_each(|value| in_value(value, report)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn warnings(plugin: &str) -> Vec<String> {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "n", "plugins": [{plugin}]}}"#);
        find(&NetworkList::parse(text.as_bytes(), None).unwrap())
    }

    #[test]
    fn misspelled_keys_are_reported() {
        let plugin = r#"{"type": "bridge", "isGatway": true, "ISGATEWAY": true, "podman_args": {},
            "args": {"mtuu": 1}, "ipam": {"type": "host-local", "range": [[{"rangStart": "x"}]],
            "ranges": [[{"rangStart": "x"}]]}}"#;
        let line = |key: &str, meant: &str| {
            format!(
                "plugin \"bridge\" of network \"n\" ignores unknown key {key:?} (did you mean {meant:?}?)"
            )
        };
        let reported: BTreeSet<String> = warnings(plugin).into_iter().collect();
        let expected =
            [("isGatway", "isGateway"), ("range", "ranges"), ("rangStart", "rangeStart")];
        assert_eq!(reported, expected.map(|(key, meant)| line(key, meant)).into());
    }

    #[test]
    fn foreign_plugins_are_not_checked() {
        assert_eq!(warnings(r#"{"type": "cilium-cni", "isGatway": true}"#), Vec::<String>::new());
    }

    fn pages() -> Vec<String> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plugins");
        let pages = std::fs::read_dir(dir).unwrap().map(|page| page.unwrap().path());
        pages.map(|page| std::fs::read_to_string(page).unwrap()).collect()
    }

    #[test]
    fn every_documented_key_is_known() {
        let mut missing = BTreeSet::new();
        for page in pages() {
            let tables = page.split("| key | type | default | meaning |\n|---|---|---|---|\n");
            let rows = tables.skip(1).flat_map(|table| table.split("\n\n").next().unwrap().lines());
            let columns = rows.filter_map(|row| row.split('|').nth(1));
            let words = columns.flat_map(|column| column.split([' ', '`', ',', '.', '[', ']']));
            missing.extend(words.map(str::to_owned));
        }
        missing.retain(|word| !word.is_empty() && !KEYS.split_whitespace().any(|key| key == word));
        // The runtime passes port mappings.
        let from_runtime = ["containerPort", "hostIP", "hostPort", "protocol"];
        assert_eq!(missing, from_runtime.map(str::to_owned).into());
    }

    #[test]
    fn documented_networks_have_no_misspelled_key() {
        let mut count = 0;
        for page in pages() {
            for block in page.split("```json\n").skip(1) {
                let text = block.split("```").next().unwrap();
                if let Ok(list) = NetworkList::parse(text.as_bytes(), None) {
                    assert_eq!(find(&list), Vec::<String>::new());
                    count += 1;
                }
            }
        }
        assert!(count >= 10, "{count}");
    }
}
