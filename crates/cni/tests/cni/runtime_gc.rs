// SPDX-License-Identifier: Apache-2.0
//! GC by a runtime.

use std::fs;

use cni::runtime::cache::Entry;
use cni::runtime::{Container, NetworkList};
use cni::{Attachment, Code};
use serde_json::json;

use crate::lab::{Lab, container, failing, list, list_of, printing};

fn attachment(id: &str) -> Attachment {
    Attachment { container_id: id.into(), ifname: "eth0".into() }
}

/// Creates a lab with plugins `a` and `b` and these containers attached.
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
fn gc_removes_stale_attachments_and_calls_plugins() {
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
    assert!(lab.read("a.DEL.env").contains("CNI_ARGS=K=stale\n"), "the arguments of ADD");
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
    assert_eq!(left, ["keep", "c1"], "the valid one and that of the other network");
}

#[test]
fn gc_continues_after_failures() {
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
    assert_eq!(lab.runtime().cached_attachments(None, None).len(), 2, "kept for the next GC");
}

#[test]
fn gc_before_1_1_0_runs_del_only() {
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
fn gc_with_asks_for_the_valid_attachments() {
    let list = list("1.1.0", &["a"]);
    let lab = attached(&list, &["c1", "c2"]);
    let keep_second = |cached: &[Entry]| vec![cached[1].attachment()];
    lab.runtime().gc_with(&list, keep_second).unwrap();
    assert_eq!(lab.sent("a", "GC")["cni.dev/valid-attachments"][0]["containerID"], "c2");
    assert!(lab.runtime().cached("net", &container()).is_none());
}

#[test]
fn unparsable_cache_file_prevents_plugin_gc() {
    let list = list("1.1.0", &["a"]);
    for text in ["", "{", r#"{"cniVersion":"0.4.0"}"#, r#"{"kind":"cniCacheV1"}"#] {
        let lab = attached(&list, &["keep", "stale"]);
        let file = lab.path("cache/results/net-live-eth0");
        fs::write(&file, text).unwrap();
        let keep = |_: &[Entry]| vec![attachment("keep")];
        let error = lab.runtime().gc_with(&list, keep).unwrap_err();
        assert_eq!(lab.calls(), ["DEL a"], "DEL of the stale one, no GC: {text}");
        assert_eq!(error.code, Code::IO);
        assert!(error.msg.contains(file.to_str().unwrap()), "{error}");
        fs::rename(&file, lab.path("cache/results/other-live-eth0")).unwrap();
        lab.runtime().gc_with(&list, keep).unwrap();
        assert_eq!(lab.calls(), ["GC a"], "a file of another network: {text}");
    }
}

#[test]
fn unlistable_cache_prevents_plugin_gc() {
    let list = list("1.1.0", &["a"]);
    let lab = attached(&list, &["c1"]);
    fs::remove_dir_all(lab.path("cache/results")).unwrap();
    lab.runtime().gc_with(&list, |_| Vec::new()).unwrap();
    assert_eq!(lab.calls(), ["GC a"], "a missing directory is empty");
    fs::write(lab.path("cache/results"), "a file instead of a directory").unwrap();
    let error = lab.runtime().gc_with(&list, |_| Vec::new()).unwrap_err();
    assert_eq!(error.code, Code::IO);
    assert!(error.msg.contains(lab.path("cache/results").to_str().unwrap()), "{error}");
    assert!(lab.calls().is_empty());
    assert_eq!(lab.runtime().gc(&list, &[]).unwrap_err().code, Code::IO);
    assert_eq!(lab.calls(), ["GC a"], "the caller's own list does not depend on the cache");
}

#[test]
fn del_stale_runs_no_plugin_gc() {
    let list = list("1.1.0", &["a", "b"]);
    let lab = attached(&list, &["keep", "stale"]);
    lab.runtime().del_stale(&list, |_| vec![attachment("keep")]).unwrap();
    assert_eq!(lab.calls(), ["DEL b", "DEL a"]);
    assert!(lab.read("a.DEL.env").contains("CNI_CONTAINERID=stale\n"));
}
