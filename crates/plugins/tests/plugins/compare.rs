// SPDX-License-Identifier: Apache-2.0
//! Runs the same configurations through the Go plugins and podwire in separate namespaces. Exit
//! status, result, files and kernel state must agree, except for the differences listed in
//! `intended`.

mod bandwidth;
mod bridge;
mod case;
pub mod host_device;
mod host_local;
mod intended;
mod links;
mod loopback;
mod play;
mod portmap;
mod ptp;
mod refused;
mod sbr;
mod static_addresses;
mod tap;
mod tuning;
mod vlan;
mod vrf;

use std::collections::BTreeSet;

use testkit::{in_netns, not_run_unless, require};

use self::case::{Case, Step};
use self::intended::{Difference, INTENDED};
use self::play::{Moment, play};
use crate::world::{Plugins, vlan_filtering_file};

/// Runs every case with both sets of plugins and reports all problems at once.
fn compare(group: &str, cases: Vec<Case>) {
    require!(Link("bridge"), Link("veth"));
    let (go, ours) = (Plugins::go(), Plugins::ours());
    let mut used = BTreeSet::new();
    let mut problems = Vec::new();
    let count = cases.len();
    for case in cases {
        let (theirs, mine) = (play(&case, &go), play(&case, &ours));
        problems.extend(wrong_answers(&case, &mine));
        problems.extend(unintended_differences(&case, &theirs, &mine, &mut used));
    }
    for (at, entry) in INTENDED.iter().enumerate() {
        if entry.groups.contains(&group) && !used.contains(&at) {
            problems.push(format!(
                "no case of group {group} uses this intended difference: {}",
                entry.reason
            ));
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    println!("{group}: {count} cases compared");
}

/// Checks podwire's answers against the expectations of the case, independent of Go's answers.
fn wrong_answers(case: &Case, mine: &[Moment]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, moment) in mine.iter().enumerate() {
        let place = format!("{}: step {}, {:?}", case.name, at + 1, moment.step);
        let code = case.code(at).map(|code| code.to_string());
        let found = moment.facts.get("answer/error/code");
        if code.as_ref() != found {
            let message = &moment.message;
            problems.push(format!(
                "{place}: podwire's error code is {found:?}, expected {code:?}: {message}"
            ));
        } else if at == 0 && code.is_some() && !moment.message.contains(case.words) {
            problems.push(format!(
                "{place}: podwire's message should contain {:?}: {}",
                case.words, moment.message
            ));
        }
        if !moment.success && !moment.changes.is_empty() {
            problems.push(format!("{place}: podwire failed and left {:?}", moment.changes));
        }
    }
    problems
}

fn unintended_differences(
    case: &Case,
    theirs: &[Moment],
    mine: &[Moment],
    used: &mut BTreeSet<usize>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut failed = false;
    for (at, (go, ours)) in theirs.iter().zip(mine).enumerate() {
        failed |= matches!(ours.step, Step::Add(_)) && !ours.success;
        for fact in facts_to_compare(go, ours) {
            let (go, ours) = (go.facts.get(fact), ours.facts.get(fact));
            if go == ours {
                continue;
            }
            let (go, ours) = (go.map(String::as_str), ours.map(String::as_str));
            let verb = verb(mine[at].step);
            let code = case.code(at);
            let difference = Difference { case, verb, code, fact, go, ours, failed };
            match INTENDED.iter().position(|entry| (entry.fits)(&difference)) {
                Some(entry) => drop(used.insert(entry)),
                None => problems.push(describe_difference(at, &difference, &theirs[at], &mine[at])),
            }
        }
        if go.success != ours.success && matches!(ours.step, Step::Add(_)) {
            // After this the two sets have different state to handle.
            break;
        }
    }
    problems
}

/// If only one of the two failed, the exit status is the only difference to report; all others
/// follow from it.
fn facts_to_compare<'a>(go: &'a Moment, ours: &'a Moment) -> BTreeSet<&'a str> {
    let all = go.facts.keys().chain(ours.facts.keys()).map(String::as_str);
    let same = go.success == ours.success;
    all.filter(|fact| same || *fact == "answer/exit").collect()
}

fn verb(step: Step) -> &'static str {
    match step {
        Step::Add(_) => "ADD",
        Step::Check(_) => "CHECK",
        Step::Del(_) => "DEL",
        _ => "",
    }
}

