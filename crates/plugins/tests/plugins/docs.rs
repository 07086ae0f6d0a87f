// SPDX-License-Identifier: Apache-2.0
//! The pages under `docs`: configurations work as printed, and programs are those of the examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Host};
use plugins::registry::PLUGINS;
use testkit::{Ns, in_netns, not_run_unless, run};

use crate::world::Plugins;

#[test]
fn bandwidth_works_as_printed() {
    works_as_printed("bandwidth");
}

#[test]
fn bridge_works_as_printed() {
    works_as_printed("bridge");
}

#[test]
fn dhcp_works_as_printed() {
    in_netns(|| {
        let _network = crate::dhcp::network_here("br-lan");
        comes_and_goes_as_printed("dhcp");
    });
}

#[test]
fn host_device_works_as_printed() {
    in_netns(|| {
        Ns::here().ip(&["link", "add", "ens1f0", "type", "veth", "peer", "name", "far"]);
        comes_and_goes_as_printed("host-device");
    });
}

#[test]
fn firewall_works_as_printed() {
    works_as_printed("firewall");
}

#[test]
fn flannel_works_as_printed() {
    in_netns(|| {
        let daemons = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").expect("a directory below /run");
        fs::write("/run/flannel/subnet.env", daemons).expect("a file below /run");
        comes_and_goes_as_printed("flannel");
    });
}

#[test]
fn host_local_works_as_printed() {
    works_as_printed("host-local");
}

#[test]
fn loopback_works_as_printed() {
    works_as_printed("loopback");
}

#[test]
fn podwire_works_as_printed() {
    works_as_printed("podwire");
}

#[test]
fn portmap_works_as_printed() {
    works_as_printed("portmap");
}

#[test]
fn ptp_works_as_printed() {
    works_as_printed("ptp");
}

#[test]
fn macvlan_works_as_printed() {
    in_netns(|| {
        plug_in();
        comes_and_goes_as_printed("macvlan");
    });
}

#[test]
fn vm_ipvlan_works_as_printed() {
    in_netns(|| {
        not_run_unless!(Link("ipvlan"));
        plug_in();
        comes_and_goes_as_printed("ipvlan");
    });
}

#[test]
fn vm_vlan_works_as_printed() {
    in_netns(|| {
        not_run_unless!(Link("vlan"));
        plug_in();
        comes_and_goes_as_printed("vlan");
    });
}

#[test]
fn vm_dummy_works_as_printed() {
    in_netns(|| {
        not_run_unless!(Link("dummy"));
        comes_and_goes_as_printed("dummy");
    });
}

/// The interface that the pages call the master.
fn plug_in() {
    let host = Ns::here();
    host.ip(&["link", "add", "eth1", "type", "veth", "peer", "name", "switch"]);
    host.ip(&["link", "set", "eth1", "up"]);
    host.ip(&["link", "set", "switch", "up"]);
}

#[test]
fn sample_works_as_printed() {
    works_as_printed("sample");
}

#[test]
fn sbr_works_as_printed() {
    works_as_printed("sbr");
}

#[test]
fn static_works_as_printed() {
    works_as_printed("static");
}

#[test]
fn tap_works_as_printed() {
    works_as_printed("tap");
}

#[test]
fn tuning_works_as_printed() {
    works_as_printed("tuning");
}

#[test]
fn vm_vrf_works_as_printed() {
    in_netns(|| {
        not_run_unless!(Link("vrf"));
        comes_and_goes_as_printed("vrf");
    });
}

#[test]
fn every_plugin_has_a_page() {
    let pages: BTreeSet<String> = pages_in(&workspace().join("docs/plugins"))
        .iter()
        .map(|page| page.file_stem().expect("a page has a name").display().to_string())
        .collect();
    let plugins: BTreeSet<String> = PLUGINS.iter().map(|plugin| plugin.name.to_owned()).collect();
    assert_eq!(pages, plugins);
}

