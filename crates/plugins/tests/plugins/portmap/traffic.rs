// SPDX-License-Identifier: Apache-2.0
//! Connections to mapped ports from every origin, with both backends of the Go plugin and of
//! podwire, and the client address that the container sees.

use serde_json::{Value, json};
use testkit::{Ns, in_netns, require};

use super::lab::{HOST4, HOST6, Lab, answer, port, portmap, seen_address, wait_for_seen_address};
use crate::conf::with;
use crate::world::Plugins;

/// Origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Client,
    Host,
    Neighbour,
    Itself,
}

use self::Origin::{Client, Host, Itself, Neighbour};

/// Origin, target, and the client address that the container should see; empty if the connection
/// should fail.
type Connection = (Origin, &'static str, &'static str);

/// Origin, target, and the client address that the container saw.
type Outcome = (Origin, &'static str, String);

const FROM_ANYWHERE: &[Connection] = &[
    (Client, "TCP4:192.0.2.1:8080", "192.0.2.9"),
    (Client, "TCP6:[fd00:2::1]:8080", "fd00:2::9"),
    (Client, "UDP4:192.0.2.1:5353", "192.0.2.9"),
    (Client, "TCP4:192.0.2.1:8081", ""),
    (Host, "TCP4:192.0.2.1:8080", "192.0.2.1"),
    (Host, "TCP4:10.1.0.1:8080", "10.1.0.1"),
    (Host, "TCP6:[fd00:2::1]:8080", "fd00:2::1"),
    (Host, "TCP4:127.0.0.1:8080", "10.1.0.1"),
    (Host, "UDP4:127.0.0.1:5353", "10.1.0.1"),
    (Host, "TCP6:[::1]:8080", ""),
    (Neighbour, "TCP4:192.0.2.1:8080", "10.1.0.1"),
    (Neighbour, "TCP4:10.1.0.1:8080", "10.1.0.1"),
    (Neighbour, "TCP6:[fd00:2::1]:8080", "fd00:1::1"),
    (Itself, "TCP4:192.0.2.1:8080", "10.1.0.1"),
    (Itself, "TCP6:[fd00:2::1]:8080", "fd00:1::1"),
];

fn namespace_of(lab: &Lab, place: Origin) -> &Ns {
    match place {
        Client => &lab.client,
        Host => &lab.world.host,
        Neighbour => lab.world.pod(2),
        Itself => lab.world.pod(1),
    }
}

/// Tries each connection. Retries only those that are expected to succeed.
fn try_all(lab: &Lab, expected: &[Outcome]) -> Vec<Outcome> {
    let go = |(place, target, seen): &Outcome| {
        let ask = if seen.is_empty() { seen_address } else { wait_for_seen_address };
        (*place, *target, ask(namespace_of(lab, *place), target))
    };
    expected.iter().map(go).collect()
}

#[track_caller]
fn assert_outcomes(lab: &Lab, expected: &[Outcome], words: &str) {
    assert_eq!(try_all(lab, expected), expected, "{words}\n{}", lab.ruleset());
}

fn outcome(
    connections: &[Connection],
    change: impl Fn(&Connection) -> &'static str,
) -> Vec<Outcome> {
    connections
        .iter()
        .map(|connection| (connection.0, connection.1, change(connection).to_owned()))
        .collect()
}

fn config(more: &Value) -> Value {
    with(portmap(&[port(8080, 80, "tcp"), port(5353, 53, "udp")]), more)
}

/// Checks all connections, with and without bridged frames passing through the IP rules.
#[track_caller]
fn check(lab: &Lab, config: &Value, expected: impl Fn(&Connection, bool) -> &'static str) {
    let call = lab.call(config, 1);
    call.add().ok();
    call.run("CHECK").ok();
    for bridge_calls_rules in [false, true] {
        lab.bridge_calls_rules(bridge_calls_rules);
        let wanted = outcome(FROM_ANYWHERE, |connection| expected(connection, bridge_calls_rules));
        assert_outcomes(lab, &wanted, &format!("bridge calls rules: {bridge_calls_rules}"));
    }
    call.run("DEL").ok();
    assert_outcomes(lab, &outcome(FROM_ANYWHERE, |_| ""), "after DEL");
}

fn ours() -> Lab {
    require!(Program("socat"), Program("nft"));
    Lab::new(&Plugins::ours())
}

/// With bridged frames passing through the rules, neighbours keep their own address.
fn neighbour_address(target: &str) -> &'static str {
    if target.starts_with("TCP6") { "fd00:1::3" } else { "10.1.0.3" }
}

