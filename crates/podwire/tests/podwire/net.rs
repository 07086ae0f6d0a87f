// SPDX-License-Identifier: Apache-2.0
//! `podwire net`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Ns, in_netns, run, try_run};

use super::program::{
    Conf, PODWIRE, addresses, bridge, fails, fails_json, links, list, names, ok, ok_json, warnings,
};

#[test]
fn add_check_and_del_succeed() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        let printed = ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        assert!(printed.starts_with("mynet: eth0 of /run/netns/blue attached in "), "{printed}");
        assert!(printed.contains("10.1.0.2/24  eth0       10.1.0.1"), "{printed}");
        assert_eq!(addresses(&blue, "eth0", "-4"), ["10.1.0.2"]);
        testkit::ping(&blue, "10.1.0.1".parse().unwrap());

        ok(&["net", "check", "mynet", "blue", &conf.flag()]);
        blue.ip(&["addr", "flush", "dev", "eth0"]);
        let why = fails(&["net", "check", "mynet", "blue", &conf.flag()]);
        assert!(why.contains("error: check eth0 of /run/netns/blue on network \"mynet\""), "{why}");

        ok(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert_eq!(links(), ["mynet0"]);
        assert!(conf.reserved("mynet").is_empty());
        ok(&["net", "del", "mynet", "blue", &conf.flag()]);
        drop(blue);
        ok(&["net", "del", "mynet", "/run/netns/blue", &conf.flag()]);
    });
}

/// Runtimes read lists from `.conflist` files and single plugins from `.conf` files.
#[test]
fn converted_plugin_is_in_a_conflist() {
    in_netns(|| {
        let conf = Conf::new();
        let mut single = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        single["name"] = "mynet".into();
        single["cniVersion"] = "1.0.0".into();
        conf.write("10-mynet.conf", &single.to_string());
        let file = conf.net_d().join("10-mynet.conf");
        let printed = ok(&["net", "convert", "--write", &file.display().to_string()]);
        let converted = conf.net_d().join("10-mynet.conflist");
        assert!(printed.starts_with(&format!("converted {}; ", converted.display())), "{printed}");
        assert!(!file.exists() && conf.net_d().join("10-mynet.conf.orig").exists());
        let why = fails(&["net", "convert", &converted.display().to_string()]);
        assert!(why.contains("is already converted"), "{why}");
        let _blue = Ns::new("blue");
        ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        ok(&["net", "del", "mynet", "blue", &conf.flag()]);
    });
}

#[test]
fn add_with_json_prints_the_result() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        let result = ok_json(&["net", "add", "mynet", "blue", "--ifname", "net1", &conf.flag()]);
        assert_eq!(result["cniVersion"], "1.1.0");
        assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
        let device = &result["interfaces"][2];
        assert_eq!(
            (&device["name"], &device["sandbox"]),
            (&"net1".into(), &"/run/netns/blue".into())
        );
        let shown = blue.ip_json(&["link", "show", "dev", "net1"]);
        assert_eq!(shown[0]["address"], device["mac"]);
    });
}

#[test]
fn add_reads_the_variables_of_cnitool() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        let directory = format!("NETCONFPATH={}", conf.net_d().display());
        let args = "CNI_ARGS=IgnoreUnknown=1;IP=10.1.0.77";
        let variables = [&*directory, args, "CNI_IFNAME=net7", "CNI_PATH="];
        let command = [PODWIRE, "net", "add", "mynet", "/run/netns/blue"];
        run("env", &[&variables[..], &command].concat());
        assert_eq!(addresses(&blue, "net7", "-4"), ["10.1.0.77"]);
        let cached = super::program::names("/var/lib/cni/results".as_ref());
        let digest = run("sh", &["-c", "printf %s /run/netns/blue | sha512sum | cut -c-20"]);
        assert_eq!(cached, [format!("mynet-cnitool-{}-net7", digest.trim())]);
    });
}

