// SPDX-License-Identifier: Apache-2.0
//! Compares keys and JSON with what Calico writes.
//!
//! The JSON is written down field by field from Calico's Go structs and their JSON tags. Each test names the file in
//! the repository projectcalico/calico.

use serde_json::json;

use super::*;
use crate::Timestamp;
use crate::block::Attribute;
use crate::pool::{Assignment, Mode, Pool, Use};

fn cidr(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn etcd_value(key: &Key, object: &Object) -> Value {
    serde_json::from_slice(&etcd::value(key, object)).unwrap()
}

/// Reads a value and writes it back, which must change nothing.
fn etcd_round_trip(key: &Key, value: &Value) -> Object {
    let object = etcd::parse(key, value.to_string().as_bytes()).unwrap();
    assert_eq!(etcd_value(key, &object), *value);
    object
}

/// The API server knows resource versions and UIDs without the writer.
fn crd_round_trip(kind: crd::Kind, value: &Value) -> (Key, Object) {
    let mut read = value.clone();
    read["metadata"]["resourceVersion"] = "17".into();
    read["metadata"]["uid"] = "u".into();
    let (key, object) = crd::parse(kind, read).unwrap();
    let mut written = crd::value(&key, &object).unwrap();
    let metadata = written["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| !["resourceVersion", "uid"].contains(&field.as_str()));
    assert_eq!(written, *value);
    assert_eq!(crd::Kind::of(&key), Some(kind));
    (key, object)
}

#[test]
fn keys_are_those_of_calico() {
    // libcalico-go/lib/backend/model/{block,block_affinity,ipam_handle,ipam_config,resource}.go: defaultPath;
    // lib/backend/k8s/resources/{ipam_block,ipam_affinity_v1,ipam_handle,ipam_config_v1}.go: parseKey.
    let affinity = |node: &str, block| Key::Affinity { node: node.to_owned(), block: cidr(block) };
    for (key, path, name) in [
        (
            Key::Block(cidr("10.244.0.0/26")),
            "/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-26",
            "10-244-0-0-26",
        ),
        (
            Key::Block(cidr("fd00:10:244::40/122")),
            "/calico/ipam/v2/assignment/ipv6/block/fd00:10:244::40-122",
            "fd00-10-244--40-122",
        ),
        (
            affinity("node.a", "10.244.0.0/26"),
            "/calico/ipam/v2/host/node.a/ipv4/block/10.244.0.0-26",
            "node.a-10-244-0-0-26",
        ),
        (
            affinity("n", "fd00::/122"),
            "/calico/ipam/v2/host/n/ipv6/block/fd00::-122",
            "n-fd00---122",
        ),
        (
            Key::Handle("k8s-pod-network.0aB1".to_owned()),
            "/calico/ipam/v2/handle/k8s-pod-network.0aB1",
            "k8s-pod-network.0ab1",
        ),
        (Key::Config, "/calico/ipam/v2/config", "default"),
        (
            Key::Pool("default-ipv4-ippool".to_owned()),
            "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool",
            "default-ipv4-ippool",
        ),
        (
            Key::Reservation("r".to_owned()),
            "/calico/resources/v3/projectcalico.org/ipreservations/r",
            "r",
        ),
        (Key::Node("n".to_owned()), "/calico/resources/v3/projectcalico.org/nodes/n", "n"),
    ] {
        assert_eq!(etcd::key(&key), path);
        assert_eq!(etcd::parse_key(path), Some(key.clone()));
        assert_eq!(crd::name(&key), name);
    }
    for other in [
        "/calico/ipam/v2",
        "/calico/ipam/v2/assignment/ipv4/1.2.3.4-26",
        "/calico/ipam/v2/assignment/ipv6/block/10.0.0.0-26",
        "/calico/ipam/v2/handle/foobar/baz",
        "/calico/ipam/v2/host/foobar/ipv4/block/1.2.3.4-5",
        "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.0-26",
    ] {
        assert_eq!(etcd::parse_key(other), None, "{other}");
    }
}

#[test]
fn long_affinity_name_ends_with_a_hash() {
    // lib/backend/k8s/resources/ipam_affinity_v1.go: parseKey.
    let node = "a".repeat(250);
    let key = Key::Affinity { node: node.clone(), block: cidr("10.0.0.0/26") };
    let name = crd::name(&key);
    assert_eq!(name.len(), 252);
    // printf '%s+10-0-0-0-26' "$(printf 'a%.0s' {1..250})" | sha256sum
    assert!(name.ends_with("a-10-0-0-0-26-8f7e6ea6753"), "{name}");
}

fn etcd_block() -> Value {
    json!({
        "cidr": "10.244.0.0/29",
        "affinity": "host:node-a",
        "affinity_claim_time": "2026-06-15T12:00:00Z",
        "allocations": [0, 0, null, 1, 2, null, null, null],
        "unallocated": [5, 6, 7, 2],
        "attributes": [
            {
                "handle_id": "k8s-pod-network.1f2e",
                "secondary": {
                    "namespace": "default", "node": "node-a", "pod": "web-0",
                    "timestamp": "2026-06-15 12:00:01.123456789 +0000 UTC"
                }
            },
            {
                "handle_id": "vxlan-tunnel-addr-node-a",
                "secondary": {"node": "node-a", "type": "vxlanTunnelAddress"},
                "alternateOwnerAttrs": {"pod": "target"}
            },
            {"releasedAt": "2026-06-15T12:30:00Z"}
        ],
        "sequenceNumber": 1_781_524_800_000_000_003_u64,
        "sequenceNumberForAllocation": {
            "0": 1_781_524_800_000_000_000_u64, "1": 1_781_524_800_000_000_001_u64, "4": 7
        },
        "deleted": false
    })
}

#[test]
fn block_in_etcd_has_calicos_fields() {
    // libcalico-go/lib/backend/model/block.go: AllocationBlock, AllocationAttribute.
    let key = Key::Block(cidr("10.244.0.0/29"));
    let Object::Block(block) = etcd_round_trip(&key, &etcd_block()) else { panic!() };
    assert_eq!(block.owner(), Some("node-a"));
    assert_eq!(block.claimed.unwrap().to_string(), "2026-06-15T12:00:00Z");
    assert_eq!(block.free().collect::<Vec<_>>(), [5, 6, 7, 2]);
    let allocation = block.allocation(1).unwrap();
    assert_eq!(allocation.attribute.handle(), Some("k8s-pod-network.1f2e"));
    assert_eq!(allocation.attribute.user(), "pod default/web-0");
    assert_eq!(allocation.sequence, 1_781_524_800_000_000_001);
    assert_eq!(block.allocation(3).unwrap().attribute.user(), "vxlanTunnelAddress of node node-a");
    assert!(block.allocation(4).unwrap().attribute.is_cooling());
}

#[test]
fn new_block_has_calicos_fields() {
    // libcalico-go/lib/ipam/ipam_block.go: newBlock; ipam_block_reader_writer.go: claimAffineBlock.
    let now = Timestamp::parse("2026-06-15T12:00:00Z").unwrap();
    let mut block = Block::new(cidr("10.244.0.4/30"), "node-a", now);
    let key = Key::Block(block.cidr());
    let expected = json!({
        "cidr": "10.244.0.4/30",
        "affinity": "host:node-a",
        "affinity_claim_time": "2026-06-15T12:00:00Z",
        "allocations": [null, null, null, null],
        "unallocated": [0, 1, 2, 3],
        "attributes": [],
        "sequenceNumber": 1_781_524_800_000_000_000_u64,
        "sequenceNumberForAllocation": {},
        "deleted": false
    });
    assert_eq!(etcd_value(&key, &Object::Block(block.clone())), expected);
    // libcalico-go/lib/ipam/ipam_block_reader_writer.go: releaseBlockAffinity.
    block.affinity = None;
    block.claimed = None;
    let value = etcd_value(&key, &Object::Block(block));
    assert_eq!(value["affinity"], Value::Null);
    assert_eq!(value.get("affinity_claim_time"), None);
}

#[test]
fn block_in_kubernetes_has_calicos_fields() {
    // libcalico-go/lib/apis/internalapi/ipam_block.go: IPAMBlockSpec. Compared with etcd: the name of the claim time,
    // and the deprecated strictAffinity.
    let mut spec = etcd_block();
    let map = spec.as_object_mut().unwrap();
    let time = map.remove("affinity_claim_time").unwrap();
    map.insert("affinityClaimTime".to_owned(), time);
    map.insert("strictAffinity".to_owned(), false.into());
    let value = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMBlock",
        "metadata": {
            "name": "10-244-0-0-29",
            "annotations": {"projectcalico.org/metadata": "{\"creationTimestamp\":null}", "a": "b"},
            "ownerReferences": [{"uid": "o"}]
        },
        "spec": spec
    });
    let (key, object) = crd_round_trip(crd::Kind::Block, &value);
    assert_eq!(key, Key::Block(cidr("10.244.0.0/29")));
    let Object::Block(from_crd) = object else { panic!() };
    let from_etcd = etcd::parse(&key, etcd_block().to_string().as_bytes()).unwrap();
    let Object::Block(mut from_etcd) = from_etcd else { panic!() };
    from_etcd.preserved = from_crd.preserved.clone();
    assert_eq!(from_crd, from_etcd);
    // Without affinity the field is omitted.
    let mut block = from_crd;
    block.affinity = None;
    let value = crd::value(&key, &Object::Block(block)).unwrap();
    assert_eq!(value["spec"].get("affinity"), None);
}

