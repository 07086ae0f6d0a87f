// SPDX-License-Identifier: Apache-2.0
//! Annotations of pods, from the runtime and from the agent.

use serde_json::{Value, json};
use testkit::in_netns;

use super::agent::{Agent, STATE};
use super::{NAMES, calico, pod_call, sysctl};
use crate::call::Call;
use crate::conf::with;
use crate::world::{Plugins, World};

const SOCKET: &str = "/run/agent.sock";

/// `calico-ipam` with the stand-in for the agent.
fn pools(more: &Value) -> Value {
    let base = json!({"ipam": {"type": "calico-ipam", "ipv4_pools": ["conf"]},
        "agent_socket": SOCKET, "agent_state_dir": STATE});
    calico(&with(base, more))
}

/// A call for which the runtime passes these annotations, without their common prefix.
fn annotated(world: &World, config: &Value, annotations: &[(&str, &str)]) -> Call {
    let prefix = "cni.projectcalico.org/";
    let full =
        |name: &str| if name.contains('/') { name.to_owned() } else { format!("{prefix}{name}") };
    let annotations: Value = annotations
        .iter()
        .map(|(name, text)| (full(name), json!(text)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let runtime = json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations}});
    pod_call(world, &with(config.clone(), &runtime), 1)
}

#[test]
fn calico_annotation_sets_mac() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = annotated(&world, &calico(&json!({})), &[("hwAddr", "02:00:00:00:00:77")]);
        let result = call.add().result();
        assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:77");
        let link = world.pod(1).ip_json(&["link", "show", "eth0"]);
        assert_eq!(link[0]["address"], "02:00:00:00:00:77");
        call.check(&result).ok();
    });
}

