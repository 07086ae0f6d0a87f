// SPDX-License-Identifier: Apache-2.0
//! `podwire pod`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Ns, in_netns, run, wait_for, wait_some, write_program};

use super::net_cache::with_portmap;
use super::program::{
    Conf, PODWIRE, addresses, bridge, fails, fails_json, links, list, names, ok, ok_json, warnings,
};

/// Writes a plugin that records its input, for `--path`.
pub fn write_recorder(conf: &Conf) -> Value {
    let dir = conf.path().display();
    let script = format!(
        "#!/bin/sh\n\
         case $CNI_COMMAND in\n\
         VERSION) echo '{{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}}' ;;\n\
         *) cat > {dir}/$CNI_COMMAND.json; echo \"$CNI_ARGS\" > {dir}/args ;;\n\
         esac\n\
         test ! -e {dir}/fail-$CNI_COMMAND || {{\n\
         echo '{{\"cniVersion\":\"1.1.0\",\"code\":50,\"msg\":\"asked to fail\"}}'; exit 1; }}\n\
         test $CNI_COMMAND != ADD || echo '{{\"cniVersion\":\"1.1.0\"}}'\n"
    );
    write_program(conf.path().join("recorder"), &script);
    let capabilities = json!({"portMappings": true, "bandwidth": true, "ipRanges": true});
    json!({"type": "recorder", "capabilities": capabilities})
}

/// Standard input of the recording plugin for a CNI command.
pub fn recorded(conf: &Conf, command: &str) -> Value {
    let text = fs::read(conf.path().join(format!("{command}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn assert_nothing_left() {
    assert_eq!(names(Path::new("/run/netns")), [""; 0]);
    assert_eq!(names(Path::new("/run/podwire/pods")), [""; 0]);
    assert_eq!(names(Path::new("/var/lib/cni/results")), [""; 0]);
    let links = links();
    assert!(links.iter().all(|link| !link.starts_with("veth")), "{links:?}");
}

#[test]
fn up_status_and_down_succeed() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let up = ok_json(&["pod", "up", "default/web", &conf.flag()]);
        assert_eq!(up["ip"], "10.1.0.2");
        assert_eq!(up["netns"], "/run/netns/podwire-default_web");
        assert_eq!(names(Path::new("/run/podwire/pods")), ["default_web.json"]);
        let inside =
            |args: &[&str]| run("ip", &[&["netns", "exec", "podwire-default_web"], args].concat());
        assert!(inside(&["ip", "addr", "show", "lo"]).contains("127.0.0.1/8"));
        inside(&["ping", "-c1", "-W5", "10.1.0.1"]);

        // The status shows the addresses in the kernel, not those of the result.
        inside(&["ip", "addr", "add", "fd00::7/64", "dev", "eth0", "nodad"]);
        let status = ok_json(&["pod", "status", "default/web"]);
        assert_eq!(status["ips"], json!(["10.1.0.2", "fd00::7"]));
        assert_eq!(status["sandboxID"], up["sandboxID"]);
        assert!(ok(&["pod", "status", "default/web"]).contains("10.1.0.2 fd00::7"));

        let why = fails(&["pod", "up", "default/web", &conf.flag()]);
        assert!(why.contains("error: pod default/web is already up\nhint: "), "{why}");
        // `down` does not need the configuration file.
        fs::remove_dir_all(conf.net_d()).unwrap();
        assert_eq!(ok(&["pod", "down", "default/web"]), "default/web: down\n");
        assert_eq!(ok(&["pod", "down", "default/web"]), "default/web: was not up\n");
        let why = fails(&["pod", "status", "default/web"]);
        assert!(why.contains("error: pod default/web is not up\nhint: "), "{why}");
        assert_nothing_left();
        assert!(conf.reserved("mynet").is_empty());
    });
}

#[test]
fn existing_namespace_is_not_removed() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        ok(&["pod", "up", "default/web", "--netns", "/run/netns/blue", &conf.flag()]);
        assert_eq!(addresses(&blue, "eth0", "-4"), ["10.1.0.2"]);
        ok(&["pod", "down", "default/web"]);
        assert_eq!(names(Path::new("/run/netns")), ["blue"]);

        ok(&["pod", "up", "default/web", "--netns", "blue", &conf.flag()]);
        drop(blue);
        ok(&["pod", "down", "default/web"]);
        assert_nothing_left();
    });
}

