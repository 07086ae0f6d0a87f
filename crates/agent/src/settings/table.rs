// SPDX-License-Identifier: Apache-2.0
//! The one table of options, from which flags, variables, the file's keys and the help follow.

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text; the last one counts.
    Text,
    /// Several, separated by commas or said several times.
    List,
    /// True or false; alone it means true.
    Switch,
    /// A whole number in these bounds.
    Number(u64, u64),
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// `--name`, and the key in the file.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What counts where nothing is said; empty for nothing.
    pub default: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Whether flanneld has it: its variable then begins with `FLANNELD_`.
    pub is_flannels: bool,
}

impl Spec {
    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        let prefix = if self.is_flannels { "FLANNELD" } else { "PODWIRE" };
        format!("{prefix}_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }

    /// The option of this name.
    pub fn by_name(name: &str) -> Option<&'static Spec> {
        OPTIONS.iter().find(|spec| spec.name == name)
    }
}

const fn flannels(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Spec {
    Spec { name, kind, default, about, is_flannels: true }
}

const fn ours(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Spec {
    Spec { name, kind, default, about, is_flannels: false }
}

use Kind::{List, Number, Switch, Text};

/// All of them, in the order of the help.
pub static OPTIONS: &[Spec] = &[
    ours("config", Text, "", "a TOML file with any of these options as keys"),
    ours(
        "node-name",
        Text,
        "",
        "this node's name; by default NODE_NAME, with Kubernetes that of the node of POD_NAME, else the host's name",
    ),
    ours(
        "store",
        Text,
        "",
        "embedded, etcd or kubernetes; by default what other options imply, else embedded",
    ),
    ours(
        "store-file",
        Text,
        "/var/lib/podwire/store.db",
        "the embedded store's file, shared by all agents of this machine",
    ),
    ours(
        "net-config",
        Text,
        "",
        "net-conf.json as text; with the embedded store and etcd it is stored where there is none",
    ),
    ours(
        "replace-net-config",
        Switch,
        "false",
        "store --net-config in the place of what is stored, for all nodes, and end",
    ),
    ours(
        "allow-extension-commands",
        Switch,
        "false",
        "run the commands of the backend extension, which whoever writes the network's configuration chooses",
    ),
    flannels("etcd-endpoints", List, "http://127.0.0.1:4001,http://127.0.0.1:2379", "etcd servers"),
    flannels("etcd-prefix", Text, "/coreos.com/network", "where in etcd the network is"),
    flannels("etcd-keyfile", Text, "", "client key for etcd"),
    flannels("etcd-certfile", Text, "", "client certificate for etcd"),
    flannels(
        "etcd-cafile",
        Text,
        "",
        "who signs etcd's certificates: https needs it; will do without a client certificate",
    ),
    flannels("etcd-username", Text, "", "user of etcd"),
    flannels("etcd-password", Text, "", "the user's password"),
    flannels(
        "subnet-lease-renew-margin",
        Number(1, 1439),
        "60",
        "minutes before the end that a lease is renewed",
    ),
    flannels(
        "kube-subnet-mgr",
        Switch,
        "false",
        "take subnets from Kubernetes' nodes; the same as --store kubernetes",
    ),
    flannels("kube-api-url", Text, "", "Kubernetes' API; by default the cluster that this runs in"),
    flannels("kubeconfig-file", Text, "", "a kubeconfig"),
    flannels(
        "kube-annotation-prefix",
        Text,
        "flannel.alpha.coreos.com",
        "prefix of the annotations of nodes",
    ),
    flannels(
        "net-config-path",
        Text,
        "/etc/kube-flannel/net-conf.json",
        "net-conf.json, with Kubernetes",
    ),
    flannels(
        "set-node-network-unavailable",
        Switch,
        "true",
        "tell Kubernetes whether this node's network works",
    ),
    flannels("iface", List, "", "interfaces to other nodes, by name or address, in order"),
    flannels(
        "iface-regex",
        List,
        "",
        "patterns for an interface's address or name, tried after --iface; the first with a usable address is taken",
    ),
    flannels(
        "iface-can-reach",
        Text,
        "",
        "take the interface that reaches this address, tried last",
    ),
    flannels("public-ip", Text, "", "the IPv4 address that other nodes use"),
    flannels("public-ipv6", Text, "", "the IPv6 address that other nodes use"),
    flannels(
        "subnet-file",
        Text,
        "/run/flannel/subnet.env",
        "where plugins read this node's subnet",
    ),
    flannels("ip-masq", Switch, "false", "masquerade what leaves the network"),
    flannels(
        "ip-masq-fully-random-disable",
        Switch,
        "false",
        "keep source ports in order when masquerading",
    ),
    ours("non-masquerade-cidrs", List, "", "what pods reach under their own addresses"),
    flannels("iptables-forward-rules", Switch, "true", "let the network's packets be forwarded"),
    flannels(
        "iptables-resync",
        Number(1, 86_400),
        "5",
        "accepted, and without effect: changes by others are repaired as they happen",
    ),
    flannels(
        "ip-blackhole-route",
        Switch,
        "false",
        "drop what is sent to addresses of this node that no pod has",
    ),
    ours(
        "cni-conf-dir",
        Text,
        "",
        "write the network's CNI configuration there while this node is ready",
    ),
    ours("cni-conf-name", Text, "10-podwire.conflist", "its name"),
    ours(
        "mark",
        Text,
        "podwire",
        "whose devices, next hops and rules are this agent's, a word; each network of a node has its own",
    ),
    ours("state-dir", Text, "/var/lib/podwire", "keys and other things that survive a reboot"),
    ours("run-dir", Text, "/run/podwire", "the socket that plugins and commands ask"),
    ours(
        "multicast",
        Switch,
        "false",
        "carry multicast and broadcast between pods of different nodes",
    ),
    ours("path-check", Switch, "true", "send a full packet to each peer now and then"),
    ours(
        "compare-every",
        Number(1, 86_400),
        "60",
        "seconds between full comparisons with the kernel",
    ),
    flannels("healthz-ip", Text, "0.0.0.0", "where /healthz, /readyz and /metrics listen"),
    flannels("healthz-port", Number(0, 65_535), "0", "their port; 0 for none"),
    ours("log-format", Text, "text", "text or json"),
    flannels("v", Number(0, 10), "0", "how much to log; 0 changes only, more for decisions"),
    flannels("vmodule", Text, "", "accepted, and without effect: of flanneld's own files"),
    flannels("log_backtrace_at", Text, "", "accepted, and without effect: of flanneld's own files"),
    ours("dry-run", Switch, "false", "print what would be changed, and end"),
    ours(
        "keep-network",
        Switch,
        "false",
        "for cleanup: leave lease, devices, routes and subnet-file to flanneld, which goes on with them",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_defaults_are_of_their_kind() {
        for (at, spec) in OPTIONS.iter().enumerate() {
            assert!(OPTIONS[..at].iter().all(|other| other.name != spec.name), "{}", spec.name);
            match spec.kind {
                Switch => assert!(["true", "false"].contains(&spec.default), "{}", spec.name),
                Number(least, most) => {
                    assert!((least..=most).contains(&spec.default.parse().unwrap()));
                }
                Text | List => {}
            }
        }
    }

    /// As `flanneld --help` of release 0.28.9 lists them, but for `--version`.
    const FLANNELDS: &str = "etcd-cafile etcd-certfile etcd-endpoints etcd-keyfile etcd-password etcd-prefix \
        etcd-username healthz-ip healthz-port iface iface-can-reach iface-regex \
        ip-blackhole-route ip-masq ip-masq-fully-random-disable iptables-forward-rules \
        iptables-resync kube-annotation-prefix kube-api-url kube-subnet-mgr kubeconfig-file \
        log_backtrace_at net-config-path public-ip public-ipv6 set-node-network-unavailable \
        subnet-file subnet-lease-renew-margin v vmodule";

    #[test]
    fn flannelds_flags_are_these_and_no_others() {
        let mut ours: Vec<&str> =
            OPTIONS.iter().filter(|one| one.is_flannels).map(|one| one.name).collect();
        ours.sort_unstable();
        assert_eq!(ours, FLANNELDS.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn variables_are_flannels_where_it_has_the_flag() {
        let variable = |name| Spec::by_name(name).unwrap().variable();
        assert_eq!(variable("etcd-endpoints"), "FLANNELD_ETCD_ENDPOINTS");
        assert_eq!(variable("store-file"), "PODWIRE_STORE_FILE");
    }
}