#[test]
fn block_keeps_unknown_fields() {
    let mut value = etcd_block();
    value["hostAffinity"] = "node-a".into();
    value["future"] = json!({"a": [1, 2]});
    value["attributes"][0]["future"] = 7.into();
    etcd_round_trip(&Key::Block(cidr("10.244.0.0/29")), &value);
}

#[test]
fn malformed_block_error_names_object_and_reason() {
    let key = Key::Block(cidr("10.244.0.0/29"));
    let check = |change: fn(&mut Value), expected: &str| {
        let mut value = etcd_block();
        change(&mut value);
        let error = etcd::parse(&key, value.to_string().as_bytes()).unwrap_err().to_string();
        assert_eq!(error, format!("IPAMBlock 10.244.0.0/29: {expected}"));
    };
    check(
        |v| v["cidr"] = "10.0.0.0/29".into(),
        "cidr: \"10.0.0.0/29\"; expected 10.244.0.0/29 as in the key",
    );
    check(
        |v| v["allocations"] = json!([null]),
        "allocations: 1 entries; expected 8 for 10.244.0.0/29",
    );
    check(|v| v["allocations"][7] = 9.into(), "allocations[7]: there is no attribute 9");
    check(|v| v["unallocated"][0] = 0.into(), "unallocated: ordinal 0 is also allocated");
    check(|v| v["unallocated"][0] = 8.into(), "unallocated: ordinal 8 is out of range");
    check(|v| v["unallocated"][0] = 6.into(), "unallocated: ordinal 6 appears twice");
    check(
        |v| v["sequenceNumberForAllocation"] = json!({"x": 1}),
        "sequenceNumberForAllocation: key \"x\"",
    );
    check(
        |v| v["sequenceNumber"] = (-1).into(),
        "sequenceNumber: invalid value: integer `-1`, expected u64",
    );
    let error = etcd::parse(&key, b"[]").unwrap_err().to_string();
    assert_eq!(error, "IPAMBlock 10.244.0.0/29: is a list; expected an object");
    let error = etcd::parse(&key, b"{").unwrap_err().to_string();
    assert!(error.starts_with("IPAMBlock 10.244.0.0/29: not valid JSON: "), "{error}");
    let huge = Key::Block(cidr("10.0.0.0/16"));
    let error = etcd::parse(&huge, br#"{"allocations": []}"#).unwrap_err().to_string();
    assert!(error.contains("expected a network with prefix length 20 or more"), "{error}");
}

#[test]
fn ordinal_in_neither_list_becomes_free() {
    let mut value = etcd_block();
    value["unallocated"] = json!([6]);
    let key = Key::Block(cidr("10.244.0.0/29"));
    let Object::Block(block) = etcd::parse(&key, value.to_string().as_bytes()).unwrap() else {
        panic!()
    };
    assert_eq!(block.free().collect::<Vec<_>>(), [6, 2, 5, 7]);
}

#[test]
fn equal_attributes_are_stored_once() {
    let now = Timestamp::from_millis(5);
    let mut block = Block::new(cidr("10.0.0.0/30"), "n", now);
    for ordinal in [0, 2, 3] {
        block.assign(ordinal, &std::sync::Arc::new(Attribute::reserve("n"))).unwrap();
    }
    let value = etcd_value(&Key::Block(block.cidr()), &Object::Block(block));
    assert_eq!(value["allocations"], json!([0, null, 0, 0]));
    assert_eq!(
        value["attributes"],
        json!([{"handle_id": "podwire-reserved-n", "secondary": {"node": "n"}}])
    );
}

#[test]
fn affinity_has_calicos_fields() {
    // libcalico-go/lib/backend/model/block_affinity.go, keys_test.go.
    let key = Key::Affinity { node: "node-a".to_owned(), block: cidr("10.244.0.0/26") };
    for state in ["pending", "confirmed", "pendingDeletion"] {
        etcd_round_trip(&key, &json!({"state": state, "deleted": false}));
    }
    for old in [&b""[..], b"{}", br#"{"state":""}"#] {
        let Object::Affinity(affinity) = etcd::parse(&key, old).unwrap() else { panic!() };
        assert_eq!(affinity.state, AffinityState::Confirmed);
    }
    let error = etcd::parse(&key, br#"{"state":"new"}"#).unwrap_err().to_string();
    assert_eq!(
        error,
        "BlockAffinity 10.244.0.0/26 of node node-a: state: \"new\"; expected pending, confirmed or pendingDeletion"
    );
    // libcalico-go/lib/apis/internalapi/blockaffinity.go; lib/backend/model/block_affinity.go:
    // EnsureBlockAffinityLabels; api/pkg/apis/projectcalico/v3/constants.go.
    let value = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "BlockAffinity",
        "metadata": {
            "name": "node-a-10-244-0-0-26",
            "annotations": {"projectcalico.org/metadata": "{\"creationTimestamp\":null}"},
            "labels": {
                "projectcalico.org/affinity-type": "host",
                "projectcalico.org/hostname-hash": "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA",
                "projectcalico.org/ip-version": "4"
            }
        },
        "spec": {
            "state": "confirmed", "node": "node-a", "type": "host", "cidr": "10.244.0.0/26",
            "deleted": "false"
        }
    });
    assert_eq!(crd_round_trip(crd::Kind::Affinity, &value).0, key);
    let created = Object::Affinity(BlockAffinity::default());
    assert_eq!(crd::value(&key, &created).unwrap(), value);
    let mut load_balancer = value;
    load_balancer["spec"]["type"] = "virtual".into();
    let error = crd::parse(crd::Kind::Affinity, load_balancer).unwrap_err().to_string();
    assert_eq!(
        error,
        "BlockAffinity node-a-10-244-0-0-26: spec.type: \"virtual\"; only host is supported"
    );
}

