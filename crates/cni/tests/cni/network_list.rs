// SPDX-License-Identifier: Apache-2.0
//! Network configurations: keys, versions, directories of plugins, and errors.

use std::collections::BTreeSet;
use std::path::Path;

use cni::runtime::NetworkList;
use cni::{Code, Version};
use serde_json::{Value, json};

use crate::lab::Lab;

fn parse(value: &Value) -> Result<NetworkList, cni::Error> {
    NetworkList::parse(value.to_string().as_bytes(), None)
}

fn with(change: &[(&str, Value)]) -> Value {
    let mut list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]});
    for (key, value) in change {
        list[*key] = value.clone();
    }
    list
}

#[test]
fn list_is_parsed() {
    let text = br#"{"cniVersion": "0.4.0", "name": "net", "disableCheck": true, "plugins": [
        {"type": "a", "capabilities": {"portMappings": true, "bandwidth": false, "x": null}},
        {"Type": "b", "Capabilities": {"mac": true, "portMappings": true}, "n": 18446744073709551615}
    ]}"#;
    let list = NetworkList::parse(text, None).unwrap();
    assert_eq!((&*list.name, list.version), ("net", Version::V0_4_0));
    assert!(list.disable_check && !list.disable_gc);
    assert_eq!(list.bytes, text);
    let kinds: Vec<&str> = list.plugins.iter().map(|plugin| &*plugin.kind).collect();
    assert_eq!(kinds, ["a", "b"]);
    assert_eq!(list.plugins[0].capabilities, BTreeSet::from(["portMappings".to_owned()]));
    assert_eq!(list.capabilities(), BTreeSet::from(["mac".to_owned(), "portMappings".to_owned()]));
    assert_eq!(list.plugins[1].config["n"], json!(u64::MAX));
}

#[test]
fn boolean_may_be_a_string() {
    for (value, expected) in [
        (json!(true), Some(true)),
        (json!(false), Some(false)),
        (json!("True"), Some(true)),
        (json!("FALSE"), Some(false)),
        (json!("yes"), None),
        (json!(1), None),
    ] {
        for key in ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"] {
            let list = parse(&with(&[(key, value.clone())]));
            let flag = list.map(|list| match key {
                "disableCheck" => list.disable_check,
                "disableGC" => list.disable_gc,
                _ => expected == Some(true),
            });
            assert_eq!(flag.ok(), expected, "{key} {value}");
        }
    }
}

#[test]
fn newest_supported_version_is_chosen() {
    let check = |single: Option<&str>, many: Value, expected: Option<Version>| {
        let list = with(&[("cniVersion", json!(single)), ("cniVersions", many.clone())]);
        assert_eq!(parse(&list).map(|list| list.version).ok(), expected, "{single:?} {many}");
    };
    check(Some("1.0.0"), json!(null), Some(Version::V1_0_0));
    check(None, json!(null), Some(Version::V0_1_0));
    check(Some("9.9.9"), json!(null), None);
    check(Some("0.3.1"), json!(["0.4.0", "1.0.0"]), Some(Version::V1_0_0));
    check(Some("1.1.0"), json!(["0.4.0", "1.0.0"]), Some(Version::V1_1_0));
    check(Some("0.3.1"), json!(["1.1.0", "1.2.0", "0.4.0"]), Some(Version::V1_1_0));
    check(Some("2.0.0"), json!(["1.0.0", "2.0.0"]), Some(Version::V1_0_0));
    check(Some("0.3.1"), json!(["2.0.0"]), Some(Version::V0_3_1));
    check(None, json!(["1.0.0", "0.10.0"]), Some(Version::V1_0_0));
    check(None, json!(["1.0"]), Some(Version::V1_0_0));
    check(None, json!([]), Some(Version::V0_1_0));
    check(Some("0.4.0"), json!([]), Some(Version::V0_4_0));
    check(None, json!(["2.0.0"]), None);
    check(Some("1.0.0"), json!(["one"]), None);
    check(Some("1.0.0"), json!(["1.0.0.0"]), None);
    check(Some("one"), json!(["1.0.0"]), None);
    check(Some("1.0.0"), json!("1.0.0"), None);
    check(Some("1.0.0"), json!([1]), None);
}

