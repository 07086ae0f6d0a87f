// SPDX-License-Identifier: Apache-2.0
//! `podwire status` and `podwire peers`, STATUS of the plugins with the agent's real server, and
//! completions.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use agent::api::{self, Socket, socket_path};
use agent::node_files::cni_conf::{self, CniConf};
use agent::node_files::subnet_env;
use agent::status::{
    ConditionKind, LeaseStatus, NetworkStatus, PathStatus, PeerStatus, RouteMode, StatusHub,
    UnderlayStatus,
};
use agent::supervisor::Heartbeat;
use overlay::subnet_env::SubnetEnv;
use tempfile::TempDir;
use testkit::{Ns, in_netns};
use tokio::sync::oneshot;

use super::program::{PODWIRE, fails, fails_json, ok, ok_json};

/// The server of an agent on its own thread; stopped when dropped.
struct Agent {
    hub: StatusHub,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    fn start(run_dir: &Path) -> Agent {
        let hub = StatusHub::new("blue", "embedded");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (shown, run_dir) = (hub.clone(), run_dir.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut socket = Socket::create(&run_dir).unwrap();
                let heartbeat = Heartbeat::unsupervised();
                ready.send(()).unwrap();
                tokio::select! {
                    () = api::over_socket(&mut socket, shown, None, &heartbeat) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Agent { hub, stop: Some(stop), thread: Some(thread) }
    }

    fn join_network(&self) {
        self.hub.set_network(Some(NetworkStatus {
            owner: "mark".into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            backend: "vxlan".into(),
            pod_mtu: 1450,
            lease: LeaseStatus {
                subnets: vec!["10.244.1.0/24".parse().unwrap()],
                public: vec![[192, 0, 2, 1].into()],
            },
            underlay: UnderlayStatus {
                name: "eth0".into(),
                addresses: vec![[192, 0, 2, 1].into()],
                mtu: 1500,
            },
        }));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn peer(number: u8, problem: Option<&str>) -> PeerStatus {
    PeerStatus {
        name: format!("node{number}"),
        subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        public: vec![[192, 0, 2, number].into()],
        backend: "vxlan".into(),
        route: RouteMode::Tunnel,
        path: PathStatus { problem: problem.map(str::to_owned), ..PathStatus::default() },
    }
}

#[test]
fn status_and_peers_print_the_agents_state() {
    in_netns(|| {
        let agent = Agent::start(Path::new("/run/podwire"));
        agent.hub.set_problem(ConditionKind::Lease, "all subnets are taken");
        let printed = fails(&["status"]);
        assert!(printed.contains("blue: not ready\n"), "{printed}");
        assert!(printed.contains("because lease: all subnets are taken\n"), "{printed}");
        assert_eq!(fails_json(&["status"])["problems"]["lease"]["text"], "all subnets are taken");

        agent.hub.clear_problem(ConditionKind::Lease);
        agent.join_network();
        agent.hub.set_peers(vec![peer(2, None), peer(3, Some("no answer"))]);
        let printed = ok(&["status"]);
        assert!(printed.starts_with("blue: ready\n"), "{printed}");
        for text in ["10.244.1.0/24", "node2", "no answer", "embedded", "eth0"] {
            assert!(printed.contains(text), "{printed}");
        }
        let status = ok_json(&["status"]);
        assert_eq!(status["session"]["podMtu"], 1450);
        assert_eq!(ok_json(&["peers"]), status["peers"]);
        let printed = ok(&["peers", "--problems"]);
        assert!(printed.contains("node3") && !printed.contains("node2"), "{printed}");
        assert_eq!(ok_json(&["peers", "--problems"]).as_array().unwrap().len(), 1);
    });
}

#[test]
fn missing_agent_error_has_a_hint() {
    in_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let flag = format!("--run-dir={}", dir.path().display());
        let check = |command: &str, words: &str| {
            let printed = fails(&[command, &flag]);
            assert!(printed.contains(words) && printed.contains("hint: "), "{printed}");
        };
        check("status", "error: no node agent is running: nothing listens on");
        let path = socket_path(dir.path());
        drop(UnixListener::bind(&path).unwrap());
        check("peers", "`podwire agent`, or pass its directory with --run-dir");
        fs::remove_file(&path).unwrap();
        let _silent = UnixListener::bind(&path).unwrap();
        check("status", "no answer within 5 s");
    });
}

/// The files that an agent writes on its node.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Node {
        let node = Node { dir: tempfile::tempdir().unwrap() };
        let text = cni_conf::text(&node.subnet_file(), &node.run_dir());
        CniConf { path: node.dir.path().join("net.d/10-podwire.conflist"), text }
            .install()
            .unwrap();
        node
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn subnet_file(&self) -> PathBuf {
        self.dir.path().join("flannel/subnet.env")
    }

    fn write_subnet_file(&self) {
        let env = SubnetEnv {
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            mtu: 1450,
            ip_masq: true,
        };
        subnet_env::write(&self.subnet_file(), &env).unwrap();
    }

    fn flag(&self) -> String {
        format!("--conf-dir={}", self.dir.path().join("net.d").display())
    }
}

#[test]
fn plugin_status_depends_on_the_agent() {
    in_netns(|| {
        let node = Node::new();
        let agent = Agent::start(&node.run_dir());
        let status = ["net", "status", "cbr0", &node.flag()];
        agent.hub.set_problem(ConditionKind::Underlay, "no interface has an address");
        let error = fails_json(&status);
        assert_eq!(error["code"], 50);
        let message =
            "flannel: the node agent is not ready: this node is not part of the network yet";
        assert!(error["msg"].as_str().unwrap().ends_with(message), "{error}");
        let details = error["details"].as_str().unwrap();
        assert!(details.starts_with("underlay: no interface has an address"), "{error}");

        let pod = Ns::new("pod");
        let add = ["net", "add", "cbr0", "pod", &node.flag()];
        let error = fails_json(&add);
        assert_eq!(error["code"], 11, "{error}");
        assert!(error["details"].as_str().unwrap().contains("no interface has"), "{error}");

        agent.hub.clear_problem(ConditionKind::Underlay);
        agent.join_network();
        node.write_subnet_file();
        ok(&status);
        ok(&add);
        let address = pod.ip_json(&["-4", "addr", "show", "eth0"])[0]["addr_info"][0].clone();
        assert_eq!(address["local"], "10.244.1.2");
        ok(&["net", "check", "cbr0", "pod", &node.flag()]);
        ok(&["net", "del", "cbr0", "pod", &node.flag()]);

        agent.hub.set_problem(ConditionKind::Rules, "no permission");
        assert!(fails(&status).contains("the node agent is not ready: rules: no permission"));
        drop(agent);
        ok(&status);
        drop(UnixListener::bind(socket_path(&node.run_dir())).unwrap());
        ok(&status);
        fs::remove_file(socket_path(&node.run_dir())).unwrap();
        let _silent = UnixListener::bind(socket_path(&node.run_dir())).unwrap();
        assert!(fails(&status).contains("no answer within 5 s"), "an agent that hangs");
    });
}

#[test]
fn agent_and_cleanup_report_usage_errors() {
    for args in [&["agent", "--bogus"][..], &["cleanup", "bogus"], &["cleanup", "-o", "yaml"]] {
        let why = testkit::try_run(PODWIRE, args).unwrap_err();
        assert!(why.contains("exit status: 2\n"), "{why}");
    }
    for command in ["agent", "cleanup"] {
        let help = ok(&[command, "--help"]);
        assert!(help.contains("\nExamples:\n") && help.contains(" --owner <NAME>"), "{help}");
    }
}

/// Completes the last word of a line with bash.
fn completed(line: &str) -> String {
    let script = "source /dev/stdin; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _podwire podwire \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo ${COMPREPLY[@]}";
    let sourced = format!("{PODWIRE} completions bash | bash -c '{script}' bash '{line}'");
    testkit::run("bash", &["-c", &sourced])
}

#[test]
fn bash_completes_every_option() {
    for (line, expected) in [
        ("podwire agent --etcd-e", "--etcd-endpoints"),
        ("podwire cleanup --own", "--owner"),
        ("podwire status --run", "--run-dir"),
        ("podwire peers --pr", "--problems"),
        ("podwire demo --ba", "--backend"),
    ] {
        assert_eq!(completed(line).trim(), expected, "{line}");
    }
    let all = completed("podwire agent --");
    let help = ok(&["agent", "--help"]);
    let names = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--")?.split([' ', '[']).next());
    let missing: Vec<&str> = names
        .filter(|name| !all.split_whitespace().any(|one| one == format!("--{name}")))
        .collect();
    assert_eq!(missing, [""; 0], "{all}");
}

#[test]
fn cleanup_prints_json() {
    in_netns(|| {
        let root = TempDir::new().unwrap();
        let dir = root.path().to_str().unwrap();
        let (state, run) = (format!("--state-dir={dir}"), format!("--run-dir={dir}"));
        let (store, env) = (format!("--store-file={dir}/s"), format!("--subnet-file={dir}/env"));
        let flags = ["cleanup", &state, &run, &store, &env];
        fs::write(root.path().join("podwire.lease"), "10.5.1.0-24 {}\n").unwrap();
        let printed = ok_json(&flags);
        assert_eq!(printed["done"], serde_json::json!([]));
        assert!(
            printed["left"][0].as_str().unwrap().starts_with("lease 10.5.1.0-24: "),
            "{printed}"
        );
        let left: Vec<_> = fs::read_dir(dir).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(left, ["podwire.lease"], "only the lease file stays, for the next attempt");
    });
}
