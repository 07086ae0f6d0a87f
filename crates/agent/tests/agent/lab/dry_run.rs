// SPDX-License-Identifier: Apache-2.0
//! `--dry-run` prints the changes that the agent then makes, and changes nothing itself.

use agent::settings::Command;
use agent::status::StatusHub;
use kernel::Netns;
use testkit::{Node, Wire, in_netns};

use super::{Agent, Store, settings};

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;

fn store() -> Store {
    Store::embedded(CONF).and(&["--cni-conf-dir", "/run/lab/net.d"])
}

fn told(node: &Node) -> Vec<String> {
    let flags = [node.flags(), store().and(&["--dry-run"]).0].concat();
    let settings = settings(Command::Agent, &flags, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hub = StatusHub::new("node-1", "embedded");
    Netns::open(node.ns.path())
        .unwrap()
        .enter(|| runtime.block_on(agent::run::dry_run(settings, hub)).unwrap())
        .unwrap()
}

#[test]
fn dry_run_prints_what_the_agent_then_does() {
    in_netns(|| {
        testkit::require!(Program("nft"));
        let node = Wire::new().node(1, true, false);
        let first = told(&node);
        for line in [
            "write the network's configuration to the key /coreos.com/network/config",
            "take a lease that is free from 10.5.1.0/24 to 10.5.255.0/24; 10.5.1.0-24 stands for it below",
            "write /run/lab/node-1/subnet.env:",
            "    FLANNEL_SUBNET=10.5.1.1/24",
            "write /run/lab/node-1/state/podwire.lease:",
            "write /run/lab/net.d/10-podwire.conflist:",
        ] {
            assert!(first.iter().any(|told| told == line), "{line}: {first:#?}");
        }
        assert_eq!(told(&node), first, "same output");
        assert!(!node.dir().join("state").exists() && node.subnet_env().is_empty());

        let agent = Agent::start(&node, &store());
        agent.wait("status.ready", |status| status.ready);
        let conf = std::path::Path::new("/run/lab/net.d/10-podwire.conflist");
        testkit::wait_for("the CNI configuration file", super::TIMEOUT, || conf.exists());
        let subnet = agent.hub.network().unwrap().lease.subnets[0];
        let lease = subnet.to_string().replace('/', "-");
        drop(agent);
        let files = ["state/podwire.toml", "state/podwire.lease", "subnet.env"];
        let files = files.map(|name| node.dir().join(name)).into_iter().chain([conf.to_owned()]);
        let unchanged: Vec<String> =
            files.map(|file| format!("leave {} unchanged", file.display())).collect();
        let kept = [vec![format!("keep lease {lease}")], unchanged.clone()].concat();
        assert_eq!(told(&node), kept, "nothing to change");
        node.sh("ip address del 192.168.90.1/24 dev eth0; ip address add 192.168.90.9/24 dev eth0");
        assert_eq!(told(&node)[0], kept[0], "same node");

        std::fs::remove_file(Store::FILE).unwrap();
        let again = told(&node);
        assert_eq!(again[1], format!("take lease {lease}"), "the subnet of subnet.env");
        assert!(again.contains(&unchanged[2]), "{again:#?}");
    });
}