#[test]
fn foreign_plugin_receives_capabilities_and_args() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = super::pod::write_recorder(&conf);
        conf.write("10-rec.conflist", &list("rec", &[recorder]).to_string());
        let _blue = Ns::new("blue");
        let path = format!("--path={}", conf.path().display());
        let ports = r#"{"portMappings":[{"hostPort":80}],"other":1}"#;
        let options = ["--args", "A=b;C=d", "--cap-args", ports];
        ok(&[&["net", "add", "rec", "blue", &path, &conf.flag()], &options[..]].concat());
        let stdin = super::pod::recorded(&conf, "ADD");
        assert_eq!(stdin["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
        let args = std::fs::read_to_string(conf.path().join("args")).unwrap();
        assert_eq!(args.trim(), "A=b;C=d");
    });
}

#[test]
fn list_shows_networks_and_invalid_files() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        conf.write("20-broken.conflist", "{\n  \"name\": }\n");
        let printed = ok(&["net", "list", &conf.flag()]);
        assert!(printed.starts_with("NETWORK  VERSION  PLUGINS  FILE\nmynet    1.1.0    bridge "));
        let printed = ok_json(&["net", "list", &conf.flag()]);
        assert_eq!(printed["networks"][0]["name"], "mynet");
        assert_eq!(printed["broken"][0]["error"]["code"], 6);

        let why = fails(&["net", "status", "other", &conf.flag()]);
        assert!(why.contains("error: there is no network \"other\" in "), "{why}");
        assert!(why.contains("20-broken.conflist:2:11: expected value"), "{why}");
        assert!(why.contains("line 2: \"name\": }"), "{why}");
        assert!(why.contains("hint: existing networks: mynet"), "{why}");
        let why = fails(&["net", "status", "broken", &conf.flag()]);
        assert!(why.contains("error: the configuration of network \"broken\" is invalid"), "{why}");
        assert!(why.contains("20-broken.conflist:2:11: expected value"), "{why}");
        let file = format!("--conf-dir={}/10-bridge.conflist", conf.net_d().display());
        assert_eq!(fails_json(&["net", "list", &file])["code"], 5);
        let why = fails(&["net", "status", "a", "--conf-dir=/nowhere"]);
        assert!(why.contains("or write one to /nowhere/10-mynet.conflist"), "{why}");
    });
}

#[test]
fn errors_have_hints() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let why = fails(&["net", "add", "mynet", "missing", &conf.flag()]);
        assert!(why.contains("error: open network namespace /run/netns/missing"), "{why}");
        assert!(why.contains("hint: create it with: ip netns add missing"), "{why}");

        let _blue = Ns::new("blue");
        conf.write("20-x.conflist", &list("x", &[json!({"type": "nosuch"})]).to_string());
        let why = fails(&["net", "add", "x", "blue", &conf.flag(), "-o", "json"]);
        assert!(why.contains("failed to find plugin \"nosuch\" in path [/opt/cni/bin]\n"), "{why}");
        assert!(why.contains("hint: install the plugin there"), "{why}");
        let printed = &why[why.find('{').unwrap()..=why.find("\n}").unwrap() + 1];
        let error: Value = serde_json::from_str(printed).unwrap();
        assert_eq!(error["code"], 7, "{why}");
        assert_eq!(links(), [""; 0]);
    });
}

#[test]
fn json_errors_have_cni_codes() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        conf.write("20-broken.conflist", "{");
        let check = |network: &str, netns: &str, code: u32| {
            let error = fails_json(&["net", "add", network, netns, &conf.flag()]);
            assert_eq!(error["code"], code, "{error}");
        };
        check("mynet", "missing", 3);
        check("broken", "blue", 6);
        check("unknown", "blue", 7);
    });
}

