// SPDX-License-Identifier: Apache-2.0
//! STATUS, VERSION and the validation of lists by a runtime.

use std::collections::BTreeSet;

use cni::{Code, Host, Plugin};
use serde_json::json;

use crate::lab::{FUNCTION, Lab, failing, list, list_of};

static PLUGINS: &[&Plugin] = &[&FUNCTION];

#[test]
fn status_returns_the_first_plugins_error() {
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
    assert!(lab.calls().is_empty(), "STATUS was introduced with 1.1.0");
    assert!(lab.runtime().status(&list("1.1.0", &["nowhere"])).is_err());
}

#[test]
fn version_query_works_with_old_plugins() {
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
fn validate_returns_capabilities_or_all_errors() {
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
