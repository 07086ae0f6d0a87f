// SPDX-License-Identifier: Apache-2.0
//! The table of options. Flags, environment variables, keys of the file and the help text are derived from it.

/// The type of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text. If the option is repeated, the last one counts.
    Text,
    /// Several values, separated by commas or by repeating the option.
    List,
    /// A boolean. A flag without a value means true.
    Switch,
    /// A whole number between these bounds, inclusive.
    Number(u64, u64),
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// The flag without dashes, and the key in the file.
    pub name: &'static str,
    /// Former name, still accepted.
    pub alias: Option<&'static str>,
    /// Heading of its group, from [`group`].
    pub group: &'static str,
    /// Name of the value in the help text, such as `FILE`.
    pub value_name: &'static str,
    pub kind: Kind,
    /// Empty if there is no default.
    pub default: &'static str,
    /// One phrase for the help text.
    pub about: &'static str,
    /// Whether flanneld has this flag. Its environment variable then begins with `FLANNELD_`.
    pub is_flannels: bool,
}

impl Spec {
    /// The environment variables of the option, those of its present name first.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        let prefix = if self.is_flannels { "FLANNELD" } else { "PODWIRE" };
        let names = [Some(self.name), self.alias].into_iter().flatten();
        names.map(move |name| format!("{prefix}_{}", name.to_ascii_uppercase().replace('-', "_")))
    }

    /// Finds an option by its name or alias.
    pub fn by_name(name: &str) -> Option<&'static Spec> {
        OPTIONS.iter().find(|spec| spec.name == name || spec.alias == Some(name))
    }

    const fn flannels(self) -> Spec {
        Spec { is_flannels: true, ..self }
    }

    const fn alias(self, alias: &'static str) -> Spec {
        Spec { alias: Some(alias), ..self }
    }
}

