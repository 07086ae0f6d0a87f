// SPDX-License-Identifier: Apache-2.0
//! Connections to mapped ports from everywhere, through the Go plugin's two ways and ours, and the
//! address that the container sees.

use serde_json::{Value, json};
use testkit::{Ns, in_netns, require};

use super::lab::{HOST4, HOST6, Lab, answer, port, portmap, seen_by, told_by};
use crate::conf::with;
use crate::world::Plugins;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Client,
    Host,
    Neighbour,
    Itself,
}

use self::Origin::{Client, Host, Itself, Neighbour};

/// A connection, and the address that the container should see; empty where none should come about.
type Way = (Origin, &'static str, &'static str);

/// A connection, and the address that the container saw.
type Outcome = (Origin, &'static str, String);

const EVERYWHERE: &[Way] = &[
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

fn place_of(lab: &Lab, place: Origin) -> &Ns {
    match place {
        Client => &lab.client,
        Host => &lab.world.host,
        Neighbour => lab.world.pod(2),
        Itself => lab.world.pod(1),
    }
}

/// What each way came to, where this is expected of it.
fn try_all(lab: &Lab, expected: &[Outcome]) -> Vec<Outcome> {
    let go = |(place, target, seen): &Outcome| {
        let ask = if seen.is_empty() { seen_by } else { told_by };
        (*place, *target, ask(place_of(lab, *place), target))
    };
    expected.iter().map(go).collect()
}

#[track_caller]
fn come_to(lab: &Lab, expected: &[Outcome], words: &str) {
    assert_eq!(try_all(lab, expected), expected, "{words}\n{}", lab.ruleset());
}

fn outcome(ways: &[Way], change: impl Fn(&Way) -> &'static str) -> Vec<Outcome> {
    ways.iter().map(|way| (way.0, way.1, change(way).to_owned())).collect()
}

fn config(more: &Value) -> Value {
    with(portmap(&[port(8080, 80, "tcp"), port(5353, 53, "udp")]), more)
}

/// All ways, with and without the bridge's frames passing the rules.
#[track_caller]
fn check(lab: &Lab, config: &Value, expected: impl Fn(&Way, bool) -> &'static str) {
    let call = lab.call(config, 1);
    call.add().ok();
    call.run("CHECK").ok();
    for bridge_calls_rules in [false, true] {
        lab.bridge_calls_rules(bridge_calls_rules);
        let wanted = outcome(EVERYWHERE, |way| expected(way, bridge_calls_rules));
        come_to(lab, &wanted, &format!("bridge calls rules: {bridge_calls_rules}"));
    }
    call.run("DEL").ok();
    come_to(lab, &outcome(EVERYWHERE, |_| ""), "after DEL");
}

fn ours() -> Lab {
    require!(Program("socat"), Program("nft"));
    Lab::new(&Plugins::ours())
}

/// By the bridge itself neighbours are sent on with their own address.
fn own_address(target: &str) -> &'static str {
    if target.starts_with("TCP6") { "fd00:1::3" } else { "10.1.0.3" }
}

#[test]
fn mapped_ports_are_reached_from_everywhere() {
    in_netns(|| {
        check(&ours(), &config(&json!({})), |way, bridge_calls_rules| match way {
            (Neighbour, target, _) if bridge_calls_rules => own_address(target),
            (.., seen) => seen,
        });
    });
}

#[test]
fn masq_all_shows_the_host_to_the_container() {
    in_netns(|| {
        check(&ours(), &config(&json!({"masqAll": true})), |way, _| match way {
            (.., "") => "",
            (_, target, _) if target.starts_with("TCP6") => "fd00:1::1",
            _ => "10.1.0.1",
        });
    });
}

/// Answers to neighbours go past the host, those to localhost nowhere.
#[test]
fn without_snat_only_others_get_in() {
    in_netns(|| {
        check(&ours(), &config(&json!({"snat": false})), |way, bridge_calls_rules| match way {
            (Neighbour, target, _) if bridge_calls_rules => own_address(target),
            (Neighbour | Itself, ..) => "",
            (Host, target, _) if target.contains("127.0.0.1") => "",
            (.., seen) => seen,
        });
    });
}

/// The Go plugin, so that what we expect of ours is what users know.
#[test]
fn gos_ports_are_reached_as_ours() {
    in_netns(|| {
        require!(Program("socat"), Program("nft"));
        let lab = Lab::new(&Plugins::go());
        let config = config(&json!({"backend": "nftables"}));
        check(&lab, &config, |way, bridge_calls_rules| match way {
            (Neighbour, target, _) if bridge_calls_rules => own_address(target),
            // Only the container itself is thought of.
            (Neighbour, ..) => "",
            (.., seen) => seen,
        });
    });
}

/// The same rules, and so the same ways.
#[test]
fn ports_by_iptables_are_reached_as_gos() {
    in_netns(|| {
        require!(Program("socat"), Program("iptables"));
        for plugins in [Plugins::go(), Plugins::ours()] {
            let lab = Lab::new(&plugins);
            check(&lab, &config(&json!({"backend": "iptables"})), |way, _| way.2);
        }
    });
}

#[test]
fn a_port_of_one_address_is_not_on_others() {
    in_netns(|| {
        let lab = ours();
        lab.world.on_host("addr add 192.0.2.2/24 dev eth0");
        let at = |ip: &str, to| with(port(8080, to, "tcp"), &json!({"hostIP": ip}));
        let ways: &[Way] = &[
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
        come_to(&lab, &outcome(ways, |way| way.2), "");
        call.run("DEL").ok();

        let call = lab.call(&portmap(&[at(HOST6, 80), at("0.0.0.0", 80)]), 1);
        call.add().ok();
        let ways: &[Way] = &[
            (Client, "TCP4:192.0.2.1:8080", "192.0.2.9"),
            (Client, "TCP4:192.0.2.2:8080", "192.0.2.9"),
            (Client, "TCP6:[fd00:2::1]:8080", "fd00:2::9"),
            (Host, "TCP4:127.0.0.1:8080", "10.1.0.1"),
            (Host, "TCP6:[fd00:1::1]:8080", ""),
        ];
        come_to(&lab, &outcome(ways, |way| way.2), "");
        call.run("DEL").ok();

        // Nobody listens on port 81.
        let call = lab.call(&portmap(&[port(8080, 80, "tcp"), at(HOST4, 81)]), 1);
        call.add().ok();
        let ways: &[Way] =
            &[(Client, "TCP4:192.0.2.1:8080", ""), (Client, "TCP4:192.0.2.2:8080", "192.0.2.9")];
        come_to(&lab, &outcome(ways, |way| way.2), "one address goes before all");
    });
}

/// `route_localnet` alone would let everybody on the bridge in.
#[test]
fn services_on_localhost_stay_closed_to_pods() {
    in_netns(|| {
        let lab = ours();
        let call = lab.call(&config(&json!({})), 1);
        call.add().ok();
        let _server =
            answer(&lab.world.host, "TCP4-LISTEN:9000,bind=127.0.0.1,reuseaddr,fork", "192.0.2.7");
        let target = "TCP4:127.0.0.1:9000";
        assert_eq!(told_by(&lab.world.host, target), "192.0.2.7");
        let pod = lab.world.pod(2);
        pod.ip(&["route", "flush", "table", "local", "127.0.0.0/8"]);
        pod.ip(&["route", "add", "127.0.0.1", "via", "10.1.0.1"]);
        pod.exec("sysctl", &["-w", "net.ipv4.conf.eth0.route_localnet=1"]);
        assert_eq!(seen_by(pod, target), "");
        let rules = lab
            .world
            .host
            .exec("nft", &["-a", "list", "chain", "inet", "podwire", "portmap_prerouting"]);
        let guard = rules.lines().find(|line| line.contains("route_localnet")).expect("a rule");
        let (_, handle) = guard.rsplit_once(' ').expect("a handle");
        let place = ["delete", "rule", "inet", "podwire", "portmap_prerouting", "handle", handle];
        lab.world.host.exec("nft", &place);
        assert_eq!(told_by(pod, target), "192.0.2.7", "without the rule it is open");
        call.run("CHECK").fails_with(999, "portmap_prerouting");
    });
}

/// A client that keeps sending from one port finds each container that comes.
#[test]
fn udp_finds_the_way_anew() {
    in_netns(|| {
        let lab = ours();
        let second = answer(lab.world.pod(2), "UDP4-RECVFROM:53,fork", "192.0.2.77");
        assert_eq!(told_by(&lab.world.host, "UDP4:10.1.0.3:53"), "192.0.2.77");
        let steady = "UDP4:192.0.2.1:5353,sourceport=4000,reuseaddr";
        let config = config(&json!({}));
        let (one, two) = (lab.call(&config, 1), lab.call(&config, 2));
        assert_eq!(seen_by(&lab.client, steady), "", "nobody is there yet");
        one.add().ok();
        assert_eq!(told_by(&lab.client, steady), "192.0.2.9");
        one.run("DEL").ok();
        assert_eq!(seen_by(&lab.client, steady), "", "nobody is there any more");
        two.add().ok();
        assert_eq!(told_by(&lab.client, steady), "192.0.2.77");
        two.gc(&[]).ok();
        assert_eq!(seen_by(&lab.client, steady), "", "nobody is left");
        drop(second);
    });
}
