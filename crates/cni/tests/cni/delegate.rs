// SPDX-License-Identifier: Apache-2.0
//! Delegation: the choice between function and process, and failures of the delegate.

use cni::delegate::{self, Target};
use cni::{Code, Command, Delegation, Host, Plugin, Request, Version};
use serde_json::{Value, json};

use crate::lab::{FUNCTION, Lab, failing, identity, printing};

static PLUGINS: &[&Plugin] = &[&FUNCTION];

fn host(program: Option<(u64, u64)>) -> Host {
    Host { plugins: PLUGINS, program, always_exec: false, builtin_fallback: false, locks: None }
}

fn request<'h>(lab: &Lab, host: &'h Host, config: &Value) -> Request<'h> {
    Request {
        command: Command::Add,
        container_id: "c1".into(),
        netns: "/run/netns/c1".into(),
        ifname: "eth0".into(),
        raw_args: "A=b".into(),
        path: format!("/nowhere::{}", lab.path("bin").display()),
        version: Version::V1_0_0,
        network: "net".into(),
        config: config.as_object().unwrap().clone().into(),
        config_text: Vec::new().into(),
        delegation: Delegation::default(),
        host,
    }
}

fn add(request: &Request, kind: &str) -> Result<cni::CniResult, cni::Error> {
    let target = delegate::find(request.host, kind, &request.path)?;
    delegate::add(request, &target)
}

fn is_function(lab: &Lab, host: &Host, kind: &str) -> bool {
    let path = lab.path("bin").display().to_string();
    matches!(delegate::find(host, kind, &path).unwrap(), Target::Function(_))
}

#[test]
fn own_program_file_is_called_as_function() {
    let lab = Lab::new();
    let program = lab.plugin("program", "");
    std::os::unix::fs::symlink("program", lab.path("bin/function")).unwrap();
    let mut host = host(Some(identity(&program)));
    assert!(is_function(&lab, &host, "function"), "through a symbolic link");
    assert!(!is_function(&lab, &host, "program"), "there is no built-in plugin of this name");
    std::fs::remove_file(lab.path("bin/function")).unwrap();
    std::fs::hard_link(&program, lab.path("bin/function")).unwrap();
    assert!(is_function(&lab, &host, "function"), "through a hard link");
    host.always_exec = true;
    assert!(!is_function(&lab, &host, "function"), "always_exec");
    host.always_exec = false;
    std::fs::remove_file(lab.path("bin/function")).unwrap();
    lab.plugin("function", "");
    assert!(!is_function(&lab, &host, "function"), "another file of this name");
}

#[test]
fn builtin_fallback_applies_to_missing_files_only() {
    let lab = Lab::new();
    let mut host = host(None);
    let path = lab.path("bin").display().to_string();
    let error = delegate::find(&host, "function", &path).unwrap_err();
    assert_eq!(error.msg, format!("failed to find plugin \"function\" in path [{path}]"));
    host.builtin_fallback = true;
    assert!(is_function(&lab, &host, "function"));
    lab.plugin("function", "");
    assert!(!is_function(&lab, &host, "function"), "the installed file is preferred");
}

#[test]
fn invalid_or_missing_plugin_name_is_an_error() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("bin/directory")).unwrap();
    let path = lab.path("bin").display().to_string();
    for kind in ["", "a/b", "../bin/a", "directory", "nowhere"] {
        let error = delegate::find(&host(None), kind, &path).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG, "{kind}");
    }
}

#[test]
fn first_directory_of_the_path_wins() {
    let (lab, second) = (Lab::new(), Lab::new());
    let first = lab.plugin("a", "");
    second.plugin("a", "");
    let path = format!("{}:{}", lab.path("bin").display(), second.path("bin").display());
    match delegate::find(&host(None), "a", &path).unwrap() {
        Target::Program(file) => assert_eq!(file, first),
        Target::Function(plugin) => panic!("{plugin:?}"),
    }
}

#[test]
fn delegate_process_gets_the_same_request() {
    let lab = Lab::new();
    lab.plugin("ipam", &printing(&json!({"ips": [{"address": "10.0.0.2/24"}]})));
    let host = host(None);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "ipam"}});
    let request = request(&lab, &host, &config);
    let result = add(&request, "ipam").unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.0.0.2/24");
    assert_eq!(lab.sent("ipam", "ADD"), config);
    assert!(lab.read("ipam.ADD.env").contains("CNI_ARGS=A=b\nCNI_COMMAND=ADD\n"));
    for command in [Command::Del, Command::Check, Command::Gc, Command::Status] {
        delegate::forward(&request, "ipam", command).unwrap();
    }
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam", "CHECK ipam", "GC ipam", "STATUS ipam"]);
}

