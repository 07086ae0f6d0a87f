// SPDX-License-Identifier: Apache-2.0
//! The pages in `docs`: configurations work as printed, and printed programs match the examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Host};
use plugins::registry::PLUGINS;
use testkit::{Ns, in_netns, not_run_unless, run};

use crate::world::Plugins;

#[test]
fn docs_bandwidth_config_works() {
    check_printed_config("bandwidth");
}

#[test]
fn docs_bridge_config_works() {
    check_printed_config("bridge");
}

#[test]
fn docs_calico_config_works() {
    check_printed_config("calico");
}

#[test]
fn docs_calico_ipam_config_works() {
    in_netns(|| {
        // The agent's state directory.
        crate::calico::own_var_lib();
        let _agent = crate::calico::start_agent("/run/podwire/agent.sock", "/var/lib/podwire");
        check_printed_config_here("calico-ipam");
    });
}

#[test]
fn docs_dhcp_config_works() {
    in_netns(|| {
        let _network = crate::dhcp::network_here("br-lan");
        check_printed_config_here("dhcp");
    });
}

#[test]
fn docs_host_device_config_works() {
    in_netns(|| {
        Ns::here().ip(&["link", "add", "ens1f0", "type", "veth", "peer", "name", "far"]);
        check_printed_config_here("host-device");
    });
}

#[test]
fn docs_firewall_config_works() {
    check_printed_config("firewall");
}

#[test]
fn docs_flannel_config_works() {
    in_netns(|| {
        let subnet_env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").expect("create a directory in /run");
        fs::write("/run/flannel/subnet.env", subnet_env).expect("write a file in /run");
        check_printed_config_here("flannel");
    });
}

#[test]
fn docs_host_local_config_works() {
    check_printed_config("host-local");
}

#[test]
fn docs_loopback_config_works() {
    check_printed_config("loopback");
}

#[test]
fn docs_podwire_config_works() {
    check_printed_config("podwire");
}

#[test]
fn docs_portmap_config_works() {
    check_printed_config("portmap");
}

#[test]
fn docs_ptp_config_works() {
    check_printed_config("ptp");
}

#[test]
fn docs_macvlan_config_works() {
    in_netns(|| {
        create_master();
        check_printed_config_here("macvlan");
    });
}

#[test]
fn vm_docs_ipvlan_config_works() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        create_master();
        check_printed_config_here("ipvlan");
    });
}

#[test]
fn vm_docs_vlan_config_works() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        create_master();
        check_printed_config_here("vlan");
    });
}

#[test]
fn vm_docs_dummy_config_works() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        check_printed_config_here("dummy");
    });
}

/// Creates `eth1`, which the pages use as master.
fn create_master() {
    let host = Ns::here();
    host.ip(&["link", "add", "eth1", "type", "veth", "peer", "name", "switch"]);
    host.ip(&["link", "set", "eth1", "up"]);
    host.ip(&["link", "set", "switch", "up"]);
}

#[test]
fn docs_sample_config_works() {
    check_printed_config("sample");
}

#[test]
fn docs_sbr_config_works() {
    check_printed_config("sbr");
}

#[test]
fn docs_static_config_works() {
    check_printed_config("static");
}

#[test]
fn docs_tap_config_works() {
    check_printed_config("tap");
}

#[test]
fn docs_tuning_config_works() {
    check_printed_config("tuning");
}

#[test]
fn vm_docs_vrf_config_works() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        check_printed_config_here("vrf");
    });
}

#[test]
fn docs_of_plugins_have_one_page_each() {
    let pages: BTreeSet<String> = pages_in(&workspace().join("docs/plugins"))
        .iter()
        .map(|page| page.file_stem().expect("a page has a name").display().to_string())
        .collect();
    let plugins: BTreeSet<String> = PLUGINS.iter().map(|plugin| plugin.name.to_owned()).collect();
    assert_eq!(pages, plugins);
}

#[test]
fn docs_configs_are_valid() {
    let docs = workspace().join("docs");
    let mut pages = vec![workspace().join("README.md")];
    pages.extend(pages_in(&docs));
    pages.extend(pages_in(&docs.join("plugins")));
    for page in pages {
        for config in blocks(&read(&page), "json") {
            if let Err(error) = NetworkList::parse(config.as_bytes(), None) {
                panic!("{}: {error}\n{config}", page.display());
            }
        }
    }
}

/// Also checks that the README, the index and the troubleshooting page link to every plugin's page.
#[test]
fn docs_links_point_to_existing_files() {
    let root = workspace();
    let pages = ["", "docs", "docs/plugins"].map(|folder| pages_in(&root.join(folder)));
    for page in pages.concat() {
        let folder = page.parent().expect("a page is in a folder");
        for link in links(&read(&page)) {
            let is_there = link.contains("://") || folder.join(&link).exists();
            assert!(is_there, "{}: broken link {link}", page.display());
        }
    }
    for (page, folder) in [
        ("README.md", "docs/plugins"),
        ("docs/README.md", "plugins"),
        ("docs/troubleshooting.md", "plugins"),
    ] {
        let links = links(&read(&root.join(page)));
        for plugin in PLUGINS {
            let wanted = format!("{folder}/{}.md", plugin.name);
            assert!(links.contains(&wanted), "{page} has no link to {wanted}");
        }
    }
}

