// SPDX-License-Identifier: Apache-2.0
//! Flags, variables and file together.

use std::io;
use std::path::PathBuf;

use super::*;

fn asked(args: &str, vars: &[(&str, &str)], file: &str) -> Result<Settings, String> {
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let var = |name: &str| {
        vars.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
    };
    let read = |path: &str| match path {
        "agent.toml" => Ok(file.to_owned()),
        _ if path.ends_with(".pem") => Ok(String::new()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    match understand(Command::Agent, &args, var, read) {
        Ok(Asked::Run(settings)) => Ok(*settings),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn flags(args: &str) -> Settings {
    asked(args, &[], "").unwrap()
}

#[test]
fn flags_win_over_variables_and_these_over_the_file() {
    let file = "public-ip = \"192.0.2.3\"\nhealthz-port = 3\nsubnet-file = \"/three\"\n";
    let vars = [("FLANNELD_PUBLIC_IP", "192.0.2.2"), ("FLANNELD_HEALTHZ_PORT", "2")];
    let settings = asked("--config agent.toml --public-ip 192.0.2.1", &vars, file).unwrap();
    assert_eq!(settings.public_ipv4, Some("192.0.2.1".parse().unwrap()));
    assert_eq!(settings.health, Some(("0.0.0.0".parse().unwrap(), 2)));
    assert_eq!(settings.subnet_file, PathBuf::from("/three"));
}

#[test]
fn the_store_follows_from_what_is_said() {
    let embedded = PathBuf::from("/var/lib/podwire/store.db");
    assert_eq!(flags("").store, StoreChoice::Embedded(embedded));
    let StoreChoice::Etcd(etcd) = flags("--etcd-endpoints http://a:1,http://b:2").store else {
        panic!("etcd")
    };
    assert_eq!(etcd.endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!((etcd.prefix.as_str(), etcd.user), ("/coreos.com/network", None));
    for (told, prefix) in [("/a/", "/a"), ("/a//b/./c/../d", "/a/b/d"), ("a", "a"), ("/", "")] {
        let store = flags(&format!("--etcd-prefix {told}")).store;
        assert!(matches!(&store, StoreChoice::Etcd(etcd) if etcd.prefix == prefix), "{store:?}");
    }
    let StoreChoice::Etcd(etcd) = flags("--store etcd --etcd-cafile ca.pem").store else {
        panic!("etcd")
    };
    assert_eq!(etcd.endpoints, ["http://127.0.0.1:4001", "http://127.0.0.1:2379"]);
    assert_eq!(etcd.tls, Tls { authority: Some("ca.pem".into()), identity: None });
    assert!(matches!(flags("--kube-subnet-mgr").store, StoreChoice::Kubernetes(_)));
}

#[test]
fn annotations_prefixes_are_completed_as_flannel_does() {
    let prefix = |text: &str| match flags(&format!("--kube-subnet-mgr {text}")).store {
        StoreChoice::Kubernetes(kubernetes) => kubernetes.annotation_prefix.as_str().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(prefix(""), "flannel.alpha.coreos.com/");
    assert_eq!(prefix("--kube-annotation-prefix a.org"), "a.org/");
    assert_eq!(prefix("--kube-annotation-prefix a.org/"), "a.org/");
    assert_eq!(prefix("--kube-annotation-prefix a.org/net"), "a.org/net-");
    assert_eq!(prefix("--kube-annotation-prefix a.org/net-"), "a.org/net-");
}

/// As flannel's manifest has it; a name that was told is not looked up.
#[test]
fn nodes_name_may_be_that_of_a_pods_node() {
    let settings = |args: &str, vars: &[(&str, &str)]| {
        let settings = asked(args, vars, "").unwrap();
        (settings.node_name.clone(), settings.store.tells_name())
    };
    let pod = [("POD_NAME", "a"), ("POD_NAMESPACE", "b")];
    assert_eq!(settings("--kube-subnet-mgr", &pod), (None, true));
    assert_eq!(settings("--kube-subnet-mgr", &pod[..1]), (None, false));
    assert_eq!(settings("", &pod), (None, false));
    let told = [pod[0], pod[1], ("NODE_NAME", "n")];
    assert_eq!(settings("--kube-subnet-mgr", &told), (Some("n".to_owned()), false));
    let empty = [pod[0], pod[1], ("NODE_NAME", "")];
    assert_eq!(settings("--kube-subnet-mgr", &empty), (None, true));
    assert_eq!(settings("--kube-subnet-mgr --node-name n", &pod), (Some("n".to_owned()), false));
}

#[test]
fn a_daemon_sets_arguments_are_understood() {
    let settings = flags("--ip-masq --kube-subnet-mgr --healthz-port=8081");
    let masquerade = Masquerade { fully_random: true, except: Vec::new() };
    assert_eq!(settings.masquerade, Some(masquerade));
    assert!(settings.forwards && !settings.blackhole && !settings.dry_run);
    assert!(!settings.replaces_net_config);
    assert_eq!(settings.health, Some(("0.0.0.0".parse().unwrap(), 8081)));
    assert_eq!(settings.renew_margin.as_secs(), 3600);
}

/// As flanneld's `--healthz-ip`.
#[test]
fn health_is_served_on_the_address_that_is_given() {
    let health = |args: &str| flags(&format!("--healthz-port=8081 {args}")).health;
    for (args, address) in [
        ("", "0.0.0.0"),
        ("--healthz-ip=", "0.0.0.0"),
        ("--healthz-ip=192.0.2.7", "192.0.2.7"),
        ("--healthz-ip=fd00::7", "fd00::7"),
    ] {
        assert_eq!(health(args), Some((address.parse().unwrap(), 8081)), "{args}");
    }
    assert_eq!(flags("--healthz-ip=192.0.2.7").health, None, "no port, no pages");
}

#[test]
fn commands_of_the_network_are_refused_unless_allowed() {
    let allows = |args: &str, vars: &[(&str, &str)], file: &str| {
        asked(args, vars, file).unwrap().allows_extension
    };
    assert!(!allows("", &[], ""));
    assert!(allows("--allow-extension-commands", &[], ""));
    assert!(allows("", &[("PODWIRE_ALLOW_EXTENSION_COMMANDS", "true")], ""));
    assert!(allows("--config agent.toml", &[], "allow-extension-commands = true"));
}

#[test]
fn patterns_may_hold_commas_and_interfaces_not() {
    let settings = flags("--iface=eth0,eth1 --iface=eth2 --iface-regex=^en.{2,3}$");
    assert_eq!(settings.interfaces, ["eth0", "eth1", "eth2"]);
    assert_eq!(settings.interface_patterns.len(), 1);
    assert!(settings.interface_patterns[0].is_match("ens3"));
}

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    let refused = |args: &str, wanted: &str| {
        let said = asked(args, &[], "store = \"etcd\"").unwrap_err();
        assert_eq!(said, wanted, "{args}");
    };
    refused(
        "--subnet-lease-renew-margin 1440",
        "flag --subnet-lease-renew-margin: is \"1440\", allowed are whole numbers from 1 to 1439",
    );
    refused("--ip-masq=maybe", "flag --ip-masq: is \"maybe\", allowed are true and false");
    refused("--public-ip fd00::1", "flag --public-ip: is \"fd00::1\", expected an IPv4 address");
    refused("--store redis", "flag --store: is \"redis\", allowed are embedded, etcd, kubernetes");
    refused("--store etcd --etcd-certfile c", "flag --etcd-certfile: needs etcd-keyfile as well");
    refused(
        "--etcd-endpoints http://a:1,https://b:2",
        "flag --etcd-endpoints: is \"https://b:2\", which needs etcd-cafile as well",
    );
    refused("--replace-net-config", "flag --replace-net-config: needs net-config as well");
    refused(
        "--kube-subnet-mgr --net-config {} --replace-net-config",
        "flag --replace-net-config: is true, but with kubernetes the file net-config-path counts: change that one",
    );
    refused("--store etcd --etcd-password p", "flag --etcd-password: needs etcd-username as well");
    refused(
        "--config agent.toml --kube-subnet-mgr",
        "key \"store\" of agent.toml: is \"etcd\", but kube-subnet-mgr asks for kubernetes",
    );
    refused(
        "--non-masquerade-cidrs 10.0.0.1",
        "flag --non-masquerade-cidrs: is \"10.0.0.1\", expected a network such as 10.0.0.0/8",
    );
    refused(
        "--kube-subnet-mgr --kube-annotation-prefix a.org/b/c",
        "flag --kube-annotation-prefix: is \"a.org/b/c\", \
         expected a domain, and perhaps a slash and a name, in small letters",
    );
    for mark in ["a/c", "..", ""] {
        let said = asked(&format!("--mark={mark}"), &[], "").unwrap_err();
        assert!(said.starts_with(&format!("flag --mark: is {mark:?}, allowed are ")), "{said}");
    }
    assert_eq!(flags("--mark a.b-2_c").mark, "a.b-2_c");
    refused("--node-name=", "flag --node-name: is empty, expected a name");
    for option in ["etcd-cafile", "etcd-certfile", "etcd-keyfile"] {
        let files = "--store etcd --etcd-cafile a.pem --etcd-certfile b.pem --etcd-keyfile c.pem";
        let said = asked(&format!("{files} --{option} gone"), &[], "").unwrap_err();
        let wanted = format!("flag --{option}: cannot read \"gone\": ");
        assert!(said.starts_with(&wanted), "{said}");
    }
    let missing = asked("--config no.toml", &[], "").unwrap_err();
    assert!(missing.starts_with("flag --config: cannot read \"no.toml\": "), "{missing}");
}

#[test]
fn help_names_every_option() {
    let text = help();
    assert!(OPTIONS.iter().all(|spec| text.contains(&format!("--{} ", spec.name))));
}

const PAGE: &str = include_str!("../../../../docs/agent.md");

#[test]
fn the_page_has_every_option_as_it_is() {
    let rows: Vec<String> = OPTIONS
        .iter()
        .map(|spec| {
            let default = match spec.default {
                "" => "–".to_owned(),
                default => format!("`{default}`"),
            };
            let whose = if spec.is_flannels { " flanneld's |" } else { " |" };
            format!("| `{}` | {default} | {} |{whose}", spec.name, spec.about)
        })
        .collect();
    assert!(PAGE.contains(&rows.join("\n")), "it should have\n{}", rows.join("\n"));
}

#[test]
fn the_pages_file_and_command_are_understood() {
    let (_, file) = PAGE.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    let settings = asked("--config agent.toml", &[], file).unwrap();
    let StoreChoice::Etcd(etcd) = &settings.store else { panic!("{:?}", settings.store) };
    assert_eq!(etcd.endpoints.len(), 2);
    assert_eq!(settings.masquerade.unwrap().except.len(), 1);
    let (_, command) = PAGE.split_once("podwire agent --etcd-endpoints").unwrap();
    let (_, conf) = command.split_once("--net-config '").unwrap();
    let (conf, _) = conf.split_once('\'').unwrap();
    overlay::netconf::NetConf::parse(conf).unwrap();
}

#[test]
fn a_damaged_record_is_told_and_the_rest_is_understood() {
    let cleanup = |args: &str, record: io::Result<String>| {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let record = std::cell::RefCell::new(Some(record));
        let read = |_: &str| record.borrow_mut().take().unwrap();
        match understand(Command::Cleanup, &args, |_| None, read).unwrap() {
            Asked::Run(settings) => *settings,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cleanup("", Err(io::ErrorKind::NotFound.into())).damaged_record, None);
    let whole = flags("--etcd-endpoints http://a:1").record;
    assert_eq!(cleanup("", Ok(whole)).damaged_record, None);
    let problem = |record: io::Result<String>| cleanup("", record).damaged_record.unwrap().problem;
    assert!(problem(Err(io::ErrorKind::InvalidData.into())).contains("invalid data"));
    assert!(problem(Ok("store = ".into())).contains("line 1"));
    assert!(problem(Ok("store = \"xx\"".into())).contains("\"xx\""));
    assert!(problem(Ok("stor = \"etcd\"".into())).contains("no such option"));
    assert_eq!(problem(Ok(String::new())), "it does not name the store");
    let told = cleanup("--store-file /s.db", Ok(String::new()));
    assert!(told.damaged_record.unwrap().names_store);
    assert_eq!(told.store, StoreChoice::Embedded("/s.db".into()));
}

#[test]
fn the_record_has_absolute_paths_and_the_nodes_name() {
    let here = std::env::current_dir().unwrap();
    let record = asked("--store-file a/s.db --run-dir /r", &[("NODE_NAME", "blue")], "").unwrap();
    let store = format!("store-file = [{:?}]\n", here.join("a/s.db").to_str().unwrap());
    assert!(record.record.contains(&store), "{}", record.record);
    assert!(record.record.contains("run-dir = [\"/r\"]\n"), "{}", record.record);
    assert!(record.record.contains("node-name = [\"blue\"]\n"), "{}", record.record);
}

#[test]
fn cleanup_goes_by_what_the_agent_has_written_down() {
    let agent = flags("--etcd-endpoints http://a:1,http://b:1 --subnet-file /x/env --mark blue");
    let cleanup = |args: &str| {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let read = |path: &str| match path {
            "/var/lib/podwire/blue.toml" => Ok(agent.record.clone()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        };
        match understand(Command::Cleanup, &args, |_| None, read).unwrap() {
            Asked::Run(settings) => *settings,
            other => panic!("{other:?}"),
        }
    };
    let found = cleanup("--mark blue");
    assert_eq!((found.store, found.subnet_file), (agent.store.clone(), "/x/env".into()));
    // What is told comes first, and no half of another store with it.
    let found = cleanup("--mark blue --store-file /s.db");
    assert_eq!(found.store, StoreChoice::Embedded("/s.db".into()));
    assert_eq!(found.subnet_file, agent.subnet_file);
    assert_eq!(cleanup("").store.name(), "embedded");
}

#[test]
fn secrets_are_not_shown() {
    let settings = flags(
        "--etcd-username root --etcd-password hush --etcd-endpoints \
         http://u:hush@a:1,http://b:2 --net-config {\"Network\":\"10.5.0.0/16\",\"PSK\":\"hush\"}",
    );
    assert!(!settings.record.contains("hush"), "{}", settings.record);
    assert!(!format!("{settings:?}").contains("hush"), "{settings:?}");
    assert!(settings.net_config.unwrap().expose().ends_with("\"PSK\":\"hush\"}"));
    let StoreChoice::Etcd(etcd) = settings.store else { panic!("{:?}", settings.store) };
    assert_eq!(etcd.endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!(etcd.user.unwrap().1.expose(), "hush");
    let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
    assert!(warning.starts_with("flag --etcd-endpoints: ") && warning.contains("etcd-password"));
    let error = asked("--etcd-endpoints https://u:hush@a:1", &[], "").unwrap_err();
    assert!(error.contains("\"https://a:1\"") && !error.contains("hush"), "{error}");
    let error = asked("--config agent.toml", &[], "etcd-password = [[\"hush\"]]").unwrap_err();
    assert!(!error.contains("hush"), "{error}");
    let StoreChoice::Kubernetes(cluster) =
        flags("--kube-subnet-mgr --kube-api-url https://u:hush@a").store
    else {
        panic!()
    };
    assert_eq!(cluster.api_url.as_deref(), Some("https://a"));
}
