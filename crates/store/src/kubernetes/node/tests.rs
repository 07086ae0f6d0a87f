// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Shortened from what an API server sends.
const NODE: &str = r#"{
  "kind": "Node", "apiVersion": "v1",
  "metadata": {
    "name": "worker-1.example", "uid": "5e8e3c9f", "resourceVersion": "4711",
    "creationTimestamp": "2026-01-02T03:04:05Z",
    "labels": {"kubernetes.io/os": "linux"},
    "annotations": {
      "flannel.alpha.coreos.com/backend-type": "vxlan",
      "flannel.alpha.coreos.com/public-ip-overwrite": "203.0.113.7",
      "node.alpha.kubernetes.io/ttl": "0"
    },
    "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}]
  },
  "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"],
           "providerID": "x"},
  "status": {
    "capacity": {"cpu": "2"},
    "addresses": [{"type": "InternalIP", "address": "192.168.90.1"},
                  {"type": "Hostname", "address": "worker-1"},
                  {"type": "InternalIP", "address": "fd00:90::1"}],
    "conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp",
                    "message": "Flannel is running on this node",
                    "lastTransitionTime": "2026-01-02T03:04:05Z"}],
    "images": [{"names": ["x"], "sizeBytes": 1}]
  }
}"#;

fn prefixes() -> Vec<String> {
    vec!["flannel.alpha.coreos.com/".to_owned()]
}

fn annotated(pairs: &[(&str, &str)]) -> Node {
    let name = |rest| format!("flannel.alpha.coreos.com/{rest}");
    let annotations = pairs.iter().map(|(rest, text)| (name(rest), (*text).to_owned())).collect();
    Node { annotations, ..Node::default() }
}

#[test]
fn only_what_is_needed_is_kept() {
    let object: Object = serde_json::from_str(NODE).unwrap();
    let entry = object.entry(&prefixes());
    assert_eq!(entry.key, "nodes/worker-1.example");
    assert_eq!((entry.revision, entry.created), (Revision(4711), Revision(1_767_323_045)));
    let expected = concat!(
        r#"{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"],"#,
        r#""annotations":{"flannel.alpha.coreos.com/backend-type":"vxlan","#,
        r#""flannel.alpha.coreos.com/public-ip-overwrite":"203.0.113.7"},"#,
        r#""internalIPs":["192.168.90.1","fd00:90::1"]}"#
    );
    assert_eq!(String::from_utf8(entry.value.clone()).unwrap(), expected);
    assert_eq!(Node::read(&entry.value).unwrap().write(), entry.value);
}

#[test]
fn bare_node_is_an_empty_value() {
    let object: Object = serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap();
    assert_eq!(object.entry(&prefixes()).value, b"{}");
    let empty = r#"{"metadata":{"name":"a"},"spec":{"podCIDR":""}}"#;
    let object: Object = serde_json::from_str(empty).unwrap();
    assert_eq!(object.node(&prefixes()), Node::default());
}

#[test]
fn conditions_are_found_by_type() {
    let object: Object = serde_json::from_str(NODE).unwrap();
    assert_eq!(object.condition("NetworkUnavailable").unwrap().reason, "FlannelIsUp");
    assert_eq!(object.condition("Ready"), None);
}

#[test]
fn keys_are_names_of_nodes() {
    let check = |key: &str, expected: Option<&str>| {
        assert_eq!(name(key).ok(), expected, "{key}");
    };
    check("nodes/a", Some("a"));
    check("nodes/worker-1.example", Some("worker-1.example"));
    for bad in [
        "",
        "a",
        "nodes/",
        "nodes/A",
        "nodes/a/status",
        "nodes/..",
        "nodes/a?x",
        "nodes/-a",
        "nodes/a.",
        "nodes/a\0b",
        "/nodes/a",
    ] {
        check(bad, None);
    }
    check(&format!("nodes/{}", "a".repeat(254)), None);
    let said = name("x").unwrap_err().to_string();
    assert!(said.contains("\"x\"") && said.contains("nodes/"), "{said}");
}

#[test]
fn patch_has_the_difference_only() {
    let found = annotated(&[("backend-type", "vxlan"), ("public-ip", "10.0.0.1"), ("old", "x")]);
    let wanted = annotated(&[("backend-type", "vxlan"), ("public-ip", "10.0.0.2"), ("new", "y")]);
    let patch = annotation_patch(&difference(&found, &wanted), Revision(7));
    let expected = json!({"metadata": {"resourceVersion": "7", "annotations": {
        "flannel.alpha.coreos.com/new": "y",
        "flannel.alpha.coreos.com/old": null,
        "flannel.alpha.coreos.com/public-ip": "10.0.0.2",
    }}});
    assert_eq!(patch, expected);
    assert!(difference(&found, &found).is_empty());
}

#[test]
fn what_is_others_business_is_refused() {
    let check = |wanted: &Node, words: &str| {
        let said = check_swap("nodes/a", &Node::default(), wanted, &prefixes()).unwrap_err();
        assert!(said.to_string().contains(words), "{said} should say {words:?}");
    };
    let cidr = Some("10.244.1.0/24".to_owned());
    check(&Node { pod_cidr: cidr, ..Node::default() }, "podCIDRs cannot be changed here");
    let ips = vec!["10.0.0.1".to_owned()];
    check(&Node { internal_ips: ips, ..Node::default() }, "internalIPs cannot be changed here");
    let mut foreign = Node::default();
    foreign.annotations.insert("other.org/x".to_owned(), String::new());
    check(&foreign, r#"annotation "other.org/x": expected one below flannel.alpha.coreos.com/"#);
    let ours = annotated(&[("public-ip", "x")]);
    assert!(check_swap("nodes/a", &Node::default(), &ours, &prefixes()).is_ok());
}

#[test]
fn values_that_are_no_nodes_are_refused() {
    for bad in [&b""[..], b"x", b"7", br#"{"podCidr":"x"}"#, b"\xff"] {
        assert!(matches!(Node::read(bad), Err(Error::Invalid(_))), "{bad:?}");
    }
}

#[test]
fn nodes_with_large_annotations_are_left_out() {
    let large = "x".repeat(crate::limit::MAX_VALUE);
    let object = |name: &str| -> Object {
        serde_json::from_str(
            &NODE
                .replace("\"vxlan\"", &format!("\"{large}\""))
                .replace("flannel.alpha.coreos.com/backend-type", name),
        )
        .unwrap()
    };
    let entry = object("flannel.alpha.coreos.com/backend-type").entry(&prefixes());
    assert_eq!(entry.key, "nodes/worker-1.example");
    assert_eq!(entry.value.len(), 0);
    assert!(entry.oversized > Some(16_384), "{:?}", entry.oversized);
    // Annotations of others are not kept, and do not count.
    assert_eq!(object("example.com/theirs").entry(&prefixes()).oversized, None);
}
