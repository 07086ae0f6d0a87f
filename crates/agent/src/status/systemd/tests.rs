// SPDX-License-Identifier: Apache-2.0
//! The messages that a service manager receives.

use std::os::unix::net::UnixDatagram;

use super::*;
use crate::status::{ConditionKind, LeaseStatus, NetworkStatus, UnderlayStatus};

fn network() -> NetworkStatus {
    NetworkStatus {
        owner: "podwire".into(),
        networks: Vec::new(),
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: LeaseStatus { subnets: vec!["10.5.1.0/24".parse().unwrap()], public: Vec::new() },
        underlay: UnderlayStatus { name: "eth0".into(), addresses: Vec::new(), mtu: 1500 },
    }
}

fn lines(manager: &UnixDatagram) -> Vec<String> {
    let mut buffer = [0; 4096];
    let length = manager.recv(&mut buffer).unwrap();
    let text = std::str::from_utf8(&buffer[..length]).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Lets time pass, and the other tasks run.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    tokio::task::yield_now().await;
}

#[tokio::test(start_paused = true)]
async fn manager_gets_ready_watchdog_and_stopping() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    let hub = StatusHub::new("a", "etcd");
    hub.set_problem(ConditionKind::Underlay, "no interface has an address\nyet");
    let interval = Duration::from_secs(20);
    let notifier = std::sync::Arc::new(Notifier::new(path.as_os_str(), Some(interval)).unwrap());
    let (sender, watched) = (notifier.clone(), hub.clone());
    let task = tokio::spawn(async move { sender.run(&watched).await });
    pass(Duration::from_millis(1)).await;
    let waiting = "STATUS=waiting for the network: underlay: no interface has an address yet";
    let longer = "EXTEND_TIMEOUT_USEC=60000000";
    assert_eq!(lines(&manager), [waiting, longer, "WATCHDOG=1"]);

    hub.clear_problem(ConditionKind::Underlay);
    hub.set_network(Some(network()));
    pass(Duration::from_millis(1)).await;
    let ready = "STATUS=ready: 10.5.1.0/24 over vxlan, 0 peers";
    assert_eq!(lines(&manager), [ready, "READY=1", "WATCHDOG=1"]);

    pass(Duration::from_secs(11)).await;
    assert_eq!(lines(&manager), [ready, "WATCHDOG=1"], "half of the interval has passed");
    hub.set_problem(ConditionKind::Rules, "broken\nREADY=0");
    pass(Duration::from_millis(1)).await;
    assert_eq!(lines(&manager), ["STATUS=rules: broken READY=0", "WATCHDOG=1"]);

    task.abort();
    notifier.stopping();
    assert_eq!(lines(&manager), ["STOPPING=1", "STATUS=stopping"]);
}

#[test]
fn abstract_address_works_and_others_are_rejected() {
    let name = format!("podwire-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    manager.set_nonblocking(true).unwrap();
    let notifier = Notifier::new(format!("@{name}").as_ref(), None).unwrap();
    notifier.stopping();
    assert_eq!(lines(&manager)[0], "STOPPING=1");
    let error = Notifier::new("vsock:2:1".as_ref(), None).unwrap_err();
    assert!(error.to_string().contains("expected a path or @name"), "{error}");
    drop(manager);
    notifier.stopping();
}

#[test]
fn watchdog_of_another_process_is_ignored() {
    let second = Some(Duration::from_secs(1));
    assert_eq!(watchdog(Some("1000000"), None, 7), second);
    assert_eq!(watchdog(Some("1000000"), Some("7"), 7), second);
    assert_eq!(watchdog(Some("1000000"), Some("8"), 7), None);
    for usec in ["0", "", "x"] {
        assert_eq!(watchdog(Some(usec), None, 7), None);
    }
    assert_eq!(watchdog(None, None, 7), None);
}