#[test]
fn delegate_process_gets_in_process_prev_result() {
    let lab = Lab::new();
    lab.plugin("ipam", &printing(&json!({})));
    let host = host(None);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "prevResult": {"ips": []}});
    let mut request = request(&lab, &host, &config);
    let ip = cni::IpConfig::new("10.0.0.9/24".parse().unwrap(), None);
    let prev = cni::CniResult { ips: vec![ip], ..cni::CniResult::default() };
    request.delegation.prev_result = Some(prev.clone().into());
    assert_eq!(request.prev_result().unwrap(), Some(prev));
    add(&request, "ipam").unwrap();
    let sent = lab.sent("ipam", "ADD");
    assert_eq!(sent["prevResult"]["ips"][0]["address"], "10.0.0.9/24");
    assert_eq!(sent["prevResult"]["cniVersion"], "1.0.0");
}

#[test]
fn failed_add_of_a_process_is_followed_by_del() {
    let lab = Lab::new();
    let host = Host { builtin_fallback: true, ..host(None) };
    let log = lab.path("calls");
    let config = json!({"cniVersion": "1.0.0", "name": "net", "log": log, "fail": "ADD"});
    let request = request(&lab, &host, &config);

    lab.plugin("ipam", &failing("ADD", 11, "no address"));
    let error = add(&request, "ipam").unwrap_err();
    assert_eq!((error.code, &*error.msg), (Code::TRY_LATER, "no address"));
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);

    // Output that cannot be parsed counts as a failure.
    lab.plugin("ipam", "[ $CNI_COMMAND = DEL ] || echo '{\"ips\": ['");
    assert_eq!(add(&request, "ipam").unwrap_err().code, Code::DECODE);
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);
    lab.plugin("ipam", "");
    let error = add(&request, "ipam").unwrap_err();
    assert_eq!((error.code, &*error.details), (Code::DECODE, "it printed nothing"));
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);

    // A function cleans up after itself.
    add(&request, "function").unwrap_err();
    assert_eq!(lab.calls(), ["ADD function"]);
}

#[test]
fn function_gets_every_command() {
    let lab = Lab::new();
    let host = Host { builtin_fallback: true, ..host(None) };
    let request = request(&lab, &host, &json!({"log": lab.path("calls"), "fail": "GC"}));
    let result = add(&request, "function").unwrap();
    assert_eq!(result.interfaces[0].name, "from-function");
    for command in [Command::Del, Command::Check, Command::Status] {
        delegate::forward(&request, "function", command).unwrap();
    }
    let error = delegate::forward(&request, "function", Command::Gc).unwrap_err();
    assert_eq!(error.msg, "GC fails as configured");
    let expected =
        ["ADD", "DEL", "CHECK", "STATUS", "GC"].map(|command| format!("{command} function"));
    assert_eq!(lab.calls(), expected);
}

fn delegate_to_itself(request: &Request) -> Result<cni::CniResult, cni::Error> {
    add(request, "itself")
}

fn forward_to_itself(request: &Request) -> Result<(), cni::Error> {
    delegate::forward(request, "itself", request.command)
}

static ITSELF: Plugin = Plugin {
    name: "itself",
    about: "delegates to itself",
    versions: Version::ALL,
    add: delegate_to_itself,
    del: forward_to_itself,
    check: forward_to_itself,
    status: forward_to_itself,
    gc: forward_to_itself,
};

#[test]
fn endless_delegation_is_an_error() {
    static ONLY: &[&Plugin] = &[&ITSELF];
    let lab = Lab::new();
    let host = Host { plugins: ONLY, builtin_fallback: true, ..host(None) };
    let request = request(&lab, &host, &json!({"cniVersion": "1.0.0", "name": "net"}));
    let check = |error: cni::Error| {
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert_eq!(error.msg, "plugins delegate to each other more than 8 times");
    };
    check(delegate_to_itself(&request).unwrap_err());
    for command in [Command::Del, Command::Check, Command::Gc, Command::Status] {
        check(forward_to_itself(&Request { command, ..request.clone() }).unwrap_err());
    }
}

#[test]
fn delegate_process_gets_its_depth() {
    let lab = Lab::new();
    let keep = format!("echo $PODWIRE_DELEGATION_DEPTH > {}", lab.path("depth").display());
    lab.plugin("ipam", &format!("{keep}\n{}", printing(&json!({"ips": []}))));
    let host = host(None);
    let mut request = request(&lab, &host, &json!({"cniVersion": "1.0.0", "name": "net"}));
    request.delegation.depth = 2;
    add(&request, "ipam").unwrap();
    assert_eq!(lab.read("depth"), "3\n");
    request.delegation.depth = delegate::MAX_DEPTH;
    let error = add(&request, "ipam").unwrap_err();
    assert_eq!(error.code, Code::INVALID_CONFIG);
}