/// Targets of a page's links, without the heading part.
fn links(page: &str) -> Vec<String> {
    let ends = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = ends.filter_map(|link| link.split('#').next());
    files.filter(|file| !file.is_empty()).map(str::to_owned).collect()
}

#[test]
fn docs_heading_links_point_to_existing_headings() {
    let root = workspace();
    let pages = ["", "docs", "docs/plugins"].map(|folder| pages_in(&root.join(folder)));
    for page in pages.concat() {
        let folder = page.parent().expect("a page is in a folder");
        let text = read(&page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in targets.filter(|link| !link.contains("://")) {
            let Some((file, heading)) = link.split_once('#') else { continue };
            let target = if file.is_empty() { page.clone() } else { folder.join(file) };
            let known = headings(&read(&target));
            assert!(known.contains(heading), "{}: {link} has no such heading", page.display());
        }
    }
}

/// Anchor names that GitHub generates for the headings of a page.
fn headings(page: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut names = BTreeSet::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if line.starts_with('#') && !in_block {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            names.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    names
}

#[test]
fn docs_commands_page_lists_all_plugins() {
    let page = read(&workspace().join("docs/commands.md"));
    let listed = run(env!("CARGO_BIN_EXE_podwire-cni"), &["--list"]);
    assert!(page.contains(&format!("$ podwire-cni --list\n{listed}\n$")), "{listed}");
    let installed = format!("installed podwire-cni and {} plugins in", PLUGINS.len());
    assert!(page.contains(&installed), "{installed}");
}

#[test]
fn docs_library_page_matches_examples() {
    let shown = blocks(&read(&workspace().join("docs/library.md")), "rust");
    let examples = ["hello.rs", "attach.rs"]
        .map(|name| read(&workspace().join("crates/cni/examples").join(name)));
    assert_eq!(shown, examples);
}

fn check_printed_config(plugin: &str) {
    in_netns(|| check_printed_config_here(plugin));
}

/// Checks the first configuration of a plugin's page, once with in-process plugins and once with
/// the shipped program.
fn check_printed_config_here(plugin: &str) {
    let page = workspace().join("docs/plugins").join(format!("{plugin}.md"));
    let configs = blocks(&read(&page), "json");
    let config = configs.first().expect("every page has a configuration");
    assert!(config.contains(&format!("\"type\": \"{plugin}\"")), "{config}");
    let list = NetworkList::parse(config.as_bytes(), None).expect("the list is valid");
    let pod = Ns::new("pod");

    let mut with_builtin_plugins = Host::of_this_program(PLUGINS);
    with_builtin_plugins.builtin_fallback = true;
    check_all_verbs(&Runtime::new(&with_builtin_plugins, "/nowhere"), &list, &pod);

    let no_builtin_plugins = Host::of_this_program(&[]);
    let path = Plugins::ours().directory().display().to_string();
    check_all_verbs(&Runtime::new(&no_builtin_plugins, path), &list, &pod);
}

fn check_all_verbs(runtime: &Runtime, list: &NetworkList, pod: &Ns) {
    let container = Container {
        id: "c1".to_owned(),
        netns: pod.path().display().to_string(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    };
    runtime.status(list).expect("STATUS");
    let result = runtime.add(list, &container).expect("ADD");
    runtime.check(list, &container).expect("CHECK");
    let interface = container_interface(&result, &container.netns);
    let has = addresses(pod, &interface);
    for ip in &result.ips {
        assert!(has.contains(&ip.address.to_string()), "{}: {has:?}", ip.address);
    }
    runtime.del(list, &container).expect("DEL");
    runtime.del(list, &container).expect("second DEL");
    let left = addresses(pod, &interface);
    assert!(left.is_empty() || interface == "lo", "{interface} still has {left:?}");
}

/// Name of the container's interface in the result.
fn container_interface(result: &CniResult, netns: &str) -> String {
    let found = result.interfaces.iter().find(|interface| interface.sandbox == netns);
    found.expect("the result has an interface in the container").name.clone()
}

/// Addresses of an interface with their prefix lengths; empty if the interface does not exist.
fn addresses(pod: &Ns, interface: &str) -> Vec<String> {
    let links = pod.ip_json(&["addr"]);
    let links = links.as_array().expect("ip prints a list");
    let link = links.iter().find(|link| link["ifname"] == interface);
    let Some(infos) = link.and_then(|link| link["addr_info"].as_array()) else { return Vec::new() };
    let shown = |info: &serde_json::Value| {
        format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"])
    };
    infos.iter().map(shown).collect()
}

/// Fenced code blocks of a language, without the fences.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(named) = line.strip_prefix("```") else { continue };
        let body = lines.by_ref().take_while(|line| *line != "```");
        let body: String = body.map(|line| format!("{line}\n")).collect();
        if named == language {
            found.push(body);
        }
    }
    found
}

fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("read the folder");
    let files = entries.map(|entry| entry.expect("read a folder entry").path());
    let mut pages: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|found| found == "md")).collect();
    pages.sort();
    pages
}

/// Code block of docs/clients.md that starts with `beginning`.
pub fn of_clients(language: &str, beginning: &str) -> String {
    let page = read(&workspace().join("docs/clients.md"));
    let found = blocks(&page, language).into_iter().find(|block| block.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no block of docs/clients.md begins with {beginning:?}"))
}

#[track_caller]
fn read(page: &Path) -> String {
    match fs::read_to_string(page) {
        Ok(text) => text,
        Err(cause) => panic!("read {}: {cause}", page.display()),
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
