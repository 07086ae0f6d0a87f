// SPDX-License-Identifier: Apache-2.0
//! STATUS, GC, VERSION and the validation of lists by a runtime.

use std::collections::BTreeSet;
use std::fs;

use cni::runtime::cache::Entry;
use cni::runtime::{Container, NetworkList};
use cni::{Attachment, Code, Host, Plugin};
use serde_json::json;

use crate::lab::{FUNCTION, Lab, container, failing, list, list_of, printing};

static PLUGINS: &[&Plugin] = &[&FUNCTION];

fn attachment(id: &str) -> Attachment {
    Attachment { container_id: id.into(), ifname: "eth0".into() }
}

/// A lab with plugins `a` and `b` and these containers attached.
fn attached(list: &NetworkList, ids: &[&str]) -> Lab {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({"x": 1})));
    lab.plugin("b", &printing(&json!({"x": 2})));
    for id in ids {
        let args = vec![("K".to_owned(), (*id).to_owned())];
        lab.runtime().add(list, &Container { id: (*id).into(), args, ..container() }).unwrap();
    }
    lab.calls();
    lab
}

#[test]
fn gc_removes_what_is_not_valid_and_tells_the_plugins() {
    let list = list("1.1.0", &["a", "b"]);
    let lab = attached(&list, &["keep", "stale"]);
    let other =
        list_of(&json!({"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "a"}]}));
    lab.runtime().add(&other, &container()).unwrap();
    fs::write(lab.path("cache/results/net-broken-eth0"), "{").unwrap();
    lab.calls();

    lab.runtime().gc(&list, &[attachment("keep")]).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a", "GC a", "GC b"]);
    assert!(lab.read("a.DEL.env").contains("CNI_CONTAINERID=stale\n"));
    assert!(lab.read("a.DEL.env").contains("CNI_ARGS=K=stale\n"), "as ADD was told");
    assert_eq!(lab.sent("a", "DEL")["prevResult"], json!({"cniVersion": "1.1.0", "x": 2}));
    let valid = json!([{"containerID": "keep", "ifname": "eth0"}]);
    let sent = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "b",
        "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid,
    });
    assert_eq!(lab.sent("b", "GC"), sent);
    let env = lab.read("b.GC.env");
    assert!(env.contains("CNI_CONTAINERID=\n") && env.contains("CNI_NETNS=\n"), "{env}");
    let left = lab.runtime().cached_attachments(None, None);
    let left: Vec<&str> = left.iter().map(|entry| &*entry.container.id).collect();
    assert_eq!(left, ["keep", "c1"], "the valid one, and the other network's");
}

#[test]
fn gc_goes_on_after_failures() {
    let list = list("1.1.0", &["a", "b"]);
    let lab = attached(&list, &["s1", "s2"]);
    lab.plugin("a", &failing("GC", 105, "gc failed"));
    lab.plugin("b", &failing("DEL", 104, "del failed"));
    let error = lab.runtime().gc(&list, &[]).unwrap_err();
    assert_eq!(lab.calls(), ["DEL b", "DEL a", "DEL b", "DEL a", "GC a", "GC b"]);
    assert_eq!(error.code, Code(104));
    let expected = "failed to delete stale attachment s1 eth0: plugin type=\"b\" failed (delete): \
                    del failed; failed to delete stale attachment s2 eth0: plugin type=\"b\" failed \
                    (delete): del failed; plugin type=\"a\" failed (gc): gc failed";
    assert_eq!(error.msg, expected);
    assert_eq!(lab.runtime().cached_attachments(None, None).len(), 2, "kept for the next time");
}

#[test]
fn gc_before_1_1_0_only_removes_and_can_be_disabled() {
    let mut list = list("1.0.0", &["a"]);
    let lab = attached(&list, &["stale"]);
    list.disable_gc = true;
    lab.runtime().gc(&list, &[]).unwrap();
    assert!(lab.calls().is_empty());
    list.disable_gc = false;
    lab.runtime().gc(&list, &[]).unwrap();
    assert_eq!(lab.calls(), ["DEL a"]);
}

#[test]
fn what_is_valid_can_be_decided_while_nothing_else_runs() {
    let list = list("1.1.0", &["a"]);
    let lab = attached(&list, &["c1", "c2"]);
    let keep_second = |cached: &[Entry]| vec![cached[1].attachment()];
    lab.runtime().gc_with(&list, keep_second).unwrap();
    assert_eq!(lab.sent("a", "GC")["cni.dev/valid-attachments"][0]["containerID"], "c2");
    assert!(lab.runtime().cached("net", &container()).is_none());
}

#[test]
fn a_file_that_says_nothing_keeps_the_plugins_from_gc() {
    let list = list("1.1.0", &["a"]);
    for text in ["", "{", r#"{"cniVersion":"0.4.0"}"#, r#"{"kind":"cniCacheV1"}"#] {
        let lab = attached(&list, &["keep", "stale"]);
        let file = lab.path("cache/results/net-live-eth0");
        fs::write(&file, text).unwrap();
        let keep = |_: &[Entry]| vec![attachment("keep")];
        let error = lab.runtime().gc_with(&list, keep).unwrap_err();
        assert_eq!(lab.calls(), ["DEL a"], "the stale one, and no GC: {text}");
        assert_eq!(error.code, Code::IO);
        assert!(error.msg.contains(file.to_str().unwrap()), "{error}");
        fs::rename(&file, lab.path("cache/results/other-live-eth0")).unwrap();
        lab.runtime().gc_with(&list, keep).unwrap();
        assert_eq!(lab.calls(), ["GC a"], "of another network: {text}");
    }
}

#[test]
fn a_cache_that_cannot_be_listed_keeps_the_plugins_from_gc() {
    let list = list("1.1.0", &["a"]);
    let lab = attached(&list, &["c1"]);
    fs::remove_dir_all(lab.path("cache/results")).unwrap();
    lab.runtime().gc_with(&list, |_| Vec::new()).unwrap();
    assert_eq!(lab.calls(), ["GC a"], "no folder, no attachments");
    fs::write(lab.path("cache/results"), "a file where a folder belongs").unwrap();
    let error = lab.runtime().gc_with(&list, |_| Vec::new()).unwrap_err();
    assert_eq!(error.code, Code::IO);
    assert!(error.msg.contains(lab.path("cache/results").to_str().unwrap()), "{error}");
    assert!(lab.calls().is_empty());
    assert_eq!(lab.runtime().gc(&list, &[]).unwrap_err().code, Code::IO);
    assert_eq!(lab.calls(), ["GC a"], "the caller's own list does not depend on the cache");
}

#[test]
fn stale_attachments_can_be_removed_without_gc() {
    let list = list("1.1.0", &["a", "b"]);
    let lab = attached(&list, &["keep", "stale"]);
    lab.runtime().del_stale(&list, |_| vec![attachment("keep")]).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert!(lab.read("a.DEL.env").contains("CNI_CONTAINERID=stale\n"));
}

#[test]
fn status_is_the_first_plugins_own_error() {
    let lab = Lab::new();
    lab.plugin("a", "");
    lab.plugin("b", &failing("STATUS", 50, "daemon is down"));
    lab.plugin("c", "");
    let error = lab.runtime().status(&list("1.1.0", &["a", "b", "c"])).unwrap_err();
    let msg = "plugin type=\"b\" failed (status): daemon is down";
    assert_eq!((error.code, &*error.msg, &*error.details), (Code::NOT_AVAILABLE, msg, ""));
    assert_eq!(lab.calls(), ["STATUS a", "STATUS b"]);
    assert_eq!(lab.sent("a", "STATUS"), json!({"cniVersion": "1.1.0", "name": "net", "type": "a"}));
    lab.runtime().status(&list("1.1.0", &["a", "c"])).unwrap();
    lab.calls();
    lab.runtime().status(&list("1.0.0", &["a", "b", "nowhere"])).unwrap();
    assert!(lab.calls().is_empty(), "STATUS came with 1.1.0");
    assert!(lab.runtime().status(&list("1.1.0", &["nowhere"])).is_err());
}

#[test]
fn versions_are_asked_for_with_all_that_old_plugins_want() {
    let lab = Lab::new();
    let versions = |kind: &str| lab.runtime().plugin_versions(kind);
    let answer = r#"{"cniVersion":"2.0.0","supportedVersions":["1.0.0","2.0.0"]}"#;
    lab.plugin("new", &format!("echo '{answer}'"));
    assert_eq!(versions("new").unwrap(), ["1.0.0", "2.0.0"]);
    assert_eq!(lab.sent("new", "VERSION"), json!({"cniVersion": "1.1.0"}));
    assert_eq!(
        lab.read("new.VERSION.env"),
        "CNI_ARGS=\nCNI_COMMAND=VERSION\nCNI_CONTAINERID=\nCNI_IFNAME=dummy\nCNI_NETNS=dummy\n\
         CNI_PATH=dummy\n"
    );
    let unknown = r#"{"code": 4, "msg": "unknown CNI_COMMAND: VERSION"}"#;
    lab.plugin("oldest", &format!("echo '{unknown}'; exit 1"));
    assert_eq!(versions("oldest").unwrap(), ["0.1.0"]);
    lab.plugin("old", r#"echo '{"cniVersion":"0.2.0"}'"#);
    assert_eq!(versions("old").unwrap(), ["0.1.0", "0.2.0"]);
    lab.plugin("bare", r#"echo '{"cniVersion":"0.3.0"}'"#);
    let error = versions("bare").unwrap_err();
    assert_eq!(error.msg, "version of plugin bare: missing field supportedVersions");
    lab.plugin("empty", "echo '{}'");
    let error = versions("empty").unwrap_err();
    assert_eq!(error.msg, "version of plugin empty: missing field cniVersion");
    lab.plugin("junk", "echo junk");
    assert_eq!(versions("junk").unwrap_err().code, Code::DECODE);
    lab.plugin("fails", "exit 1");
    assert!(versions("fails").is_err());
    assert!(versions("nowhere").is_err());

    let host = Host {
        plugins: PLUGINS,
        program: None,
        always_exec: false,
        builtin_fallback: true,
        locks: None,
    };
    let known = lab.runtime_with(&host).plugin_versions("function").unwrap();
    assert_eq!(known, ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
}

#[test]
fn a_valid_list_gives_its_capabilities_and_an_invalid_one_all_errors() {
    let lab = Lab::new();
    lab.plugin("a", r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'"#);
    lab.plugin("b", r#"echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}'"#);
    let conf = |version: &str, last: &str| {
        list_of(&json!({"cniVersion": version, "name": "net", "plugins": [
            {"type": "a", "capabilities": {"mac": true, "bandwidth": false}},
            {"type": last, "capabilities": {"mac": true, "ips": true}},
        ]}))
    };
    let capabilities = lab.runtime().validate(&conf("0.4.0", "b")).unwrap();
    assert_eq!(capabilities, BTreeSet::from(["ips".to_owned(), "mac".to_owned()]));
    let error = lab.runtime().validate(&conf("1.0.0", "b")).unwrap_err();
    assert_eq!(error.code, Code::INCOMPATIBLE_VERSION);
    assert_eq!(error.msg, "plugin b does not support config version \"1.0.0\"");
    let error = lab.runtime().validate(&conf("1.1.0", "nowhere")).unwrap_err();
    assert!(error.msg.contains("plugin a does not support"), "{error}");
    assert!(error.msg.contains("failed to find plugin \"nowhere\""), "{error}");
}
