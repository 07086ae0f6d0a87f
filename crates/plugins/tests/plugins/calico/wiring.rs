// SPDX-License-Identifier: Apache-2.0
//! Interfaces, addresses, routes, neighbours and sysctls, and traffic through them.

use serde_json::json;
use testkit::{Ns, answers, in_netns};

use super::{NAMES, address, calico, host_ends, pod_call, sysctl};
use crate::conf::{dual, v6, with};
use crate::world::{Plugins, World};

const HOST_MAC: &str = "ee:ee:ee:ee:ee:ee";

/// Routes of a family as `destination via gateway`, without those of the kernel.
fn routes(ns: &Ns, family: &str, device: &str) -> Vec<String> {
    let found = ns.ip_json(&[family, "route", "show", "dev", device]);
    let routes = found.as_array().expect("ip prints a list").iter();
    let mut shown: Vec<String> = routes
        .filter(|route| route["protocol"] != "kernel")
        .map(|route| {
            let text = |key: &str| route[key].as_str().unwrap_or("-").to_owned();
            format!("{} via {} scope {}", text("dst"), text("gateway"), text("scope"))
        })
        .collect();
    shown.sort();
    shown
}

fn neighbours(ns: &Ns) -> Vec<String> {
    let found = ns.ip_json(&["neigh", "show", "nud", "permanent", "dev", "eth0"]);
    let neighbours = found.as_array().expect("ip prints a list").iter();
    let shown = neighbours.map(|one| format!("{} {}", one["dst"], one["lladdr"]).replace('"', ""));
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

fn addresses(ns: &Ns, device: &str) -> Vec<String> {
    let found = ns.ip_json(&["addr", "show", "dev", device, "scope", "global"]);
    let addresses = found[0]["addr_info"].as_array().cloned().unwrap_or_default();
    let found = addresses.iter().filter(|one| one["local"].is_string());
    found.map(|one| format!("{}/{}", one["local"], one["prefixlen"]).replace('"', "")).collect()
}

#[test]
fn calico_pod_has_calicos_wiring() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = calico(&json!({"ipam": dual()}));
        let result = pod_call(&world, &config, 1).add().result();
        let mac = world.pod(1).ip_json(&["link", "show", "eth0"])[0]["address"].clone();
        let expected = json!({"cniVersion": "1.1.0",
            "interfaces": [{"name": NAMES[0]},
                {"name": "eth0", "mac": mac, "sandbox": "/run/netns/pod1"}],
            "ips": [{"address": "10.1.0.2/32", "interface": 1},
                {"address": "fd00:1::2/128", "interface": 1}]});
        assert_eq!(result, expected);

        let host_end = world.host_link(NAMES[0]);
        assert_eq!(host_end["address"], HOST_MAC);
        assert_eq!(host_end["operstate"], "UP");
        assert_eq!(host_end["ifalias"], "podwire calico net c1 eth0");
        assert_eq!(routes(&world.host, "-4", NAMES[0]), ["10.1.0.2 via - scope link"]);
        assert_eq!(routes(&world.host, "-6", NAMES[0]), ["fd00:1::2 via - scope global"]);

        let pod = world.pod(1);
        assert_eq!(addresses(pod, "eth0"), ["10.1.0.2/32", "fd00:1::2/128"]);
        let v4 = ["169.254.1.1 via - scope link", "default via 169.254.1.1 scope global"];
        assert_eq!(routes(pod, "-4", "eth0"), v4);
        let link_local = "fe80::ecee:eeff:feee:eeee";
        assert_eq!(routes(pod, "-6", "eth0"), [format!("default via {link_local} scope global")]);
        let permanent = [format!("169.254.1.1 {HOST_MAC}"), format!("{link_local} {HOST_MAC}")];
        assert_eq!(neighbours(pod), permanent);
    });
}

#[test]
fn calico_sets_calicos_sysctls() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let check = |ns: &Ns, expected: &[(String, &str)]| {
            for (path, value) in expected {
                assert_eq!(sysctl(ns, path), *value, "{path}");
            }
        };
        let of_v4 = |name: &str| {
            [("forwarding", "1"), ("proxy_arp", "1"), ("route_localnet", "1")]
                .map(|(key, value)| (format!("ipv4/conf/{name}/{key}"), value))
                .into_iter()
                .chain([(format!("ipv4/neigh/{name}/proxy_delay"), "0")])
                .collect::<Vec<_>>()
        };
        let of_v6 = |name: &str| {
            let keys = [
                ("accept_dad", "0"),
                ("disable_ipv6", "0"),
                ("proxy_ndp", "1"),
                ("forwarding", "1"),
                ("accept_ra", "0"),
            ];
            keys.map(|(key, value)| (format!("ipv6/conf/{name}/{key}"), value)).to_vec()
        };
        for (pod, ipam) in [(1, super::v4()), (2, v6()), (3, dual())] {
            pod_call(&world, &calico(&json!({"ipam": ipam})), pod).add().ok();
        }
        check(&world.host, &of_v4(NAMES[0]));
        assert_eq!(sysctl(&world.host, &format!("ipv6/conf/{}/accept_ra", NAMES[0])), "0");
        check(&world.host, &of_v6(NAMES[1]));
        check(&world.host, &[of_v4(NAMES[2]), of_v6(NAMES[2])].concat());
        // The pod does not forward, although it inherits the host's setting.
        for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            assert_eq!(sysctl(&world.host, path), "1");
            assert_eq!(sysctl(world.pod(3), path), "0");
        }
    });
}

