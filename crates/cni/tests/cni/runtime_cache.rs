// SPDX-License-Identifier: Apache-2.0
//! DEL and CHECK by a runtime with a valid, broken or missing cache.

use std::fs;

use cni::Code;
use cni::runtime::{Container, NetworkList};
use serde_json::{Value, json};

use crate::lab::{Lab, container, failing, list, list_of, printing};

/// Creates a lab with plugins `a` and `b` and one attachment.
fn attached(version: &str) -> (Lab, NetworkList) {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({"cniVersion": version})));
    lab.plugin("b", &printing(&json!({"cniVersion": version, "x": {"y": 1}})));
    let list = list(version, &["a", "b"]);
    lab.runtime().add(&list, &container()).unwrap();
    lab.calls();
    (lab, list)
}

const CACHED: &str = "cache/results/net-c1-eth0";

#[test]
fn del_runs_in_reverse_order_and_clears_the_cache() {
    let (lab, list) = attached("1.0.0");
    lab.runtime().del(&list, &container()).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    let result = json!({"cniVersion": "1.0.0", "x": {"y": 1}});
    assert_eq!(lab.sent("a", "DEL")["prevResult"], result);
    assert_eq!(lab.sent("b", "DEL")["prevResult"], result);
    assert!(!lab.path(CACHED).exists());

    lab.runtime().del(&list, &Container { netns: String::new(), ..container() }).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"], "a second DEL without a cache entry");
    assert_eq!(lab.sent("a", "DEL").get("prevResult"), None);
}

#[test]
fn del_gets_no_result_before_0_4_0() {
    let (lab, list) = attached("0.3.1");
    lab.runtime().del(&list, &container()).unwrap();
    assert_eq!(lab.sent("a", "DEL").get("prevResult"), None);
    assert!(!lab.path(CACHED).exists());
}

#[test]
fn del_continues_after_failures_and_is_repeatable() {
    let (lab, _) = attached("1.0.0");
    lab.plugin("a", &failing("DEL", 11, "busy"));
    lab.plugin("b", &failing("DEL", 101, "stuck"));
    let list = list("1.0.0", &["a", "b", "nowhere"]);
    let error = lab.runtime().del(&list, &container()).unwrap_err();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert_eq!(error.code, Code::INVALID_CONFIG, "the code of the first failure");
    for part in ["failed to find plugin \"nowhere\"", "(delete): stuck", "(delete): busy"] {
        assert!(error.msg.contains(part), "{error}");
    }
    assert!(lab.path(CACHED).exists());

    lab.plugin("a", "");
    lab.plugin("b", "");
    lab.plugin("nowhere", "");
    lab.runtime().del(&list, &container()).unwrap();
    assert_eq!(lab.sent("a", "DEL")["prevResult"]["x"], json!({"y": 1}));
    assert!(!lab.path(CACHED).exists());
}

#[test]
fn del_ignores_a_broken_cache() {
    for broken in ["", "{", "null", "[]", r#"{"kind":"cniCacheV1","ifName":3}"#] {
        let (lab, list) = attached("1.0.0");
        fs::write(lab.path(CACHED), broken).unwrap();
        lab.runtime().del(&list, &container()).unwrap();
        assert_eq!(lab.calls(), ["DEL b", "DEL a"], "{broken}");
        assert_eq!(lab.sent("a", "DEL").get("prevResult"), None, "{broken}");
        assert!(!lab.path(CACHED).exists(), "{broken}");
    }
    let (lab, list) = attached("1.0.0");
    fs::remove_dir_all(lab.path("cache")).unwrap();
    fs::write(lab.path("cache"), "no directory, so no lock").unwrap();
    lab.runtime().del(&list, &container()).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
}

#[test]
fn del_ignores_an_invalid_cached_result() {
    let (lab, list) = attached("1.0.0");
    let text = lab.read(CACHED).replace("\"cniVersion\":\"1.0.0\",\"x\"", "\"ips\":3,\"x\"");
    fs::write(lab.path(CACHED), text).unwrap();
    lab.runtime().del(&list, &container()).unwrap();
    assert_eq!(lab.sent("a", "DEL").get("prevResult"), None);
}

#[test]
fn cache_files_of_old_libcni_are_parsed() {
    let (lab, list) = attached("1.0.0");
    let ips = json!([{"version": "4", "address": "10.0.0.2/24"}]);
    for bare in [
        json!({"cniVersion": "0.4.0", "ips": ips}),
        json!({"cniVersion": "0.4.0", "ips": ips, "kind": "of another library"}),
        json!({"cniVersion": "0.4.0", "ips": ips, "kind": 3}),
    ] {
        fs::write(lab.path(CACHED), bare.to_string()).unwrap();
        lab.runtime().check(&list, &container()).unwrap();
        let sent = &lab.sent("b", "CHECK")["prevResult"];
        assert_eq!(sent["cniVersion"], "1.0.0", "in the list's version: {bare}");
        assert_eq!(sent["ips"], json!([{"address": "10.0.0.2/24"}]), "{bare}");
    }
    assert!(lab.runtime().cached_attachments(None, None).is_empty(), "the files have no names");
    lab.runtime().del(&list, &container()).unwrap();
    assert!(!lab.path(CACHED).exists());
}

