// SPDX-License-Identifier: Apache-2.0
//! The plugin side: invalid calls and their replies.

use std::io::{self, Read};

use cni::plugin::{Env, Reply, answer};
use cni::{CniResult, Code, Error, Host, Plugin, Version};
use serde_json::{Value, json};

use crate::lab::NO_PLUGINS;

/// Supports some versions only. Its configuration sets the addresses of the result and whether ADD fails.
static SAMPLE: Plugin = Plugin {
    name: "sample",
    about: "for tests",
    versions: &[Version::V0_2_0, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0],
    add: |request| {
        if let Some(error) = request.config.get("fail") {
            return Err(Error::from_json(error).unwrap());
        }
        let ips = request.config.get("ips").cloned().unwrap_or(json!([]));
        CniResult::parse(json!({"ips": ips}), Version::LATEST)
    },
    del: |request| match request.config.get("gone") {
        Some(file) => std::fs::write(file.as_str().unwrap(), "").map_err(|cause| panic!("{cause}")),
        None => Ok(()),
    },
    check: |_| Ok(()),
    status: |_| Err(Error::new(Code::NOT_AVAILABLE, "no daemon")),
    gc: |request| match request.valid_attachments()? {
        Some(valid) if valid.len() == 1 && valid[0].container_id == "a" => Ok(()),
        other => Err(Error::internal(format!("{other:?}"))),
    },
};

fn env(command: &str) -> Env {
    Env {
        command: command.into(),
        container_id: "c1".into(),
        netns: "/run/netns/none".into(),
        ifname: "eth0".into(),
        path: "/opt/cni/bin".into(),
        ..Env::default()
    }
}

fn config(version: &str) -> Value {
    json!({"cniVersion": version, "name": "net", "type": "sample"})
}

fn ask(env: &Env, stdin: &str) -> Reply {
    answer(&SAMPLE, env, &mut stdin.as_bytes(), &NO_PLUGINS)
}

fn error_of(reply: &Reply) -> (Value, Error) {
    assert!(!reply.success, "{reply:?}");
    let printed: Value = serde_json::from_slice(&reply.stdout).unwrap();
    let error = Error::from_json(&printed).unwrap();
    (printed["cniVersion"].clone(), error)
}

#[test]
fn invalid_environment_is_an_error() {
    let check = |change: &dyn Fn(&mut Env), code: Code, msg: &str| {
        for command in ["ADD", "DEL", "CHECK"] {
            let mut env = env(command);
            change(&mut env);
            let (version, error) = error_of(&ask(&env, &config("1.0.0").to_string()));
            assert_eq!((error.code, &*error.msg), (code, msg), "{command}");
            assert_eq!(version, "1.1.0", "the configuration is not read yet");
        }
    };
    let bad = Code::BAD_ENVIRONMENT;
    let missing = "required env variables [CNI_CONTAINERID] missing";
    check(&|env| env.container_id = "".into(), bad, missing);
    check(&|env| env.ifname = "".into(), bad, "required env variables [CNI_IFNAME] missing");
    check(&|env| env.path = "".into(), bad, "required env variables [CNI_PATH] missing");
    let several = "required env variables [CNI_CONTAINERID,CNI_IFNAME,CNI_PATH] missing";
    let clear = |env: &mut Env| {
        *env = Env { command: env.command.clone(), netns: "/a".into(), ..Env::default() };
    };
    check(&clear, bad, several);
    let id = "invalid characters in containerID";
    check(&|env| env.container_id = "../a".into(), bad, id);
    // Invalid variables are reported before missing ones.
    let both = |env: &mut Env| {
        (env.container_id, env.path) = ("../a".into(), "".into());
    };
    check(&both, bad, id);
    let long = "interface name is too long";
    check(&|env| env.ifname = "1234567890123456".into(), bad, long);
    let slash = "interface name contains / or : or whitespace characters";
    check(&|env| env.ifname = "a/b".into(), bad, slash);
}

