// SPDX-License-Identifier: Apache-2.0
//! What kernel and disk hold at one moment, as a flat list of names and values: as `ip -j -d`
//! shows it, without what changes by itself.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use kernel::Netns;
use serde_json::{Deserializer, Value};
use testkit::{Ns, run, wait_some};

/// Fields that count, that identify, or that follow from hardware addresses.
const PASSING: &[&str] = &[
    "ifindex",
    "link_index",
    "link",
    "link_netnsid",
    "bridge_id",
    "root_id",
    "designated_port",
    "id",
    "no",
    "root_port",
];

/// The switches that plugins turn, below `/proc/sys/net`.
const SYSCTLS: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

/// The same for each interface.
const SYSCTLS_OF_LINKS: [(&str, &[&str]); 2] = [
    ("ipv4/conf", &["arp_notify", "route_localnet"]),
    (
        "ipv6/conf",
        &[
            "accept_dad",
            "enhanced_dad",
            "accept_ra",
            "disable_ipv6",
            "keep_addr_on_down",
            "ndisc_notify",
        ],
    ),
];

/// Names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeMap<String, String>);

impl Snapshot {
    /// Adds every file below a directory, with its mode and content.
    pub fn read_directory(&mut self, directory: &Path, shown: &str) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries {
            let path = entry.expect("a directory of the test can be read").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            let shown = format!("{shown}/{name}");
            let meta = fs::symlink_metadata(&path).expect("a file of the test can be looked at");
            let mode = meta.permissions().mode() & 0o7777;
            let value = if meta.is_symlink() {
                format!("-> {}", fs::read_link(&path).expect("a link can be read").display())
            } else if meta.is_dir() {
                self.read_directory(&path, &shown);
                format!("{mode:o} directory")
            } else {
                let content = fs::read(&path).expect("a file of the test can be read");
                format!("{mode:o} owner {} {:?}", meta.uid(), String::from_utf8_lossy(&content))
            };
            self.0.insert(shown, value);
        }
    }

    /// Adds links, addresses, routes, rules, VLANs of ports and switches of a namespace.
    pub fn look_into(&mut self, place: &str, ns: &Ns) {
        let Seen { links, routes, rules, vlans, sysctls } = settled(ns);
        for link in &links {
            self.add_link(place, link);
        }
        if links.iter().any(is_shaped) {
            self.add_shaping(place, ns, &links);
        }
        for route in routes.iter().filter(|route| !is_link_local(&route["dst"])) {
            self.add_route(place, route);
        }
        for (at, rule) in rules.iter().enumerate() {
            self.0.insert(format!("{place}/rule {at}"), rule.to_string());
        }
        for port in &vlans {
            let name = format!("{place}/{}/vlan", text(&port["ifname"]));
            for vlan in items(&port["vlans"]) {
                let (first, last) = (&vlan["vlan"], &vlan["vlanEnd"]);
                self.0.insert(format!("{name} {first} {last}"), vlan["flags"].to_string());
            }
        }
        for (name, value) in sysctls {
            self.0.insert(format!("{place}/sysctl {name}"), value);
        }
    }

    fn add_link(&mut self, place: &str, link: &Value) {
        let name = format!("{place}/{}", text(&link["ifname"]));
        // A bridge's state is UP or UNKNOWN by its history; the carrier is in the flags.
        // So is that of a veth without carrier: DOWN or LOWERLAYERDOWN.
        let kind = &link["linkinfo"]["info_kind"];
        let by_history = kind == "bridge" || (kind == "veth" && has_flag(link, "NO-CARRIER"));
        for (key, value) in link.as_object().expect("a link is an object") {
            if key != "addr_info" && !(by_history && key == "operstate") {
                self.add(&format!("{name}/{key}"), key, value);
            }
        }
        for address in items(&link["addr_info"]) {
            if !is_link_local(&address["local"]) {
                let shown = format!("{name}/addr {}", text(&address["local"]));
                self.add(&shown, "", address);
            }
        }
    }

    /// Queueing disciplines, classes and filters as `tc` shows them, without numbers that count.
    fn add_shaping(&mut self, place: &str, ns: &Ns, links: &[Value]) {
        let passing = ["index ", "fh 800"];
        for link in links {
            let name = text(&link["ifname"]);
            let script = format!(
                "tc qdisc show dev {name}; tc class show dev {name}; \
                 tc filter show dev {name}; tc filter show dev {name} ingress"
            );
            for (at, line) in ns.exec("sh", &["-c", &script]).lines().map(str::trim).enumerate() {
                let is_passing = passing.iter().any(|start| line.starts_with(start));
                let line = line.split(" refcnt ").next().unwrap_or_default();
                if !is_passing && !line.is_empty() {
                    self.0.insert(format!("{place}/tc {name} {at:02}"), line.to_owned());
                }
            }
        }
    }

    fn add_route(&mut self, place: &str, route: &Value) {
        let part = |key: &str| text(&route[key]);
        let name = format!(
            "{place}/route {} {} {} dev {} via {} metric {}",
            part("table"),
            part("type"),
            part("dst"),
            part("dev"),
            part("gateway"),
            part("metric")
        );
        self.0.insert(name, route.to_string());
    }

    /// A value with all below it; `key` is its own name.
    pub fn add(&mut self, path: &str, key: &str, value: &Value) {
        if PASSING.contains(&key) || key.ends_with("_timer") {
            return;
        }
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.add(&format!("{path}/{key}"), key, value);
                }
            }
            Value::Array(items) if items.iter().any(|item| !item.is_string()) => {
                for (at, item) in items.iter().enumerate() {
                    self.add(&format!("{path}/{at}"), "", item);
                }
            }
            other => drop(self.0.insert(path.to_owned(), other.to_string())),
        }
    }

    /// Without what host-local keeps for itself whether or not an address is reserved: the
    /// network's directory, its lock, where the round-robin stands, and the index, which only
    /// repeats the address files.
    pub fn without_bookkeeping(mut self) -> Snapshot {
        let kept = ["/lock", "/last_reserved_ip.", "/.podwire/"];
        self.0.retain(|name, value| {
            let is_kept = kept.iter().any(|part| name.contains(part));
            !name.contains("disk/") || !(is_kept || value.ends_with("directory"))
        });
        self
    }

    /// What differs, for people.
    pub fn changes_to(&self, after: &Snapshot) -> Vec<String> {
        let mut names: Vec<&String> = self.0.keys().chain(after.0.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), String::clone);
        names
            .into_iter()
            .map(|name| (name, self.0.get(name), after.0.get(name)))
            .filter(|(_, before, after)| before != after)
            .map(|(name, before, after)| format!("{name}: {} → {}", shown(before), shown(after)))
            .collect()
    }
}

