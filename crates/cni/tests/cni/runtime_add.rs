// SPDX-License-Identifier: Apache-2.0
//! ADD by a runtime: the input of each plugin, the result, and the rollback after a failure.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cni::runtime::{Container, Runtime};
use cni::{Code, Host, Plugin};
use serde_json::{Value, json};

use crate::lab::{FUNCTION, Lab, container, failing, identity, list, list_of, printing};

static PLUGINS: &[&Plugin] = &[&FUNCTION];

fn container_with_args() -> Container {
    let capability_args = json!({
        "portMappings": [{"hostPort": 8080}], "mac": "00:11:22:33:44:55", "unrequested": 1,
    });
    Container {
        args: vec![("IgnoreUnknown".into(), "1".into()), ("K8S_POD_NAME".into(), "web".into())],
        capability_args: capability_args.as_object().unwrap().clone(),
        ..container()
    }
}

#[test]
fn each_plugin_gets_the_previous_result() {
    let lab = Lab::new();
    let first = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "x": [null]}],
                       "unknown": {"big": u64::MAX}});
    let second = json!({"ips": [{"address": "10.0.0.3/24"}], "other": true});
    lab.plugin("first", &printing(&first));
    lab.plugin("second", &printing(&second));
    let list = list_of(&json!({
        "cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "first", "number": u64::MAX, "capabilities": {"portMappings": true, "mac": false}},
            {"type": "second", "name": "own", "cniVersion": "0.1.0", "runtimeConfig": {"kept": 1}},
        ]
    }));
    let result = lab.runtime().add(&list, &container_with_args()).unwrap();
    assert_eq!(lab.calls(), ["ADD first", "ADD second"]);

    let sent = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "first", "number": u64::MAX,
        "capabilities": {"portMappings": true, "mac": false},
        "runtimeConfig": {"portMappings": [{"hostPort": 8080}]},
    });
    assert_eq!(lab.sent("first", "ADD"), sent);
    let sent = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "second", "runtimeConfig": {"kept": 1},
        "prevResult": first,
    });
    assert_eq!(lab.sent("second", "ADD"), sent, "the output of the first plugin, unchanged");
    let variables = format!(
        "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web\nCNI_COMMAND=ADD\nCNI_CONTAINERID=c1\n\
         CNI_IFNAME=eth0\nCNI_NETNS=/run/netns/c1\nCNI_PATH={}\n",
        lab.path("bin").display()
    );
    assert_eq!(lab.read("second.ADD.env"), variables);
    assert_eq!(result.ips[0].address.to_string(), "10.0.0.3/24");
    assert_eq!(result.extra["other"], true);
}

#[test]
fn cache_file_has_libcnis_format() {
    let lab = Lab::new();
    lab.plugin(
        "a",
        &printing(&json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]})),
    );
    lab.runtime().add(&list("1.0.0", &["a"]), &container_with_args()).unwrap();
    // Keys in the order of libcni's struct `cachedInfo`, maps sorted, bytes in base64.
    let expected = concat!(
        r#"{"kind":"cniCacheV1","containerId":"c1","#,
        r#""config":"eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6ImEifV19","#,
        r#""ifName":"eth0","networkName":"net","netns":"/run/netns/c1","#,
        r#""cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","web"]],"#,
        r#""capabilityArgs":{"mac":"00:11:22:33:44:55","portMappings":[{"hostPort":8080}],"unrequested":1},"#,
        r#""result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}}"#,
    );
    assert_eq!(lab.read("cache/results/net-c1-eth0"), expected);
    let mode = |path| std::fs::metadata(lab.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("cache/results"), mode("cache/results/net-c1-eth0")), (0o700, 0o600));
    assert_eq!(std::fs::read_dir(lab.path("cache/results")).unwrap().count(), 1);

    lab.runtime()
        .add(&list("1.0.0", &["a"]), &Container { id: "c2".into(), ..container() })
        .unwrap();
    let bare = lab.read("cache/results/net-c2-eth0");
    assert!(!bare.contains("cniArgs") && !bare.contains("capabilityArgs"), "{bare}");
}

#[test]
fn result_is_converted_to_the_lists_version() {
    let lab = Lab::new();
    lab.plugin("old", &printing(&json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}})));
    lab.plugin("last", &printing(&Value::Null));
    let result = lab.runtime().add_raw(&list("0.4.0", &["old", "last"]), &container()).unwrap();
    let expected = json!({"cniVersion": "0.4.0", "dns": {},
                          "ips": [{"version": "4", "address": "10.0.0.2/24"}]});
    assert_eq!(lab.sent("last", "ADD")["prevResult"], expected);
    assert_eq!(result, json!({"cniVersion": "0.4.0", "dns": {}}));
}

