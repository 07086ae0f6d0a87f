// SPDX-License-Identifier: Apache-2.0
//! Invalid configurations are refused before anything is changed.

use serde_json::{Value, json};
use testkit::in_netns;

use super::{calico, pod_call};
use crate::conf::{v4, with, without};
use crate::world::{Plugins, World};

#[test]
fn calico_invalid_configuration_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let pools = |ipam: Value| json!({"ipam": with(json!({"type": "calico-ipam"}), &ipam)});
        let routes = with(v4(), &json!({"routes": [{"dst": "x"}]}));
        let table = [
            (json!({"mtu": "x"}), "\"mtu\" is \"x\""),
            (json!({"mtu": 60}), "\"mtu\" is 60, allowed are 68 to 65535"),
            (json!({"num_queues": 5000}), "\"num_queues\" is 5000, allowed are 0 to 4096"),
            (json!({"device_type": "tun"}), "\"device_type\" is \"tun\", allowed are \"veth\""),
            (json!({"policy_setup_timeout_seconds": -1}), "\"policy_setup_timeout_seconds\" is -1"),
            (json!({"container_settings": {"allow_ip_forwarding": "x"}}), "allow_ip_forwarding"),
            (json!({"nodename_file": 1}), "nodename_file"),
            (json!({"feature_control": []}), "feature_control"),
            (json!({"ipam": {}}), "\"ipam.type\" must be set"),
            (json!({"ipam": {"type": "dhcp"}}), "which needs the interface"),
            (json!({"ipam": {"type": "calico"}}), "not an IPAM plugin"),
            (json!({"ipam": {"type": "nowhere"}}), "nowhere"),
            (json!({"ipam": []}), "\"ipam\" is []"),
            (json!({"ipam": routes}), "\"x\""),
            (json!({"runtimeConfig": {"bandwidth": {"ingressRate": 8}}}), "burst must also be set"),
            (pools(json!({"assign_ipv4": "no"})), "ipam.assign_ipv4"),
            (pools(json!({"assign_ipv4": 1})), "expected \"true\" or \"false\""),
            (pools(json!({"assign_ipv4": "false"})), "both \"false\""),
            (pools(json!({"ipv4_pools": "a"})), "ipv4_pools"),
            (pools(json!({"ipv4_pools": ["fd00::/64"]})), "ipv4_pools\" has fd00::/64"),
            (pools(json!({"ipv6_pools": ["10.0.0.0/8"]})), "ipv6_pools\" has 10.0.0.0/8"),
        ];
        for (more, words) in table {
            let answer = pod_call(&world, &calico(&more), 1).add();
            println!("{}", answer.stdout);
            answer.fails_with(7, words);
        }
        let plain = pod_call(&world, &calico(&json!({})), 1);
        plain.args("junk").add().fails_with(4, "\"junk\"");
        plain.netns("/nowhere").add().fails_with(3, "/nowhere");
        plain.config(&without(calico(&json!({})), &["ipam"])).add().fails_with(7, "ipam.type");
        let no_pods = calico(&json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        world.call(&no_pods, 1).add().fails_with(7, "not supported for this runtime");
        let changes = before.changes_to(&world.snapshot());
        assert_eq!(changes, Vec::<String>::new());
    });
}

/// Every key of Calico's own configuration is accepted.
#[test]
fn calico_configuration_of_calicos_installer_works() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = calico(&json!({
            "log_level": "info", "log_file_path": "/var/log/calico/cni/cni.log",
            "log_file_max_size": 100, "log_file_max_age": 30, "log_file_max_count": 10,
            "datastore_type": "kubernetes", "nodename": "node1", "mtu": 0,
            "etcd_endpoints": "https://10.0.0.1:2379", "etcd_discovery_srv": "",
            "etcd_key_file": "", "etcd_cert_file": "", "etcd_ca_cert_file": "",
            "etcd_scheme": "https", "etcd_authority": "10.0.0.1:2379", "hostname": "node1",
            "num_queues": 0, "qps": 20, "burst": 40, "ipam_lock_file": "/run/x.lock",
            "policy": {"type": "k8s", "k8s_api_root": "", "k8s_auth_token": "x"},
            "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig", "k8s_api_root": "",
                "node_name": "node1"},
            "feature_control": {"ip_addrs_no_ipam": false, "floating_ips": true},
            "container_settings": {"allow_ip_forwarding": false},
            "policy_setup_timeout_seconds": 0, "endpoint_status_dir": "/var/run/calico/x",
            "readiness_gates": ["http://localhost:9099/readiness"], "include_default_routes": false,
            "dataplane_options": {"type": "default"}, "vxlan_vni": 4096, "vxlan_mac_prefix": "0E",
            "mode": "", "windows_use_single_network": false, "windows_loopback_DSR": false,
            "windows_disable_default_deny_all_policy": false, "calico_api_group": "",
            "windows_pod_deletion_timestamp_timeout": 600, "require_mtu_file": false,
            "device_type": "veth", "agent_socket": "/run/none"}));
        let call = pod_call(&world, &config, 1);
        call.status().ok();
        let result = call.add().result();
        call.check(&result).ok();
        call.del(&result).ok();
        call.gc(&[]).ok();
    });
}