#[test]
fn attachment_survives_a_removed_network_file() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        conf.write("10-bridge.conflist", "{");
        let printed = warnings(&["net", "check", "mynet", "blue", &conf.flag()]);
        assert!(printed.starts_with("note: ") && printed.lines().count() == 1, "{printed}");
        fs::remove_file(conf.net_d().join("10-bridge.conflist")).unwrap();
        let printed = warnings(&["net", "del", "mynet", "blue", &conf.flag()]);
        assert!(printed.contains("using the cached configuration"), "{printed}");
        assert!(conf.reserved("mynet").is_empty());
        assert_eq!(links(), ["mynet0"]);
        assert_eq!(ok_json(&["net", "del", "mynet", "blue", &conf.flag()])["network"], "mynet");
        assert_eq!(fails_json(&["net", "check", "mynet", "blue", &conf.flag()])["code"], 7);
    });
}

#[test]
fn second_add_gets_a_hint() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let blue = Ns::new("blue");
        let add = ["net", "add", "mynet", "blue", "--ifname=net1", &conf.flag()];
        ok(&add);
        let why = fails(&add);
        let hint = "hint: run `podwire net del mynet blue --ifname net1` first\n";
        assert!(why.contains(hint), "{why}");
        assert_eq!(addresses(&blue, "net1", "-4"), ["10.1.0.2"]);
    });
}

#[test]
fn unsupported_capability_is_warned_about() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        let option = r#"--cap-args={"ips":["10.1.0.9/24"]}"#;
        let printed = warnings(&["net", "add", "mynet", "blue", option, &conf.flag()]);
        let expected = "warning: no plugin of network \"mynet\" has capability \"ips\"\n";
        assert_eq!(printed, expected);
    });
}

#[test]
fn gc_keeps_existing_namespaces() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let (blue, red) = (Ns::new("blue"), Ns::new("red"));
        for name in ["blue", "red"] {
            ok(&["net", "add", "mynet", name, &conf.flag()]);
        }
        drop(red);
        let printed = ok(&["net", "gc", "mynet", &conf.flag()]);
        assert!(printed.starts_with("mynet: 1 removed, 1 kept\n"), "{printed}");
        assert!(printed.contains("/run/netns/red"), "{printed}");
        assert_eq!(conf.reserved("mynet"), ["10.1.0.2"]);
        assert_eq!(addresses(&blue, "eth0", "-4"), ["10.1.0.2"]);

        let printed = ok_json(&["net", "gc", "mynet", "--all", &conf.flag()]);
        assert_eq!(printed["removed"][0]["netns"], "/run/netns/blue");
        assert!(conf.reserved("mynet").is_empty());
        assert_eq!(links(), ["mynet0"]);
    });
}

#[test]
fn gc_keeps_attachments_of_other_runtimes() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let (blue, red) = (Ns::new("blue"), Ns::new("red"));
        let add = ["net", "add", "mynet"];
        ok(&[&add[..], &["blue", "--cache-dir=/run/other", &conf.flag()]].concat());
        ok(&[&add[..], &["red", &conf.flag()]].concat());
        for flags in [&[][..], &["--all"]] {
            ok(&[&["net", "gc", "mynet", &conf.flag()], flags].concat());
            assert!(conf.reserved("mynet").contains(&"10.1.0.2".to_owned()), "{flags:?}");
        }
        assert_eq!(conf.reserved("mynet"), ["10.1.0.2"], "--all removes red");
        testkit::ping(&blue, "10.1.0.1".parse().unwrap());

        let printed = ok(&["net", "gc", "mynet", "--plugins", &conf.flag()]);
        let expected = "mynet: 1 removed, 0 kept; plugins removed everything else\n";
        assert!(printed.starts_with(expected), "{printed}");
        assert!(conf.reserved("mynet").is_empty(), "the cache contains all containers");
        drop(red);
    });
}

