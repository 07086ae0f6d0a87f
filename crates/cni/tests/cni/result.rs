// SPDX-License-Identifier: Apache-2.0
//! Results: one result with all keys in every version, and each conversion rule.

use cni::{CniResult, Code, Version};
use gojson::to_pretty;
use serde_json::{Value, json};

fn full() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "cni0", "mac": "00:11:22:33:44:55"},
            {"name": "eth0", "mac": "99:88:77:66:55:44", "mtu": 1450, "sandbox": "/run/netns/a",
             "socketPath": "/run/vhost.sock", "pciID": "0000:3b:00.2"},
        ],
        "ips": [
            {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1},
            {"address": "10.9.0.5/16", "interface": 0},
            {"address": "2001:db8::5/64", "gateway": "2001:db8::1", "interface": 1},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 7,
             "table": 0, "scope": 0},
            {"dst": "2001:db8:1::/48"},
        ],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "a.example", "search": ["b.example"],
                "options": ["ndots:5"]},
    })
}

fn parse(value: Value) -> CniResult {
    CniResult::parse(value, Version::LATEST).unwrap()
}

fn check(version: Version, expected: &Value) {
    let printed = parse(full()).to_json(version).unwrap();
    assert_eq!(&printed, expected, "{version}: {printed:#}");
}

#[test]
fn result_since_1_0_0_has_all_keys() {
    let mut expected = full();
    check(Version::V1_1_0, &expected);
    expected["cniVersion"] = "1.0.0".into();
    check(Version::V1_0_0, &expected);
}

#[test]
fn addresses_before_1_0_0_state_their_family() {
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        let mut expected = full();
        expected["cniVersion"] = version.as_str().into();
        expected["interfaces"][1] =
            json!({"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/run/netns/a"});
        for (at, family) in ["4", "4", "6"].iter().enumerate() {
            expected["ips"][at]["version"] = (*family).into();
        }
        check(version, &expected);
    }
}

#[test]
fn result_before_0_3_0_has_one_address_per_family() {
    for version in [Version::V0_1_0, Version::V0_2_0] {
        check(
            version,
            &json!({
                "cniVersion": version.as_str(),
                "ip4": {
                    "ip": "10.1.0.5/16",
                    "gateway": "10.1.0.1",
                    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
                },
                "ip6": {
                    "ip": "2001:db8::5/64",
                    "gateway": "2001:db8::1",
                    "routes": [{"dst": "2001:db8:1::/48"}],
                },
                "dns": {"nameservers": ["10.1.0.1"], "domain": "a.example",
                        "search": ["b.example"], "options": ["ndots:5"]},
            }),
        );
    }
}

#[test]
fn printed_json_is_indented_by_four_spaces() {
    let result = json!({"ips": [{"address": "10.1.0.5/16", "interface": 0}]});
    let printed = to_pretty(&parse(result).to_json(Version::V1_0_0).unwrap());
    let expected = r#"{
    "cniVersion": "1.0.0",
    "ips": [
        {
            "address": "10.1.0.5/16",
            "interface": 0
        }
    ]
}"#;
    assert_eq!(String::from_utf8(printed).unwrap(), expected);
}

#[test]
fn empty_dns_is_printed_before_1_0_0_only() {
    let result = parse(json!({"ips": [{"address": "10.1.0.5/16"}]}));
    for version in Version::ALL {
        let printed = result.to_json(*version).unwrap();
        let expected = (*version < Version::V1_0_0).then(|| json!({}));
        assert_eq!(printed.get("dns"), expected.as_ref(), "{version}");
    }
}

#[test]
fn per_family_result_becomes_lists_with_ipv4_first() {
    let old = json!({
        "cniVersion": "0.2.0",
        "ip6": {"ip": "2001:db8::5/64", "routes": [{"dst": "::/0"}]},
        "ip4": {"ip": "10.1.0.5/16", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]},
        "dns": {"domain": "a.example"},
    });
    let printed = parse(old).to_json(Version::V0_4_0).unwrap();
    let expected = json!({
        "cniVersion": "0.4.0",
        "ips": [
            {"version": "4", "address": "10.1.0.5/16"},
            {"version": "6", "address": "2001:db8::5/64"},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}, {"dst": "::/0"}],
        "dns": {"domain": "a.example"},
    });
    assert_eq!(printed, expected);
}