#[test]
fn calico_forwarding_is_on_if_configured() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let settings = json!({"allow_ip_forwarding": true});
        let config = calico(&json!({"ipam": dual(), "container_settings": settings}));
        pod_call(&world, &config, 1).add().ok();
        assert_eq!(sysctl(world.pod(1), "ipv4/ip_forward"), "1");
        assert_eq!(sysctl(world.pod(1), "ipv6/conf/all/forwarding"), "1");
    });
}

/// IPv6 is off in the pod, as some runtimes leave it.
#[test]
fn calico_enables_ipv6_in_the_pod() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        for name in ["all", "default", "lo"] {
            let path = format!("net.ipv6.conf.{name}.disable_ipv6=1");
            world.pod(1).exec("sysctl", &["-w", &path]);
        }
        let result = pod_call(&world, &calico(&json!({"ipam": v6()})), 1).add().result();
        assert_eq!(addresses(world.pod(1), "eth0"), ["fd00:1::2/128"], "{result}");
        assert!(answers(&world.host, "fd00:1::2".parse().unwrap()));
    });
}

/// One packet each, immediately after ADD: nothing waits for address resolution or detection.
#[test]
fn calico_pods_reach_each_other_without_default_route() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        check_traffic(&world);
    });
}

#[test]
fn calico_pods_reach_each_other_with_default_route() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let outside = Ns::new("outside");
        world.host.connect("uplink", &outside, "eth0");
        for (family, host, gateway) in
            [("-4", "192.0.2.2/24", "192.0.2.1"), ("-6", "2001:db8::2/64", "2001:db8::1")]
        {
            world.on_host(&format!("addr add {host} dev uplink nodad"));
            let (_, length) = host.split_once('/').unwrap();
            outside.ip(&["addr", "add", &format!("{gateway}/{length}"), "dev", "eth0", "nodad"]);
            world.on_host(&format!("{family} route add default via {gateway}"));
        }
        outside.ip(&["route", "add", "10.1.0.0/24", "via", "192.0.2.2"]);
        outside.ip(&["-6", "route", "add", "fd00:1::/64", "via", "2001:db8::2"]);
        check_traffic(&world);
        for gateway in ["192.0.2.1", "2001:db8::1"] {
            testkit::ping(world.pod(1), gateway.parse().unwrap());
        }
        // With a default route, proxy ARP answers too: pods of Calico rely on it.
        world.in_pod(1, "neigh del 169.254.1.1 dev eth0");
        assert!(answers(world.pod(1), "192.0.2.1".parse().unwrap()));
    });
}

fn check_traffic(world: &World) {
    world.on_host("addr add 198.51.100.1/32 dev lo");
    let config = calico(&json!({"ipam": dual()}));
    let results = [1, 2].map(|pod| pod_call(world, &config, pod).add().result());
    for at in 0..2 {
        let [first, second] = [&results[0], &results[1]].map(|result| address(result, at));
        assert!(answers(world.pod(1), second), "{second}");
        assert!(answers(world.pod(2), first), "{first}");
        assert!(answers(&world.host, first), "{first}");
    }
}

#[test]
fn calico_single_family_pods_have_only_their_family() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        pod_call(&world, &calico(&json!({})), 1).add().ok();
        pod_call(&world, &calico(&json!({"ipam": v6()})), 2).add().ok();
        assert_eq!(routes(world.pod(1), "-6", "eth0"), Vec::<String>::new());
        assert_eq!(routes(world.pod(2), "-4", "eth0"), Vec::<String>::new());
        assert_eq!(neighbours(world.pod(1)).len(), 1);
        assert_eq!(neighbours(world.pod(2)).len(), 1);
        world.on_host("addr add 198.51.100.1/32 dev lo");
        assert!(answers(&world.host, "10.1.0.2".parse().unwrap()));
        assert!(answers(&world.host, "fd00:1::2".parse().unwrap()));
    });
}

#[test]
fn calico_host_names_follow_pod_or_container() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let config = calico(&json!({}));
        let id = "0123456789abcdef";
        world.call(&config, 1).container(id).add().ok();
        assert_eq!(host_ends(&world), ["cali0123456789a"]);
        world.call(&config, 1).container(id).run("DEL").ok();
        let call = pod_call(&world, &config, 2);
        let other = call.env("FELIX_INTERFACEPREFIX", "tap,cali");
        other.add().ok();
        assert_eq!(host_ends(&world), [NAMES[1].replace("cali", "tap")]);
        other.run("DEL").ok();
        assert_eq!(host_ends(&world), Vec::<String>::new());
        let long = call.env("FELIX_INTERFACEPREFIX", "calico");
        long.add().fails_with(4, "FELIX_INTERFACEPREFIX");
        // The variable is for pods only, as in Calico.
        let plain = world.call(&config, 3).env("FELIX_INTERFACEPREFIX", "tap");
        plain.add().ok();
        assert_eq!(host_ends(&world), ["calic3"]);
    });
}

/// Results of old versions have another layout.
#[test]
fn calico_result_in_all_versions_has_address() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        for version in ["0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0"] {
            let config = with(calico(&json!({})), &json!({"cniVersion": version}));
            let call = pod_call(&world, &config, 1);
            let result = call.add().result();
            assert!(result.to_string().contains("/32"), "{version}: {result}");
            call.del(&result).ok();
            assert_eq!(host_ends(&world), Vec::<String>::new());
        }
    });
}