#[test]
fn handle_has_calicos_fields() {
    // libcalico-go/lib/backend/model/ipam_handle.go; lib/apis/internalapi/ipam_handle.go.
    let key = Key::Handle("net.AbC".to_owned());
    let value = json!({"block": {"10.244.0.0/26": 1, "fd00::/122": 1}, "deleted": false});
    let Object::Handle(handle) = etcd_round_trip(&key, &value) else { panic!() };
    assert_eq!(handle.blocks[&cidr("fd00::/122")], 1);
    let value = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMHandle",
        "metadata": {
            "name": "net.abc",
            "annotations": {"projectcalico.org/metadata": "{\"creationTimestamp\":null}"}
        },
        "spec": {"handleID": "net.AbC", "block": {"10.244.0.0/26": 2}, "deleted": false}
    });
    let (read, object) = crd_round_trip(crd::Kind::Handle, &value);
    assert_eq!(read, key);
    // Nothing that all objects have takes memory.
    let Object::Handle(handle) = object else { panic!() };
    assert_eq!(handle.preserved, Preserved::default());
    let error = etcd::parse(&key, br#"{"block":{"x":1}}"#).unwrap_err().to_string();
    assert!(error.starts_with("IPAMHandle net.AbC: block: \"x\": "), "{error}");
}

