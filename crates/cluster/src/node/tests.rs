// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::{Object, TooLarge};

/// Shortened from the answer of an API server.
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

fn prefixes() -> AnnotationPrefixes {
    AnnotationPrefixes(vec!["flannel.alpha.coreos.com/".to_owned()])
}

fn object(text: &str) -> Object<Node> {
    Object::new(serde_json::from_str(text).unwrap(), &prefixes())
}

fn annotated(pairs: &[(&str, &str)]) -> Node {
    let name = |rest| format!("flannel.alpha.coreos.com/{rest}");
    let annotations = pairs.iter().map(|(rest, text)| (name(rest), (*text).to_owned())).collect();
    Node { annotations, ..Node::default() }
}

#[test]
fn node_keeps_only_what_is_needed() {
    let object = object(NODE);
    assert_eq!(object.name, "worker-1.example");
    assert_eq!((object.revision, object.created), (Revision(4711), 1_767_323_045));
    let expected = concat!(
        r#"{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"],"#,
        r#""annotations":{"flannel.alpha.coreos.com/backend-type":"vxlan","#,
        r#""flannel.alpha.coreos.com/public-ip-overwrite":"203.0.113.7"},"#,
        r#""internalIPs":["192.168.90.1","fd00:90::1"]}"#
    );
    let node = object.content.unwrap();
    assert_eq!(serde_json::to_string(&node).unwrap(), expected);
    assert_eq!(serde_json::from_str::<Node>(expected).unwrap(), node);
}

#[test]
fn bare_node_is_empty() {
    let bare = object(r#"{"metadata":{"name":"a"}}"#).content.unwrap();
    assert_eq!(serde_json::to_string(&bare).unwrap(), "{}");
    let empty = object(r#"{"metadata":{"name":"a"},"spec":{"podCIDR":""}}"#);
    assert_eq!(empty.content, Ok(Node::default()));
}

#[test]
fn condition_is_found_by_type() {
    let node: WireNode = serde_json::from_str(NODE).unwrap();
    assert_eq!(node.condition("NetworkUnavailable").unwrap().reason, "FlannelIsUp");
    assert_eq!(node.condition("Ready"), None);
}

#[test]
fn patch_contains_only_the_changes() {
    let before = annotated(&[("backend-type", "vxlan"), ("public-ip", "10.0.0.1"), ("old", "x")]);
    let after = annotated(&[("backend-type", "vxlan"), ("public-ip", "10.0.0.2"), ("new", "y")]);
    let patch = annotation_patch(&annotation_changes(&before, &after), Revision(7));
    let expected = json!({"metadata": {"resourceVersion": "7", "annotations": {
        "flannel.alpha.coreos.com/new": "y",
        "flannel.alpha.coreos.com/old": null,
        "flannel.alpha.coreos.com/public-ip": "10.0.0.2",
    }}});
    assert_eq!(patch, expected);
    assert!(annotation_changes(&before, &before).is_empty());
}

#[test]
fn cached_text_that_is_no_node_is_rejected() {
    for bad in [&b""[..], b"x", b"7", br#"{"podCidr":"x"}"#, b"\xff"] {
        assert!(serde_json::from_slice::<Node>(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn annotations_over_the_limit_are_dropped() {
    let large = "x".repeat(Node::MAX_SIZE);
    let large = |name: &str| {
        let text = NODE.replace("\"vxlan\"", &format!("\"{large}\""));
        object(&text.replace("flannel.alpha.coreos.com/backend-type", name))
    };
    let dropped = large("flannel.alpha.coreos.com/backend-type");
    assert_eq!(dropped.name, "worker-1.example");
    let Err(TooLarge { size, limit }) = dropped.content else { panic!("{dropped:?}") };
    assert!(size > 16_384 && limit == 16_384, "{size} {limit}");
    // Annotations with other prefixes are not kept and do not count.
    assert!(large("example.com/theirs").content.is_ok());
}

#[test]
fn annotations_over_the_limit_are_not_written() {
    let changes = |length: usize| BTreeMap::from([("a".to_owned(), Some("x".repeat(length)))]);
    assert!(check_size("n", &changes(Node::MAX_SIZE - 1)).is_ok());
    let error = check_size("n", &changes(Node::MAX_SIZE)).unwrap_err().to_string();
    assert!(error.contains("node n have 16385 bytes; the limit is 16384"), "{error}");
}
