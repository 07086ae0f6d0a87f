// SPDX-License-Identifier: Apache-2.0
//! Each controller is made to panic, to hang and to fail at start. It is restarted and named in the
//! status, and everything else goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use agent::status::Status;
use agent::supervisor::{Fault, FaultInjector, Timing};
use testkit::{Node, Pinging, Pod, Wire, in_netns, wait_for, wait_some};

use super::{Agent, Member, Store, TIMEOUT, all_reach_all, routed};

const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// All controllers of an agent that has multicast and writes a CNI configuration.
const CONTROLLERS: [&str; 12] = [
    "api",
    "bridge",
    "cni_conf",
    "extension",
    "log",
    "membership",
    "multicast",
    "nat",
    "node_condition",
    "overlay",
    "path_check",
    "subnet_env",
];

/// All controllers of an agent with routed pods that writes a CNI configuration.
const ROUTED_CONTROLLERS: [&str; 8] =
    ["api", "calico_files", "cni_conf", "log", "nat", "path_check", "pools", "routed"];

/// Short, but much longer than a busy machine delays the agent.
pub const TIMING: Timing = Timing {
    heartbeat_timeout: Duration::from_secs(5),
    first_delay: Duration::from_millis(100),
    max_delay: Duration::from_millis(400),
    stable_after: Duration::from_millis(500),
};

struct Lab {
    members: Vec<Member>,
    injector: FaultInjector,
}

impl Lab {
    /// Two nodes. Faults are injected into the agent of the first.
    fn new(wire: &Wire) -> Lab {
        Lab::with_timing(wire, TIMING)
    }

    fn with_timing(wire: &Wire, timing: Timing) -> Lab {
        let flags = ["--multicast", "--ip-masq"];
        Lab::start(wire, &Store::embedded(CONF), &flags, timing, Node::pod)
    }

    /// Two nodes whose pods have addresses from pools.
    fn routed(wire: &Wire) -> Lab {
        Lab::start(wire, &routed::store("10.6.0.0/16", "vxlan"), &[], TIMING, |node| {
            let name = format!("pod{}", node.number());
            node.routed_pod(&name, &routed::assign(node, &name, false))
        })
    }

    fn start(
        wire: &Wire,
        store: &Store,
        flags: &[&str],
        timing: Timing,
        pod: impl Fn(&Node) -> Pod,
    ) -> Lab {
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let cni_dir = nodes[0].dir().join("cni");
        let faulty = store.and(flags).and(&["--cni-conf-dir", cni_dir.to_str().unwrap()]);
        let (first, injector) = Agent::start_faulty(&nodes[0], &faulty, timing);
        let second = Agent::start(&nodes[1], store);
        for agent in [&first, &second] {
            agent.wait("status.ready with the peer", |status| {
                status.ready && status.peers.counts.total == 1
            });
        }
        let members: Vec<Member> = nodes
            .into_iter()
            .zip([first, second])
            .map(|(node, agent)| Member { agent: Some(agent), pod: pod(&node), node })
            .collect();
        all_reach_all(&members, TIMEOUT);
        Lab { members, injector }
    }

    fn status(&self) -> Status {
        self.members[0].agent().hub.status()
    }

    fn restarts(&self) -> BTreeMap<String, u64> {
        let controllers = self.status().controllers;
        controllers.into_iter().map(|(name, one)| (name, one.restarts)).collect()
    }

    /// Injects a fault and waits until the status names the controller and then its recovery.
    fn inject(&self, target: &str, controller: &str, fault: Fault, restarts: u64) {
        let before = self.restarts();
        self.injector.inject(target, fault);
        let agent = self.members[0].agent();
        agent.wait(&format!("{controller} to be named after {fault:?}"), |status| {
            assert!(status.healthy, "heartbeat during {fault:?} of {controller}: {status:#?}");
            status.controllers[controller].failure.is_some()
        });
        agent.wait(&format!("{controller} to recover from {fault:?}"), |status| {
            let shown = &status.controllers[controller];
            shown.failure.is_none() && shown.restarts == before[controller] + restarts
        });
        agent.wait(&format!("status.ready after {fault:?} of {controller}"), |status| status.ready);
        let others = |all: BTreeMap<String, u64>| {
            all.into_iter().filter(|(name, _)| name != controller).collect::<Vec<_>>()
        };
        assert_eq!(others(self.restarts()), others(before), "other controllers go on");
    }