fn describe_difference(at: usize, difference: &Difference, go: &Moment, ours: &Moment) -> String {
    let nothing = "nothing";
    let mut line = format!(
        "{}: step {}, {:?}: {} is {} with Go, {} with podwire",
        difference.case.name,
        at + 1,
        ours.step,
        difference.fact,
        difference.go.unwrap_or(nothing),
        difference.ours.unwrap_or(nothing)
    );
    if difference.fact == "answer/exit" {
        line += &format!("\n    Go: {}\n    podwire: {}", go.message, ours.message);
    }
    line
}

#[test]
fn bandwidth_cases_match_go() {
    in_netns(|| compare("bandwidth", bandwidth::cases()));
}

#[test]
fn bridge_cases_match_go() {
    in_netns(|| compare("bridge", bridge::cases()));
}

#[test]
fn bridge_rejected_cases_match_go() {
    in_netns(|| compare("refused", refused::cases()));
}

#[test]
fn vm_bridge_vlan_ports_match_go() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        compare("ports of vlans", vlan::ports());
    });
}

#[test]
fn vm_bridge_vlan_gateways_match_go() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        compare("gateway of a vlan", vlan::gateways());
    });
}

#[test]
fn bridge_cases_in_all_versions_match_go() {
    in_netns(|| compare("versions", bridge::versions()));
}

#[test]
fn ptp_cases_match_go() {
    in_netns(|| compare("ptp", ptp::cases()));
}

#[test]
fn loopback_cases_match_go() {
    in_netns(|| compare("loopback", loopback::cases()));
}

#[test]
fn host_local_cases_match_go() {
    in_netns(|| compare("host-local", host_local::cases()));
}

#[test]
fn static_cases_match_go() {
    in_netns(|| compare("static", static_addresses::cases()));
}

#[test]
fn host_device_cases_match_go() {
    in_netns(|| {
        host_device::make_bus();
        compare("host-device", host_device::cases());
    });
}

#[test]
fn tuning_cases_match_go() {
    in_netns(|| compare("tuning", tuning::cases()));
}

#[test]
fn sbr_cases_match_go() {
    in_netns(|| compare("sbr", sbr::cases()));
}

#[test]
fn vm_vrf_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        compare("vrf", vrf::cases());
    });
}

#[test]
fn macvlan_cases_match_go() {
    in_netns(|| compare("macvlan", links::macvlan_cases()));
}

#[test]
fn ipvlan_rejected_cases_match_go() {
    in_netns(|| compare("ipvlan refused", links::ipvlan_refused()));
}

#[test]
fn vm_ipvlan_failing_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        compare("ipvlan failing", links::ipvlan_failing());
    });
}

#[test]
fn tap_cases_match_go() {
    in_netns(|| {
        require!(File("/dev/net/tun"));
        compare("tap", tap::cases());
    });
}

#[test]
fn vrf_rejected_cases_match_go() {
    in_netns(|| compare("vrf refused", vrf::refused()));
}

#[test]
fn vm_vrf_failing_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        compare("vrf failing", vrf::failing());
    });
}

#[test]
fn vm_ipvlan_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        compare("ipvlan", links::ipvlan_cases());
    });
}

#[test]
fn vlan_rejected_cases_match_go() {
    in_netns(|| compare("vlan refused", links::vlan_refused()));
}

#[test]
fn vm_vlan_failing_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        compare("vlan failing", links::vlan_failing());
    });
}

#[test]
fn vm_vlan_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        compare("vlan", links::vlan_cases());
    });
}

#[test]
fn dummy_rejected_cases_match_go() {
    in_netns(|| compare("dummy refused", links::dummy_refused()));
}

#[test]
fn vm_dummy_cases_match_go() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        compare("dummy", links::dummy_cases());
    });
}

#[test]
fn portmap_answers_match_go() {
    in_netns(|| compare("portmap", portmap::cases()));
}
