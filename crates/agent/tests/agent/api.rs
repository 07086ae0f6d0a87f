// SPDX-License-Identifier: Apache-2.0
//! The pages for probes, Prometheus and commands, read with curl and with Prometheus' parser.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent::api::{Error, Socket, socket_path};
use agent::dataplane::routes::Reconciler;
use agent::multicast::Counters;
use agent::status::{ConditionKind, RejectedPeerStatus, RepairKind};
use serde_json::Value;
use testkit::{in_netns, require, run};

use crate::api_server::{PORT, Served, curl, network, peer, url};
use crate::reconcile::node::{make_eth0, options};

const TEXT: &str = "text/plain; charset=utf-8";

#[test]
fn probes_get_the_reasons() {
    in_netns(|| {
        require!(Program("curl"));
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        let hub = &served.hub;
        let healthy = (200, TEXT.to_owned(), "healthy\n".to_owned());
        assert_eq!(curl(&[&url("/healthz")]), healthy);
        hub.set_problem(ConditionKind::Underlay, "no interface\nhas an address");
        let (code, _, body) = curl(&[&url("/readyz")]);
        assert_eq!(
            (code, body.as_str()),
            (
                503,
                "this node is not part of the network yet\nunderlay: no interface has an address\n"
            )
        );
        hub.clear_problem(ConditionKind::Underlay);
        hub.set_network(Some(network()));
        hub.set_problem(ConditionKind::Store, "connection refused");
        let (code, _, body) = curl(&[&url("/readyz")]);
        assert_eq!((code, body.as_str()), (200, "ready\nwarning: store: connection refused\n"));
        hub.set_lease_left(Some(Duration::ZERO));
        let (code, _, body) = curl(&[&url("/readyz")]);
        assert_eq!(code, 503);
        assert!(body.starts_with("the lease has expired"), "{body}");
        assert_eq!(curl(&[&url("/healthz")]).0, 200, "a restart would not help");
    });
}

#[test]
fn unknown_requests_get_the_index() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let _served = Served::start(dir.path());
        let (code, _, body) = curl(&[&url("/nothing")]);
        assert!(code == 404 && body.contains("/readyz"), "{code} {body}");
        assert_eq!(curl(&[&url("/")]).0, 200);
        let (code, _, body) = curl(&["-d", "x", &url("/status")]);
        assert_eq!((code, body.as_str()), (405, "POST is not allowed, use GET or HEAD\n"));
        let (code, _, head) = curl(&["-I", &url("/status")]);
        assert!(code == 200 && head.contains("application/json"), "{head}");
        assert_eq!(curl(&["-0", &url("/readyz?verbose=1")]).0, 503, "HTTP/1.0, and a query");
        let twice = ["-sS", "-o", "/dev/null", "-w", "%{num_connects} "];
        let (first, second) = (url("/"), url("/healthz"));
        let both = run("curl", &[&twice[..], &[&first, "-o", "/dev/null", &second]].concat());
        assert_eq!(both, "1 0 ", "connection reused");
    });
}

#[test]
fn status_of_a_thousand_peers_is_complete_on_socket() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        served.hub.set_network(Some(network()));
        served.hub.set_peers((0..1000).map(peer).collect());
        let socket = socket_path(dir.path());
        let socket = ["--unix-socket", socket.to_str().unwrap()];
        let (code, kind, status) = curl(&[&socket[..], &["http://agent/status"]].concat());
        assert_eq!((code, kind.as_str()), (200, "application/json"));
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["peers"].as_array().unwrap().len(), 1000);
        assert_eq!(status["peerCounts"]["direct"], 500);
        assert_eq!(status["ready"], true);
        let (_, _, peers) = curl(&[&socket[..], &["http://agent/peers"]].concat());
        assert_eq!(serde_json::from_str::<Value>(&peers).unwrap(), status["peers"]);
        let over_tcp: Value = serde_json::from_str(&curl(&[&url("/status")]).2).unwrap();
        assert_eq!(over_tcp, status);
    });
}

/// Families by name, with their samples, as Prometheus' own library reads them.
fn parsed(page: &str) -> BTreeMap<String, Value> {
    let script = "
import json, sys
from prometheus_client.parser import text_string_to_metric_families as families
print(json.dumps([
    [f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]]
    for f in families(open(sys.argv[1]).read())]))";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(page.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let families = testkit::json("/usr/bin/python3", &["-c", script, path]);
    let families = families.as_array().unwrap().iter();
    families.map(|family| (family[0].as_str().unwrap().to_owned(), family.clone())).collect()
}