/// Whether `lo` is up, read with `ip`.
fn has_loopback(ns: &Ns) -> bool {
    let shown = ns.ip_json(&["link", "show", "dev", "lo"]);
    shown[0]["flags"].as_array().unwrap().contains(&"UP".into())
}

#[test]
fn own_namespace_is_refused_and_unchanged() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        run("ip", &["link", "set", "lo", "up"]);
        let up = ["pod", "up", "a/b", "--netns", "/proc/self/ns/net", &conf.flag()];
        let error = fails_json(&up);
        assert_eq!(error["code"], 8, "{error}");
        assert!(has_loopback(&Ns::here()));
        assert_nothing_left();

        // The recorded path now leads to the namespace of this process.
        let blue = Ns::new("blue");
        ok(&["pod", "up", "a/b", "--netns", "/run/netns/blue", &conf.flag()]);
        let file = "/run/podwire/pods/a_b.json";
        let state = fs::read_to_string(file).unwrap();
        fs::write(file, state.replace("/run/netns/blue", "/proc/self/ns/net")).unwrap();
        ok(&["pod", "down", "a/b"]);
        assert!(has_loopback(&Ns::here()));
        assert!(conf.reserved("mynet").is_empty());
        drop(blue);
        assert_nothing_left();
    });
}

#[test]
fn loopback_of_an_existing_namespace_stays_up() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        let flag = conf.flag();
        let up = |pod| ["pod", "up", pod, "--netns=blue", &flag];
        ok(&up("a/first"));
        let why = fails(&up("a/second"));
        assert!(why.contains("interface eth0 already exists in /run/netns/blue"), "{why}");
        assert_eq!(names(Path::new("/run/podwire/pods")), ["a_first.json"]);
        assert_eq!(addresses(&blue, "eth0", "-4"), ["10.1.0.2"]);
        assert!(has_loopback(&blue));
        ok(&["pod", "down", "a/first"]);
        assert!(has_loopback(&blue));

        // Fails after loopback was set up.
        let recorder = write_recorder(&conf);
        conf.write("05-rec.conflist", &list("rec", &[recorder]).to_string());
        fs::write(conf.path().join("fail-ADD"), "").unwrap();
        let path = format!("--path={}", conf.path().display());
        let flags = ["--netns=blue", "--pod-cidr=10.9.0.0/24", &path, &conf.flag()];
        let why = fails(&[&["pod", "up", "a/b"], &flags[..]].concat());
        assert!(why.contains("asked to fail"), "{why}");
        assert!(has_loopback(&blue));
        drop(blue);
        assert_nothing_left();
    });
}

#[test]
fn plugins_receive_kubelets_arguments() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        conf.write("10-rec.conflist", &list("rec", &[recorder]).to_string());
        let (path, flag) = (format!("--path={}", conf.path().display()), conf.flag());
        let why = fails(&["pod", "ready", &path, &flag]);
        assert!(why.contains("not ready: network \"rec\" needs ipRanges"), "{why}");

        let options = [
            ["--port", "8080:80"],
            ["--annotation", "kubernetes.io/egress-bandwidth=1Mi"],
            ["--pod-cidr", "10.9.0.0/24"],
            ["--uid", "u-1"],
            ["--sandbox-id", "abc"],
        ];
        ok(&[&["pod", "up", "a/b", &path, &flag], &options.concat()[..]].concat());
        let expected = json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"egressRate": 1_048_576, "egressBurst": i32::MAX},
            "ipRanges": [[{"subnet": "10.9.0.0/24"}]],
        });
        assert_eq!(recorded(&conf, "ADD")["runtimeConfig"], expected);
        let args = fs::read_to_string(conf.path().join("args")).unwrap();
        let expected = "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;\
                        K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u-1";
        assert_eq!(args.trim(), expected);
        ok(&["pod", "ready", "a/b", "--pod-cidr=10.9.0.0/24", &path, &flag]);
        ok(&["pod", "down", "a/b", &path]);
        assert_eq!(recorded(&conf, "DEL")["runtimeConfig"]["bandwidth"]["egressRate"], 1_048_576);
        assert_nothing_left();
    });
}

