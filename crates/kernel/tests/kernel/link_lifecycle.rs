// SPDX-License-Identifier: Apache-2.0
//! Lifecycle of links: pipelined requests, errors, waiting, relocation, removal.

use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kernel::link::{self, Kind, NewLink, OperState, Peer, PortOptions, Relocation};
use kernel::{Errno, IfIndex, Netlink, Netns, netns};
use testkit::{Ns, in_netns};

use crate::{has_flag, host_and_pod, index_of, ip, ip_json, name};

const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn veth<'a>(nl: &Netlink, host: &str, pod: &'a Netns) -> NewLink<'a> {
    let netns = Some(pod.as_fd());
    let peer = Peer { name: name("eth0"), mac: None, mtu: None, netns };
    let master = Some(index_of(nl, "br0"));
    NewLink { up: true, master, ..NewLink::new(name(host), Kind::Veth(peer)) }
}

#[test]
fn port_options_are_set_together_with_creation() {
    in_netns(|| {
        let (host, pod_ns, _pod) = host_and_pod();
        let options = PortOptions {
            hairpin: Some(true),
            isolated: Some(true),
            learning: Some(false),
            ..PortOptions::default()
        };
        let new = link::create(&veth(&host, "veth0", &pod_ns));
        host.apply([new, link::set_port(name("veth0"), &options)]).unwrap();
        let port = &ip_json(&Ns::here(), "link show veth0")["linkinfo"]["info_slave_data"];
        assert_eq!(port["hairpin"], true);
        assert_eq!(port["isolated"], true);
        assert_eq!(port["learning"], false);
        assert_eq!(port["flood"], true);
    });
}

#[test]
fn rejected_request_does_not_stop_the_others() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        let nl = Netlink::open().unwrap();
        let requests = || {
            [
                link::set_mtu(IfIndex(9999), 1400),
                link::set_mtu(name("a0"), 1400),
                link::set_mtu(name("a0"), 1),
                link::set_mtu(name("a1"), 1400),
            ]
        };
        let error = nl.apply(requests()).unwrap_err();
        assert_eq!((error.op, error.object.as_str()), ("set MTU of", "#9999"));
        assert!(error.is_not_found());
        let each = nl.apply_each(requests());
        assert!(each[1].is_ok() && each[3].is_ok());
        let rejected = each[2].as_ref().unwrap_err();
        assert_eq!(rejected.errno, Errno::INVAL);
        assert_eq!(
            rejected.to_string(),
            "set MTU of a0: Invalid argument (mtu less than device minimum)"
        );
        assert_eq!(ip_json(&Ns::here(), "link show a1")["mtu"], 1400);
    });
}

#[test]
fn wait_until_returns_on_change_or_deadline() {
    in_netns(|| {
        let (host, pod_ns, _pod) = host_and_pod();
        host.apply([link::create(&veth(&host, "veth0", &pod_ns))]).unwrap();
        let index = index_of(&host, "veth0");
        let mut monitor = link::monitor().unwrap();
        let is_up = |link: Option<&link::Link>| link.is_some_and(|l| l.operstate == OperState::Up);
        let past = Instant::now();
        assert!(!link::wait_until(&host, &mut monitor, index, past, is_up).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pod_ns.netlink().unwrap().apply([link::set_up(name("eth0"))]).unwrap();
            });
            let deadline = Instant::now() + TIMEOUT;
            assert!(link::wait_until(&host, &mut monitor, index, deadline, is_up).unwrap());
        });
        assert_eq!(ip_json(&Ns::here(), "link show veth0")["operstate"], "UP");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Netns::current().unwrap().netlink().unwrap().apply([link::remove(index)]).unwrap();
            });
            let deadline = Instant::now() + TIMEOUT;
            let is_gone = |link: Option<&link::Link>| link.is_none();
            assert!(link::wait_until(&host, &mut monitor, index, deadline, is_gone).unwrap());
        });
    });
}

#[test]
fn link_is_removed_by_name_or_index() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link add b0 type veth peer name b1");
        let nl = Netlink::open().unwrap();
        nl.apply([link::remove(name("a0")), link::remove(index_of(&nl, "b0"))]).unwrap();
        let left = Ns::here().ip_json(&["link", "show"]);
        assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
        assert!(nl.apply([link::remove(name("a0"))]).unwrap_err().is_not_found());
    });
}