#[test]
fn invalid_list_error_names_the_position() {
    let file = Path::new("/nowhere/10-a.conflist");
    let check = |text: &str, expected: &str| {
        let error = NetworkList::parse(text.as_bytes(), Some(file)).unwrap_err();
        assert_eq!(error.msg, expected);
    };
    check("{\n  \"name\": }", "/nowhere/10-a.conflist:2:11: expected value");
    check("", "/nowhere/10-a.conflist:1:0: EOF while parsing a value");
    check("{}", "/nowhere/10-a.conflist: key \"name\" is missing");
    check("{\"name\": 3}", "/nowhere/10-a.conflist:1:10: key \"name\" is 3: expected a text");
    check(
        "{\"name\": \"a/b\"}",
        "/nowhere/10-a.conflist:1:10: key \"name\" is \"a/b\": invalid characters found in network \
         name; key \"name\" is \"a/b\", allowed are letters, digits, '_', '.', '-', the first a \
         letter or digit",
    );
    check(
        "{\"name\": \"a\",\n \"cniVersion\": \"7.0\"}",
        "/nowhere/10-a.conflist:2:16: key \"cniVersion\" is \"7.0\": supported are 0.1.0, 0.2.0, 0.3.0, \
         0.3.1, 0.4.0, 1.0.0, 1.1.0",
    );
    check("{\"name\": \"a\"}", "/nowhere/10-a.conflist: key \"plugins\" is missing");
    check(
        "{\"name\": \"a\", \"plugins\": []}",
        "/nowhere/10-a.conflist:1:26: key \"plugins\" is []: no plugins in list",
    );
    check(
        "{\"name\": \"a\", \"plugins\": [\n{\"type\": \"b\"},\n{}]}",
        "/nowhere/10-a.conflist:3:1: key \"plugins[1]\": key \"type\" is missing",
    );
    check(
        "{\"name\": \"a\", \"plugins\": [\n{\"type\": \"b\", \"capabilities\": {\"mac\": 1}}]}",
        "/nowhere/10-a.conflist:2:39: key \"plugins[0].capabilities.mac\" is 1: expected true or \
         false",
    );
    check(
        "{\"name\": \"a\", \"loadOnlyInlinedPlugins\": true}",
        "/nowhere/10-a.conflist:1:41: key \"loadOnlyInlinedPlugins\" is true: key \"plugins\" is \
         required with it",
    );
    let error = NetworkList::parse(b"{\n\n  \"name\": 3 }", None).unwrap_err();
    assert_eq!(error.code, Code::INVALID_CONFIG);
    assert!(error.msg.starts_with("network configuration, line 3 column 11: "), "{error}");
    assert_eq!(error.details, "line 3: \"name\": 3 }");
}

#[test]
fn truncated_list_is_an_error() {
    let text = with(&[("cniVersions", json!(["1.0.0"]))]).to_string();
    for end in 0..text.len() {
        assert!(NetworkList::parse(&text.as_bytes()[..end], None).is_err(), "{end}");
        assert!(NetworkList::from_single(&text.as_bytes()[..end], None).is_err(), "{end}");
    }
}

#[test]
fn single_plugin_becomes_a_list() {
    let text = br#"{"type": "a", "Name": "net", "cniVersion": "0.3.1", "x": 1,
                    "capabilities": {"mac": true}}"#;
    let list = NetworkList::from_single(text, None).unwrap();
    assert_eq!((&*list.name, list.version, &*list.plugins[0].kind), ("net", Version::V0_3_1, "a"));
    assert_eq!(list.capabilities(), BTreeSet::from(["mac".to_owned()]));
    // libcni caches it in this form.
    assert_eq!(
        String::from_utf8(list.bytes.clone()).unwrap(),
        r#"{"cniVersion":"0.3.1","name":"net","plugins":[{"Name":"net","capabilities":{"mac":true},"cniVersion":"0.3.1","type":"a","x":1}]}"#
    );
    assert_eq!(NetworkList::parse(&list.bytes, None).unwrap().plugins, list.plugins);
}

#[test]
fn list_in_a_conf_file_gets_a_hint() {
    let text = with(&[]).to_string();
    let error = NetworkList::from_single(text.as_bytes(), None).unwrap_err();
    assert_eq!(error.msg, "network configuration: key \"type\" is missing");
    assert_eq!(error.details, "it has key \"plugins\": name the file *.conflist");
}

#[test]
fn plugins_in_a_directory_are_appended() {
    let lab = Lab::new();
    let file = lab.path("10-net.conflist");
    std::fs::create_dir(lab.path("net")).unwrap();
    for (name, text) in [
        ("20-c.conf", r#"{"type": "c"}"#),
        ("10-b.conf", r#"{"type": "b"}"#),
        ("30-no.json", r#"{"type": "no"}"#),
    ] {
        std::fs::write(lab.path("net").join(name), text).unwrap();
    }
    let kinds = |list: &Value| {
        let list = NetworkList::parse(list.to_string().as_bytes(), Some(&file))?;
        Ok(list.plugins.iter().map(|plugin| plugin.kind.clone()).collect::<Vec<_>>())
    };
    assert_eq!(kinds(&with(&[])), Ok(vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(kinds(&json!({"name": "net"})), Ok(vec!["b".into(), "c".into()]));
    let only = with(&[("loadOnlyInlinedPlugins", json!(true))]);
    assert_eq!(kinds(&only), Ok(vec!["a".into()]));
    // An empty list is an error; a missing list is not.
    assert!(kinds(&with(&[("plugins", json!([]))])).is_err());

    std::fs::write(lab.path("net/15-broken.conf"), "{\"type\": 3}").unwrap();
    let error: cni::Error = kinds(&with(&[])).unwrap_err();
    assert!(error.msg.contains("15-broken.conf:1:10: key \"type\" is 3"), "{error}");
}
