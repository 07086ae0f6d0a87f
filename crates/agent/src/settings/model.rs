// SPDX-License-Identifier: Apache-2.0
//! The settings by concern, with all defaults applied and contradictions rejected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipam::pool::PoolConf;
use ipnet::IpNet;
use overlay::lease::annotations::AnnotationPrefix;
use regex_lite::Regex;
use text::{Secret, url};

use super::values::RawValues;
use super::{Error, pools, saved};

/// Maximum length of an owner tag: it becomes part of file names and of a table name.
const MAX_OWNER: usize = 63;

/// All settings of an agent.
#[derive(Debug, Clone)]
pub struct Settings {
    pub node: NodeSettings,
    pub store: StoreChoice,
    pub network: NetworkSettings,
    pub underlay: UnderlaySettings,
    pub nat: NatSettings,
    pub files: FileSettings,
    pub api: ApiSettings,
    pub checks: CheckSettings,
    /// Whether multicast and broadcast are forwarded between nodes.
    pub multicast: bool,
    pub log: LogSettings,
    pub mode: Mode,
    pub sources: Sources,
}

/// Identity of the node and of the agent on it.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `None` until the store or the host name provides it.
    pub name: Option<String>,
    /// Owner tag of this agent's devices, next hops, rules and state files.
    pub owner: String,
    /// Directory for files that survive a reboot.
    pub state_dir: PathBuf,
}

/// The network and this node's lease in it.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    /// net-conf.json, stored if the store has none. It may contain WireGuard's pre-shared key.
    pub config: Option<Secret>,
    /// Whether commands from the network configuration may be run.
    pub allows_extension: bool,
    /// How long before its expiry a lease is renewed.
    pub renew_margin: Duration,
    pub pods: Pods,
    /// How long an address of a pool must be unused before it is released.
    pub leak_grace: Duration,
}

/// Source of the addresses of pods.
#[derive(Debug, Clone, PartialEq)]
pub enum Pods {
    /// Each node has a subnet for the pods on its bridge.
    Bridged,
    /// Each pod has an address from a pool. These pools are created if the store has none.
    Routed { pools: Vec<PoolConf> },
}

/// Choice of the interface to other nodes.
#[derive(Debug, Clone)]
pub struct UnderlaySettings {
    /// Names or addresses, in order of preference.
    pub interfaces: Vec<String>,
    /// Patterns for addresses or names.
    pub patterns: Vec<Regex>,
    /// Address that the interface must have a route to.
    pub can_reach: Option<IpAddr>,
    /// Address at which other nodes reach this node.
    pub public_ipv4: Option<Ipv4Addr>,
    pub public_ipv6: Option<Ipv6Addr>,
}

/// Masquerading, forwarding and blackhole routes.
#[derive(Debug, Clone)]
pub struct NatSettings {
    /// `None` if traffic that leaves the network is not masqueraded.
    pub masquerade: Option<Masquerade>,
    /// Whether nodes see the addresses of routed pods.
    pub excludes_nodes: bool,
    /// Whether forwarding of the network's traffic is allowed by rules.
    pub forwards: bool,
    /// Whether traffic to addresses without a pod is dropped.
    pub blackhole: bool,
}

/// Files for plugins and container runtimes.
#[derive(Debug, Clone)]
pub struct FileSettings {
    /// Path of subnet.env.
    pub subnet_env: PathBuf,
    /// Directory of Calico's files.
    pub calico: PathBuf,
    /// Path of the CNI configuration, if the agent writes one.
    pub cni_conf: Option<PathBuf>,
}

/// The local API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Address and port for health and metrics.
    pub health: Option<(IpAddr, u16)>,
    /// Directory of the socket.
    pub run_dir: PathBuf,
}

/// Periodic checks.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    /// Whether peers are probed with full-size packets.
    pub path_check: bool,
    /// Interval between full comparisons with the kernel.
    pub compare_interval: Duration,
}