/// An option of podwire. [`Spec::flannels`] makes it one of flanneld.
const fn option(
    group: &'static str,
    name: &'static str,
    value_name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Spec {
    Spec { name, alias: None, group, value_name, kind, default, about, is_flannels: false }
}

const fn switch(
    group: &'static str,
    name: &'static str,
    default: &'static str,
    about: &'static str,
) -> Spec {
    option(group, name, "BOOL", Kind::Switch, default, about)
}

use Kind::{List, Number, Text};

/// Headings of the groups of options in the help text.
pub mod group {
    pub const GENERAL: &str = "General options";
    pub const STORE: &str = "Store and network configuration";
    pub const POOLS: &str = "Address pools";
    pub const ETCD: &str = "etcd";
    pub const KUBERNETES: &str = "Kubernetes";
    pub const UNDERLAY: &str = "Underlay interface";
    pub const TRAFFIC: &str = "Traffic";
    pub const FILES: &str = "Files";
    pub const MONITORING: &str = "Monitoring and logs";
    pub const IGNORED: &str = "Accepted for compatibility with flanneld, without effect";
}

use group::{
    ETCD, FILES, GENERAL, IGNORED, KUBERNETES, MONITORING, POOLS, STORE, TRAFFIC, UNDERLAY,
};

/// All options, in the order of the help text.
#[rustfmt::skip]
pub static OPTIONS: &[Spec] = &[
    option(GENERAL, "config", "FILE", Text, "",
        "read options from this TOML file; its keys are the option names"),
    option(GENERAL, "node-name", "NAME", Text, "",
        "name of this node; defaults to NODE_NAME, with Kubernetes to the node of the pod POD_NAME, else to the host name"),
    option(GENERAL, "owner", "NAME", Text, "podwire",
        "owner tag for this agent's devices, next hops and rules; must differ between agents on one node")
        .alias("mark"),
    switch(GENERAL, "dry-run", "false",
        "print the changes that would be made, then exit"),

    option(STORE, "store", "STORE", Text, "",
        "embedded, etcd or kubernetes; defaults to what other options imply, else to embedded"),
    option(STORE, "store-file", "FILE", Text, "/var/lib/podwire/store.db",
        "file of the embedded store, shared by all agents of this machine"),
    option(STORE, "net-config", "JSON", Text, "",
        "net-conf.json as text; stored in the embedded store or etcd if there is no configuration yet"),
    switch(STORE, "replace-net-config", "false",
        "replace the stored network configuration with --net-config for all nodes, then exit"),
    option(STORE, "subnet-lease-renew-margin", "MINUTES", Number(1, 1439), "60",
        "minutes before its expiry at which a lease is renewed").flannels(),
    switch(STORE, "allow-extension-commands", "false",
        "run the commands of the extension backend, which come from the network configuration"),

    option(POOLS, "pods", "MODE", Text, "bridged",
        "bridged: each node has a subnet for its pods; routed: pods have addresses from address pools, as with Calico"),
    option(POOLS, "pool-cidr", "CIDRS", List, "",
        "routed pods: create these address pools if the store has none"),
    option(POOLS, "pool-encapsulation", "MODE", Text, "vxlan",
        "encapsulation of these pools: none, vxlan, vxlan-cross-subnet, ipip or ipip-cross-subnet"),
    option(POOLS, "pool-nat-exclusions", "DESTINATIONS", Text, "pools",
        "destinations that see the addresses of routed pods: pools or pools-and-nodes"),
    option(POOLS, "pool-leak-grace", "MINUTES", Number(0, 1440), "15",
        "routed pods: minutes for which an address must be unused before it is released"),

    option(ETCD, "etcd-endpoints", "URLS", List, "http://127.0.0.1:4001,http://127.0.0.1:2379",
        "etcd servers").flannels(),
    option(ETCD, "etcd-prefix", "KEY", Text, "/coreos.com/network",
        "key prefix of the network in etcd").flannels(),
    option(ETCD, "etcd-cafile", "FILE", Text, "",
        "CA certificate for verifying etcd (required for https)").flannels(),
    option(ETCD, "etcd-certfile", "FILE", Text, "", "client certificate for etcd").flannels(),
    option(ETCD, "etcd-keyfile", "FILE", Text, "", "client key for etcd").flannels(),
    option(ETCD, "etcd-username", "NAME", Text, "", "etcd user name").flannels(),
    option(ETCD, "etcd-password", "PASSWORD", Text, "", "etcd password").flannels(),

    switch(KUBERNETES, "kube-subnet-mgr", "false",
        "take subnets from Kubernetes nodes; same as --store kubernetes").flannels(),
    option(KUBERNETES, "kube-api-url", "URL", Text, "",
        "Kubernetes API server; defaults to the cluster that the agent runs in").flannels(),
    option(KUBERNETES, "kubeconfig-file", "FILE", Text, "", "kubeconfig file").flannels(),
    option(KUBERNETES, "kube-annotation-prefix", "PREFIX", Text, "flannel.alpha.coreos.com",
        "prefix of node annotations").flannels(),
    option(KUBERNETES, "net-config-path", "FILE", Text, "/etc/kube-flannel/net-conf.json",
        "net-conf.json file").flannels(),
    switch(KUBERNETES, "set-node-network-unavailable", "true",
        "set the node's NetworkUnavailable condition").flannels(),

    option(UNDERLAY, "iface", "NAMES", List, "",
        "interfaces to other nodes, by name or address, in order of preference").flannels(),
    option(UNDERLAY, "iface-regex", "REGEXES", List, "",
        "regular expressions for an interface's address or name, tried after --iface; the first with a usable address is used")
        .flannels(),
    option(UNDERLAY, "iface-can-reach", "ADDRESS", Text, "",
        "use the interface with the route to this address, tried last").flannels(),
    option(UNDERLAY, "public-ip", "ADDRESS", Text, "",
        "IPv4 address at which other nodes reach this node").flannels(),
    option(UNDERLAY, "public-ipv6", "ADDRESS", Text, "",
        "IPv6 address at which other nodes reach this node").flannels(),

    switch(TRAFFIC, "ip-masq", "false", "masquerade traffic that leaves the network").flannels(),
    switch(TRAFFIC, "ip-masq-fully-random-disable", "false",
        "do not randomize source ports when masquerading").flannels(),
    option(TRAFFIC, "non-masquerade-cidrs", "CIDRS", List, "",
        "destinations that are not masqueraded"),
    switch(TRAFFIC, "iptables-forward-rules", "true", "allow forwarding of the network's traffic").flannels(),
    switch(TRAFFIC, "ip-blackhole-route", "false",
        "drop traffic to addresses of this node's subnet that no pod has").flannels(),
    switch(TRAFFIC, "multicast", "false",
        "forward multicast and broadcast between pods of different nodes"),
    switch(TRAFFIC, "path-check", "true", "periodically probe each peer with a full-size packet"),
    option(TRAFFIC, "compare-every", "SECONDS", Number(1, 86_400), "60",
        "interval between full comparisons with the kernel"),

    option(FILES, "subnet-file", "FILE", Text, "/run/flannel/subnet.env",
        "file that tells plugins this node's subnet").flannels(),
    option(FILES, "calico-dir", "DIR", Text, "/var/lib/calico",
        "routed pods: directory of the files nodename and mtu, which the plugin calico reads"),
    option(FILES, "cni-conf-dir", "DIR", Text, "",
        "write the CNI configuration to this directory while the node is ready"),
    option(FILES, "cni-conf-name", "NAME", Text, "10-podwire.conflist",
        "file name of the CNI configuration"),
    option(FILES, "state-dir", "DIR", Text, "/var/lib/podwire", "directory for persistent state"),
    option(FILES, "run-dir", "DIR", Text, "/run/podwire", "directory for the API socket"),
    switch(FILES, "keep-network", "false",
        "cleanup only: leave lease, devices, routes and subnet-file in place for flanneld"),

    option(MONITORING, "healthz-ip", "ADDRESS", Text, "0.0.0.0",
        "address that serves /healthz, /readyz and /metrics").flannels(),
    option(MONITORING, "healthz-port", "PORT", Number(0, 65_535), "0",
        "port for healthz-ip; 0 turns it off").flannels(),
    option(MONITORING, "log-format", "FORMAT", Text, "text", "text or json"),
    option(MONITORING, "v", "LEVEL", Number(0, 10), "0",
        "log verbosity; 0 logs changes, more also logs decisions").flannels(),

    option(IGNORED, "iptables-resync", "SECONDS", Number(1, 86_400), "5",
        "interval of rule checks; not needed, because the agent repairs changes as they happen").flannels(),
    option(IGNORED, "vmodule", "TEXT", Text, "",
        "logging by source file of flanneld").flannels(),
    option(IGNORED, "log_backtrace_at", "TEXT", Text, "",
        "logging by source file of flanneld").flannels(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_names_are_unique_and_defaults_valid() {
        for (at, spec) in OPTIONS.iter().enumerate() {
            assert!(OPTIONS[..at].iter().all(|other| other.name != spec.name), "{}", spec.name);
            match spec.kind {
                Kind::Switch => assert!(["true", "false"].contains(&spec.default), "{}", spec.name),
                Number(min, max) => {
                    assert!((min..=max).contains(&spec.default.parse().unwrap()));
                }
                Text | List => {}
            }
        }
    }

    /// From `flanneld --help` of release 0.28.9, without `--version`.
    const FLANNELDS: &str = "etcd-cafile etcd-certfile etcd-endpoints etcd-keyfile etcd-password etcd-prefix \
        etcd-username healthz-ip healthz-port iface iface-can-reach iface-regex \
        ip-blackhole-route ip-masq ip-masq-fully-random-disable iptables-forward-rules \
        iptables-resync kube-annotation-prefix kube-api-url kube-subnet-mgr kubeconfig-file \
        log_backtrace_at net-config-path public-ip public-ipv6 set-node-network-unavailable \
        subnet-file subnet-lease-renew-margin v vmodule";

    #[test]
    fn flanneld_flags_are_all_present() {
        let mut flannels: Vec<&str> =
            OPTIONS.iter().filter(|one| one.is_flannels).map(|one| one.name).collect();
        flannels.sort_unstable();
        assert_eq!(flannels, FLANNELDS.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn variables_of_flanneld_flags_keep_their_prefix() {
        let variables = |name| Spec::by_name(name).unwrap().variables().collect::<Vec<_>>();
        assert_eq!(variables("etcd-endpoints"), ["FLANNELD_ETCD_ENDPOINTS"]);
        assert_eq!(variables("store-file"), ["PODWIRE_STORE_FILE"]);
        assert_eq!(variables("mark"), ["PODWIRE_OWNER", "PODWIRE_MARK"]);
    }
}