#[test]
fn mapped_ports_are_reachable_from_anywhere() {
    in_netns(|| {
        check(&ours(), &config(&json!({})), |connection, bridge_calls_rules| match connection {
            (Neighbour, target, _) if bridge_calls_rules => neighbour_address(target),
            (.., seen) => seen,
        });
    });
}

#[test]
fn masq_all_masquerades_all_connections() {
    in_netns(|| {
        check(&ours(), &config(&json!({"masqAll": true})), |connection, _| match connection {
            (.., "") => "",
            (_, target, _) if target.starts_with("TCP6") => "fd00:1::1",
            _ => "10.1.0.1",
        });
    });
}

/// Without SNAT, replies to neighbours bypass the host, and replies to localhost are lost.
#[test]
fn port_without_snat_is_closed_to_neighbours() {
    in_netns(|| {
        check(&ours(), &config(&json!({"snat": false})), |connection, bridge_calls_rules| {
            match connection {
                (Neighbour, target, _) if bridge_calls_rules => neighbour_address(target),
                (Neighbour | Itself, ..) => "",
                (Host, target, _) if target.contains("127.0.0.1") => "",
                (.., seen) => seen,
            }
        });
    });
}

/// Verifies that the Go plugin meets the same expectations.
#[test]
fn go_mapped_ports_are_reachable_like_podwires() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let lab = Lab::new(&Plugins::go());
        let config = config(&json!({"backend": "nftables"}));
        check(&lab, &config, |connection, bridge_calls_rules| match connection {
            (Neighbour, target, _) if bridge_calls_rules => neighbour_address(target),
            // The Go plugin handles hairpin traffic of the container itself only.
            (Neighbour, ..) => "",
            (.., seen) => seen,
        });
    });
}

/// Both sets write the same rules, so the same connections succeed.
#[test]
fn portmap_iptables_ports_are_reachable_like_gos() {
    in_netns(|| {
        require!(Program("socat"), Program("iptables"));
        for plugins in [Plugins::go(), Plugins::ours()] {
            let lab = Lab::new(&plugins);
            check(&lab, &config(&json!({"backend": "iptables"})), |connection, _| connection.2);
        }
    });
}

#[test]
fn port_with_host_ip_is_closed_on_other_addresses() {
    in_netns(|| {
        let lab = ours();
        lab.world.on_host("addr add 192.0.2.2/24 dev eth0");
        let at = |ip: &str, to| with(port(8080, to, "tcp"), &json!({"hostIP": ip}));
        let connections: &[Connection] = &[
            (Client, "TCP4:192.0.2.1:8080", "192.0.2.9"),
            (Client, "TCP4:192.0.2.2:8080", ""),
            (Client, "TCP6:[fd00:2::1]:8080", ""),
            (Host, "TCP4:127.0.0.1:8080", ""),
            (Host, "TCP4:192.0.2.1:8080", "192.0.2.1"),
            (Neighbour, "TCP4:192.0.2.1:8080", "10.1.0.1"),
        ];
        lab.bridge_calls_rules(false);
        let call = lab.call(&portmap(&[at(HOST4, 80)]), 1);
        call.add().ok();
        assert_outcomes(&lab, &outcome(connections, |connection| connection.2), "");
        call.run("DEL").ok();

        let call = lab.call(&portmap(&[at(HOST6, 80), at("0.0.0.0", 80)]), 1);
        call.add().ok();
        let connections: &[Connection] = &[
            (Client, "TCP4:192.0.2.1:8080", "192.0.2.9"),
            (Client, "TCP4:192.0.2.2:8080", "192.0.2.9"),
            (Client, "TCP6:[fd00:2::1]:8080", "fd00:2::9"),
            (Host, "TCP4:127.0.0.1:8080", "10.1.0.1"),
            (Host, "TCP6:[fd00:1::1]:8080", ""),
        ];
        assert_outcomes(&lab, &outcome(connections, |connection| connection.2), "");
        call.run("DEL").ok();

        // Port 81 has no server.
        let call = lab.call(&portmap(&[port(8080, 80, "tcp"), at(HOST4, 81)]), 1);
        call.add().ok();
        let connections: &[Connection] =
            &[(Client, "TCP4:192.0.2.1:8080", ""), (Client, "TCP4:192.0.2.2:8080", "192.0.2.9")];
        assert_outcomes(
            &lab,
            &outcome(connections, |connection| connection.2),
            "a mapping with hostIP must take precedence",
        );
    });
}