#[derive(Debug, Clone)]
pub struct LogSettings {
    pub json: bool,
    pub verbosity: u64,
}

/// Modes of operation.
#[derive(Debug, Clone)]
pub struct Mode {
    /// Print changes instead of making them.
    pub dry_run: bool,
    /// Cleanup leaves the network in place for flanneld.
    pub keeps_network: bool,
    /// Replace the stored network configuration, then exit.
    pub replaces_net_config: bool,
}

/// Origin of the settings.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Warnings about options that have no effect.
    pub warnings: Vec<String>,
    /// Text of the record for cleanup.
    pub saved: String,
    /// Set by cleanup if the agent's record is unusable.
    pub damaged_record: Option<DamagedRecord>,
}

/// A record of saved options that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    pub problem: String,
    /// Whether other options select the agent's store.
    pub names_store: bool,
}

/// The store that nodes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A file on this machine.
    Embedded(PathBuf),
    Etcd(Etcd),
    /// Node objects of Kubernetes.
    Kubernetes(Kubernetes),
}

impl StoreChoice {
    /// The name used in options, status and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Etcd(_) => "etcd",
            Self::Kubernetes(_) => "kubernetes",
        }
    }

    /// Whether the store is asked for this node's name.
    pub fn provides_node_name(&self) -> bool {
        matches!(self, Self::Kubernetes(Kubernetes { pod: Some(_), .. }))
    }
}

/// Connection to etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    pub endpoints: Vec<String>,
    /// Key prefix of the network.
    pub prefix: String,
    pub tls: Tls,
    /// User name and password.
    pub user: Option<(String, Secret)>,
}

/// Files for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// CA certificate for verifying the servers.
    pub authority: Option<PathBuf>,
    /// Certificate and key of the client.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Connection to Kubernetes, and what the agent writes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    pub api_url: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server inside a pod.
    pub service: Option<String>,
    /// Namespace and name of the pod that the agent runs in, if the pod determines the node's name.
    pub pod: Option<(String, String)>,
    pub annotation_prefix: AnnotationPrefix,
    /// Path of net-conf.json.
    pub net_config: PathBuf,
    /// Whether the agent sets the node's NetworkUnavailable condition.
    pub sets_condition: bool,
}

/// Masquerading of traffic that leaves the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Whether source ports are chosen at random.
    pub fully_random: bool,
    /// Destinations that are not masqueraded.
    pub except: Vec<IpNet>,
}

impl Settings {
    pub(super) fn parse(values: &RawValues) -> Result<Settings, Error> {
        let (values, warnings) = without_passwords(values);
        let values = &values;
        let store = store(values)?;
        let pods = pools::parse(values)?;
        Ok(Settings {
            sources: Sources {
                saved: saved::print(values, store.name()),
                warnings,
                damaged_record: None,
            },
            node: NodeSettings {
                name: node_name(values)?,
                owner: owner(values)?,
                state_dir: values.path("state-dir"),
            },
            store,
            network: NetworkSettings {
                config: values.text("net-config").map(Secret::new),
                allows_extension: values.switch("allow-extension-commands")?,
                renew_margin: Duration::from_secs(60 * values.number("subnet-lease-renew-margin")?),
                pods,
                leak_grace: Duration::from_secs(60 * values.number("pool-leak-grace")?),
            },
            underlay: UnderlaySettings {
                interfaces: values.list("iface"),
                patterns: patterns(values)?,
                can_reach: values.parsed("iface-can-reach", "an IP address")?,
                public_ipv4: values.parsed("public-ip", "an IPv4 address")?,
                public_ipv6: values.parsed("public-ipv6", "an IPv6 address")?,
            },
            nat: NatSettings {
                masquerade: masquerade(values)?,
                excludes_nodes: pools::excludes_nodes(values)?,
                forwards: values.switch("iptables-forward-rules")?,
                blackhole: values.switch("ip-blackhole-route")?,
            },
            files: FileSettings {
                subnet_env: values.path("subnet-file"),
                calico: values.path("calico-dir"),
                cni_conf: values
                    .text("cni-conf-dir")
                    .map(|directory| PathBuf::from(directory).join(values.path("cni-conf-name"))),
            },
            api: ApiSettings { health: health(values)?, run_dir: values.path("run-dir") },
            checks: CheckSettings {
                path_check: values.switch("path-check")?,
                compare_interval: Duration::from_secs(values.number("compare-every")?),
            },
            multicast: values.switch("multicast")?,
            log: LogSettings {
                json: values.choice("log-format", &["text", "json"])? == "json",
                verbosity: values.number("v")?,
            },
            mode: Mode {
                dry_run: values.switch("dry-run")?,
                keeps_network: values.switch("keep-network")?,
                replaces_net_config: replaces_net_config(values)?,
            },
        })
    }
}

