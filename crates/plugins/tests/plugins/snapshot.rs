// SPDX-License-Identifier: Apache-2.0
//! Kernel and disk state as a flat map of names and values, read with `ip -j -d`, without values
//! that change by themselves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use kernel::Netns;
use serde_json::{Deserializer, Value};
use testkit::{Ns, run, wait_some};

/// Fields that contain counters or indexes, or that are derived from MAC addresses.
const VOLATILE: &[&str] = &[
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

/// Sysctls below `/proc/sys/net` that plugins change.
const SYSCTLS: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

/// Sysctls per interface.
const LINK_SYSCTLS: [(&str, &[&str]); 2] = [
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeMap<String, String>);

impl Snapshot {
    /// Adds every file in a directory tree, with its mode and content.
    pub fn read_directory(&mut self, directory: &Path, shown: &str) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries {
            let path = entry.expect("read a directory entry").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            let shown = format!("{shown}/{name}");
            let meta = fs::symlink_metadata(&path).expect("stat a file");
            let mode = meta.permissions().mode() & 0o7777;
            let value = if meta.is_symlink() {
                format!("-> {}", fs::read_link(&path).expect("read a symlink").display())
            } else if meta.is_dir() {
                self.read_directory(&path, &shown);
                format!("{mode:o} directory")
            } else {
                let content = fs::read(&path).expect("read a file");
                format!("{mode:o} owner {} {:?}", meta.uid(), String::from_utf8_lossy(&content))
            };
            self.0.insert(shown, value);
        }
    }

    /// Adds links, addresses, routes, rules, port VLANs and sysctls of a namespace.
    pub fn add_namespace(&mut self, place: &str, ns: &Ns) {
        let Observed { links, routes, rules, vlans, sysctls } = observe_settled(ns);
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
        // The operstate of a bridge (UP or UNKNOWN) and of a veth without carrier (DOWN or
        // LOWERLAYERDOWN) depends on its history. The carrier is also in the flags.
        let kind = &link["linkinfo"]["info_kind"];
        let depends_on_history =
            kind == "bridge" || (kind == "veth" && has_flag(link, "NO-CARRIER"));
        for (key, value) in link.as_object().expect("a link is an object") {
            if key != "addr_info" && !(depends_on_history && key == "operstate") {
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

    /// Adds qdiscs, classes and filters printed by `tc`, without counters.
    fn add_shaping(&mut self, place: &str, ns: &Ns, links: &[Value]) {
        let volatile = ["index ", "fh 800"];
        for link in links {
            let name = text(&link["ifname"]);
            let script = format!(
                "tc qdisc show dev {name}; tc class show dev {name}; \
                 tc filter show dev {name}; tc filter show dev {name} ingress"
            );
            for (at, line) in ns.exec("sh", &["-c", &script]).lines().map(str::trim).enumerate() {
                let is_volatile = volatile.iter().any(|start| line.starts_with(start));
                let line = line.split(" refcnt ").next().unwrap_or_default();
                if !is_volatile && !line.is_empty() {
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

    /// Adds a JSON value recursively; `key` is its own name.
    pub fn add(&mut self, path: &str, key: &str, value: &Value) {
        if VOLATILE.contains(&key) || key.ends_with("_timer") {
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

    /// Removes files that host-local keeps whether or not an address is reserved: the network's
    /// directory, the lock, the last reserved address, and the index, which only repeats the
    /// address files.
    pub fn without_bookkeeping(mut self) -> Snapshot {
        let bookkeeping = ["/lock", "/last_reserved_ip.", "/.podwire/"];
        self.0.retain(|name, value| {
            let is_bookkeeping = bookkeeping.iter().any(|part| name.contains(part));
            !name.contains("disk/") || !(is_bookkeeping || value.ends_with("directory"))
        });
        self
    }

    /// Describes the differences between two snapshots.
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

/// Returns true if a plugin has added a qdisc to the link. Other links need no `tc` call.
fn is_shaped(link: &Value) -> bool {
    let queue = link["qdisc"].as_str().unwrap_or_default();
    link["linkinfo"]["info_kind"] == "ifb" || ["tbf", "htb"].contains(&queue)
}

/// Link-local addresses appear shortly after their interface and depend on its MAC address.
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

/// Observed state of a namespace.
struct Observed {
    links: Vec<Value>,
    routes: Vec<Value>,
    rules: Vec<Value>,
    vlans: Vec<Value>,
    sysctls: Vec<(String, String)>,
}

/// Reads the state of a namespace once every link's state agrees with its carrier. The kernel
/// updates the state asynchronously after a carrier change.
fn observe_settled(ns: &Ns) -> Observed {
    let netns = Netns::open(ns.path()).expect("open the namespace");
    let read = || {
        let seen = netns.enter(observe).expect("enter the namespace");
        let is_settled = |link: &Value| has_settled(link) && has_ipv6_routes(link, &seen.routes);
        seen.links.iter().all(is_settled).then_some(seen)
    };
    wait_some(Duration::from_secs(30), read).expect("links settle within 30 s")
}

/// Uses few programs: on an emulated machine starting a program takes 0.1 s.
fn observe() -> Observed {
    const BATCH: &str = "/run/observe";
    fs::write(BATCH, "addr\nroute show table all\nrule\n").expect("write a file in /run");
    let mut lists = lists(&run("ip", &["-j", "-d", "-batch", BATCH])).into_iter();
    // `ip` may print nothing for an empty list; links and rules are never empty.
    let (links, rules) = (lists.next().unwrap_or_default(), lists.next_back().unwrap_or_default());
    let of_ipv6 = self::lists(&run("ip", &["-6", "-j", "-d", "rule"]));
    let is_bridge = |link: &Value| link["linkinfo"]["info_kind"] == "bridge";
    let vlans = match links.iter().any(is_bridge) {
        true => self::lists(&run("bridge", &["-j", "-compressvlans", "vlan", "show"])),
        false => Vec::new(),
    };
    Observed {
        links,
        routes: lists.next().unwrap_or_default(),
        rules: rules
            .into_iter()
            .chain(of_ipv6.into_iter().flatten())
            .map(without_protocol)
            .collect(),
        vlans: vlans.into_iter().flatten().collect(),
        sysctls: sysctls(),
    }
}

/// Removes the protocol of a rule, which has no effect on packets.
fn without_protocol(mut rule: Value) -> Value {
    rule.as_object_mut().expect("a rule is an object").remove("protocol");
    rule
}

fn lists(printed: &str) -> Vec<Vec<Value>> {
    let lists = Deserializer::from_str(printed).into_iter();
    lists.map(|list| list.expect("ip -j prints lists")).collect()
}

/// Sysctls of the current namespace, if the kernel has them.
fn sysctls() -> Vec<(String, String)> {
    let mut names: Vec<String> = SYSCTLS.map(str::to_owned).to_vec();
    for (directory, keys) in LINK_SYSCTLS {
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

/// Returns true if all local routes exist. The kernel adds the local route of an address shortly
/// after the link is up.
fn has_ipv6_routes(link: &Value, routes: &[Value]) -> bool {
    let is_waiting = |address: &Value| {
        let is_local_route =
            |route: &Value| route["type"] == "local" && route["dst"] == address["local"];
        address["nodad"] == true && !routes.iter().any(is_local_route)
    };
    !has_flag(link, "LOWER_UP") || !items(&link["addr_info"]).iter().any(is_waiting)
}