#[test]
fn namespace_is_optional_for_del_only() {
    let without = |command| Env { netns: "".into(), ..env(command) };
    let config = config("1.0.0").to_string();
    assert!(ask(&without("DEL"), &config).success);
    for command in ["ADD", "CHECK"] {
        let (_, error) = error_of(&ask(&without(command), &config));
        assert_eq!(error.msg, "required env variables [CNI_NETNS] missing");
    }
}

#[test]
fn gc_and_status_need_cni_path_only() {
    let bare = |command: &str| Env { command: command.into(), path: "/a".into(), ..Env::default() };
    let mut config = config("1.1.0");
    config["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}]);
    assert_eq!(ask(&bare("GC"), &config.to_string()).stdout, b"");
    let (_, error) = error_of(&ask(&bare("STATUS"), &config.to_string()));
    assert_eq!((error.code, &*error.msg), (Code::NOT_AVAILABLE, "no daemon"));
    for command in ["GC", "STATUS"] {
        let env = Env { path: "".into(), ..bare(command) };
        let (_, error) = error_of(&ask(&env, &config.to_string()));
        assert_eq!(error.msg, "required env variables [CNI_PATH] missing");
    }
}

fn check_config(config: &str, code: Code, version: &str, msg: &str) {
    let (printed_version, error) = error_of(&ask(&env("ADD"), config));
    assert_eq!((error.code, printed_version), (code, json!(version)), "{error}");
    assert_eq!(error.to_string(), msg);
}

#[test]
fn undecodable_configuration_is_an_error() {
    let check = |config, version, msg: &str| check_config(config, Code::DECODE, version, msg);
    let cut = "error unmarshall network config: stdin: EOF while parsing a value at line 1 column ";
    check("", "1.1.0", &format!("{cut}0"));
    check("{\"name\": ", "1.1.0", &format!("{cut}9"));
    let number = "error unmarshall network config: key \"cniVersion\" is 1, expected a text";
    check(r#"{"cniVersion": 1}"#, "1.1.0", number);
    let list = "error unmarshall network config: key \"name\" is [], expected a text";
    check(r#"{"cniVersion": "1.0.0", "name": []}"#, "1.0.0", list);
}

#[test]
fn invalid_name_or_version_is_an_error() {
    check_config(
        r#"{"cniVersion": "1.0.0"}"#,
        Code::INVALID_CONFIG,
        "1.0.0",
        "missing network name; key \"name\" must be set",
    );
    check_config(
        r#"{"cniVersion": "1.0.0", "name": "a\n"}"#,
        Code::INVALID_CONFIG,
        "1.0.0",
        "invalid characters found in network name; key \"name\" is \"a\\n\", allowed are letters, \
         digits, '_', '.', '-', the first a letter or digit",
    );
    for stated in ["0.3.1", "", "1.0", "9.9.9"] {
        check_config(
            &json!({"cniVersion": stated, "name": "a"}).to_string(),
            Code::INCOMPATIBLE_VERSION,
            "1.1.0",
            &format!(
                "incompatible CNI versions; config is \"{stated}\", plugin supports [\"0.2.0\", \
                 \"0.4.0\", \"1.0.0\", \"1.1.0\"]"
            ),
        );
    }
}

#[test]
fn command_needs_a_version_that_has_it() {
    let check = |command: &str, version: &str, is_known: bool| {
        let reply = ask(&env(command), &config(version).to_string());
        let code = (!reply.success).then(|| error_of(&reply).1.code);
        assert_eq!(code != Some(Code::INCOMPATIBLE_VERSION), is_known, "{command} {version}");
    };
    check("CHECK", "0.2.0", false);
    check("CHECK", "0.4.0", true);
    check("GC", "1.0.0", false);
    check("GC", "1.1.0", true);
    check("STATUS", "1.0.0", false);
    check("STATUS", "1.1.0", true);
    check("DEL", "0.2.0", true);
}

#[test]
fn unknown_command_is_an_error() {
    for command in ["add", "UPDATE"] {
        let (_, error) = error_of(&ask(&env(command), "{}"));
        assert_eq!(error.code, Code::BAD_ENVIRONMENT);
        assert_eq!(error.msg, format!("unknown CNI_COMMAND: {command}"));
    }
}

struct Unreadable;

impl Read for Unreadable {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("broken"))
    }
}

#[test]
fn version_and_introduction_read_no_input() {
    let reply = answer(&SAMPLE, &env("VERSION"), &mut Unreadable, &NO_PLUGINS);
    let expected: &[u8] =
        b"{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.2.0\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";
    assert_eq!(reply, Reply { stdout: expected.into(), stderr: vec![], success: true });

    let reply = answer(&SAMPLE, &Env::default(), &mut Unreadable, &NO_PLUGINS);
    assert!(reply.success && reply.stdout.is_empty());
    let text = String::from_utf8(reply.stderr).unwrap();
    assert!(text.starts_with("CNI sample plugin: "), "{text}");
    assert!(text.ends_with("CNI protocol versions supported: 0.2.0, 0.4.0, 1.0.0, 1.1.0\n"));

    let reply = answer(&SAMPLE, &env("ADD"), &mut Unreadable, &NO_PLUGINS);
    assert_eq!(error_of(&reply).1.code, Code::IO);
}

#[test]
fn result_and_error_have_the_configured_version() {
    let mut config = config("0.2.0");
    config["ips"] = json!([{"address": "10.0.0.2/24"}]);
    let reply = ask(&env("ADD"), &config.to_string());
    let printed: Value = serde_json::from_slice(&reply.stdout).unwrap();
    assert_eq!(printed, json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}, "dns": {}}));

    config["fail"] = json!({"code": 103, "msg": "no", "details": "because"});
    let (version, error) = error_of(&ask(&env("ADD"), &config.to_string()));
    assert_eq!(version, "0.2.0");
    assert_eq!(error, Error::new(Code(103), "no").with_details("because"));
}

