// SPDX-License-Identifier: Apache-2.0
//! Two nodes with both families, and what a runtime asks for.

use std::net::IpAddr;

use serde_json::json;
use testkit::{Ns, Pinging, Wire, in_netns, run};

use super::{
    Host, RoutedPod, STORE, all_reach_all, allocations, calico, etcd, pod_allocations, wait_until,
    with,
};

const VXLAN: [&str; 3] = ["--pool-cidr", "10.6.0.0/16,fd00:6::/64", "--pool-encapsulation=vxlan"];

/// An address of the first own block that no pod has.
fn unused(host: &Host, family: &str, pods: &[&RoutedPod<'_>]) -> IpAddr {
    // The route may follow the first pod.
    let has_own = || host.routes(family).iter().any(|route| route["type"] == "blackhole");
    wait_until("the route of an own block", has_own);
    let routes = host.routes(family);
    let block = routes.iter().find(|route| route["type"] == "blackhole").expect("an own block");
    let (first, _) = block["dst"].as_str().unwrap().split_once('/').unwrap();
    let used: Vec<IpAddr> = pods.iter().flat_map(|pod| pod.addresses()).collect();
    let all = (1..63).map(|ordinal| super::nth(first.parse().unwrap(), ordinal));
    let tunnels = host.node.sh("ip -o address");
    let mut free = all.filter(|one| !used.contains(one) && !tunnels.contains(&format!(" {one}/")));
    free.next().unwrap()
}

#[test]
fn routed_traffic_survives_agent_and_store() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let mut server = etcd();
        let endpoint = server.endpoint();
        let flags = [&["--etcd-endpoints", &endpoint][..], &VXLAN].concat();
        let hosts = [1, 2].map(|number| Host::start(wire.node(number, true, true), &flags));
        let both = calico(true, true);
        let (one, two) = (hosts[0].pod("one", &both), hosts[1].pod("two", &both));
        all_reach_all(&[&one, &two]);
        assert_eq!(one.addresses().len(), 2);
        // The tunnel over IPv6 needs 70 bytes.
        let mtu = std::fs::read_to_string(hosts[0].node.dir().join("calico/mtu")).unwrap();
        assert_eq!(mtu.trim(), "1430");

        // Packets to unused addresses end at the owner of the block and do not come back.
        for (family, at) in [("-4", 0), ("-6", 1)] {
            let unused = unused(&hosts[1], family, &[&two]).to_string();
            let looked_up = hosts[1].node.ns.try_exec("ip", &["route", "get", &unused]);
            assert!(looked_up.is_err(), "{looked_up:?}");
            let through = hosts[0].node.ns.ip(&["route", "get", &unused]);
            assert!(through.contains("vxlan"), "{through}");
            let answer = one.ns.try_exec("ping", &["-n", "-c1", "-W1", &unused]).unwrap_err();
            assert!(!answer.contains("Time to live") && !answer.contains("hop"), "{answer}");
            assert!(testkit::answers(&one.ns, two.addresses()[at]));
        }

        let streams = two.addresses().into_iter().map(|to| Pinging::start(&one.ns, to));
        let streams: Vec<Pinging> = streams.collect();
        hosts[0].kill();
        let before = streams[0].answers();
        wait_until("answers without an agent", || streams[0].answers() > before + 20);
        hosts[0].run();
        hosts[0].wait_ready();
        server.kill();
        // ADD and DEL need no store.
        let outage = hosts[0].pod("outage", &both);
        all_reach_all(&[&one, &outage]);
        outage.del();
        let late = hosts[1].pod("late", &both);
        all_reach_all(&[&two, &late]);
        server.start();
        server.wait();
        wait_until("the new pod in the store", || {
            pod_allocations(&server).iter().filter(|(_, handle, _)| handle == "net.c-late").count()
                == 2
        });
        for stream in streams {
            let (sent, answered) = stream.end();
            assert_eq!(sent, answered, "packets were lost");
        }
        for pod in [one, two, late] {
            pod.del();
        }
        wait_until("the release of all addresses", || pod_allocations(&server).is_empty());
        assert_eq!(hosts[0].journal(), [""; 0]);
        assert_eq!(hosts[0].host_ends(), [""; 0]);
        // The tunnels keep theirs.
        assert_eq!(allocations(&server).len(), 4);
    });
}