/// Options that hold URLs, and how to give a user name and password instead.
const URLS: [(&str, &str); 2] = [
    ("etcd-endpoints", "use etcd-username and etcd-password"),
    ("kube-api-url", "use a kubeconfig-file with credentials"),
];

/// Removes user names and passwords from URLs, so that no log, error or file can show them. The clients, like
/// flanneld, do not use them.
fn without_passwords(values: &RawValues) -> (RawValues, Vec<String>) {
    let (mut values, mut warnings) = (values.clone(), Vec::new());
    for (name, instead) in URLS {
        let Some(value) = values.get_mut(name) else { continue };
        let mut has_password = false;
        let plain = |url: &str| match url::without_credentials(url.trim()) {
            Some(plain) => {
                has_password = true;
                plain
            }
            None => url.to_owned(),
        };
        let urls: Vec<String> =
            value.texts.iter().flat_map(|text| text.split(',')).map(plain).collect();
        if has_password {
            warnings.push(format!(
                "{}: ignoring user name and password in a URL: {instead}",
                value.place
            ));
            value.texts = match name {
                "etcd-endpoints" => urls,
                _ => vec![urls.join(",")],
            };
        }
    }
    (values, warnings)
}

/// Rejects an empty name if it was given explicitly.
fn node_name(values: &RawValues) -> Result<Option<String>, Error> {
    let name = values.text("node-name");
    match values.is_given("node-name") && name.is_none() {
        true => Err(values.invalid("node-name", "", "a name")),
        false => Ok(name),
    }
}

fn owner(values: &RawValues) -> Result<String, Error> {
    let owner = values.last("owner");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let begins_well = owner.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    if begins_well && owner.len() <= MAX_OWNER && owner.chars().all(is_plain) {
        return Ok(owner);
    }
    let expected = format!(
        "up to {MAX_OWNER} letters, digits, '-', '_' and '.', beginning with a letter or digit"
    );
    Err(values.invalid("owner", &owner, &expected))
}

fn replaces_net_config(values: &RawValues) -> Result<bool, Error> {
    let wrong = |problem: &str| Err(Error::new(values.place("replace-net-config"), problem));
    match values.switch("replace-net-config")? {
        true if values.text("net-config").is_none() => wrong("requires net-config"),
        true if matches!(store(values)?, StoreChoice::Kubernetes(_)) => {
            wrong("not possible with kubernetes: change the file net-config-path instead")
        }
        replaces => Ok(replaces),
    }
}