/// These addresses are not in the cache. Only the plugins can free them, and GC returns no count.
#[test]
fn gc_counts_addresses_freed_by_plugins() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let dir = Path::new(&conf.addresses()).join("mynet");
        fs::create_dir_all(&dir).unwrap();
        for last in 10..56 {
            fs::write(dir.join(format!("10.1.0.{last}")), format!("lost{last}\r\neth0")).unwrap();
        }
        fs::write(dir.join("last_reserved_ip.0"), "10.1.0.55").unwrap();
        let printed = ok_json(&["net", "gc", "mynet", "--plugins", &conf.flag()]);
        assert_eq!(printed["removed"].as_array().unwrap().len(), 46, "{printed}");
        assert_eq!(printed["removed"][0]["containerID"], "lost10");
        assert!(conf.reserved("mynet").is_empty());
        fs::write(dir.join("10.1.0.9"), "lost9\r\neth0").unwrap();
        let printed = ok(&["net", "gc", "mynet", "--plugins", &conf.flag()]);
        assert!(printed.starts_with("mynet: 1 removed, 0 kept; plugins"), "{printed}");
        assert!(printed.contains("lost9"), "{printed}");
    });
}

#[test]
fn gc_with_an_invalid_cache_file_keeps_addresses() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let (blue, red) = (Ns::new("blue"), Ns::new("red"));
        ok(&["net", "add", "mynet", "blue", &conf.flag()]);
        let results = Path::new("/var/lib/cni/results");
        let file = results.join(&names(results)[0]);
        fs::write(&file, "").unwrap();
        ok(&["net", "add", "mynet", "red", &conf.flag()]);
        drop(red);
        let why = fails(&["net", "gc", "mynet", "--plugins", &conf.flag()]);
        assert!(why.contains(file.to_str().unwrap()), "{why}");
        assert!(why.contains("mynet: 1 removed, 0 kept\n"), "{why}");
        assert_eq!(conf.reserved("mynet"), ["10.1.0.2"]);
        testkit::ping(&blue, "10.1.0.1".parse().unwrap());
    });
}

#[test]
fn gc_prints_the_number_of_removals() {
    in_netns(|| {
        let conf = Conf::new();
        let recorder = super::pod::write_recorder(&conf);
        let mut network = list("rec", &[recorder]);
        conf.write("10-rec.conflist", &network.to_string());
        let path = format!("--path={}", conf.path().display());
        let (blue, red) = (Ns::new("blue"), Ns::new("red"));
        for name in ["blue", "red"] {
            ok(&["net", "add", "rec", name, &path, &conf.flag()]);
        }
        drop(red);
        let gc = ["net", "gc", "rec", &path, &conf.flag()];
        fs::write(conf.path().join("fail-DEL"), "").unwrap();
        assert!(!fails(&gc).contains("removed, "), "nothing was removed");
        fs::remove_file(conf.path().join("fail-DEL")).unwrap();
        network["disableGC"] = true.into();
        conf.write("10-rec.conflist", &network.to_string());
        assert_eq!(ok(&gc), "rec: 0 removed, 2 kept\n");
        network["disableGC"] = false.into();
        conf.write("10-rec.conflist", &network.to_string());
        assert!(ok(&gc).starts_with("rec: 1 removed, 1 kept\n"));
        assert!(!conf.path().join("GC.json").exists(), "GC is sent only with --plugins");
        ok(&[&gc[..], &["--plugins"]].concat());
        let valid = &super::pod::recorded(&conf, "GC")["cni.dev/valid-attachments"];
        assert_eq!(valid.as_array().unwrap().len(), 1);
        drop(blue);
    });
}

#[test]
fn status_of_an_old_version_is_unknown() {
    in_netns(|| {
        let conf = Conf::new();
        let bridge = bridge("old", "10.1.0.0/24", &conf.addresses());
        let mut network = list("old", &[bridge]);
        network["cniVersion"] = "1.0.0".into();
        conf.write("10-old.conflist", &network.to_string());
        let printed = ok(&["net", "status", "old", &conf.flag()]);
        assert!(printed.contains("because STATUS needs cniVersion 1.1.0"), "{printed}");
        let printed = ok_json(&["net", "status", "old", &conf.flag()]);
        assert_eq!((&printed["ready"], &printed["pluginsAsked"]), (&true.into(), &false.into()));
    });
}