#[test]
fn calico_annotations_choose_pools_and_addresses() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 1);
        let assigned = |annotations: &[(&str, &str)]| {
            let call = annotated(&world, &pools(&json!({})), annotations);
            let result = call.add().result();
            call.check(&result).ok();
            call.del(&result).ok();
            agent.last("/ipam/assign")
        };
        let request = assigned(&[]);
        assert_eq!((&request["ipv4_pools"], &request["ipv6"]), (&json!(["conf"]), &json!(false)));
        let request = assigned(&[
            ("ipv4pools", r#"["a"]"#),
            ("ipv6pools", r#"["b"]"#),
            ("ipFamilies", r#"["IPv4", "IPv6"]"#),
        ]);
        assert_eq!(
            (&request["ipv4_pools"], &request["ipv6_pools"]),
            (&json!(["a"]), &json!(["b"]))
        );
        assert_eq!((&request["ipv4"], &request["ipv6"]), (&json!(true), &json!(true)));
        let request = assigned(&[("ipAddrs", r#"["10.5.0.9", "fd00:5::9"]"#)]);
        assert_eq!(request["addresses"], json!(["10.5.0.9", "fd00:5::9"]));
    });
}

#[test]
fn calico_annotation_bypasses_ipam() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let world = World::new(&Plugins::ours(), 1);
        let annotation = [("ipAddrsNoIpam", r#"["10.9.0.9"]"#)];
        let refused = annotated(&world, &pools(&json!({})), &annotation);
        refused.add().fails_with(7, "requested feature is not enabled: ip_addrs_no_ipam");
        let allowed = pools(&json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        let call = annotated(&world, &allowed, &annotation);
        let result = call.add().result();
        assert_eq!(result["ips"], json!([{"address": "10.9.0.9/32", "interface": 1}]));
        assert_eq!(agent.assigned(), Vec::<String>::new());
        call.check(&result).ok();
        call.add().fails_with(999, "already exists");
        call.check(&result).ok();
        call.del(&result).ok();
        call.status().ok();
    });
}

#[test]
fn calico_policy_k8s_uses_annotations_of_the_agent() {
    in_netns(|| {
        let agent = Agent::start(SOCKET);
        let mac = json!({"cni.projectcalico.org/hwAddr": "02:00:00:00:00:78"});
        let namespace = json!({"cni.projectcalico.org/ipv4pools": "[\"green\"]"});
        agent.annotate("web1", &mac, &namespace);
        let world = World::new(&Plugins::ours(), 2);
        let config = pools(&json!({"policy": {"type": "k8s"}}));
        let result = pod_call(&world, &config, 1).add().result();
        assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:78");
        assert_eq!(agent.last("/ipam/assign")["ipv4_pools"], json!(["green"]));
        pod_call(&world, &config, 1).del(&result).ok();
        // The agent does not know this pod.
        pod_call(&world, &config, 2).add().ok();
        assert_eq!(agent.last("/ipam/assign")["ipv4_pools"], json!(["conf"]));
        // Without the policy nobody asks, as in Calico.
        let result = pod_call(&world, &pools(&json!({})), 1).add().result();
        assert_ne!(result["interfaces"][1]["mac"], "02:00:00:00:00:78");
        // host-local works without an agent.
        let alone = calico(&json!({"policy": {"type": "k8s"}, "agent_socket": "/run/none"}));
        pod_call(&world, &config, 1).del(&result).ok();
        pod_call(&world, &alone, 1).add().ok();
    });
}

#[test]
fn calico_annotation_allows_other_sources() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.host.exec("sysctl", &["-w", "net.ipv4.conf.default.rp_filter=1"]);
        let path = format!("ipv4/conf/{}/rp_filter", NAMES[0]);
        let rp_filter = |annotations: &[(&str, &str)]| {
            let call = annotated(&world, &calico(&json!({})), annotations);
            call.add().ok();
            let found = sysctl(&world.host, &path);
            call.run("DEL").ok();
            found
        };
        assert_eq!(rp_filter(&[]), "1");
        assert_eq!(rp_filter(&[("allowedSourcePrefixes", r#"["198.51.100.0/24"]"#)]), "0");
    });
}

#[test]
fn calico_annotations_limit_bandwidth() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let limits = [
            ("qos.projectcalico.org/ingressBandwidth", "10M"),
            ("qos.projectcalico.org/ingressBurst", "1M"),
            ("qos.projectcalico.org/egressBandwidth", "20M"),
        ];
        let call = annotated(&world, &calico(&json!({})), &limits);
        let result = call.add().result();
        let qdisc = world.host.exec("tc", &["qdisc", "show", "dev", NAMES[0], "root"]);
        assert!(qdisc.contains("tbf") && qdisc.contains("rate 10Mbit"), "{qdisc}");
        let ifb = result["interfaces"][2]["name"].as_str().expect("an ifb");
        let qdisc = world.host.exec("tc", &["qdisc", "show", "dev", ifb, "root"]);
        assert!(qdisc.contains("rate 20Mbit"), "{qdisc}");
        call.check(&result).ok();
        // The runtime passes no annotations to DEL.
        let mut config = call.config.clone();
        config["runtimeConfig"] = json!({});
        config["capabilities"] = json!({"io.kubernetes.cri.pod-annotations": true});
        call.config(&config).run("DEL").ok();
        assert_eq!(world.host.ip_json(&["link", "show", "type", "ifb"]), json!([]));
    });
}

/// A configuration, annotations, and words of the error.
type Refused<'a> = (&'a Value, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn calico_invalid_annotation_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let host_local = calico(&json!({}));
        let agent = pools(&json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        let table: &[Refused] = &[
            (&host_local, &[("hwAddr", "02:00")], "hwAddr\" is \"02:00\""),
            (&host_local, &[("hwAddr", "01:00:00:00:00:01")], "unicast"),
            (&host_local, &[("allowedSourcePrefixes", "10.0.0.0/8")], "allowedSourcePrefixes"),
            (&host_local, &[("allowedSourcePrefixes", r#"["10.0.0.0/99"]"#)], "10.0.0.0/99"),
            (&host_local, &[("ipAddrs", r#"["10.5.0.9"]"#)], "not compatible with configured IPAM"),
            (&host_local, &[("ipv4pools", "blue")], "ipv4pools"),
            (&host_local, &[("floatingIPs", r#"["192.0.2.1"]"#)], "floating_ips"),
            (&host_local, &[("qos.projectcalico.org/ingressBandwidth", "1")], "\"1\""),
            (&host_local, &[("qos.projectcalico.org/egressBurst", "1M")], "egressBandwidth"),
            (&agent, &[("ipAddrs", "[]")], "ipAddrs"),
            (&agent, &[("ipAddrs", r#"["10.5.0.9","10.5.0.10"]"#)], "one IPv4 address"),
            (&agent, &[("ipFamilies", r#"["IPv5"]"#)], "IPv5"),
            (
                &agent,
                &[("ipAddrs", r#"["10.5.0.9"]"#), ("ipAddrsNoIpam", r#"["10.5.0.9"]"#)],
                "at the same time",
            ),
        ];
        for (config, annotations, words) in table {
            annotated(&world, config, annotations).add().fails_with(7, words);
        }
        let types = json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": 1}}});
        pod_call(&world, &with(host_local, &types), 1).add().fails_with(7, "pod-annotations");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}