/// Normalizes a key prefix as flannel does.
fn clean(prefix: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in prefix.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    let root = if prefix.starts_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

/// Parses `iface-regex`. It is not split at commas, because a pattern may contain some.
fn patterns(values: &RawValues) -> Result<Vec<Regex>, Error> {
    let texts = values.get("iface-regex").map(|value| value.texts.as_slice());
    let pattern = |text: &String| {
        Regex::new(text).map_err(|cause| {
            values.invalid("iface-regex", text, &format!("a regular expression: {cause}"))
        })
    };
    texts.unwrap_or_default().iter().map(pattern).collect()
}

fn masquerade(values: &RawValues) -> Result<Option<Masquerade>, Error> {
    let except = values.parsed_list("non-masquerade-cidrs", "a network such as 10.0.0.0/8")?;
    let fully_random = !values.switch("ip-masq-fully-random-disable")?;
    // The pools of routed pods say what is masqueraded.
    let is_on = values.switch("ip-masq")? || values.last("pods") == "routed";
    Ok(is_on.then_some(Masquerade { fully_random, except }))
}

fn health(values: &RawValues) -> Result<Option<(IpAddr, u16)>, Error> {
    let port = u16::try_from(values.number("healthz-port")?).unwrap_or(0);
    // An empty address means all addresses, as with flanneld.
    let address = values.parsed("healthz-ip", "an IP address")?;
    let address = address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    Ok(Some((address, port)).filter(|_| port != 0))
}

/// The store that `store` names, else the one that other options imply, else the embedded store.
fn store(values: &RawValues) -> Result<StoreChoice, Error> {
    let by_name = values.choice("store", &["", "embedded", "etcd", "kubernetes"])?;
    let is_kubernetes = values.switch("kube-subnet-mgr")?;
    if is_kubernetes && !["", "kubernetes"].contains(&by_name.as_str()) {
        let problem = format!("{by_name:?} contradicts kube-subnet-mgr, which selects kubernetes");
        return Err(Error::new(values.place("store"), problem));
    }
    let implies_etcd = ["etcd-endpoints", "etcd-prefix", "etcd-cafile", "etcd-certfile"];
    let chosen = match by_name.as_str() {
        "" if is_kubernetes => "kubernetes",
        "" if implies_etcd.iter().any(|name| values.is_given(name)) => "etcd",
        "" => "embedded",
        other => other,
    };
    Ok(match chosen {
        "kubernetes" => StoreChoice::Kubernetes(kubernetes(values)?),
        "etcd" => StoreChoice::Etcd(etcd(values)?),
        _ => StoreChoice::Embedded(values.path("store-file")),
    })
}

fn etcd(values: &RawValues) -> Result<Etcd, Error> {
    let pair = |one: &str, other: &str| match (values.text(one), values.text(other)) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::new(values.place(one), format!("requires {other}"))),
        (None, Some(_)) => Err(Error::new(values.place(other), format!("requires {one}"))),
    };
    let identity = pair("etcd-certfile", "etcd-keyfile")?;
    let is_https = |endpoint: &&String| endpoint.starts_with("https://");
    if let Some(url) = values.list("etcd-endpoints").iter().find(is_https)
        && values.text("etcd-cafile").is_none()
    {
        let problem = format!("{url:?} requires etcd-cafile");
        return Err(Error::new(values.place("etcd-endpoints"), problem));
    }
    Ok(Etcd {
        endpoints: values.list("etcd-endpoints"),
        prefix: clean(&values.text("etcd-prefix").unwrap_or_default()),
        tls: Tls {
            authority: values.text("etcd-cafile").map(PathBuf::from),
            identity: identity.map(|(cert, key)| (cert.into(), key.into())),
        },
        user: pair("etcd-username", "etcd-password")?
            .map(|(user, password)| (user, Secret::new(password))),
    })
}

fn kubernetes(values: &RawValues) -> Result<Kubernetes, Error> {
    let prefix = values.last("kube-annotation-prefix");
    Ok(Kubernetes {
        api_url: values.text("kube-api-url"),
        kubeconfig: values.text("kubeconfig-file").map(PathBuf::from),
        service: None,
        pod: None,
        annotation_prefix: values.parse_text(
            "kube-annotation-prefix",
            &prefix,
            AnnotationPrefix::FORM,
        )?,
        net_config: values.path("net-config-path"),
        sets_condition: values.switch("set-node-network-unavailable")?,
    })
}
