// SPDX-License-Identifier: Apache-2.0
//! WireGuard links, verified with `wg`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, NewLink};
use kernel::route::{self, Route};
use kernel::wireguard::{DeviceChange, PeerChange, PresharedKey, PrivateKey, PublicKey, Wireguard};
use kernel::{Netlink, Netns};
use testkit::{Ns, in_netns};

use crate::{index_of, ip_json, name, net};

fn create_wg0(nl: &Netlink) {
    nl.apply([link::create(&NewLink::new(name("wg0"), Kind::Wireguard))]).unwrap();
}

/// Returns the fields of the lines of `wg show wg0 dump`: the link, then its peers sorted by key.
/// The addresses of a peer are sorted too.
fn dump() -> Vec<Vec<String>> {
    let text = testkit::run("wg", &["show", "wg0", "dump"]);
    let fields = |line: &str| line.split('\t').map(sorted).collect();
    let mut lines: Vec<Vec<String>> = text.lines().map(fields).collect();
    lines[1..].sort();
    lines
}

fn sorted(list: &str) -> String {
    let mut words: Vec<_> = list.split(',').collect();
    words.sort_unstable();
    words.join(",")
}

#[test]
fn vm_missing_wireguard_is_reported() {
    in_netns(|| {
        let is_supported = link::is_supported(&Netlink::open().unwrap(), "wireguard").unwrap();
        assert!(!testkit::run("ip", &["link"]).contains("probe"), "the probe leaves no link");
        match Wireguard::open() {
            Ok(wg) => assert!(is_supported && wg.get(name("none")).unwrap().is_none()),
            Err(error) => assert!(!is_supported && error.is_unsupported(), "{error}"),
        }
    });
}

const A: PublicKey = PublicKey([1; 32]);
const B: PublicKey = PublicKey([2; 32]);

fn two_peers(shared: &PresharedKey) -> [PeerChange; 2] {
    let four = PeerChange {
        preshared_key: Some(shared.clone()),
        endpoint: Some("192.0.2.7:51821".parse().unwrap()),
        keepalive: Some(25),
        ..PeerChange::new(A, vec![net("10.1.2.0/24"), net("fd00:1::/64")])
    };
    let six = PeerChange {
        endpoint: Some("[2001:db8::7]:51820".parse().unwrap()),
        ..PeerChange::new(B, vec![net("10.1.3.0/24")])
    };
    [four, six]
}

#[test]
fn vm_wireguard_is_set_and_read() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        create_wg0(&Netlink::open().unwrap());
        assert_eq!(ip_json(&Ns::here(), "link show wg0")["linkinfo"]["info_kind"], "wireguard");
        let wg = Wireguard::open().unwrap();
        let bare = wg.get(name("wg0")).unwrap().unwrap();
        assert_eq!((bare.private_key, bare.public_key, bare.peers.len()), (None, None, 0));

        let (private, shared) = (PrivateKey::random().unwrap(), PresharedKey::random().unwrap());
        let change = DeviceChange {
            private_key: Some(&private),
            listen_port: Some(51820),
            fwmark: Some(0x77),
            replace_peers: true,
            peers: &two_peers(&shared),
        };
        wg.set(name("wg0"), &change).unwrap();
        let script = format!("echo {} | wg pubkey", private.to_base64());
        let public = testkit::run("sh", &["-c", &script]).trim().to_owned();
        let (a, b, secret) = (A.to_string(), B.to_string(), shared.to_base64());
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let expected = [
            words(&format!("{} {public} 51820 0x77", private.to_base64())),
            words(&format!("{a} {secret} 192.0.2.7:51821 10.1.2.0/24,fd00:1::/64 0 0 0 25")),
            words(&format!("{b} (none) [2001:db8::7]:51820 10.1.3.0/24 0 0 0 off")),
        ];
        assert_eq!(dump(), expected);

        let observed = wg.get(bare.index).unwrap().unwrap();
        assert_eq!(observed.public_key.unwrap().to_string(), public);
        assert_eq!(observed.private_key.as_ref(), Some(&private));
        assert_eq!(
            (observed.listen_port, observed.fwmark, observed.name),
            (51820, 0x77, name("wg0"))
        );
        let peer = observed.peers.iter().find(|peer| peer.public_key == A).unwrap();
        assert_eq!(peer.preshared_key.as_ref(), Some(&shared));
        assert_eq!(peer.endpoint, Some("192.0.2.7:51821".parse().unwrap()));
        assert_eq!((peer.keepalive, peer.last_handshake), (25, None));
        assert_eq!(peer.allowed_ips.len(), 2);
    });
}