#[test]
fn every_configuration_is_valid() {
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

/// Also that the first page and the one about errors lead to every plugin's.
#[test]
fn every_link_leads_to_a_file() {
    let root = workspace();
    let pages = ["", "docs", "docs/plugins"].map(|folder| pages_in(&root.join(folder)));
    for page in pages.concat() {
        let folder = page.parent().expect("a page lies in a folder");
        for link in links(&read(&page)) {
            let is_there = link.contains("://") || folder.join(&link).exists();
            assert!(is_there, "{} leads to {link}, which is not there", page.display());
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
            assert!(links.contains(&wanted), "{page} does not lead to {wanted}");
        }
    }
}

/// Where a page's links lead, without the heading.
fn links(page: &str) -> Vec<String> {
    let ends = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = ends.filter_map(|link| link.split('#').next());
    files.filter(|file| !file.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_heading_link_leads_to_a_heading() {
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

/// The names that GitHub gives to the headings of a page.
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
fn commands_page_shows_the_list_of_plugins() {
    let page = read(&workspace().join("docs/commands.md"));
    let listed = run(env!("CARGO_BIN_EXE_podwire-cni"), &["--list"]);
    assert!(page.contains(&format!("$ podwire-cni --list\n{listed}\n$")), "{listed}");
    let installed = format!("installed podwire-cni and {} plugins in", PLUGINS.len());
    assert!(page.contains(&installed), "{installed}");
}

#[test]
fn library_page_shows_the_examples() {
    let shown = blocks(&read(&workspace().join("docs/library.md")), "rust");
    let examples = ["hello.rs", "attach.rs"]
        .map(|name| read(&workspace().join("crates/cni/examples").join(name)));
    assert_eq!(shown, examples);
}

fn works_as_printed(plugin: &str) {
    in_netns(|| comes_and_goes_as_printed(plugin));
}

/// The first configuration of a plugin's page, once with functions of this program and once with
/// the program that is shipped.
fn comes_and_goes_as_printed(plugin: &str) {
    let page = workspace().join("docs/plugins").join(format!("{plugin}.md"));
    let configs = blocks(&read(&page), "json");
    let config = configs.first().expect("every page has a configuration");
    assert!(config.contains(&format!("\"type\": \"{plugin}\"")), "{config}");
    let list = NetworkList::parse(config.as_bytes(), None).expect("the list is valid");
    let pod = Ns::new("pod");

    let mut holder = Host::of_this_program(PLUGINS);
    holder.builtin_fallback = true;
    comes_and_goes(&Runtime::new(&holder, "/nowhere"), &list, &pod);

    let stranger = Host::of_this_program(&[]);
    let path = Plugins::ours().directory().display().to_string();
    comes_and_goes(&Runtime::new(&stranger, path), &list, &pod);
}

fn comes_and_goes(runtime: &Runtime, list: &NetworkList, pod: &Ns) {
    let container = Container {
        id: "c1".to_owned(),
        netns: pod.path().display().to_string(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    };
    runtime.status(list).expect("STATUS");
    let result = runtime.add(list, &container).expect("ADD");
    runtime.check(list, &container).expect("CHECK");
    let interface = in_sandbox(&result, &container.netns);
    let has = addresses(pod, &interface);
    for ip in &result.ips {
        assert!(has.contains(&ip.address.to_string()), "{}: {has:?}", ip.address);
    }
    runtime.del(list, &container).expect("DEL");
    runtime.del(list, &container).expect("DEL once more");
    let left = addresses(pod, &interface);
    assert!(left.is_empty() || interface == "lo", "{interface} still has {left:?}");
}

/// The container's interface as the result tells it.
fn in_sandbox(result: &CniResult, netns: &str) -> String {
    let found = result.interfaces.iter().find(|interface| interface.sandbox == netns);
    found.expect("the result has an interface in the container").name.clone()
}

/// The addresses of an interface with their prefix lengths; none where it is not there.
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

/// The fenced blocks of a language, without their fences.
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
    let entries = fs::read_dir(folder).expect("the folder of the pages can be read");
    let files = entries.map(|entry| entry.expect("its entries can be read").path());
    let mut pages: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|found| found == "md")).collect();
    pages.sort();
    pages
}

/// A block of the page about container runtimes, by how it begins.
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