#[test]
fn add_with_unprintable_result_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let mut config = config("0.2.0");
    config["gone"] = json!(gone);
    let (_, error) = error_of(&ask(&env("ADD"), &config.to_string()));
    assert_eq!(error.to_string(), "cannot convert: no valid IP addresses");
    assert!(gone.exists(), "DEL was not run");
}

#[test]
fn own_namespace_is_rejected_before_the_plugin_runs() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let mut config = config("1.0.0");
    config["gone"] = json!(gone);
    let mut own = Env { netns: "/proc/self/ns/net".into(), ..env("DEL") };
    let (_, error) = error_of(&ask(&own, &config.to_string()));
    assert_eq!(error.code, Code::INVALID_NETNS);
    assert_eq!(error.msg, "plugin's netns and netns from CNI_NETNS should not be the same");
    assert!(!gone.exists(), "DEL was run");
    assert!(ask(&Env { command: "CHECK".into(), ..own.clone() }, &config.to_string()).success);
    own.command = "ADD".into();
    assert_eq!(error_of(&ask(&own, &config.to_string())).1.code, Code::INVALID_NETNS);
    for allowed in ["1", "true", "TRUE"] {
        own.netns_override = allowed.into();
        assert!(ask(&own, &config.to_string()).success, "{allowed}");
    }
}

#[test]
fn env_reads_each_variable() {
    let env = Env::read(|name| Some(format!("<{name}>")).filter(|_| name != "CNI_ARGS"));
    assert_eq!((&*env.command, &*env.container_id), ("<CNI_COMMAND>", "<CNI_CONTAINERID>"));
    assert_eq!((&*env.netns, &*env.ifname), ("<CNI_NETNS>", "<CNI_IFNAME>"));
    assert_eq!((&*env.args, &*env.path), ("", "<CNI_PATH>"));
    assert_eq!(env.netns_override, "<CNI_NETNS_OVERRIDE>");
}

#[test]
fn host_describes_this_program() {
    static PLUGINS: &[&Plugin] = &[&SAMPLE];
    let host = Host::of_this_program(PLUGINS);
    assert_eq!(host.plugin("sample").map(|plugin| plugin.name), Some("sample"));
    assert!(host.plugin("Sample").is_none());
    assert_eq!(host.program, Some(crate::lab::identity("/proc/self/exe".as_ref())));
}