#[test]
fn metrics_are_valid_and_documented() {
    in_netns(|| {
        require!(File("/usr/lib/python3/dist-packages/prometheus_client/parser.py"));
        require!(File("/dev/net/tun"));
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        let hub = &served.hub;
        let mut network = network();
        network.underlay.name = "we\\ird\"if".into();
        hub.set_network(Some(network));
        hub.set_lease_left(Some(Duration::from_secs(3600)));
        hub.set_watch(40, 42);
        hub.record_comparison(Duration::from_millis(12), 3);
        hub.set_peers((0..5).map(peer).collect());
        hub.record_repair(RepairKind::Route, "set route");
        let counts = Arc::new(Counters::default());
        counts.delivered.store(7, Ordering::Relaxed);
        hub.set_multicast(counts);
        make_eth0();
        let options = options();
        hub.set_udp(options.udp.clone());
        let mut reconciler = Reconciler::open(options).unwrap();
        reconciler.set_network(crate::reconcile::node::network(r#"{"Type": "udp"}"#, 2..3));
        hub.set_problem(ConditionKind::Store, "gone");
        let rejected = RejectedPeerStatus { peer: "x".into(), subnet: None, reason: "no".into() };
        hub.set_rejected(vec![rejected]);
        let (code, kind, page) = curl(&[&url("/metrics")]);
        assert_eq!((code, kind.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
        let families = parsed(&page);
        let sample = |family: &str, label: Option<(&str, &str)>| {
            let samples = families[family][3].as_array().unwrap().iter();
            let mut fitting =
                samples.filter(|sample| label.is_none_or(|(name, value)| sample[1][name] == value));
            fitting.next().unwrap()[2].as_f64().unwrap()
        };
        assert_eq!(sample("podwire_ready", None), 1.0);
        assert_eq!(sample("podwire_store_reachable", None), 0.0);
        assert_eq!(sample("podwire_problem", Some(("part", "store"))), 1.0);
        assert_eq!(sample("podwire_problem", Some(("part", "rules"))), 0.0);
        assert_eq!(sample("podwire_peers", Some(("way", "tunnel"))), 3.0);
        assert_eq!(sample("podwire_peers", Some(("way", "refused"))), 1.0);
        assert_eq!(sample("podwire_refused", None), 1.0);
        assert_eq!(sample("podwire_watch_behind", None), 2.0);
        assert_eq!(sample("podwire_repairs", Some(("kind", "route"))), 1.0);
        assert_eq!(
            sample("podwire_underlay_mtu_bytes", Some(("interface", "we\\ird\"if"))),
            1500.0
        );
        assert_eq!(sample("podwire_compare_duration_seconds", None), 0.012);
        assert_eq!(sample("podwire_multicast_packets", Some(("what", "delivered"))), 7.0);
        assert_eq!(sample("podwire_udp_packets", Some(("direction", "sent"))), 0.0);
        for family in families.values() {
            assert!(family[1] == "gauge" || family[1] == "counter", "{family}");
            assert!(!family[2].as_str().unwrap().is_empty(), "{family}");
        }
        let documented = include_str!("../../../../docs/health.md");
        let mut names: Vec<&str> = documented
            .lines()
            .filter_map(|line| line.strip_prefix("| `podwire_")?.split_once('`'))
            .map(|(name, _)| name.split('{').next().unwrap())
            .collect();
        names.sort_unstable();
        let there = page.lines().filter_map(|line| line.strip_prefix("# TYPE podwire_"));
        let mut there: Vec<&str> = there.map(|line| line.split_once(' ').unwrap().0).collect();
        there.sort_unstable();
        assert_eq!(there, names, "docs/health.md lists each metric once");
    });
}

#[test]
fn socket_replaces_only_a_stale_one() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("a/b");
        let path = socket_path(&run_dir);
        fs::create_dir_all(&run_dir).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale socket");
        let served = Served::start(&run_dir);
        let meta = fs::metadata(&path).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o7777, 0o660);
        let socket = ["--unix-socket", path.to_str().unwrap(), "http://agent/healthz"];
        assert_eq!(curl(&socket).0, 200);
        let second = Socket::create(&run_dir).unwrap_err();
        assert!(matches!(second, Error::Taken(_)), "{second}");
        assert_eq!(curl(&socket).0, 200, "the first agent keeps serving");
        drop(served);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        let refused = Socket::create(&run_dir).unwrap_err();
        let cause = std::error::Error::source(&refused).unwrap().to_string();
        assert!(cause.contains("not a socket"), "{cause}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    });
}

/// Connections that are open, as the tests hold them.
fn connect(count: usize, request: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        // The agent may have closed it already.
        let _ = stream.write_all(request.as_bytes());
        stream
    };
    (0..count).map(connect).collect()
}

/// A probe like kubelet's, with the timeout of the manifest.
#[track_caller]
fn probe() {
    assert_eq!(curl(&["-m", "5", &url("/healthz")]).0, 200);
    let other = ["-m", "5", "--interface", "127.0.0.9", &url("/healthz")];
    assert_eq!(curl(&other).0, 200, "other client");
}

#[test]
fn probes_are_answered_beside_slow_clients() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path());
        // A response that exceeds every socket buffer.
        served.hub.set_peers((0..20_000).map(peer).collect());
        let _idle = connect(64, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
        probe();
        let _silent = connect(64, "");
        probe();
        let _slow_writers = connect(300, "GET /healthz HTTP/1.1\r\nHost: ");
        probe();
        let _slow_readers = connect(100, "GET /peers HTTP/1.1\r\nHost: a\r\n\r\n");
        probe();
        let socket = socket_path(dir.path());
        let _silent: Vec<UnixStream> =
            (0..300).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        let on_socket = ["-m", "5", "--unix-socket", socket.to_str().unwrap(), "http://a/healthz"];
        assert_eq!(curl(&on_socket).0, 200);
    });
}

/// Clients that reconnect whenever their connection is closed.
#[test]
fn probes_are_answered_during_connection_floods() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let _served = Served::start(dir.path());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..100)
                .map(|_| {
                    scope.spawn(|| {
                        let mut connections = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            let stream = connect(1, "GET /healthz HTTP/1.1\r\nHost: ").remove(0);
                            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                            let _ = (&stream).read(&mut [0]);
                            connections += 1;
                        }
                        connections
                    })
                })
                .collect();
            (0..5).for_each(|_| probe());
            is_over.store(true, Ordering::Relaxed);
            let connections: usize = clients.into_iter().map(|one| one.join().unwrap()).sum();
            assert!(connections >= 100, "each client has connected");
        });
    });
}