#[test]
fn names_are_checked_before_plugins_run() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({})));
    let check = |change: &dyn Fn(&mut Container), code: Code| {
        let mut container = container();
        change(&mut container);
        let (runtime, list) = (lab.runtime(), list("1.0.0", &["a"]));
        assert_eq!(runtime.add(&list, &container).unwrap_err().code, code);
        assert_eq!(runtime.del(&list, &container).unwrap_err().code, code);
        assert_eq!(runtime.check(&list, &container).unwrap_err().code, code);
    };
    check(&|container| container.id = String::new(), Code::UNKNOWN_CONTAINER);
    check(&|container| container.id = "../c".into(), Code::BAD_ENVIRONMENT);
    check(&|container| container.ifname = "a/b".into(), Code::BAD_ENVIRONMENT);
    let mut list = list("1.0.0", &["a"]);
    list.name = "../net".into();
    assert_eq!(lab.runtime().add(&list, &container()).unwrap_err().code, Code::INVALID_CONFIG);
    assert!(lab.calls().is_empty());
    assert!(!lab.path("cache").exists());
}

#[test]
fn missing_plugin_is_an_error_before_plugins_run() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({})));
    let error = lab.runtime().add(&list("1.0.0", &["a", "nowhere"]), &container()).unwrap_err();
    let path = lab.path("bin");
    let expected = format!(
        "plugin type=\"nowhere\" failed (add): failed to find plugin \"nowhere\" in path [{}]",
        path.display()
    );
    assert_eq!(error.msg, expected);
    assert!(lab.calls().is_empty());
}

#[test]
fn failed_add_is_undone_in_reverse_order() {
    let lab = Lab::new();
    let first = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    lab.plugin("a", &printing(&first));
    lab.plugin("b", &failing("ADD", 103, "no room"));
    lab.plugin("c", &failing("DEL", 7, "cannot"));
    let error = lab.runtime().add(&list("1.0.0", &["a", "b", "c"]), &container()).unwrap_err();
    assert_eq!(lab.calls(), ["ADD a", "ADD b", "DEL c", "DEL b", "DEL a"]);
    assert_eq!(error.code, Code(103));
    assert_eq!(error.msg, "plugin type=\"b\" failed (add): no room");
    assert_eq!(
        error.details,
        "undoing it failed as well: plugin type=\"c\" failed (delete): cannot"
    );
    assert_eq!(lab.sent("a", "DEL")["prevResult"], first, "the last result");
    assert!(!lab.path("cache/results").exists());
}

#[test]
fn rollback_failing_for_the_same_reason_is_brief() {
    let lab = Lab::new();
    let (add, del) = (failing("ADD", 7, "no helper"), failing("DEL", 7, "no helper"));
    lab.plugin("a", &format!("{}{del}", &add[..add.find("fi\n").unwrap() + 3]));
    let error = lab.runtime().add(&list("1.0.0", &["a"]), &container()).unwrap_err();
    assert_eq!(error.msg, "plugin type=\"a\" failed (add): no helper");
    assert_eq!(error.details, "undoing it failed for the same reason");
}

#[test]
fn unparsable_result_is_undone() {
    let lab = Lab::new();
    for (printed, code) in [
        (r#"{"cniVersion": "1.0.0", "ips": [{"addr"#, Code::DECODE),
        ("", Code::DECODE),
        ("[]", Code::DECODE),
        (r#"{"ips": [{"address": "10.0.0.2"}]}"#, Code::DECODE),
        (r#"{"cniVersion": "9.0.0"}"#, Code::INCOMPATIBLE_VERSION),
    ] {
        lab.plugin("a", &format!("[ $CNI_COMMAND = DEL ] || printf '%s' '{printed}'"));
        let error = lab.runtime().add(&list("1.0.0", &["a"]), &container()).unwrap_err();
        assert_eq!(error.code, code, "{printed}: {error}");
        assert_eq!(lab.calls(), ["ADD a", "DEL a"], "{printed}");
    }
}

#[test]
fn add_with_unwritable_cache_is_undone() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({})));
    std::fs::create_dir(lab.path("cache")).unwrap();
    std::fs::write(lab.path("cache/results"), "a file instead of a directory").unwrap();
    let error = lab.runtime().add(&list("1.0.0", &["a"]), &container()).unwrap_err();
    assert!(error.msg.starts_with("failed to set network \"net\" cached result: "), "{error}");
    assert_eq!(lab.calls(), ["ADD a", "DEL a"]);
}