#[test]
fn routed_pods_with_ipv6_only_reach_each_other() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("curl"));
        let wire = Wire::new();
        let flags = ["--store-file", STORE, "--pool-cidr", "fd00:6::/64"];
        let hosts = [1, 2].map(|number| Host::start(wire.node(number, false, true), &flags));
        let conf = calico(false, true);
        let pods = [hosts[0].pod("one", &conf), hosts[1].pod("two", &conf)];
        assert_eq!(pods[0].addresses().len(), 1);
        let v4 = pods[0].ns.ip(&["-4", "address", "show", "dev", "eth0"]);
        assert_eq!(v4.trim(), "");
        all_reach_all(&[&pods[0], &pods[1]]);
        pods[0].call("CHECK").unwrap();
    });
}

#[test]
fn routed_pods_get_what_the_runtime_requests() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("curl"), Program("socat"));
        run("mount", &["-t", "tmpfs", "tmpfs", "/var/lib"]);
        let wire = Wire::new();
        let node = wire.node(1, true, true);
        let flags = [&["--store-file", STORE, "--calico-dir", "/var/lib/calico"][..], &VXLAN];
        let host = Host::start(node, &flags.concat());
        let other = Host::start(wire.node(2, true, true), &["--store-file", STORE]);
        std::fs::create_dir_all(host.node.dir().join("calico")).unwrap();
        std::fs::write(host.node.dir().join("calico/nodename"), "node-1").unwrap();
        let plain = other.pod("plain", &calico(true, true));

        let annotations = json!({
            "cni.projectcalico.org/ipAddrs": "[\"10.6.77.7\", \"fd00:6::7:7\"]",
            "cni.projectcalico.org/hwAddr": "02:00:00:00:77:07",
            "cni.projectcalico.org/allowedSourcePrefixes": "[\"192.0.2.0/24\"]"});
        let runtime = json!({"io.kubernetes.cri.pod-annotations": annotations,
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000,
                "egressRate": 8_000_000, "egressBurst": 800_000}});
        let conf = with(calico(true, true), &json!({"runtimeConfig": runtime}));
        let pod = host.pod("asked", &conf);
        let expected: [IpAddr; 2] = ["10.6.77.7".parse().unwrap(), "fd00:6::7:7".parse().unwrap()];
        assert_eq!(pod.addresses(), expected);
        let link = &pod.ns.ip_json(&["link", "show", "eth0"])[0];
        assert_eq!(link["address"], "02:00:00:00:77:07");
        // The plugin reads the MTU from the agent's file.
        assert_eq!(link["mtu"], 1430);
        all_reach_all(&[&pod, &plain]);
        // A second requester of the address is told who has it.
        let second = RoutedPod::new(&host, "second", &conf);
        let why = second.call("ADD").unwrap_err();
        assert!(why.contains("10.6.77.7") && why.contains("default/asked"), "{why}");
        assert_eq!(host.journal(), ["net.c-asked:eth0"]);

        // Another source address: the other pod needs a route for the answer.
        pod.ns.ip(&["address", "add", "192.0.2.9/32", "dev", "eth0"]);
        let ends = host.host_ends();
        host.node.ns.ip(&["route", "add", "192.0.2.9", "dev", &ends[0]]);
        assert!(testkit::answers(&host.node.ns, "192.0.2.9".parse().unwrap()));
        let filter = host.node.sh(&format!("cat /proc/sys/net/ipv4/conf/{}/rp_filter", ends[0]));
        assert_eq!(filter.trim(), "0");

        // The host port, from outside, and the limits.
        let _server =
            pod.ns.start("socat", &["TCP4-LISTEN:80,reuseaddr,fork", "SYSTEM:echo hello"]);
        wait_until("an answer through the host port", || {
            let connect = ["-u", "TCP4:192.168.90.1:8080,connect-timeout=2", "-"];
            Ns::here().try_exec("socat", &connect).is_ok_and(|text| text.contains("hello"))
        });
        let limits = host.node.sh(&format!("tc qdisc show dev {} root", ends[0]));
        assert!(limits.contains("tbf"), "{limits}");
        pod.call("CHECK").unwrap();

        // A second interface of another plugin has addresses of its own.
        let ptp = json!({"cniVersion": "1.1.0", "name": "net", "type": "ptp",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true"}});
        let mut extra = RoutedPod::new(&host, "extra", &ptp);
        (extra.container, extra.netns) = (pod.container.clone(), pod.netns.clone());
        extra.ifname = "eth1";
        extra.add();
        assert_eq!(host.journal(), ["net.c-asked:eth0", "net.c-asked:eth1"]);
        assert!(!expected.contains(&extra.addresses()[0]));
        pod.del();
        assert_eq!(host.journal(), ["net.c-asked:eth1"]);
        extra.del();
        assert_eq!(host.journal(), [""; 0]);
        assert_eq!(host.host_ends(), [""; 0]);
    });
}
