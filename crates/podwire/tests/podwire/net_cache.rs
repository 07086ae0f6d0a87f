// SPDX-License-Identifier: Apache-2.0
//! `podwire net` and what its cache remembers.

use std::fs;

use serde_json::{Value, json};
use testkit::{Ns, in_netns, run, write_program};

use super::pod::{recorded, write_recorder};
use super::program::{Conf, bridge, fails, links, list, ok, ok_json, warned};

/// A network with published ports.
pub fn published(conf: &Conf) -> Value {
    let mut bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
    bridge["cniVersion"] = "1.1.0".into();
    list("mynet", &[bridge, json!({"type": "portmap", "capabilities": {"portMappings": true}})])
}

#[test]
fn check_knows_what_add_was_told() {
    in_netns(|| {
        let conf = Conf::new();
        conf.write("10-mynet.conflist", &published(&conf).to_string());
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

/// Plugins of others may find what to remove only there.
#[test]
fn del_tells_what_add_was_told() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = write_recorder(&conf);
        conf.write("10-rec.conflist", &list("rec", &[recorder]).to_string());
        let _blue = Ns::new("blue");
        let path = format!("--path={}", conf.path().display());
        let told = ["--args", "A=b", "--cap-args", r#"{"portMappings":[{"hostPort":80}]}"#];
        ok(&[&["net", "add", "rec", "blue", &path, &conf.flag()], &told[..]].concat());
        ok(&["net", "del", "rec", "blue", &path, &conf.flag()]);
        let expected = json!({"portMappings": [{"hostPort": 80}]});
        assert_eq!(recorded(&conf, "DEL")["runtimeConfig"], expected);
        assert_eq!(fs::read_to_string(conf.path().join("args")).unwrap().trim(), "A=b");
    });
}

#[test]
fn what_was_never_attached_is_called_so() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        let expected = "error: eth0 of /run/netns/blue on network \"mynet\" is not attached\n";
        assert!(why.contains(expected), "{why}");
        let said = ok(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(said.contains("eth0 of /run/netns/blue was not attached; "), "{said}");
        fs::remove_file(conf.net_d().join("10-bridge.conflist")).unwrap();
        let nothing = "nothing is known of eth0 of /run/netns/blue on network \"mynet\"";
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        assert!(why.contains(&format!("error: {nothing}\n")), "{why}");
        let said = warned(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(said.contains(&format!("warning: {nothing}, and there is no such net")), "{said}");
        conf.write("10-mynet.conflist", "{");
        let why = fails(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(why.contains("the configuration of network \"mynet\" is broken"), "{why}");
    });
}

#[test]
fn a_key_that_is_nearly_right_is_told_of() {
    in_netns(|| {
        let conf = Conf::new();
        let mut bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        bridge["isGatway"] = true.into();
        conf.write("10-mynet.conflist", &list("mynet", &[bridge]).to_string());
        let _blue = Ns::new("blue");
        let words = "warning: plugin \"bridge\" of network \"mynet\" passes over key \"isGatway\": \
                     did you mean \"isGateway\"?\n";
        for command in [&["list"][..], &["status", "mynet"], &["add", "mynet", "blue"]] {
            assert_eq!(warned(&[&["net"], command, &[&conf.flag()]].concat()), words);
        }
        assert_eq!(warned(&["net", "del", "mynet", "blue", &conf.flag()]), "");
    });
}

#[test]
fn gc_outlives_the_networks_file() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        fs::remove_file(conf.net_d().join("10-bridge.conflist")).unwrap();
        drop(blue);
        let said = warned(&["net", "gc", "mynet", &conf.flag()]);
        assert!(said.contains("the cache's copy is used"), "{said}");
        assert!(conf.taken("mynet").is_empty());
        assert_eq!(links(), ["mynet0"]);
        let why = fails(&["net", "gc", "mynet", &conf.flag()]);
        assert!(why.contains("there is no network \"mynet\""), "{why}");
    });
}

#[test]
fn gc_says_whether_plugins_were_asked() {
    in_netns(|| {
        let conf = Conf::new();
        let mut network = published(&conf);
        network["cniVersion"] = "1.0.0".into();
        conf.write("10-mynet.conflist", &network.to_string());
        let gc = ["net", "gc", "mynet", "--plugins", &conf.flag()];
        let expected =
            "mynet: 0 removed, 0 kept; its plugins cannot be asked before cniVersion 1.1.0\n";
        assert_eq!(ok(&gc), expected);
        assert_eq!(ok_json(&gc)["pluginsAsked"], false);
    });
}

#[test]
fn a_network_that_another_hides_is_told_of() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        conf.write("20-again.conflist", &published(&conf).to_string());
        let said = warned(&["net", "list", &conf.flag()]);
        let (first, second) = ("10-bridge.conflist", "20-again.conflist");
        let dir = conf.net_d();
        let expected = format!(
            "warning: {}: network \"mynet\" is that of {}, which counts\n",
            dir.join(second).display(),
            dir.join(first).display()
        );
        assert_eq!(said, expected);
    });
}

/// Packets may not pass, but containers can come.
#[test]
fn limited_connectivity_has_words_of_its_own() {
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