#[test]
fn unsupported_port_is_warned_about() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let command = format!("{PODWIRE} pod up a/b --port 80:80 {} 2>&1 >/dev/null", conf.flag());
        let warning = run("sh", &["-c", &command]);
        assert!(warning.starts_with("warning: host ports are not forwarded: "), "{warning}");
        let why = testkit::try_run(PODWIRE, &["pod", "up", "a/c", "--port", "0:80"]).unwrap_err();
        assert!(why.contains("\"0\" is not a port"), "{why}");
    });
}

#[test]
fn port_conflict_names_the_other_pod() {
    in_netns(|| {
        let conf = Conf::new();
        conf.write("10-a.conflist", &with_portmap(&conf).to_string());
        let at = "--port=[fd00::1]:81:80";
        let printed = warnings(&["pod", "up", "a/b", "--port", "8080:80", at, &conf.flag()]);
        assert!(printed.starts_with("warning: port 81 of fd00::1 is not forwarded"), "{printed}");
        let why = fails(&["pod", "up", "a/c", "--port", "8080:80", &conf.flag()]);
        assert!(why.contains("is already mapped to pod a/b on mynet\n"), "{why}");
        ok(&["pod", "down", "a/b"]);
        assert_nothing_left();
    });
}

#[test]
fn failed_up_leaves_nothing() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        conf.write("10-a.conflist", &list("mynet", &[bridge, recorder]).to_string());
        fs::write(conf.path().join("fail-ADD"), "").unwrap();
        let path = format!("--path={}", conf.path().display());
        let why = fails(&["pod", "up", "a/b", &path, &conf.flag(), "--pod-cidr=10.9.0.0/24"]);
        assert!(why.contains("error: connect pod a/b\n  because attach it to network"), "{why}");
        assert!(why.contains("asked to fail"), "{why}");
        assert_nothing_left();
        assert!(conf.reserved("mynet").is_empty());

        // After a failed DEL the state file stays, and the next `down` tries again.
        fs::remove_file(conf.path().join("fail-ADD")).unwrap();
        fs::write(conf.path().join("fail-DEL"), "").unwrap();
        ok(&["pod", "up", "a/b", &path, &conf.flag(), "--pod-cidr=10.9.0.0/24"]);
        fails(&["pod", "down", "a/b", &path]);
        assert_eq!(names(Path::new("/run/podwire/pods")), ["a_b.json"]);
        fs::remove_file(conf.path().join("fail-DEL")).unwrap();
        ok(&["pod", "down", "a/b", &path]);
        assert_nothing_left();
    });
}

#[test]
fn up_is_undone_if_the_state_cannot_be_written() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        // Makes the second write fail, the one after ADD.
        let obstacle = "/run/podwire/pods/a_b.new";
        let script = fs::read_to_string(conf.path().join("recorder")).unwrap();
        let obstruct = format!("test $CNI_COMMAND != ADD || mkdir {obstacle}\ncase ");
        write_program(conf.path().join("recorder"), &script.replace("case ", &obstruct));
        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        conf.write("10-a.conflist", &list("mynet", &[bridge, recorder]).to_string());
        let path = format!("--path={}", conf.path().display());
        let why = fails(&["pod", "up", "a/b", &path, &conf.flag(), "--pod-cidr=10.9.0.0/24"]);
        assert!(why.contains("because write /run/podwire/pods/a_b.json"), "{why}");
        fs::remove_dir(obstacle).unwrap();
        assert_nothing_left();
        assert!(conf.reserved("mynet").is_empty());
    });
}

#[test]
fn foreign_namespace_with_the_pods_name_stays() {
    in_netns(|| {
        let conf = Conf::new();
        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        conf.write("10-a.conflist", &list("mynet", &[bridge]).to_string());
        testkit::run("ip", &["netns", "add", "podwire-a_b"]);
        let why = fails(&["pod", "up", "a/b", &conf.flag()]);
        assert!(why.contains("hint: no pod uses it"), "{why}");
        assert_eq!(testkit::run("ip", &["netns", "list"]).trim(), "podwire-a_b");
    });
}

