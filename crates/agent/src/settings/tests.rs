// SPDX-License-Identifier: Apache-2.0
//! Flags, variables and the file together.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

use super::*;

fn parsed(args: &str, vars: &[(&str, &str)], file: &str) -> Result<Settings, String> {
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let var = |name: &str| {
        vars.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
    };
    let read = |path: &str| match path {
        "agent.toml" => Ok(file.to_owned()),
        _ if path.ends_with(".pem") => Ok(String::new()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    match parse(Command::Agent, &args, var, read) {
        Ok(Invocation::Run(settings)) => Ok(*settings),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn flags(args: &str) -> Settings {
    parsed(args, &[], "").unwrap()
}

#[test]
fn flag_wins_over_variable_and_variable_over_file() {
    let file = "public-ip = \"192.0.2.3\"\nhealthz-port = 3\nsubnet-file = \"/three\"\n";
    let vars = [("FLANNELD_PUBLIC_IP", "192.0.2.2"), ("FLANNELD_HEALTHZ_PORT", "2")];
    let settings = parsed("--config agent.toml --public-ip 192.0.2.1", &vars, file).unwrap();
    assert_eq!(settings.underlay.public_ipv4, Some("192.0.2.1".parse().unwrap()));
    assert_eq!(settings.api.health, Some(("0.0.0.0".parse().unwrap(), 2)));
    assert_eq!(settings.files.subnet_env, PathBuf::from("/three"));
}

#[test]
fn routed_pods_are_masqueraded_as_their_pools_say() {
    assert_eq!(flags("").nat.masquerade, None);
    let nat = flags("--pods routed --non-masquerade-cidrs 10.0.0.0/8").nat;
    assert_eq!(nat.masquerade.unwrap().except.len(), 1);
    assert!(!nat.excludes_nodes);
    assert!(flags("--pods routed --pool-nat-exclusions pools-and-nodes").nat.excludes_nodes);
}

#[test]
fn store_is_implied_by_other_options() {
    let embedded = PathBuf::from("/var/lib/podwire/store.db");
    assert_eq!(flags("").store, StoreChoice::Embedded(embedded));
    let StoreChoice::Etcd(etcd) = flags("--etcd-endpoints http://a:1,http://b:2").store else {
        panic!("etcd")
    };
    assert_eq!(etcd.endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!((etcd.prefix.as_str(), etcd.user), ("/coreos.com/network", None));
    for (given, prefix) in [("/a/", "/a"), ("/a//b/./c/../d", "/a/b/d"), ("a", "a"), ("/", "")] {
        let store = flags(&format!("--etcd-prefix {given}")).store;
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
fn annotation_prefix_is_completed_as_flannel_does() {
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

/// With the variables of flannel's manifest. A name that was given is not looked up.
#[test]
fn pools_have_calicos_names_and_reject_bad_values() {
    let pools = |args: &str| match parsed(args, &[], "").unwrap().network.pods {
        Pods::Routed { pools } => pools.into_iter().map(|pool| (pool.name, pool.cidr)).collect(),
        Pods::Bridged => Vec::new(),
    };
    assert_eq!(pools(""), []);
    let args = "--pods routed --pool-cidr 10.6.0.0/16,fd00:6::/64 --pool-cidr 10.7.0.0/16";
    let names: Vec<String> = pools(args).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["default-ipv4-ippool", "default-ipv6-ippool", "default-ipv4-ippool-2"]);
    let args = "--pods routed --kube-subnet-mgr --kubeconfig-file k --node-name n";
    assert_eq!(parsed(args, &[], "").unwrap().store.name(), "kubernetes");
    let problem = |args: &str| parsed(args, &[], "").unwrap_err().to_string();
    for (args, expected) in [
        ("--pods flat", "expected bridged or routed"),
        ("--pool-cidr 10.6.0.0/16", "requires --pods routed"),
        ("--pods routed --pool-cidr ten", "expected address ranges such as 10.244.0.0/16"),
        ("--pods routed --pool-cidr 10.6.0.0/30", "is smaller than a block"),
        ("--pods routed --pool-cidr 10.6.0.0/16 --pool-encapsulation gre", "expected none, vxlan"),
        ("--pods routed --dry-run", "not possible with --pods routed"),
    ] {
        assert!(problem(args).contains(expected), "{args}: {}", problem(args));
    }
}

#[test]
fn node_name_of_a_pod_is_left_to_kubernetes() {
    let name = |args: &str, vars: &[(&str, &str)]| {
        let settings = parsed(args, vars, "").unwrap();
        let is_looked_up = settings.store.provides_node_name();
        (settings.node.name, is_looked_up)
    };
    let pod = [("POD_NAME", "a"), ("POD_NAMESPACE", "b")];
    assert_eq!(name("--kube-subnet-mgr", &pod), (None, true));
    assert_eq!(name("--kube-subnet-mgr", &pod[..1]), (None, false));
    assert_eq!(name("", &pod), (None, false));
    let given = [pod[0], pod[1], ("NODE_NAME", "n")];
    assert_eq!(name("--kube-subnet-mgr", &given), (Some("n".to_owned()), false));
    let empty = [pod[0], pod[1], ("NODE_NAME", "")];
    assert_eq!(name("--kube-subnet-mgr", &empty), (None, true));
    assert_eq!(name("--kube-subnet-mgr --node-name n", &pod), (Some("n".to_owned()), false));
}

#[test]
fn arguments_of_flannels_daemonset_are_accepted() {
    let settings = flags("--ip-masq --kube-subnet-mgr --healthz-port=8081");
    let masquerade = Masquerade { fully_random: true, except: Vec::new() };
    assert_eq!(settings.nat.masquerade, Some(masquerade));
    assert!(settings.nat.forwards && !settings.nat.blackhole && !settings.mode.dry_run);
    assert!(!settings.mode.replaces_net_config);
    assert_eq!(settings.api.health, Some(("0.0.0.0".parse().unwrap(), 8081)));
    assert_eq!(settings.network.renew_margin.as_secs(), 3600);
}

/// Same meaning as flanneld's `--healthz-ip`.
#[test]
fn health_address_is_used_if_a_port_is_given() {
    let health = |args: &str| flags(&format!("--healthz-port=8081 {args}")).api.health;
    for (args, address) in [
        ("", "0.0.0.0"),
        ("--healthz-ip=", "0.0.0.0"),
        ("--healthz-ip=192.0.2.7", "192.0.2.7"),
        ("--healthz-ip=fd00::7", "fd00::7"),
    ] {
        assert_eq!(health(args), Some((address.parse().unwrap(), 8081)), "{args}");
    }
    assert_eq!(flags("--healthz-ip=192.0.2.7").api.health, None, "no port");
}

#[test]
fn extension_commands_are_off_by_default() {
    let allows = |args: &str, vars: &[(&str, &str)], file: &str| {
        parsed(args, vars, file).unwrap().network.allows_extension
    };
    assert!(!allows("", &[], ""));
    assert!(allows("--allow-extension-commands", &[], ""));
    assert!(allows("", &[("PODWIRE_ALLOW_EXTENSION_COMMANDS", "true")], ""));
    assert!(allows("--config agent.toml", &[], "allow-extension-commands = true"));
}

#[test]
fn interface_list_splits_at_commas_patterns_do_not() {
    let settings = flags("--iface=eth0,eth1 --iface=eth2 --iface-regex=^en.{2,3}$");
    assert_eq!(settings.underlay.interfaces, ["eth0", "eth1", "eth2"]);
    assert_eq!(settings.underlay.patterns.len(), 1);
    assert!(settings.underlay.patterns[0].is_match("ens3"));
}

#[test]
fn invalid_option_is_reported_with_allowed_values() {
    let rejects = |args: &str, expected: &str| {
        let error = parsed(args, &[], "store = \"etcd\"").unwrap_err();
        assert_eq!(error, expected, "{args}");
    };
    rejects(
        "--subnet-lease-renew-margin 1440",
        "flag --subnet-lease-renew-margin: invalid value \"1440\", expected a whole number from 1 to 1439",
    );
    rejects("--ip-masq=maybe", "flag --ip-masq: invalid value \"maybe\", expected true or false");
    rejects(
        "--public-ip fd00::1",
        "flag --public-ip: invalid value \"fd00::1\", expected an IPv4 address",
    );
    rejects(
        "--store redis",
        "flag --store: invalid value \"redis\", expected one of embedded, etcd, kubernetes",
    );
    rejects("--store etcd --etcd-certfile c", "flag --etcd-certfile: requires etcd-keyfile");
    rejects(
        "--etcd-endpoints http://a:1,https://b:2",
        "flag --etcd-endpoints: \"https://b:2\" requires etcd-cafile",
    );
    rejects("--replace-net-config", "flag --replace-net-config: requires net-config");
    rejects(
        "--kube-subnet-mgr --net-config {} --replace-net-config",
        "flag --replace-net-config: not possible with kubernetes: change the file net-config-path instead",
    );
    rejects("--store etcd --etcd-password p", "flag --etcd-password: requires etcd-username");
    rejects(
        "--config agent.toml --kube-subnet-mgr",
        "key \"store\" of agent.toml: \"etcd\" contradicts kube-subnet-mgr, which selects kubernetes",
    );
    rejects(
        "--non-masquerade-cidrs 10.0.0.1",
        "flag --non-masquerade-cidrs: invalid value \"10.0.0.1\", expected a network such as 10.0.0.0/8",
    );
    rejects("--pods routed --multicast", "flag --multicast: not possible with --pods routed");
    rejects(
        "--pool-nat-exclusions hosts",
        "flag --pool-nat-exclusions: invalid value \"hosts\", expected pools or pools-and-nodes",
    );
    rejects(
        "--kube-subnet-mgr --kube-annotation-prefix a.org/b/c",
        "flag --kube-annotation-prefix: invalid value \"a.org/b/c\", \
         expected a domain, and perhaps a slash and a name, in small letters",
    );
    for owner in ["a/c", "..", ""] {
        let error = parsed(&format!("--owner={owner}"), &[], "").unwrap_err();
        let expected = format!("flag --owner: invalid value {owner:?}, expected up to 63 letters");
        assert!(error.starts_with(&expected), "{error}");
    }
    rejects("--node-name=", "flag --node-name: invalid value \"\", expected a name");
    for option in ["etcd-cafile", "etcd-certfile", "etcd-keyfile"] {
        let files = "--store etcd --etcd-cafile a.pem --etcd-certfile b.pem --etcd-keyfile c.pem";
        let error = parsed(&format!("{files} --{option} gone"), &[], "").unwrap_err();
        let expected = format!("flag --{option}: cannot read \"gone\": ");
        assert!(error.starts_with(&expected), "{error}");
    }
    let missing = parsed("--config no.toml", &[], "").unwrap_err();
    assert!(missing.starts_with("flag --config: cannot read \"no.toml\": "), "{missing}");
}

#[test]
fn owner_tag_is_accepted_under_its_former_name() {
    assert_eq!(flags("--owner a.b-2_c").node.owner, "a.b-2_c");
    assert_eq!(flags("--mark a.b-2_c").node.owner, "a.b-2_c");
    for variable in ["PODWIRE_OWNER", "PODWIRE_MARK"] {
        assert_eq!(parsed("", &[(variable, "blue")], "").unwrap().node.owner, "blue");
    }
    for key in ["owner", "mark"] {
        let file = format!("{key} = \"blue\"");
        assert_eq!(parsed("--config agent.toml", &[], &file).unwrap().node.owner, "blue");
    }
}

const PAGE: &str = include_str!("../../../../docs/agent.md");

#[test]
fn docs_list_every_option() {
    let row = |spec: &Spec| {
        let default = match spec.default {
            "" => "–".to_owned(),
            default => format!("`{default}`"),
        };
        let flannels = if spec.is_flannels { " flanneld's |" } else { " |" };
        format!("| `{}` | {default} | {} |{flannels}", spec.name, spec.about)
    };
    let rows: Vec<String> = OPTIONS.iter().map(row).collect();
    let is_missing = |row: &&String| !PAGE.contains(row.as_str());
    let missing: Vec<&String> = rows.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/agent.md lacks {missing:#?}");
}

#[test]
fn docs_examples_are_valid() {
    let (_, file) = PAGE.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    let settings = parsed("--config agent.toml", &[], file).unwrap();
    let StoreChoice::Etcd(etcd) = &settings.store else { panic!("{:?}", settings.store) };
    assert_eq!(etcd.endpoints.len(), 2);
    assert_eq!(settings.nat.masquerade.unwrap().except.len(), 1);
    let (_, command) = PAGE.split_once("podwire agent --etcd-endpoints").unwrap();
    let (_, conf) = command.split_once("--net-config '").unwrap();
    let (conf, _) = conf.split_once('\'').unwrap();
    overlay::netconf::NetConf::parse(conf).unwrap();
}

/// The settings of a cleanup with this state directory.
fn cleanup(state_dir: &Path, args: &str) -> Settings {
    let state_dir = format!("--state-dir={}", state_dir.display());
    let args = args.split_whitespace().map(str::to_owned);
    let args: Vec<String> = args.chain([state_dir]).collect();
    match parse(Command::Cleanup, &args, |_| None, |_| unreachable!()).unwrap() {
        Invocation::Run(settings) => *settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_record_is_reported_to_cleanup() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("podwire.toml");
    assert_eq!(cleanup(dir.path(), "").sources.damaged_record, None);
    let whole = flags("--etcd-endpoints http://a:1").sources.saved;
    std::fs::write(&record, whole).unwrap();
    assert_eq!(cleanup(dir.path(), "").sources.damaged_record, None);
    let problem = |text: &[u8]| {
        std::fs::write(&record, text).unwrap();
        cleanup(dir.path(), "").sources.damaged_record.unwrap().problem
    };
    assert!(problem(b"\xff\xfe").contains("UTF-8"));
    assert!(problem(b"store = ").contains("line 1"));
    assert!(problem(b"store = \"xx\"").contains("\"xx\""));
    assert!(problem(b"stor = \"etcd\"").contains("unknown option"));
    assert_eq!(problem(b""), "the store is missing");
    let given = cleanup(dir.path(), "--store-file /s.db");
    assert!(given.sources.damaged_record.unwrap().names_store);
    assert_eq!(given.store, StoreChoice::Embedded("/s.db".into()));
}

/// Reading a FIFO would never end.
#[test]
fn record_that_is_not_a_regular_file_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("podwire.toml");
    let problem = || cleanup(dir.path(), "").sources.damaged_record.unwrap().problem;
    rustix::fs::mknodat(CWD, &record, FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert_eq!(problem(), "it is a FIFO, expected a regular file");
    std::fs::remove_file(&record).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &record).unwrap();
    assert_eq!(problem(), "it is a device, expected a regular file");
}

#[test]
fn record_has_absolute_paths_and_the_node_name() {
    let here = std::env::current_dir().unwrap();
    let args = "--store-file a/s.db --run-dir /r";
    let record = parsed(args, &[("NODE_NAME", "blue")], "").unwrap().sources.saved;
    let store = format!("store-file = [{:?}]\n", here.join("a/s.db").to_str().unwrap());
    assert!(record.contains(&store), "{record}");
    assert!(record.contains("run-dir = [\"/r\"]\n"), "{record}");
    assert!(record.contains("node-name = [\"blue\"]\n"), "{record}");
}

#[test]
fn cleanup_uses_the_options_that_the_agent_saved() {
    let agent = flags("--etcd-endpoints http://a:1,http://b:1 --subnet-file /x/env --owner blue");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("blue.toml"), &agent.sources.saved).unwrap();
    let cleanup = |args: &str| cleanup(dir.path(), args);
    let given = cleanup("--owner blue");
    assert_eq!((given.store, given.files.subnet_env), (agent.store.clone(), "/x/env".into()));
    // An option for the store replaces all saved options for the store.
    let given = cleanup("--owner blue --store-file /s.db");
    assert_eq!(given.store, StoreChoice::Embedded("/s.db".into()));
    assert_eq!(given.files.subnet_env, agent.files.subnet_env);
    assert_eq!(cleanup("").store.name(), "embedded");
}

#[test]
fn secrets_appear_in_no_output() {
    let settings = flags(
        "--etcd-username root --etcd-password hush --etcd-endpoints \
         http://u:hush@a:1,http://b:2 --net-config {\"Network\":\"10.5.0.0/16\",\"PSK\":\"hush\"}",
    );
    assert!(!settings.sources.saved.contains("hush"), "{}", settings.sources.saved);
    assert!(!format!("{settings:?}").contains("hush"), "{settings:?}");
    assert!(settings.network.config.unwrap().expose().ends_with("\"PSK\":\"hush\"}"));
    let StoreChoice::Etcd(etcd) = settings.store else { panic!("{:?}", settings.store) };
    assert_eq!(etcd.endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!(etcd.user.unwrap().1.expose(), "hush");
    let [warning] = &settings.sources.warnings[..] else {
        panic!("{:?}", settings.sources.warnings)
    };
    assert!(warning.starts_with("flag --etcd-endpoints: ") && warning.contains("etcd-password"));
    let error = parsed("--etcd-endpoints https://u:hush@a:1", &[], "").unwrap_err();
    assert!(error.contains("\"https://a:1\"") && !error.contains("hush"), "{error}");
    let error = parsed("--config agent.toml", &[], "etcd-password = [[\"hush\"]]").unwrap_err();
    assert!(!error.contains("hush"), "{error}");
    let StoreChoice::Kubernetes(cluster) =
        flags("--kube-subnet-mgr --kube-api-url https://u:hush@a").store
    else {
        panic!()
    };
    assert_eq!(cluster.api_url.as_deref(), Some("https://a"));
}