#[test]
fn status_fails_for_an_exhausted_range() {
    in_netns(|| {
        // One address for the gateway and one for a container.
        let conf = Conf::with_bridge("tiny", "10.1.0.0/30");
        let _blue = Ns::new("blue");
        assert_eq!(ok(&["net", "status", "tiny", &conf.flag()]), "tiny: ready\n");
        ok(&["net", "add", "tiny", "blue", &conf.flag()]);
        let why = fails(&["net", "status", "tiny", &conf.flag(), "-o", "json"]);
        assert!(why.contains("error: network \"tiny\" cannot accept containers"), "{why}");
        assert!(why.contains("\"code\": 50"), "{why}");
    });
}

#[test]
fn program_runs_the_plugin_it_is_named_after() {
    in_netns(|| {
        let conf = Conf::new();
        let plugin = conf.path().join("bridge");
        symlink(PODWIRE, &plugin).unwrap();
        let plugin = plugin.to_str().unwrap();
        let printed = run("env", &["CNI_COMMAND=VERSION", plugin]);
        let answer: Value = serde_json::from_str(&printed).unwrap();
        assert!(answer["supportedVersions"].as_array().unwrap().contains(&"1.1.0".into()));

        let bridge = bridge("mynet", "10.1.0.0/24", &conf.addresses());
        conf.write("10-a.conflist", &list("mynet", &[bridge]).to_string());
        let blue = Ns::new("blue");
        let path = format!("--path={}", conf.path().display());
        ok(&["net", "add", "mynet", "blue", &conf.flag(), &path]);
        assert_eq!(addresses(&blue, "eth0", "-4"), ["10.1.0.2"]);
    });
}

#[test]
fn completions_and_help_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&["completions", shell]).contains("podwire"), "{shell}");
    }
    assert!(ok(&["--version"]).starts_with("podwire "));
    for command in ["net", "pod", "demo"] {
        assert!(ok(&[command, "--help"]).contains("Examples:"), "{command}");
    }
}

/// Plugins run in this process: endless recursion would kill it.
#[test]
fn delegation_to_itself_is_an_error() {
    in_netns(|| {
        let conf = Conf::new();
        let plugin = json!({"type": "bridge", "bridge": "br0", "ipam": {"type": "bridge"}});
        conf.write("10-mynet.conflist", &list("mynet", &[plugin]).to_string());
        let _blue = Ns::new("blue");
        let error = "\"ipam.type\" is \"bridge\", which is not an IPAM plugin";
        for command in [&["net", "add", "mynet", "blue"][..], &["net", "status", "mynet"]] {
            let flag = conf.flag();
            let why = fails(&[command, &[flag.as_str()]].concat());
            assert!(why.contains(error), "{why}");
        }
        assert!(links().is_empty());
    });
}

/// A caller without the result assumes that the container is not attached.
#[test]
fn add_is_undone_if_the_result_cannot_be_printed() {
    in_netns(|| {
        let conf = Conf::with_bridge("mynet", "10.1.0.0/24");
        let _blue = Ns::new("blue");
        let flag = conf.flag();
        for format in ["text", "json"] {
            let shell = ["-c", "exec \"$0\" \"$@\" > /dev/full", PODWIRE];
            let args = ["-o", format, "net", "add", "mynet", "blue", &flag];
            let why = try_run("sh", &[&shell[..], &args].concat()).unwrap_err();
            assert!(why.contains("exit status: 1") && why.contains("detached again"), "{why}");
            assert_eq!(links(), ["mynet0"]);
            assert!(conf.reserved("mynet").is_empty());
        }
        ok(&["net", "add", "mynet", "blue", &flag]);
        ok(&["net", "del", "mynet", "blue", &flag]);
    });
}