/// `route_localnet` alone would expose localhost to all pods on the bridge.
#[test]
fn localhost_services_are_unreachable_from_pods() {
    in_netns(|| {
        let lab = ours();
        let call = lab.call(&config(&json!({})), 1);
        call.add().ok();
        let _server =
            answer(&lab.world.host, "TCP4-LISTEN:9000,bind=127.0.0.1,reuseaddr,fork", "192.0.2.7");
        let target = "TCP4:127.0.0.1:9000";
        assert_eq!(wait_for_seen_address(&lab.world.host, target), "192.0.2.7");
        let pod = lab.world.pod(2);
        pod.ip(&["route", "flush", "table", "local", "127.0.0.0/8"]);
        pod.ip(&["route", "add", "127.0.0.1", "via", "10.1.0.1"]);
        pod.exec("sysctl", &["-w", "net.ipv4.conf.eth0.route_localnet=1"]);
        assert_eq!(seen_address(pod, target), "");
        let rules = lab
            .world
            .host
            .exec("nft", &["-a", "list", "chain", "inet", "podwire", "portmap_prerouting"]);
        let guard = rules.lines().find(|line| line.contains("route_localnet")).expect("a rule");
        let (_, handle) = guard.rsplit_once(' ').expect("a handle");
        let place = ["delete", "rule", "inet", "podwire", "portmap_prerouting", "handle", handle];
        lab.world.host.exec("nft", &place);
        assert_eq!(
            wait_for_seen_address(pod, target),
            "192.0.2.7",
            "unreachable even without the rule"
        );
        call.run("CHECK").fails_with(999, "portmap_prerouting");
    });
}

/// A client that keeps sending from one port reaches each new container.
#[test]
fn udp_flow_follows_new_mapping() {
    in_netns(|| {
        let lab = ours();
        let second = answer(lab.world.pod(2), "UDP4-RECVFROM:53,fork", "192.0.2.77");
        assert_eq!(wait_for_seen_address(&lab.world.host, "UDP4:10.1.0.3:53"), "192.0.2.77");
        let steady = "UDP4:192.0.2.1:5353,sourceport=4000,reuseaddr";
        let config = config(&json!({}));
        let (one, two) = (lab.call(&config, 1), lab.call(&config, 2));
        assert_eq!(seen_address(&lab.client, steady), "", "port answers before ADD");
        one.add().ok();
        assert_eq!(wait_for_seen_address(&lab.client, steady), "192.0.2.9");
        one.run("DEL").ok();
        assert_eq!(seen_address(&lab.client, steady), "", "port answers after DEL");
        two.add().ok();
        assert_eq!(wait_for_seen_address(&lab.client, steady), "192.0.2.77");
        two.gc(&[]).ok();
        assert_eq!(seen_address(&lab.client, steady), "", "port answers after GC");
        drop(second);
    });
}