#[test]
fn config_has_calicos_fields() {
    // libcalico-go/lib/backend/model/ipam_config.go; lib/apis/internalapi/ipam_config.go; lib/ipam/ipam.go:
    // GetIPAMConfig has the defaults.
    let value = json!({
        "strict_affinity": true, "auto_allocate_blocks": true, "maxBlocksPerHost": 4,
        "kubeVirtVMAddressPersistence": "Enabled", "ipCooldownSeconds": 30
    });
    let Object::Config(config) = etcd_round_trip(&Key::Config, &value) else { panic!() };
    assert!(config.strict_affinity);
    assert_eq!((config.max_blocks(), config.cooldown.as_secs()), (4, 30));
    etcd_round_trip(&Key::Config, &json!({}));
    let default = etcd_value(&Key::Config, &Object::Config(IpamConfig::default()));
    assert_eq!(default, json!({"auto_allocate_blocks": true}));
    assert_eq!(IpamConfig::default().max_blocks(), 20);
    let value = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMConfig",
        "metadata": {"name": "default", "annotations": {"projectcalico.org/metadata": "{\"labels\":{}}"}},
        "spec": {"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 4}
    });
    crd_round_trip(crd::Kind::Config, &value);
}

#[test]
fn pool_has_calicos_fields() {
    // api/pkg/apis/projectcalico/v3/ippool.go: IPPoolSpec; libcalico-go/lib/clientv3/ippool.go has the defaults.
    let spec = json!({
        "cidr": "192.168.0.0/16", "vxlanMode": "CrossSubnet", "ipipMode": "Never", "natOutgoing": true,
        "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic"
    });
    let key = Key::Pool("default-ipv4-ippool".to_owned());
    let mut value = json!({
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "default-ipv4-ippool", "uid": "u", "creationTimestamp": "2026-06-15T12:00:00Z"
        },
        "spec": spec
    });
    let Object::Pool(conf) = etcd_round_trip(&key, &value) else { panic!() };
    assert_eq!(conf.created, Timestamp::parse("2026-06-15T12:00:00Z"));
    assert_eq!((conf.vxlan, conf.nat_outgoing), (Mode::CrossSubnet, true));
    assert_eq!(Pool::new(conf).unwrap().block_size(), 26);
    value["apiVersion"] = crd::API_VERSION.into();
    let metadata = value["metadata"].as_object_mut().unwrap();
    metadata.remove("uid");
    metadata.insert("annotations".to_owned(), json!({"projectcalico.org/metadata": "{}"}));
    crd_round_trip(crd::Kind::Pool, &value);

    let created = PoolConf {
        vxlan: Mode::CrossSubnet,
        nat_outgoing: true,
        ..PoolConf::new("p", cidr("192.168.0.0/16"))
    };
    assert_eq!(etcd_value(&Key::Pool("p".to_owned()), &Object::Pool(created))["spec"], spec);

    let sparse = json!({
        "metadata": {"name": "p"},
        "spec": {
            "cidr": "fd00::/64", "ipipMode": "", "disabled": true, "disableBGPExport": true, "blockSize": 0,
            "namespaceSelector": "has(a)", "allowedUses": ["LoadBalancer"], "assignmentMode": "Manual"
        }
    });
    let (_, object) = crd::parse(crd::Kind::Pool, sparse).unwrap();
    let Object::Pool(conf) = object else { panic!() };
    assert_eq!((conf.block_size, conf.ipip, conf.disabled), (None, Mode::Never, true));
    assert_eq!(conf.allowed_uses, [Use::LoadBalancer]);
    assert_eq!((conf.assignment, conf.namespace_selector.as_str()), (Assignment::Manual, "has(a)"));

    let check = |field: &str, bad: Value, expected: &str| {
        let mut value = value.clone();
        value["spec"][field] = bad;
        let error = crd::parse(crd::Kind::Pool, value).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("IPPool default-ipv4-ippool: spec.{field}: {expected}")),
            "{error}"
        );
    };
    check("cidr", "x".into(), "\"x\": ");
    check("cidr", Value::Null, "missing");
    check("ipipMode", "Sometimes".into(), "unknown variant `Sometimes`, expected one of");
    check("allowedUses", json!(["x"]), "\"x\"; expected Workload, Tunnel or LoadBalancer");
    check("assignmentMode", "x".into(), "\"x\"; expected Automatic or Manual");
    check("blockSize", 300.into(), "invalid value: integer `300`, expected u8");
}