/// Whether a plugin has put a queue to a link. Most have none, and then `tc` need not be asked.
fn is_shaped(link: &Value) -> bool {
    let queue = link["qdisc"].as_str().unwrap_or_default();
    link["linkinfo"]["info_kind"] == "ifb" || ["tbf", "htb"].contains(&queue)
}

/// Link-local addresses come a moment after their interface, and follow its hardware address.
fn is_link_local(address: &Value) -> bool {
    let text = address.as_str().unwrap_or_default();
    text.starts_with("fe80:") || text.starts_with("ff00::/8")
}

pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What a namespace holds.
struct Seen {
    links: Vec<Value>,
    routes: Vec<Value>,
    rules: Vec<Value>,
    vlans: Vec<Value>,
    sysctls: Vec<(String, String)>,
}

/// Reads all of a namespace in one visit, when every link's state agrees with its carrier: the
/// kernel follows a change of carrier in a task of its own.
fn settled(ns: &Ns) -> Seen {
    let netns = Netns::open(ns.path()).expect("a namespace of the test can be opened");
    let read = || {
        let seen = netns.enter(look).expect("a namespace of the test can be entered");
        let is_settled = |link: &Value| has_settled(link) && has_ipv6_routes(link, &seen.routes);
        seen.links.iter().all(is_settled).then_some(seen)
    };
    wait_some(Duration::from_secs(30), read).expect("links settle before long")
}

/// By few programs: where the machine is emulated, to start one takes a tenth of a second.
fn look() -> Seen {
    const BATCH: &str = "/run/look";
    fs::write(BATCH, "addr\nroute show table all\nrule\n").expect("/run can be written to");
    let mut lists = lists(&run("ip", &["-j", "-d", "-batch", BATCH])).into_iter();
    // An empty list may be printed as nothing; links and rules there always are.
    let (links, rules) = (lists.next().unwrap_or_default(), lists.next_back().unwrap_or_default());
    let of_ipv6 = self::lists(&run("ip", &["-6", "-j", "-d", "rule"]));
    let is_bridge = |link: &Value| link["linkinfo"]["info_kind"] == "bridge";
    let vlans = match links.iter().any(is_bridge) {
        true => self::lists(&run("bridge", &["-j", "-compressvlans", "vlan", "show"])),
        false => Vec::new(),
    };
    Seen {
        links,
        routes: lists.next().unwrap_or_default(),
        rules: rules.into_iter().chain(of_ipv6.into_iter().flatten()).map(without_maker).collect(),
        vlans: vlans.into_iter().flatten().collect(),
        sysctls: sysctls(),
    }
}

/// Who made a rule is not what it does.
fn without_maker(mut rule: Value) -> Value {
    rule.as_object_mut().expect("a rule is an object").remove("protocol");
    rule
}

fn lists(told: &str) -> Vec<Vec<Value>> {
    let lists = Deserializer::from_str(told).into_iter();
    lists.map(|list| list.expect("ip -j prints lists")).collect()
}

/// The switches of the namespace that we are in, as far as the kernel has them.
fn sysctls() -> Vec<(String, String)> {
    let mut names: Vec<String> = SYSCTLS.map(str::to_owned).to_vec();
    for (directory, keys) in SYSCTLS_OF_LINKS {
        let links = fs::read_dir(Path::new("/proc/sys/net").join(directory)).into_iter().flatten();
        for link in links.filter_map(|link| link.ok()?.file_name().into_string().ok()) {
            names.extend(keys.iter().map(|key| format!("{directory}/{link}/{key}")));
        }
    }
    let read = |name: String| {
        let value = fs::read_to_string(Path::new("/proc/sys/net").join(&name)).ok()?;
        Some((name, value.trim_end().to_owned()))
    };
    names.into_iter().filter_map(read).collect()
}

fn has_flag(link: &Value, flag: &str) -> bool {
    link["flags"].as_array().is_some_and(|flags| flags.iter().any(|other| other == flag))
}

fn has_settled(link: &Value) -> bool {
    let has = |flag| has_flag(link, flag);
    let follows = ["veth", "macvlan", "vlan"];
    let is_known = link["operstate"] != "UNKNOWN"
        || follows.iter().all(|kind| link["linkinfo"]["info_kind"] != **kind);
    !has("UP") || (is_known && has("LOWER_UP") != has("NO-CARRIER"))
}

/// The kernel makes the route to an address of its own a moment after the link is up.
fn has_ipv6_routes(link: &Value, routes: &[Value]) -> bool {
    let is_waiting = |address: &Value| {
        let is_its = |route: &Value| route["type"] == "local" && route["dst"] == address["local"];
        address["nodad"] == true && !routes.iter().any(is_its)
    };
    !has_flag(link, "LOWER_UP") || !items(&link["addr_info"]).iter().any(is_waiting)
}
