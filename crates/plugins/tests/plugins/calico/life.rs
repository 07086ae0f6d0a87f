// SPDX-License-Identifier: Apache-2.0
//! CHECK and STATUS.

use std::fs;

use serde_json::json;
use testkit::{in_netns, run};

use super::{NAMES, calico, pod_call};
use crate::conf::dual;
use crate::world::{Plugins, World};

/// A command that damages a pod's wiring, and words of the error.
const DAMAGE: &[(bool, &str, &str)] = &[
    (true, "addr del 10.1.0.2/32 dev eth0", "10.1.0.2/32"),
    (true, "addr del fd00:1::2/128 dev eth0", "fd00:1::2/128"),
    (true, "link set eth0 down", "eth0 is down"),
    (true, "link set eth0 mtu 1400", "MTU"),
    (true, "link set eth0 address 02:00:00:00:00:01", "02:00:00:00:00:01"),
    (true, "route del default", "0.0.0.0/0 via 169.254.1.1"),
    (true, "-6 route del default", "::/0 via fe80::ecee:eeff:feee:eeee"),
    (true, "neigh del 169.254.1.1 dev eth0", "neighbour 169.254.1.1"),
    (true, "neigh del fe80::ecee:eeff:feee:eeee dev eth0", "neighbour fe80::ecee"),
    (false, "route del 10.1.0.2", "does not route 10.1.0.2"),
    (false, "-6 route del fd00:1::2", "does not route fd00:1::2"),
    (false, "link set HOST down", "is down"),
    (false, "link set HOST address 02:00:00:00:00:02", "expected ee:ee:ee:ee:ee:ee"),
    (false, "link del HOST", "eth0 not found"),
];

#[test]
fn calico_check_detects_damage() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &calico(&json!({"ipam": dual(), "mtu": 1480})), 1);
        for (in_pod, line, words) in DAMAGE {
            let result = call.add().result();
            call.check(&result).ok();
            let line = line.replace("HOST", NAMES[0]);
            match in_pod {
                true => world.in_pod(1, &line),
                false => world.on_host(&line),
            };
            call.check(&result).fails_with(999, words);
            call.del(&result).ok();
            fs::remove_dir_all(crate::world::DATA).unwrap();
        }
        let result = call.add().result();
        let path = format!("net.ipv4.conf.{}.forwarding=0", NAMES[0]);
        world.host.exec("sysctl", &["-w", &path]);
        call.check(&result).fails_with(999, "forwarding is not 1");
        call.run("CHECK").fails_with(7, "prevResult");
        fs::remove_dir_all(crate::world::DATA).unwrap();
        call.check(&result).fails_with(999, "host-local");
    });
}

/// CHECK accepts a pod that Calico connected: it has no permanent neighbours.
#[test]
fn calico_check_accepts_pod_of_calico() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &calico(&json!({})), 1);
        let result = call.add().result();
        world.host.ip(&["link", "set", NAMES[0], "alias", "", "group", "default"]);
        world.in_pod(1, "neigh del 169.254.1.1 dev eth0");
        call.check(&result).ok();
    });
}

#[test]
fn calico_status_reports_missing_daemon() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let file = json!({"nodename_file": "/run/nodename", "nodename_file_optional": false});
        let call = pod_call(&world, &calico(&file), 1);
        call.status().fails_with(50, "stat /run/nodename");
        call.add().fails_with(11, "stat /run/nodename");
        fs::write("/run/nodename", "node1").unwrap();
        call.status().ok();
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
        call.add().ok();

        let from_daemon = json!({"type": "host-local", "subnet": "usePodCidr"});
        let call = pod_call(&world, &calico(&json!({"ipam": from_daemon})), 1);
        call.status().fails_with(50, "/run/flannel/subnet.env does not exist");
        let pools = calico(&json!({"ipam": {"type": "calico-ipam"}}));
        pod_call(&world, &pools, 1).status().fails_with(50, "/run/podwire/agent.sock");
        let invalid = calico(&json!({"ipam": {"type": "host-local"}}));
        pod_call(&world, &invalid, 1).status().fails_with(7, "no IP ranges");
    });
}

/// An empty `/var/lib`, in which files of Calico's daemon can be created.
pub fn own_var_lib() {
    run("mount", &["-t", "tmpfs", "tmpfs", "/var/lib"]);
    for directory in ["/var/lib/cni", "/var/lib/calico"] {
        fs::create_dir(directory).expect("create a directory in the new file system");
    }
}

#[test]
fn calico_requires_default_nodename_file() {
    in_netns(|| {
        own_var_lib();
        let world = World::new(&Plugins::ours(), 1);
        let call = pod_call(&world, &calico(&json!({"nodename_file_optional": false})), 1);
        call.add().fails_with(11, "stat /var/lib/calico/nodename");
        fs::write("/var/lib/calico/nodename", "node1").unwrap();
        call.add().ok();
    });
}