/// Returns the children of this process, including zombies.
fn children() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let children_of =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap();
    let lists: Vec<_> = tasks.map(|task| children_of(task.unwrap())).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect()
}

fn has_ended(pid: &String) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn background_removal_hides_the_link_at_once() {
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        for _ in 0..5 {
            host.apply([link::create(&veth(&host, "veth0", &pod_ns))]).unwrap();
            let index = index_of(&host, "veth0");
            link::remove_in_background(&host, index).unwrap();
            // procfs reads under RCU; netlink would wait for the child.
            let seen = fs::read_to_string("/proc/net/dev").unwrap();
            assert!(!seen.contains("veth0"), "{seen}");
            link::remove_in_background(&host, index).unwrap();
        }
        assert_eq!(pod.ip_json(&["link", "show", "type", "veth"]).as_array().unwrap().len(), 0);
        // The acknowledgement of the child's message is in the socket and must not be mistaken for
        // this one.
        let error = host.apply([link::set_up(name("none"))]).unwrap_err();
        assert!(error.is_not_found());
        assert_eq!(link::by_name(&host, name("br0")).unwrap().unwrap().name, name("br0"));
        testkit::wait_for("all children are zombies", TIMEOUT, || children().iter().all(has_ended));
        drop(host);
        // The next removal reaps them, even with another socket; only its own child is left.
        let host = Netlink::open().unwrap();
        host.apply([link::create(&veth(&host, "veth0", &pod_ns))]).unwrap();
        link::remove_in_background(&host, index_of(&host, "veth0")).unwrap();
        assert_eq!(children().len(), 1);
    });
}

#[test]
fn background_removal_returns_the_kernel_error() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        let error = link::remove_in_background(&nl, IfIndex(1)).unwrap_err();
        assert_eq!(error.op, "remove link");
        assert!(error.is_unsupported(), "{error}");
    });
}

/// One message moves and renames the link and sets alias and group. If the name is taken, the link
/// still exists in one of the namespaces.
#[test]
fn relocated_link_has_new_namespace_and_names() {
    let index_in = |shown: &serde_json::Value| shown["ifindex"].as_u64().unwrap() as u32;
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        ip("link add ens1 type veth peer name far");
        ip("link set ens1 up");
        let index = index_of(&host, "ens1");
        assert_eq!(link::name_of(&host, index).unwrap(), Some(name("ens1")));
        assert_eq!(link::name_of(&host, IfIndex(4711)).unwrap(), None);
        let relocation = Relocation {
            netns: Some(pod_ns.as_fd()),
            name: Some(name("eth0")),
            alias: Some("ens1"),
            group: Some(77),
        };
        host.apply([link::relocate(index, &relocation)]).unwrap();
        let there = ip_json(&pod, "link show eth0");
        assert_eq!((&there["ifalias"], &there["group"]), (&"ens1".into(), &"77".into()));
        assert!(!has_flag(&there, "UP"));

        let ids = netns::ids(&host).unwrap();
        let links = ids.iter().flat_map(|id| link::list_in(&host, *id).unwrap());
        let names: Vec<String> = links.map(|link| link.name.to_string()).collect();
        assert!(names.contains(&"eth0".to_owned()), "{ids:?} {names:?}");
        assert_eq!(link::list_in(&host, 4711).unwrap(), []);
        let id = netns::id_of(&host, &pod_ns).unwrap().unwrap();
        let inside = link::by_name_in(&host, id, name("eth0")).unwrap().unwrap();
        assert_eq!((inside.index.0, inside.group), (index_in(&there), 77));
        assert_eq!(link::by_name_in(&host, id, name("eth1")).unwrap(), None);
        let unknown = Netns::new_anonymous().unwrap();
        assert_eq!(netns::id_of(&host, &unknown).unwrap(), None);

        ip("link add ens2 type veth peer name far2");
        let error = host.apply([link::relocate(index_of(&host, "ens2"), &relocation)]).unwrap_err();
        assert!(error.already_exists());
        assert_eq!(ip_json(&pod, "link show ens2")["ifalias"], serde_json::Value::Null);
    });
}