    /// Deletes the route to the other node, and waits until it is back.
    fn delete_route(&self) {
        let node = &self.members[0].node;
        let before = node.kernel();
        let route =
            node.sh("ip route show proto 112 | grep -v blackhole | head -n 1 | cut -d' ' -f1");
        node.sh(&format!("ip route del {route}"));
        wait_for("the deleted route", TIMEOUT, || node.kernel() == before);
    }
}

fn check(fault: Fault, restarts: u64) {
    let wire = Wire::new();
    check_each(&Lab::new(&wire), &CONTROLLERS, |lab, controller| {
        lab.inject(controller, controller, fault, restarts);
    });
}

/// A new pod gets an address after each fault.
fn check_routed(fault: Fault, restarts: u64) {
    let wire = Wire::new();
    check_each(&Lab::routed(&wire), &ROUTED_CONTROLLERS, |lab, controller| {
        lab.inject(controller, controller, fault, restarts);
        routed::assign(&lab.members[0].node, controller, false);
    });
}

/// Injects a fault into one controller after the other, while a pod pings the pod of the other node.
fn check_each(lab: &Lab, controllers: &[&str], inject: impl Fn(&Lab, &str)) {
    let names: Vec<String> = lab.restarts().into_keys().collect();
    assert_eq!(names, controllers);
    let pinging = Pinging::start(&lab.members[0].pod.ns, lab.members[1].pod.addresses[0]);
    let answers = pinging.answers();
    for controller in controllers {
        inject(lab, controller);
    }
    let silence = pinging.longest_silence(answers);
    assert!(silence < Duration::from_secs(5), "no packet passed for {silence:?}");
    lab.delete_route();
    all_reach_all(&lab.members, TIMEOUT);
}

#[test]
fn panicked_controller_is_restarted_and_named() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(Fault::Panic, 1);
    });
}

#[test]
fn hung_controller_is_restarted_and_named() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(Fault::Hang, 1);
    });
}

#[test]
fn controller_failing_at_start_is_restarted() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(Fault::FailStarts(3), 4);
    });
}

#[test]
fn panicked_routed_controller_is_restarted_and_named() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_routed(Fault::Panic, 1);
    });
}

#[test]
fn hung_routed_controller_is_restarted_and_named() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_routed(Fault::Hang, 1);
    });
}

#[test]
fn routed_controller_failing_at_start_is_restarted() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_routed(Fault::FailStarts(3), 4);
    });
}

/// The dataplane repairs by itself, so a route comes back while its controller does nothing.
#[test]
fn routes_are_repaired_while_overlay_hangs() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let lab = Lab::new(&wire);
        lab.injector.inject("overlay", Fault::Hang);
        lab.delete_route();
        let is_hung = |status: &Status| status.controllers["overlay"].restarts == 0;
        assert!(is_hung(&lab.status()), "repaired only after the restart");
        wait_some(TIMEOUT, || (!is_hung(&lab.status())).then_some(())).unwrap();
        all_reach_all(&lab.members, TIMEOUT);
    });
}

#[test]
fn panicked_routes_thread_is_started_again() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let lab = Lab::new(&wire);
        for _ in 0..2 {
            lab.inject("routes", "overlay", Fault::Panic, 1);
            lab.delete_route();
        }
        all_reach_all(&lab.members, TIMEOUT);
    });
}

#[test]
fn panicked_nft_thread_is_started_again() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("nft"));
        let wire = Wire::new();
        let lab = Lab::new(&wire);
        let table = "table inet podwire-agent-podwire";
        let node = &lab.members[0].node;
        for _ in 0..2 {
            lab.inject("nft", "nat", Fault::Panic, 1);
            node.sh(&format!("nft delete {table}"));
            wait_for("the deleted table", TIMEOUT, || node.sh("nft list tables").contains(table));
        }
    });
}

/// Nothing receives events while the thread is down.
#[test]
fn underlay_change_during_a_restart_is_noticed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let timing = Timing { first_delay: Duration::from_secs(3), ..TIMING };
        let lab = Lab::with_timing(&wire, timing);
        let agent = lab.members[0].agent();
        lab.injector.inject("routes", Fault::Panic);
        agent.wait("the failed overlay controller", |status| {
            status.controllers["overlay"].failure.is_some()
        });
        lab.members[0].node.sh("ip link set eth0 mtu 1400");
        assert!(lab.status().controllers["overlay"].failure.is_some(), "still down");
        agent.wait("the MTU of pods to follow the underlay", |status| {
            status.membership.network.as_ref().is_some_and(|network| network.pod_mtu == 1350)
        });
    });
}