#[test]
fn vm_single_wireguard_peers_are_changed() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        create_wg0(&Netlink::open().unwrap());
        let wg = Wireguard::open().unwrap();
        let set = |peers: &[PeerChange]| {
            wg.set(name("wg0"), &DeviceChange { peers, ..DeviceChange::default() }).unwrap();
            wg.get(name("wg0")).unwrap().unwrap()
        };
        let port = DeviceChange { listen_port: Some(51820), ..DeviceChange::default() };
        wg.set(name("wg0"), &port).unwrap();
        set(&two_peers(&PresharedKey([5; 32])));
        let moved = PeerChange {
            endpoint: Some("198.51.100.1:1".parse().unwrap()),
            replace_allowed_ips: false,
            update_only: true,
            ..PeerChange::new(A, vec![net("10.9.0.0/16")])
        };
        let unknown = PublicKey([9; 32]);
        let ghost = PeerChange { public_key: unknown, ..moved.clone() };
        let observed = set(&[moved, ghost, PeerChange::remove(B), PeerChange::remove(unknown)]);
        assert_eq!((observed.peers.len(), observed.listen_port), (1, 51820));
        assert_eq!(observed.peers[0].keepalive, 25, "values that are not given stay");
        let shown = dump();
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[1][2..4], ["198.51.100.1:1", "10.1.2.0/24,10.9.0.0/16,fd00:1::/64"]);

        let bare = PeerChange::new(A, Vec::new());
        let observed = set(&[PeerChange { preshared_key: Some(PresharedKey([0; 32])), ..bare }]);
        assert_eq!(observed.peers[0].preshared_key, None);
        assert_eq!(dump()[1][3], "(none)", "all addresses were removed");
        let empty = DeviceChange { replace_peers: true, ..DeviceChange::default() };
        wg.set(name("wg0"), &empty).unwrap();
        assert_eq!(dump().len(), 1);
        assert!(wg.set(name("none"), &empty).unwrap_err().is_not_found());
        assert!(wg.set(name("lo"), &empty).unwrap_err().is_unsupported());
    });
}

#[test]
fn vm_many_wireguard_peers_and_addresses_round_trip() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let nl = Netlink::open().unwrap();
        create_wg0(&nl);
        let wg = Wireguard::open().unwrap();
        let one = |ip: u32| IpNet::new(Ipv4Addr::from_bits(ip).into(), 32).unwrap();
        let mut peers: Vec<_> = (1..1000_u32)
            .map(|n| {
                let mut key = [7; 32];
                key[..4].copy_from_slice(&n.to_be_bytes());
                let endpoint = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 51820);
                let nets = vec![one(0x0a00_0000 + n), one(0x0b00_0000 + n)];
                PeerChange { endpoint: Some(endpoint), ..PeerChange::new(PublicKey(key), nets) }
            })
            .collect();
        peers.insert(
            500,
            PeerChange::new(PublicKey([8; 32]), (0..3000).map(|n| one(0x0c00_0000 + n)).collect()),
        );
        wg.set(name("wg0"), &DeviceChange { peers: &peers, ..DeviceChange::default() }).unwrap();
        assert_eq!(testkit::run("wg", &["show", "wg0", "peers"]).lines().count(), 1000);
        let shown = testkit::run("wg", &["show", "wg0", "allowed-ips"]);
        let longest = shown.lines().map(|line| line.split_whitespace().count() - 1).max();
        assert_eq!(longest, Some(3000));

        let mut observed = wg.get(name("wg0")).unwrap().unwrap().peers;
        observed.sort_by_key(|peer| peer.public_key);
        peers.sort_by_key(|peer| peer.public_key);
        assert_eq!(observed.len(), peers.len());
        for (observed, expected) in observed.iter_mut().zip(&mut peers) {
            observed.allowed_ips.sort();
            expected.allowed_ips.sort();
            assert_eq!(
                (observed.public_key, observed.endpoint),
                (expected.public_key, expected.endpoint)
            );
            assert_eq!(observed.allowed_ips, expected.allowed_ips);
        }
    });
}

/// Configures a node with the tunnel address 10.5.`n`.1 and the underlay address 192.0.2.`n`, and
/// returns its public key.
fn node(ns: &Ns, n: u8) -> (Wireguard, PublicKey) {
    ns.ip(&["addr", "add", &format!("192.0.2.{n}/24"), "dev", "under"]);
    let inside = Netns::open(ns.path()).unwrap();
    let nl = inside.netlink().unwrap();
    create_wg0(&nl);
    let wg0 = index_of(&nl, "wg0");
    nl.apply([
        addr::add(wg0, IpNet::new([10, 5, n, 1].into(), 32).unwrap(), AddrOptions::default()),
        link::set_up(wg0),
        route::replace(&Route::new(net("10.5.0.0/16")).dev(wg0)),
    ])
    .unwrap();
    let wg = inside.enter(Wireguard::open).unwrap().unwrap();
    let key = PrivateKey::random().unwrap();
    let change = DeviceChange {
        private_key: Some(&key),
        listen_port: Some(51820),
        ..DeviceChange::default()
    };
    wg.set(wg0, &change).unwrap();
    let public = wg.get(wg0).unwrap().unwrap().public_key.unwrap();
    (wg, public)
}

#[test]
fn vm_wireguard_nodes_exchange_packets() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let (a, b) = (Ns::new("a"), Ns::new("b"));
        a.connect("under", &b, "under");
        let (of_a, key_a) = node(&a, 1);
        let (of_b, key_b) = node(&b, 2);
        let peer = |key, n: u8| PeerChange {
            endpoint: Some(SocketAddr::new([192, 0, 2, n].into(), 51820)),
            ..PeerChange::new(key, vec![IpNet::new([10, 5, n, 0].into(), 24).unwrap()])
        };
        let set = |wg: &Wireguard, peers: &[PeerChange]| {
            wg.set(name("wg0"), &DeviceChange { peers, ..DeviceChange::default() }).unwrap();
        };
        set(&of_a, &[peer(key_b, 2)]);
        set(&of_b, &[peer(key_a, 1)]);
        testkit::ping(&a, IpAddr::from([10, 5, 2, 1]));
        let seen = of_a.get(name("wg0")).unwrap().unwrap().peers.remove(0);
        assert!(
            seen.last_handshake.is_some() && seen.rx_bytes > 0 && seen.tx_bytes > 0,
            "{seen:?}"
        );
    });
}
