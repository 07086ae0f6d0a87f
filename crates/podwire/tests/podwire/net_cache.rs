// SPDX-License-Identifier: Apache-2.0
//! `podwire net` and its cache.

use std::fs;

use serde_json::{Value, json};
use testkit::{Ns, in_netns, run, write_program};

use super::pod::{recorded, write_recorder};
use super::program::{Conf, bridge, fails, links, list, ok, ok_json, warnings};

/// A network with the plugin portmap.
pub fn with_portmap(conf: &Conf) -> Value {
    let mut bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
    bridge["cniVersion"] = "1.1.0".into();
    list("mynet", &[bridge, json!({"type": "portmap", "capabilities": {"portMappings": true}})])
}

#[test]
fn check_uses_the_cached_arguments_of_add() {
    in_netns(|| {
        let conf = Conf::new();
        conf.write("10-mynet.conflist", &with_portmap(&conf).to_string());
        let _blue = Ns::new("blue");
        let ports = r#"--cap-args={"portMappings":[{"hostPort":8080,"containerPort":80}]}"#;
        ok(&["net", "add", "mynet", "blue", ports, &conf.flag()]);
        ok(&["net", "check", "mynet", "blue", &conf.flag()]);
        run("nft", &["delete element inet podwire ports4 { tcp . 8080 }"]);
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        assert!(why.contains("plugin type=\"portmap\" failed (check)"), "{why}");
        ok(&["net", "del", "mynet", "blue", &conf.flag()]);
    });
}

/// A foreign plugin may need the arguments of ADD to find what to remove.
#[test]
fn del_passes_the_cached_arguments_of_add() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        conf.write("10-rec.conflist", &list("rec", &[recorder]).to_string());
        let _blue = Ns::new("blue");
        let path = format!("--path={}", conf.path().display());
        let options = ["--args", "A=b", "--cap-args", r#"{"portMappings":[{"hostPort":80}]}"#];
        ok(&[&["net", "add", "rec", "blue", &path, &conf.flag()], &options[..]].concat());
        ok(&["net", "del", "rec", "blue", &path, &conf.flag()]);
        let expected = json!({"portMappings": [{"hostPort": 80}]});
        assert_eq!(recorded(&conf, "DEL")["runtimeConfig"], expected);
        assert_eq!(fs::read_to_string(conf.path().join("args")).unwrap().trim(), "A=b");
    });
}

#[test]
fn unknown_attachment_is_reported() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        let expected = "error: eth0 of /run/netns/blue on network \"mynet\" is not attached\n";
        assert!(why.contains(expected), "{why}");
        let printed = ok(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(printed.contains("eth0 of /run/netns/blue was not attached; "), "{printed}");
        fs::remove_file(conf.net_d().join("10-bridge.conflist")).unwrap();
        let unknown = "unknown attachment: eth0 of /run/netns/blue on network \"mynet\"";
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        assert!(why.contains(&format!("error: {unknown}\n")), "{why}");
        let printed = warnings(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(printed.contains(&format!("warning: {unknown}: no such network")), "{printed}");
        conf.write("10-mynet.conflist", "{");
        let why = fails(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(why.contains("the configuration of network \"mynet\" is invalid"), "{why}");
    });
}

#[test]
fn misspelled_key_is_warned_about() {
    in_netns(|| {
        let conf = Conf::new();
        let mut bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        bridge["isGatway"] = true.into();
        conf.write("10-mynet.conflist", &list("mynet", &[bridge]).to_string());
        let _blue = Ns::new("blue");
        let warning = "warning: plugin \"bridge\" of network \"mynet\" ignores unknown key \"isGatway\" \
                       (did you mean \"isGateway\"?)\n";
        for command in [&["list"][..], &["status", "mynet"], &["add", "mynet", "blue"]] {
            assert_eq!(warnings(&[&["net"], command, &[&conf.flag()]].concat()), warning);
        }
        assert_eq!(warnings(&["net", "del", "mynet", "blue", &conf.flag()]), "");
    });
}

#[test]
fn gc_uses_the_cached_network() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        fs::remove_file(conf.net_d().join("10-bridge.conflist")).unwrap();
        drop(blue);
        let printed = warnings(&["net", "gc", "mynet", &conf.flag()]);
        assert!(printed.contains("using the cached configuration"), "{printed}");
        assert!(conf.reserved("mynet").is_empty());
        assert_eq!(links(), ["mynet0"]);
        let why = fails(&["net", "gc", "mynet", &conf.flag()]);
        assert!(why.contains("there is no network \"mynet\""), "{why}");
    });
}

#[test]
fn gc_of_an_old_version_calls_no_plugins() {
    in_netns(|| {
        let conf = Conf::new();
        let mut network = with_portmap(&conf);
        network["cniVersion"] = "1.0.0".into();
        conf.write("10-mynet.conflist", &network.to_string());
        let gc = ["net", "gc", "mynet", "--plugins", &conf.flag()];
        let expected = "mynet: 0 removed, 0 kept; plugins not called: GC needs cniVersion 1.1.0\n";
        assert_eq!(ok(&gc), expected);
        assert_eq!(ok_json(&gc)["pluginsAsked"], false);
    });
}

#[test]
fn hidden_network_is_warned_about() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        conf.write("20-again.conflist", &with_portmap(&conf).to_string());
        let printed = warnings(&["net", "list", &conf.flag()]);
        let (first, second) = ("10-bridge.conflist", "20-again.conflist");
        let dir = conf.net_d();
        let expected = format!(
            "warning: {}: ignored, network \"mynet\" is defined by {}\n",
            dir.join(second).display(),
            dir.join(first).display()
        );
        assert_eq!(printed, expected);
    });
}

/// Code 51: containers can be added, but some traffic may fail.
#[test]
fn limited_connectivity_is_reported() {
    in_netns(|| {
        let conf = Conf::new();
        let script = "#!/bin/sh\ncat > /dev/null; echo '{\"cniVersion\":\"1.1.0\",\"code\":51,\"msg\":\"half\"}'; exit 1\n";
        write_program(conf.path().join("limited"), script);
        conf.write("10-lan.conflist", &list("lan", &[json!({"type": "limited"})]).to_string());
        let path = format!("--path={}", conf.path().display());
        let why = fails(&["net", "status", "lan", &conf.flag(), &path]);
        let expected = "error: network \"lan\" has limited connectivity\n  \
                        because plugin type=\"limited\" failed (status): ";
        assert!(why.contains(expected), "{why}");
    });
}
