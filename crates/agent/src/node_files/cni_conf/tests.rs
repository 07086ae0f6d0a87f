// SPDX-License-Identifier: Apache-2.0
//! The file exists while the node is ready, and foreign files stay untouched.

use std::fs;

use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::status::{ConditionKind, LeaseStatus, NetworkStatus, UnderlayStatus};

fn network() -> NetworkStatus {
    NetworkStatus {
        owner: "podwire".into(),
        networks: Vec::new(),
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: LeaseStatus { subnets: Vec::new(), public: Vec::new() },
        underlay: UnderlayStatus { name: "eth0".into(), addresses: Vec::new(), mtu: 1500 },
    }
}

fn conf(directory: &Path) -> CniConf {
    CniConf {
        path: directory.join("net.d/10-podwire.conflist"),
        text: text(Path::new(SUBNET_FILE), Path::new(RUN_DIR)),
    }
}

#[test]
fn file_is_withdrawn_after_a_while_without_readiness() {
    let ready = Readiness { keeps_cni_conf: true, ..Readiness::default() };
    let not_ready = Readiness::default();
    let start = Instant::now();
    let write = Action::Write { check_after: CHECK_INTERVAL };
    let withdraw = Action::Withdraw { check_after: CHECK_INTERVAL };
    let at = |seconds| start + Duration::from_secs(seconds);
    let grace = State::Grace { since: start };
    for (before, readiness, now, after, action) in [
        (State::Written, &ready, 0, State::Written, write),
        (State::Written, &not_ready, 0, grace, Action::Wait(WITHDRAW_DELAY)),
        (grace, &not_ready, 2, grace, Action::Wait(WITHDRAW_DELAY - Duration::from_secs(2))),
        (grace, &ready, 2, State::Written, write),
        (grace, &not_ready, 5, State::Withdrawn, withdraw),
        (grace, &not_ready, 99, State::Withdrawn, withdraw),
        (State::Withdrawn, &not_ready, 99, State::Withdrawn, withdraw),
        (State::Withdrawn, &ready, 99, State::Written, write),
    ] {
        assert_eq!(before.step(readiness, at(now)), (after, action), "{before:?} {now}");
    }
}

#[test]
fn expiry_of_the_lease_is_checked_in_time() {
    let check = |holds_for, expected| {
        let readiness = Readiness { keeps_cni_conf: true, holds_for, ..Readiness::default() };
        let (_, action) = State::Written.step(&readiness, Instant::now());
        assert_eq!(action, Action::Write { check_after: expected });
    };
    check(None, CHECK_INTERVAL);
    check(Some(Duration::from_secs(3)), Duration::from_secs(3));
    check(Some(CHECK_INTERVAL * 2), CHECK_INTERVAL);
}

/// Lets time pass on the paused clock, and the other tasks run.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    tokio::task::yield_now().await;
}

#[test]
fn configuration_names_only_unusual_paths() {
    let plugin = |subnet_file: &str, run_dir: &str| {
        let list: Value =
            serde_json::from_str(&text(Path::new(subnet_file), Path::new(run_dir))).unwrap();
        list["plugins"][0].clone()
    };
    let delegate = json!({"hairpinMode": true, "isDefaultGateway": true});
    assert_eq!(plugin(SUBNET_FILE, RUN_DIR), json!({"type": "flannel", "delegate": delegate}));
    assert_eq!(plugin(SUBNET_FILE, "/run/b")["agentSocket"], "/run/b/agent.sock");
    let other = plugin("/run/b/subnet.env", RUN_DIR);
    assert_eq!(other["subnetFile"], "/run/b/subnet.env");
    assert_eq!(other["agentSocket"], "/run/podwire/agent.sock");
}

#[test]
fn docs_show_the_configuration() {
    let documented = include_str!("../../../../../docs/health.md");
    let usual = text(Path::new(SUBNET_FILE), Path::new(RUN_DIR));
    assert!(documented.contains(&format!("```json\n{usual}```\n")), "{usual}");
}

#[test]
fn foreign_file_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let conf = conf(root.path());
    fs::create_dir(root.path().join("net.d")).unwrap();
    for foreign in ["{\"name\": \"cbr0\"}", "no JSON", "", "{\"managedBy\": \"me\"}", "[]"] {
        fs::write(&conf.path, foreign).unwrap();
        let error = conf.install().unwrap_err().to_string();
        assert!(error.contains("10-podwire.conflist was not written by podwire: move"), "{error}");
        assert!(!conf.withdraw().unwrap());
        assert_eq!(fs::read_to_string(&conf.path).unwrap(), foreign);
    }
    fs::remove_file(&conf.path).unwrap();
    assert!(conf.install().unwrap());
    assert!(!conf.install().unwrap());
    assert!(conf.withdraw().unwrap());
    assert!(!conf.withdraw().unwrap());
}

async fn run(conf: CniConf, hub: StatusHub) {
    let heartbeat = Heartbeat::unsupervised();
    conf.run(&hub, &heartbeat).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn file_exists_while_the_node_is_ready() {
    LocalSet::new()
        .run_until(async {
            let root = tempfile::tempdir().unwrap();
            let conf = conf(root.path());
            let hub = StatusHub::new("a", "etcd");
            let task = spawn_local(run(conf.clone(), hub.clone()));
            pass(Duration::from_secs(1)).await;
            assert!(!conf.path.exists());

            hub.set_network(Some(network()));
            pass(Duration::from_millis(1)).await;
            assert_eq!(fs::read_to_string(&conf.path).unwrap(), conf.text, "written at once");

            hub.set_problem(ConditionKind::Store, "gone");
            pass(Duration::from_secs(60)).await;
            assert!(conf.path.exists(), "the store is not needed to attach pods");

            hub.set_problem(ConditionKind::Kernel, "no");
            pass(Duration::from_secs(1)).await;
            hub.clear_problem(ConditionKind::Kernel);
            pass(Duration::from_millis(1)).await;
            hub.set_problem(ConditionKind::Rules, "no");
            pass(Duration::from_secs(4)).await;
            assert!(conf.path.exists(), "the delay started over");
            pass(Duration::from_secs(2)).await;
            assert!(!conf.path.exists());

            hub.clear_problem(ConditionKind::Rules);
            pass(Duration::from_millis(1)).await;
            assert!(conf.path.exists());
            fs::remove_file(&conf.path).unwrap();
            pass(Duration::from_secs(31)).await;
            assert!(conf.path.exists(), "restored");

            task.abort();
            let _ = task.await;
            assert!(conf.path.exists(), "the file stays for the next agent");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn foreign_file_is_a_warning_until_it_is_removed() {
    LocalSet::new()
        .run_until(async {
            let root = tempfile::tempdir().unwrap();
            let conf = conf(root.path());
            fs::create_dir(root.path().join("net.d")).unwrap();
            fs::write(&conf.path, "{}").unwrap();
            let hub = StatusHub::new("a", "etcd");
            hub.set_network(Some(network()));
            let _task = spawn_local(run(conf.clone(), hub.clone()));
            pass(Duration::from_millis(1)).await;
            let readiness = hub.readiness();
            assert!(readiness.is_ready);
            assert!(readiness.warnings[0].contains("was not written by podwire"), "{readiness:?}");
            fs::remove_file(&conf.path).unwrap();
            pass(Duration::from_secs(31)).await;
            assert_eq!(fs::read_to_string(&conf.path).unwrap(), conf.text);
            assert!(hub.readiness().warnings.is_empty());
        })
        .await;
}