#[test]
fn reservation_has_calicos_fields() {
    // api/pkg/apis/projectcalico/v3/ipreservation.go.
    let key = Key::Reservation("r".to_owned());
    let value = json!({
        "kind": "IPReservation", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "r"},
        "spec": {"reservedCIDRs": ["10.0.0.0/30", "fd00::1/128"]}
    });
    let Object::Reservation(reservation) = etcd_round_trip(&key, &value) else { panic!() };
    assert_eq!(reservation.cidrs, [cidr("10.0.0.0/30"), cidr("fd00::1/128")]);
    let bare = br#"{"spec":{"reservedCIDRs":["10.0.0.1", " "]}}"#;
    let Object::Reservation(reservation) = etcd::parse(&key, bare).unwrap() else { panic!() };
    assert_eq!(reservation.cidrs, [cidr("10.0.0.1/32")]);
    let error = etcd::parse(&key, br#"{"spec":{"reservedCIDRs":["x"]}}"#).unwrap_err().to_string();
    assert_eq!(error, "IPReservation r: spec.reservedCIDRs: \"x\"; expected an address or a CIDR");
}

#[test]
fn node_has_calicos_fields() {
    // libcalico-go/lib/apis/internalapi/node.go: NodeSpec, NodeBGPSpec.
    let key = Key::Node("n".to_owned());
    let value = json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {
            "bgp": {
                "asNumber": 64512, "ipv4Address": "192.0.2.1/24", "ipv6Address": "2001:db8::1/64",
                "ipv4IPIPTunnelAddr": "10.244.0.1"
            },
            "ipv4VXLANTunnelAddr": "10.244.0.2", "vxlanTunnelMACAddr": "66:11:22:33:44:55",
            "ipv6VXLANTunnelAddr": "fd00::2", "vxlanTunnelMACAddrV6": "66:11:22:33:44:56",
            "addresses": [{"address": "192.0.2.1/24", "type": "CalicoNodeIP"}]
        }
    });
    let Object::Node(node) = etcd_round_trip(&key, &value) else { panic!() };
    assert_eq!(node.labels["zone"], "a");
    assert_eq!(node.ipv4.unwrap().to_string(), "192.0.2.1/24");
    // libcalico-go/lib/backend/k8s/resources/node.go: the annotations.
    let expected = [
        ("projectcalico.org/IPv4Address", "192.0.2.1/24"),
        ("projectcalico.org/IPv4IPIPTunnelAddr", "10.244.0.1"),
        ("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.0.2"),
        ("projectcalico.org/IPv6Address", "2001:db8::1/64"),
        ("projectcalico.org/IPv6VXLANTunnelAddr", "fd00::2"),
        ("projectcalico.org/VXLANTunnelMACAddr", "66:11:22:33:44:55"),
        ("projectcalico.org/VXLANTunnelMACAddrV6", "66:11:22:33:44:56"),
    ];
    let annotations: std::collections::BTreeMap<_, _> = node
        .annotations()
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.unwrap()))
        .collect();
    let actual: Vec<_> = annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(actual, expected);
    let read = NodeResource::from_annotations("n", node.labels.clone(), &annotations).unwrap();
    assert_eq!(read, NodeResource { preserved: Preserved::default(), ..node });
    let bad = [("projectcalico.org/IPv4Address".to_owned(), "x".to_owned())].into();
    let error = NodeResource::from_annotations("n", [].into(), &bad).unwrap_err().to_string();
    assert_eq!(
        error,
        "Node n: annotation projectcalico.org/IPv4Address: \"x\": invalid IP address syntax"
    );
    let mut value = value;
    value["spec"]["bgp"]["ipv4Address"] = "192.0.2.1".into();
    let Object::Node(node) = etcd::parse(&key, value.to_string().as_bytes()).unwrap() else {
        panic!()
    };
    assert_eq!(node.ipv4.unwrap().to_string(), "192.0.2.1/32");
}

#[test]
fn malformed_object_does_not_affect_others() {
    let block = |text: &str| Key::Block(cidr(text));
    let good = etcd_block().to_string();
    let values = [(block("10.244.0.0/29"), good.as_bytes()), (block("10.0.0.0/26"), b"{}")];
    let (good, bad) =
        crate::pools::separate(values.iter().map(|(key, value)| etcd::parse(key, value)));
    assert_eq!(good.len(), 1);
    assert_eq!(bad[0].to_string(), "IPAMBlock 10.0.0.0/26: allocations: missing");
}
