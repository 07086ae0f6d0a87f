// SPDX-License-Identifier: Apache-2.0
//! Random sequences of requests and faults on several nodes: no address is ever assigned twice, and none is lost after
//! collection.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::check::{no_address_twice, nothing_lost};
use crate::cluster::{Cluster, Fate};

const HOSTS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Add {
        host: usize,
        families: (bool, bool),
        address: Option<u8>,
        twice: bool,
    },
    Delete(usize),
    DeleteAgain(usize),
    Leak(usize),
    Crash(usize),
    Start(usize),
    Lose {
        host: usize,
        wipe: bool,
    },
    Act {
        host: usize,
        fails: bool,
    },
    Deliver {
        index: usize,
        fate: Fate,
    },
    Receive {
        host: usize,
        index: usize,
    },
    Watch {
        host: usize,
        twice: bool,
    },
    List(usize),
    Wait(u64),
    Tick(usize),
    Collect(usize),
    Outsider(usize),
    Calico {
        host: usize,
        n: usize,
    },
    Strict {
        host: usize,
        strict: bool,
    },
    /// A host does everything that is due, so that sequences reach deep states.
    RunHost(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let host = 0..HOSTS;
    let number = 0..1000_usize;
    let fate = prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::AnsweredTwice),
        1 => Just(Fate::DoneButFailed),
        1 => Just(Fate::DoneButSilent),
        2 => Just(Fate::FailedButPending),
        1 => Just(Fate::Failed),
    ];
    let families = prop_oneof![
        4 => Just((true, false)),
        1 => Just((false, true)),
        2 => Just((true, true)),
    ];
    let address = proptest::option::weighted(0.15, 0..32_u8);
    prop_oneof![
        10 => (host.clone(), families, address, prop::bool::weighted(0.1))
            .prop_map(|(host, families, address, twice)| Step::Add { host, families, address, twice }),
        7 => number.clone().prop_map(Step::Delete),
        1 => number.clone().prop_map(Step::DeleteAgain),
        1 => number.clone().prop_map(Step::Leak),
        1 => host.clone().prop_map(Step::Crash),
        2 => host.clone().prop_map(Step::Start),
        1 => (host.clone(), any::<bool>()).prop_map(|(host, wipe)| Step::Lose { host, wipe }),
        25 => (host.clone(), prop::bool::weighted(0.03)).prop_map(|(host, fails)| Step::Act { host, fails }),
        20 => (number.clone(), fate).prop_map(|(index, fate)| Step::Deliver { index, fate }),
        20 => (host.clone(), number.clone()).prop_map(|(host, index)| Step::Receive { host, index }),
        8 => (host.clone(), any::<bool>()).prop_map(|(host, twice)| Step::Watch { host, twice }),
        1 => host.clone().prop_map(Step::List),
        4 => (1..80_000_u64).prop_map(Step::Wait),
        4 => host.clone().prop_map(Step::Tick),
        3 => host.clone().prop_map(Step::Collect),
        3 => number.clone().prop_map(Step::Outsider),
        6 => (host.clone(), number).prop_map(|(host, n)| Step::Calico { host, n }),
        1 => (host.clone(), any::<bool>()).prop_map(|(host, strict)| Step::Strict { host, strict }),
        6 => host.prop_map(Step::RunHost),
    ]
}

fn apply(cluster: &mut Cluster, step: &Step) {
    let pods = cluster.pods.len().max(1);
    match *step {
        Step::Add { host, families, address, twice } => cluster.add(host, families, address, twice),
        Step::Delete(pod) => cluster.delete(pod % pods),
        Step::DeleteAgain(pod) => cluster.delete_again(pod % pods),
        Step::Leak(pod) => cluster.leak(pod % pods),
        Step::Crash(host) => cluster.crash(host),
        Step::Start(host) => cluster.start(host),
        Step::Lose { host, wipe } => cluster.lose(host, wipe),
        Step::Act { host, fails } => {
            cluster.act(host, fails);
        }
        Step::Deliver { index, fate } => {
            cluster.deliver(index, fate);
        }
        Step::Receive { host, index } => {
            cluster.receive(host, index);
        }
        Step::Watch { host, twice } => {
            cluster.watch(host, twice);
        }
        Step::List(host) => cluster.list(host),
        Step::Wait(millis) => cluster.now = cluster.now + Duration::from_millis(millis),
        Step::Tick(host) => cluster.tick(host),
        Step::Collect(host) => cluster.collect(host),
        Step::Outsider(n) => cluster.outsider(n),
        Step::Calico { host, n } => cluster.calico(host, n),
        Step::Strict { host, strict } => cluster.set_strict(host, strict),
        Step::RunHost(host) => cluster.run_host(host),
    }
}

fn run(steps: &[Step], cooldown: u64, block_size: u8) -> TestCaseResult {
    let mut cluster = Cluster::new(HOSTS, Duration::from_secs(cooldown), block_size);
    for (i, step) in steps.iter().enumerate() {
        apply(&mut cluster, step);
        let checked = no_address_twice(&cluster);
        prop_assert!(checked.is_ok(), "after step {}: {}", i, checked.unwrap_err());
    }
    cluster.settle();
    let checked = no_address_twice(&cluster).and_then(|()| nothing_lost(&cluster));
    prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_address_is_assigned_twice_and_none_is_lost(
        steps in proptest::collection::vec(step(), 1..400),
        cooldown in prop_oneof![2 => Just(0_u64), 1 => Just(20)],
        block_size in prop_oneof![Just(29_u8), Just(30), Just(32)],
    ) {
        run(&steps, cooldown, block_size)?;
    }
}
