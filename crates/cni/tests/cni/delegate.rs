// SPDX-License-Identifier: Apache-2.0
//! Delegation: when a plugin is a function and when a process, and what happens to its failure.

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
fn the_same_file_is_a_function() {
    let lab = Lab::new();
    let ours = lab.plugin("ours", "");
    std::os::unix::fs::symlink("ours", lab.path("bin/function")).unwrap();
    let mut host = host(Some(identity(&ours)));
    assert!(is_function(&lab, &host, "function"), "through a symbolic link");
    assert!(!is_function(&lab, &host, "ours"), "we hold no plugin of this name");
    std::fs::remove_file(lab.path("bin/function")).unwrap();
    std::fs::hard_link(&ours, lab.path("bin/function")).unwrap();
    assert!(is_function(&lab, &host, "function"), "through a second name");
    host.always_exec = true;
    assert!(!is_function(&lab, &host, "function"), "when a process is wanted");
    host.always_exec = false;
    std::fs::remove_file(lab.path("bin/function")).unwrap();
    lab.plugin("function", "");
    assert!(!is_function(&lab, &host, "function"), "somebody else's file of this name");
}

#[test]
fn a_plugin_that_is_not_installed_is_a_function_only_on_request() {
    let lab = Lab::new();
    let mut host = host(None);
    let path = lab.path("bin").display().to_string();
    let error = delegate::find(&host, "function", &path).unwrap_err();
    assert_eq!(error.msg, format!("failed to find plugin \"function\" in path [{path}]"));
    host.builtin_fallback = true;
    assert!(is_function(&lab, &host, "function"));
    lab.plugin("function", "");
    assert!(!is_function(&lab, &host, "function"), "the installed one is preferred");
}

#[test]
fn only_names_of_files_are_looked_up() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("bin/folder")).unwrap();
    let path = lab.path("bin").display().to_string();
    for kind in ["", "a/b", "../bin/a", "folder", "nowhere"] {
        let error = delegate::find(&host(None), kind, &path).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG, "{kind}");
    }
}

#[test]
fn the_first_directory_wins() {
    let (one, other) = (Lab::new(), Lab::new());
    let first = one.plugin("a", "");
    other.plugin("a", "");
    let path = format!("{}:{}", one.path("bin").display(), other.path("bin").display());
    match delegate::find(&host(None), "a", &path).unwrap() {
        Target::Program(file) => assert_eq!(file, first),
        Target::Function(plugin) => panic!("{plugin:?}"),
    }
}

#[test]
fn a_process_gets_the_same_request_and_its_result_is_read() {
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
fn a_process_gets_the_result_that_was_never_printed() {
    let lab = Lab::new();
    lab.plugin("ipam", &printing(&json!({})));
    let host = host(None);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "prevResult": {"ips": []}});
    let mut request = request(&lab, &host, &config);
    let ip = cni::IpConfig::new("10.0.0.9/24".parse().unwrap(), None);
    let before = cni::CniResult { ips: vec![ip], ..cni::CniResult::default() };
    request.delegation.prev_result = Some(before.clone().into());
    assert_eq!(request.prev_result().unwrap(), Some(before));
    add(&request, "ipam").unwrap();
    let sent = lab.sent("ipam", "ADD");
    assert_eq!(sent["prevResult"]["ips"][0]["address"], "10.0.0.9/24");
    assert_eq!(sent["prevResult"]["cniVersion"], "1.0.0");
}

#[test]
fn a_programs_failed_add_is_followed_by_del() {
    let lab = Lab::new();
    let host = Host { builtin_fallback: true, ..host(None) };
    let log = lab.path("calls");
    let config = json!({"cniVersion": "1.0.0", "name": "net", "log": log, "fail": "ADD"});
    let request = request(&lab, &host, &config);

    lab.plugin("ipam", &failing("ADD", 11, "no address"));
    let error = add(&request, "ipam").unwrap_err();
    assert_eq!((error.code, &*error.msg), (Code::TRY_LATER, "no address"));
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);

    // What cannot be read is as good as failed.
    lab.plugin("ipam", "[ $CNI_COMMAND = DEL ] || echo '{\"ips\": ['");
    assert_eq!(add(&request, "ipam").unwrap_err().code, Code::DECODE);
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);
    lab.plugin("ipam", "");
    let error = add(&request, "ipam").unwrap_err();
    assert_eq!((error.code, &*error.details), (Code::DECODE, "it printed nothing"));
    assert_eq!(lab.calls(), ["ADD ipam", "DEL ipam"]);

    // A function leaves nothing when it fails.
    add(&request, "function").unwrap_err();
    assert_eq!(lab.calls(), ["ADD function"]);
}

#[test]
fn functions_are_forwarded_every_verb() {
    let lab = Lab::new();
    let host = Host { builtin_fallback: true, ..host(None) };
    let request = request(&lab, &host, &json!({"log": lab.path("calls"), "fail": "GC"}));
    let result = add(&request, "function").unwrap();
    assert_eq!(result.interfaces[0].name, "from-function");
    for command in [Command::Del, Command::Check, Command::Status] {
        delegate::forward(&request, "function", command).unwrap();
    }
    let error = delegate::forward(&request, "function", Command::Gc).unwrap_err();
    assert_eq!(error.msg, "GC is to fail");
    let expected = ["ADD", "DEL", "CHECK", "STATUS", "GC"].map(|verb| format!("{verb} function"));
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
fn delegation_without_end_is_an_error() {
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
fn a_process_is_given_its_depth() {
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
