// SPDX-License-Identifier: Apache-2.0
//! Files for plugins, commands and runtimes are restored soon after another program breaks them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use agent::status::{ConditionKind, RepairKind};
use testkit::{Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT};

/// About a second if the machine is idle. Without inotify it would be half a minute.
const SOON: Duration = Duration::from_secs(10);

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;

/// Ways to break a file.
const BREAKING: [&str; 5] = [
    "rm FILE",
    "echo junk > FILE.other; mv FILE.other FILE",
    "echo '{}' > FILE.other; mv FILE.other FILE",
    "mv DIR DIR.before",
    // The file may be restored before its directory is removed.
    "until rm -r DIR; do :; done",
];

fn check(agent: &Agent, file: &Path, is_right: impl Fn() -> bool) {
    wait_for("the file", TIMEOUT, &is_right);
    let (name, dir) = (file.display().to_string(), file.parent().unwrap().display().to_string());
    for breaking in BREAKING {
        let counted = agent.repairs(RepairKind::File);
        let script = breaking.replace("FILE", &name).replace("DIR", &dir);
        testkit::run("sh", &["-ec", &script]);
        agent.wait_for(SOON, &script, |status| {
            status.kernel.repairs.counts[&RepairKind::File] > counted
        });
        wait_for(&script, TIMEOUT, || is_right() && agent.hub.summary().warnings.is_empty());
    }
}

#[test]
fn managed_files_are_restored() {
    in_netns(|| {
        testkit::require!(Program("curl"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let below = |name: &str| node.dir().join(name);
        let (env, list) = (below("env/subnet.env"), below("net.d/10-podwire.conflist"));
        let flags = [
            "--subnet-file",
            env.to_str().unwrap(),
            "--cni-conf-dir",
            list.parent().unwrap().to_str().unwrap(),
        ];
        let agent = Agent::start(&node, &Store::embedded(CONF).and(&flags));
        agent.wait("status.ready", |status| status.ready);
        for file in [&env, &list] {
            wait_for("the file", TIMEOUT, || file.exists());
            let text = fs::read_to_string(file).unwrap();
            check(&agent, file, || fs::read_to_string(file).is_ok_and(|now| now == text));
        }
        let socket = below("run/agent.sock");
        let words = ["--unix-socket", socket.to_str().unwrap(), "http://agent/healthz"];
        check(&agent, &socket, || testkit::Ns::here().try_exec("curl", &words).is_ok());

        fs::write(&list, r#"{"name": "theirs", "plugins": []}"#).unwrap();
        agent.wait_for(SOON, "the reported foreign configuration", |status| {
            status.problems.contains_key(&ConditionKind::Files)
        });
        assert!(fs::read_to_string(&list).unwrap().contains("theirs"));
        fs::remove_file(&list).unwrap();
        agent.wait_for(SOON, "it to be ours again", |status| status.warnings.is_empty());
    });
}