#[test]
fn failed_second_add_keeps_the_first_attachment() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({"x": 1})));
    let list = list("1.0.0", &["a"]);
    lab.runtime().add(&list, &container()).unwrap();
    lab.plugin("a", &failing("ADD", 999, "eth0 exists"));
    let error = lab.runtime().add(&list, &container()).unwrap_err();
    assert_eq!(error.details, "an attachment made before is left as it is");
    assert_eq!(lab.calls(), ["ADD a", "ADD a"], "no DEL");
    let entry = lab.runtime().cached("net", &container()).unwrap();
    assert_eq!(entry.result.unwrap()["x"], 1);
}

#[test]
fn partly_failed_second_add_is_undone() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({"x": 1})));
    lab.plugin("b", &printing(&json!({"x": 2})));
    let list = list("1.0.0", &["a", "b"]);
    lab.runtime().add(&list, &container()).unwrap();
    lab.plugin("b", &failing("ADD", 103, "no room"));
    lab.calls();
    let error = lab.runtime().add(&list, &container()).unwrap_err();
    assert_eq!((error.code, &*error.details), (Code(103), ""));
    assert_eq!(lab.calls(), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(lab.sent("a", "DEL")["prevResult"]["x"], 1, "of this ADD, not of the cached one");
    assert!(lab.runtime().cached("net", &container()).is_none(), "the cache entry remains");
}

#[test]
fn add_that_times_out_is_undone() {
    let lab = Lab::new();
    lab.plugin("a", &printing(&json!({})));
    lab.plugin("slow", "[ $CNI_COMMAND = DEL ] && exit 0\nsleep 1000 &\nwait");
    let runtime = Runtime { timeout: Some(Duration::from_secs(5)), ..lab.runtime() };
    let error = runtime.add(&list("1.0.0", &["a", "slow"]), &container()).unwrap_err();
    assert_eq!(error.code, Code::TRY_LATER);
    assert!(error.msg.ends_with("/slow did not finish ADD in 5 s"), "{error}");
    assert_eq!(lab.calls(), ["ADD a", "ADD slow", "DEL slow", "DEL a"]);
}

#[test]
fn functions_and_processes_are_called_alike() {
    let lab = Lab::new();
    let log = lab.path("calls");
    let file = lab.plugin("function", "");
    lab.plugin("last", &printing(&json!({})));
    let program = Some(identity(&file));
    let host = Host {
        plugins: PLUGINS,
        program,
        always_exec: false,
        builtin_fallback: false,
        locks: None,
    };
    let mut conf = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "function", "log": log, "address": "10.0.0.2/24"}, {"type": "last"}]});
    let (list, runtime) = (list_of(&conf), lab.runtime_with(&host));
    runtime.add(&list, &container()).unwrap();
    let expected = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "from-function"}],
                          "ips": [{"address": "10.0.0.2/24"}]});
    assert_eq!(lab.sent("last", "ADD")["prevResult"], expected);
    runtime.check(&list, &container()).unwrap();
    runtime.status(&list).unwrap();
    runtime.gc(&list, &[container().attachment()]).unwrap();
    runtime.del(&list, &container()).unwrap();
    let commands = ["ADD", "CHECK", "STATUS", "GC"].iter();
    let mut expected: Vec<String> = commands
        .flat_map(|command| [format!("{command} function"), format!("{command} last")])
        .collect();
    expected.extend(["DEL last".into(), "DEL function".into()]);
    assert_eq!(lab.calls(), expected);

    // The same rules apply to functions.
    let own = Container { netns: "/proc/self/ns/net".into(), ..container() };
    assert_eq!(runtime.add(&list, &own).unwrap_err().code, Code::INVALID_NETNS);
    let allowing = Runtime { allow_own_netns: true, ..runtime.clone() };
    allowing.add(&list, &own).unwrap();
    allowing.del(&list, &own).unwrap();
    let nowhere = Container { netns: String::new(), ..container() };
    let error = runtime.add(&list, &nowhere).unwrap_err();
    assert!(error.msg.ends_with("required env variables [CNI_NETNS] missing"), "{error}");
    lab.calls();

    // A result that the version cannot express is undone like any failure.
    conf["cniVersion"] = "0.2.0".into();
    conf["plugins"][0]["address"] = Value::Null;
    conf["plugins"][0].as_object_mut().unwrap().remove("address");
    let error = runtime.add(&list_of(&conf), &container()).unwrap_err();
    assert!(error.msg.ends_with("cannot convert: no valid IP addresses"), "{error}");
}