#[test]
fn missing_readiness_has_a_reason() {
    in_netns(|| {
        let conf = Conf::new();
        let (path, flag) = (format!("--path={}", conf.path().display()), conf.flag());
        let ready = ["pod", "ready", &path, &flag];
        let why = fails(&ready);
        assert!(why.contains("not ready: cni config uninitialized\n"), "{why}");
        assert!(why.contains("hint: a node agent writes a network "), "{why}");
        conf.write("10-a.conflist", "{\n  \"name\": }\n");
        let why = fails(&ready);
        assert!(why.contains("10-a.conflist:2:11: expected value"), "{why}");
        conf.write("10-a.conflist", &list("a", &[json!({"type": "nosuch"})]).to_string());
        let why = fails(&ready);
        assert!(why.contains("failed to find plugin \"nosuch\""), "{why}");

        // An invalid file is ignored, and the next one is used.
        let recorder = write_recorder(&conf);
        conf.write("20-b.conflist", &list("b", &[recorder]).to_string());
        let with_range = [&ready[..], &["--pod-cidr=10.9.0.0/24"]].concat();
        let printed = ok(&with_range);
        assert!(printed.starts_with("ready: network \"b\"\n  ignored "), "{printed}");
        assert!(printed.contains("10-a.conflist: failed to find plugin \"nosuch\""), "{printed}");
        assert_eq!(ok_json(&with_range)["network"], "b");
        fs::write(conf.path().join("fail-STATUS"), "").unwrap();
        let why = fails(&with_range);
        assert!(why.contains("network \"b\" cannot accept containers\n"), "{why}");
        assert!(why.contains("asked to fail"), "{why}");
        let wrong = json!({"type": "bridge", "bridge": "b0", "mtu": "big"});
        conf.write("20-b.conflist", &list("b", &[wrong]).to_string());
        let why = fails(&ready);
        let expected = "network \"b\" cannot accept containers: its configuration is invalid\n";
        assert!(why.contains(expected), "{why}");
    });
}

#[test]
fn watch_reports_changes_of_readiness() {
    in_netns(|| {
        let conf = Conf::new();
        let log = conf.path().join("log");
        let watching =
            format!("exec {PODWIRE} pod ready --watch {} >{}", conf.flag(), log.display());
        let watch = testkit::Daemon::start("sh", &["-c", &watching]);
        let last_line_is = |start: &str| {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            let mut lines = printed.lines().filter(|line| line.contains("ready: "));
            lines.next_back().is_some_and(|last| last.starts_with(start))
        };
        let wait_line =
            |start: &str| wait_for(start, Duration::from_secs(60), || last_line_is(start));
        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        let network = list("mynet", &[bridge]).to_string();
        let (part, whole) = (conf.net_d().join("new.tmp"), conf.net_d().join("10-a.conflist"));
        // Earlier than the period of 5 s, because of the inotify event. Several attempts on a busy machine.
        let is_soon = (0..5).any(|_| {
            wait_line("not ready: cni config uninitialized");
            fs::write(&part, &network).unwrap();
            fs::rename(&part, &whole).unwrap();
            let soon = wait_some(Duration::from_secs(4), || last_line_is("ready: ").then_some(()));
            wait_line("ready: network \"mynet\"");
            fs::remove_file(&whole).unwrap();
            soon.is_some()
        });
        assert!(is_soon, "no line within the period of 5 s");
        drop(watch);
    });
}

#[test]
fn interrupted_up_is_cleaned_up_by_the_next() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        let script = fs::read_to_string(conf.path().join("recorder")).unwrap();
        // The plugin hangs, and `up` is killed while it waits.
        let hangs = conf.path().join("hangs");
        let hang = format!(
            "test $CNI_COMMAND != ADD || {{ touch {}; exec sleep 1000; }}\n",
            hangs.display()
        );
        let hanging = script.replace("case ", &format!("{hang}case "));
        write_program(conf.path().join("recorder"), &hanging);
        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        conf.write("10-a.conflist", &list("mynet", &[bridge, recorder]).to_string());
        let path = format!("--path={}", conf.path().display());
        let args = ["pod", "up", "a/b", &path, &conf.flag(), "--pod-cidr=10.9.0.0/24"];
        let up = testkit::Daemon::start(PODWIRE, &args);
        wait_for("start of the hanging plugin", Duration::from_secs(60), || hangs.exists());
        drop(up);
        assert_eq!(conf.reserved("mynet").len(), 1);
        assert_eq!(names(Path::new("/run/netns")), ["podwire-a_b"]);

        write_program(conf.path().join("recorder"), &script);
        ok(&args);
        assert_eq!(conf.reserved("mynet").len(), 1);
        ok(&["pod", "down", "a/b", &path]);
        assert_nothing_left();
    });
}