#[test]
fn cache_file_of_another_attachment_is_kept() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({"x": "of another"})));
    let mut conf = json!({"cniVersion": "1.0.0", "name": "net-c1", "plugins": [{"type": "a"}]});
    let other = Container { id: "x".into(), ..container() };
    lab.runtime().add(&list_of(&conf), &other).unwrap();
    conf["name"] = "net".into();
    let own = Container { id: "c1-x".into(), ..container() };
    lab.runtime().del(&list_of(&conf), &own).unwrap();
    assert_eq!(lab.sent("a", "DEL").get("prevResult"), None);
    assert!(lab.path("cache/results/net-c1-x-eth0").exists());
}

#[test]
fn check_stops_at_the_first_failure() {
    let (lab, list) = attached("0.4.0");
    lab.runtime().check(&list, &container()).unwrap();
    assert_eq!(lab.calls(), ["CHECK a", "CHECK b"]);
    assert_eq!(lab.sent("a", "CHECK")["prevResult"], json!({"cniVersion": "0.4.0", "x": {"y": 1}}));

    lab.plugin("a", &failing("CHECK", 104, "no route"));
    let error = lab.runtime().check(&list, &container()).unwrap_err();
    assert_eq!(error.code, Code(104));
    assert_eq!(error.msg, "plugin type=\"a\" failed (check): no route");
    assert_eq!(lab.calls(), ["CHECK a"]);
    assert!(lab.path(CACHED).exists());
}

#[test]
fn check_needs_0_4_0_and_can_be_disabled() {
    let (lab, mut list) = attached("0.3.1");
    let error = lab.runtime().check(&list, &container()).unwrap_err();
    assert_eq!(error.code, Code::INCOMPATIBLE_VERSION);
    assert_eq!(error.msg, "configuration version \"0.3.1\" does not support the CHECK command");
    list.version = cni::Version::V1_0_0;
    list.disable_check = true;
    lab.runtime().check(&list, &container()).unwrap();
    assert!(lab.calls().is_empty());
}

#[test]
fn check_with_broken_cache_fails() {
    let (lab, list) = attached("1.0.0");
    fs::remove_file(lab.path(CACHED)).unwrap();
    lab.runtime().check(&list, &container()).unwrap();
    assert_eq!(lab.sent("a", "CHECK").get("prevResult"), None);
    lab.calls();
    fs::write(lab.path(CACHED), "").unwrap();
    assert_eq!(lab.runtime().check(&list, &container()).unwrap_err().code, Code::DECODE);
    assert!(lab.calls().is_empty());
}

#[test]
fn attachments_are_listed_by_network_and_container() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({})));
    for (network, id, ifname) in [("n1", "c1", "eth0"), ("n1", "c2", "eth0"), ("n2", "c1", "eth1")]
    {
        let conf = json!({"cniVersion": "1.0.0", "name": network, "plugins": [{"type": "a"}]});
        let container = Container { id: id.into(), ifname: ifname.into(), ..container() };
        lab.runtime().add(&list_of(&conf), &container).unwrap();
    }
    fs::write(lab.path("cache/results/n1-c9-eth0"), "broken").unwrap();
    let names = |network: Option<&str>, id: Option<&str>| {
        let entries = lab.runtime().cached_attachments(network, id);
        let name = |entry: &cni::runtime::cache::Entry| {
            format!("{}-{}-{}", entry.network, entry.container.id, entry.container.ifname)
        };
        entries.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(None, None), ["n1-c1-eth0", "n1-c2-eth0", "n2-c1-eth1"]);
    assert_eq!(names(Some("n1"), None), ["n1-c1-eth0", "n1-c2-eth0"]);
    assert_eq!(names(None, Some("c1")), ["n1-c1-eth0", "n2-c1-eth1"]);
    assert_eq!(names(Some("n2"), Some("c1")), ["n2-c1-eth1"]);
    let entry = lab.runtime().cached("n1", &container()).unwrap();
    assert_eq!(entry.container.netns, "/run/netns/c1");
    assert_eq!(NetworkList::parse(&entry.config, None).unwrap().name, "n1");
    assert_eq!(entry.result, Some(json!({"cniVersion": "1.0.0"})));
}

#[test]
fn operations_on_one_container_do_not_overlap() {
    let lab = Lab::new();
    lab.plugin(
        "a",
        &format!(
            "mkdir $lab/inside || echo overlap >> $lab/calls\n{}\nrmdir $lab/inside",
            printing(&Value::Null)
        ),
    );
    let list = list("1.0.0", &["a"]);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (lab, list) = (&lab, &list);
            scope.spawn(move || match number % 3 {
                0 => lab.runtime().del(list, &container()).unwrap(),
                1 => lab.runtime().add(list, &container()).map(drop).unwrap(),
                _ => lab.runtime().gc(list, &[container().attachment()]).unwrap(),
            });
        }
    });
    assert!(!lab.calls().contains(&"overlap".to_owned()));
}