#[test]
fn per_family_result_drops_routes_without_an_address() {
    let result = parse(json!({"ips": [{"address": "10.1.0.5/16"}], "routes": [{"dst": "::/0"}]}));
    let printed = result.to_json(Version::V0_2_0).unwrap();
    let expected = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16"}, "dns": {}});
    assert_eq!(printed, expected);
}

#[test]
fn per_family_result_needs_an_address() {
    let error = parse(json!({"interfaces": [{"name": "a"}]})).to_json(Version::V0_2_0).unwrap_err();
    assert_eq!(error.to_string(), "cannot convert: no valid IP addresses");
}

#[test]
fn result_without_version_uses_the_fallback() {
    let old = json!({"ip4": {"ip": "10.1.0.5/16"}});
    for (text, expected) in [(json!(null), 1), (json!(""), 1), (json!("1.0.0"), 0)] {
        let mut result = old.clone();
        result["cniVersion"] = text;
        assert_eq!(CniResult::parse(result, Version::V0_2_0).unwrap().ips.len(), expected);
    }
    assert_eq!(CniResult::parse(Value::Null, Version::LATEST), Ok(CniResult::default()));
}

#[test]
fn lists_with_an_old_version_are_parsed() {
    let loopback = json!({"cniVersion": "0.2.0", "interfaces": [{"name": "lo"}],
                          "ips": [{"address": "127.0.0.1/8", "interface": 0}], "dns": {}});
    let result = parse(loopback);
    assert_eq!(result.interfaces[0].name, "lo");
    assert_eq!(result.to_json(Version::V0_2_0).unwrap()["ip4"]["ip"], "127.0.0.1/8");
}

#[test]
fn mapped_addresses_become_ipv4() {
    let result = parse(json!({"CNIVersion": "0.4.0", "IPs": [
        {"Version": "4", "Address": "::ffff:10.1.0.5/112", "Gateway": "::ffff:10.1.0.1"}]}));
    let printed = result.to_json(Version::V1_0_0).unwrap();
    assert_eq!(printed["ips"][0], json!({"address": "10.1.0.5/16", "gateway": "10.1.0.1"}));
}

#[test]
fn empty_gateway_is_none() {
    let result = parse(json!({"ips": [{"address": "10.1.0.5/16", "gateway": ""}],
                              "routes": [{"dst": "0.0.0.0/0", "gw": ""}]}));
    assert_eq!((result.ips[0].gateway, result.routes[0].gw), (None, None));
}

#[test]
fn unknown_keys_are_kept_at_every_level() {
    let all = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "a", "x": [1]}],
        "ips": [{"address": "10.1.0.5/16", "x": {"y": null}}],
        "routes": [{"dst": "0.0.0.0/0", "x": 18446744073709551615_u64}],
        "dns": {"x": true},
        "x": "y",
    });
    assert_eq!(parse(all.clone()).to_json(Version::V1_0_0).unwrap(), all);
    let old = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.1.0.5/16", "x": 1, "routes": [{"dst": "0.0.0.0/0", "x": 2}]},
        "dns": {"x": 3},
        "x": 4,
    });
    assert_eq!(parse(old.clone()).to_json(Version::V0_2_0).unwrap(), old);
}

#[test]
fn invalid_result_error_names_the_key() {
    let check = |value: Value, expected: &str| {
        let error = CniResult::parse(value, Version::LATEST).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.code, Code::DECODE);
    };
    check(
        json!({"ips": [{"address": "10.1.0.5/16"}, {"address": "10.1.0.5"}]}),
        "result of a plugin: key \"ips[1].address\" is \"10.1.0.5\": expected an address with \
         prefix length, such as 10.1.2.3/24",
    );
    check(json!({"ips": [{}]}), "result of a plugin: key \"ips[0]\": key \"address\" is missing");
    check(json!({"ips": {}}), "result of a plugin: key \"ips\": expected a list, not an object");
    check(json!([]), "result of a plugin: expected an object");
    check(
        json!({"dns": {"search": "a"}}),
        "result of a plugin: key \"dns.search\" is \"a\": expected a list",
    );
    let error = CniResult::parse(json!({"cniVersion": "9.9.9"}), Version::LATEST).unwrap_err();
    assert_eq!(error.code, Code::INCOMPATIBLE_VERSION);
}
