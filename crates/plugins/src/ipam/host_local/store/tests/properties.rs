// SPDX-License-Identifier: Apache-2.0
//! Compares any sequence of calls, changes of the Go plugin and crashes with a map in memory.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SUBNETS: &str = "10.1.0.0/29 fd00::/125";

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Del(u8),
    GoAdds(u8, u8),
    GoDels(u8),
    /// A file that was created and not written.
    Crash(u8),
    LoseIndex,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8).prop_map(Step::Add),
        3 => (0..6u8).prop_map(Step::Del),
        2 => (0..6u8, 0..7u8).prop_map(|(id, ip)| Step::GoAdds(id, ip)),
        2 => (0..7u8).prop_map(Step::GoDels),
        1 => (0..7u8).prop_map(Step::Crash),
        1 => Just(Step::LoseIndex),
    ]
}

/// The expected reservations: address to container.
type Model = BTreeMap<IpAddr, String>;

fn go_ip(n: u8) -> IpAddr {
    IpAddr::from([10, 1, 0, n])
}

fn of(model: &Model, id: &str) -> String {
    texts(model.iter().filter(|(_, holder)| *holder == id).map(|(ip, _)| *ip))
}

fn add(bench: &Bench, model: &mut Model, id: &str) {
    let sets = sets_of(SUBNETS);
    match allocate(&mut bench.open(), &sets, &[], id, "eth0") {
        Ok(found) => {
            assert_eq!(found.len(), 2);
            for ((ip, range), set) in found.into_iter().zip(&sets) {
                assert!(set.contains(ip) && !set.is_gateway(ip) && range.contains(ip));
                assert_eq!(model.insert(ip, id.to_owned()), None, "{ip} given twice");
            }
        }
        Err(Error::Duplicate { ip, .. }) => assert_eq!(model[&ip], id),
        Err(Error::Exhausted { index, .. }) => {
            assert!(sets[index].candidates(None).all(|ip| model.contains_key(&ip)));
        }
        Err(e) => panic!("{e}"),
    }
}

fn apply(bench: &Bench, model: &mut Model, step: &Step) {
    match step {
        Step::Add(id) => add(bench, model, &format!("c{id}")),
        Step::Del(id) => {
            let id = format!("c{id}");
            assert_eq!(bench.del(&id, ""), of(model, &id));
            model.retain(|_, holder| *holder != id);
        }
        Step::GoAdds(id, n) if !model.contains_key(&go_ip(*n)) => {
            bench.write(&go_ip(*n).to_string(), &format!("c{id}\r\neth0"));
            model.insert(go_ip(*n), format!("c{id}"));
        }
        Step::GoDels(n) if model.remove(&go_ip(*n)).is_some() => {
            fs::remove_file(bench.path(&go_ip(*n).to_string())).unwrap();
        }
        Step::Crash(n) if !model.contains_key(&go_ip(*n)) => {
            bench.write(&go_ip(*n).to_string(), "");
        }
        Step::LoseIndex => {
            let _ = fs::remove_dir_all(bench.0.path().join(INDEXES));
        }
        Step::GoAdds(..) | Step::GoDels(_) | Step::Crash(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn directory_matches_the_model(steps in vec(step(), 0..60)) {
        let (bench, mut model) = (Bench::in_memory(), Model::new());
        for step in &steps {
            apply(&bench, &mut model, step);
        }
        for id in (0..6).map(|n| format!("c{n}")) {
            prop_assert_eq!(bench.addresses_of(&id), of(&model, &id));
        }
        let mut store = bench.open();
        for held in store.reservations().unwrap() {
            prop_assert_eq!(&model[&held.ip], &held.id);
        }
        prop_assert_eq!(store.retain(|_, _| false).unwrap().len(), model.len());
    }
}
