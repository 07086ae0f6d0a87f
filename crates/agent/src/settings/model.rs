// SPDX-License-Identifier: Apache-2.0
//! Options as understood: every default settled, every contradiction refused.

mod words;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use overlay::lease::annotations::AnnotationPrefix;
use regex_lite::Regex;
use text::{Secret, url};

use self::words::Words;
use super::{Error, Values, record};

/// Of a mark, in letters.
const LONGEST_MARK: usize = 63;

/// All that an agent was told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name, where it was told.
    pub node_name: Option<String>,
    /// Where nodes learn of each other.
    pub store: StoreChoice,
    /// net-conf.json, to be stored where there is none. It may hold WireGuard's pre-shared key.
    pub net_config: Option<Secret>,
    /// Time before its end that a lease is renewed.
    pub renew_margin: Duration,
    /// Interfaces by name or address, in order.
    pub interfaces: Vec<String>,
    /// Patterns for addresses or names.
    pub interface_patterns: Vec<Regex>,
    /// An address that the interface must reach.
    pub can_reach: Option<IpAddr>,
    /// The address that others use.
    pub public_ipv4: Option<Ipv4Addr>,
    /// Its sister.
    pub public_ipv6: Option<Ipv6Addr>,
    /// subnet.env.
    pub subnet_file: PathBuf,
    /// What is done to what leaves the network, if anything.
    pub masquerade: Option<Masquerade>,
    /// Whether the network's packets are let through.
    pub forwards: bool,
    /// Whether addresses that no pod has are dropped.
    pub blackhole: bool,
    /// The CNI configuration to keep, if any.
    pub cni_conf: Option<PathBuf>,
    /// The alias of our devices, and more.
    pub mark: String,
    /// What survives a reboot.
    pub state_dir: PathBuf,
    /// Sockets.
    pub run_dir: PathBuf,
    /// Multicast between nodes.
    pub multicast: bool,
    /// Full packets to peers.
    pub path_check: bool,
    /// Between full comparisons.
    pub compare_every: Duration,
    /// Where health and metrics listen.
    pub health: Option<(IpAddr, u16)>,
    /// Logs as JSON.
    pub logs_json: bool,
    /// How much is logged.
    pub verbosity: u64,
    /// Nothing is changed.
    pub dry_run: bool,
    /// Cleanup leaves the network to flanneld.
    pub keeps_network: bool,
    /// The network's configuration is replaced, and nothing else is done.
    pub replaces_net_config: bool,
    /// Whether commands of the network's configuration may be run.
    pub allows_extension: bool,
    /// Advice about options that work, but not as they look.
    pub warnings: Vec<String>,
    /// What of this is written down for cleanup.
    pub record: String,
    /// Cleanup: the options that the agent wrote down cannot be used.
    pub damaged_record: Option<DamagedRecord>,
}

/// A record of options that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    pub problem: String,
    /// Other options say which store the agent had.
    pub names_store: bool,
}

/// Where nodes learn of each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A file of this machine.
    Embedded(PathBuf),
    /// etcd.
    Etcd(Etcd),
    /// Kubernetes' nodes.
    Kubernetes(Kubernetes),
}

impl StoreChoice {
    /// As options and people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Etcd(_) => "etcd",
            Self::Kubernetes(_) => "kubernetes",
        }
    }

    /// Whether it is asked for this node's name.
    pub fn tells_name(&self) -> bool {
        matches!(self, Self::Kubernetes(Kubernetes { pod: Some(_), .. }))
    }
}

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// Its servers.
    pub endpoints: Vec<String>,
    /// Where the network is.
    pub prefix: String,
    /// Keys and certificates.
    pub tls: Tls,
    /// User and password.
    pub user: Option<(String, Secret)>,
}

/// Files of keys and certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Who signs the servers' certificates.
    pub authority: Option<PathBuf>,
    /// The client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How Kubernetes is reached, and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// Its API's address.
    pub api_url: Option<String>,
    /// A kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Where a pod finds the API, if this is one.
    pub service: Option<String>,
    /// The namespace and name of the pod that this is, where that is what says which node it is on.
    pub pod: Option<(String, String)>,
    /// Prefix of annotations.
    pub annotation_prefix: AnnotationPrefix,
    /// net-conf.json.
    pub net_config: PathBuf,
    /// Whether the node's condition is set.
    pub sets_condition: bool,
}

/// How what leaves the network is masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// Source ports at random.
    pub fully_random: bool,
    /// What pods reach under their own addresses.
    pub except: Vec<IpNet>,
}

impl Settings {
    pub(super) fn understand(values: &Values) -> Result<Settings, Error> {
        let (values, warnings) = without_passwords(values);
        let values = &values;
        let told = Words { values };
        let store = store(&told)?;
        Ok(Settings {
            record: record::print(values, store.name()),
            warnings,
            damaged_record: None,
            node_name: node_name(&told)?,
            store,
            net_config: told.text("net-config").map(Secret::new),
            renew_margin: Duration::from_secs(60 * told.number("subnet-lease-renew-margin")?),
            interfaces: told.list("iface"),
            interface_patterns: patterns(&told)?,
            can_reach: told.one("iface-can-reach", "an IP address")?,
            public_ipv4: told.one("public-ip", "an IPv4 address")?,
            public_ipv6: told.one("public-ipv6", "an IPv6 address")?,
            subnet_file: told.path("subnet-file"),
            masquerade: masquerade(&told)?,
            forwards: told.switch("iptables-forward-rules")?,
            blackhole: told.switch("ip-blackhole-route")?,
            cni_conf: told
                .text("cni-conf-dir")
                .map(|directory| PathBuf::from(directory).join(told.path("cni-conf-name"))),
            mark: mark(&told)?,
            state_dir: told.path("state-dir"),
            run_dir: told.path("run-dir"),
            multicast: told.switch("multicast")?,
            path_check: told.switch("path-check")?,
            compare_every: Duration::from_secs(told.number("compare-every")?),
            health: health(&told)?,
            logs_json: told.choice("log-format", &["text", "json"])? == "json",
            verbosity: told.number("v")?,
            dry_run: told.switch("dry-run")?,
            keeps_network: told.switch("keep-network")?,
            replaces_net_config: replaces(&told)?,
            allows_extension: told.switch("allow-extension-commands")?,
        })
    }
}

/// Options that are addresses of servers, and what to use for a user name and password instead.
const ADDRESSES: [(&str, &str); 2] = [
    ("etcd-endpoints", "give etcd-username and etcd-password"),
    ("kube-api-url", "give a kubeconfig-file with them"),
];

/// Removes user names and passwords from addresses, which do not use them (flanneld ignores them as well), so that no log,
/// error or file can show them.
fn without_passwords(values: &Values) -> (Values, Vec<String>) {
    let (mut values, mut warnings) = (values.clone(), Vec::new());
    for (name, instead) in ADDRESSES {
        let Some(told) = values.get_mut(name) else { continue };
        let mut has_password = false;
        let plain = |address: &str| match url::without_credentials(address.trim()) {
            Some(plain) => {
                has_password = true;
                plain
            }
            None => address.to_owned(),
        };
        let addresses: Vec<String> =
            told.words.iter().flat_map(|word| word.split(',')).map(plain).collect();
        if has_password {
            warnings.push(format!(
                "{}: the user name and password in an address are not used: {instead}",
                told.place
            ));
            told.words = match name {
                "etcd-endpoints" => addresses,
                _ => vec![addresses.join(",")],
            };
        }
    }
    (values, warnings)
}

/// One that was told says something.
fn node_name(told: &Words<'_>) -> Result<Option<String>, Error> {
    let name = told.text("node-name");
    match told.is_told("node-name") && name.is_none() {
        true => Err(Error::new(told.place("node-name"), "is empty, expected a name")),
        false => Ok(name),
    }
}

/// It is part of the names of files and of a table.
fn mark(told: &Words<'_>) -> Result<String, Error> {
    let mark = told.last("mark");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let begins_well = mark.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    if begins_well && mark.len() <= LONGEST_MARK && mark.chars().all(is_plain) {
        return Ok(mark);
    }
    let problem = format!(
        "is {mark:?}, allowed are up to {LONGEST_MARK} letters, digits, '-', '_' and '.', the first a letter or digit"
    );
    Err(Error::new(told.place("mark"), problem))
}

/// What is stored, and by what, has to be told.
fn replaces(told: &Words<'_>) -> Result<bool, Error> {
    let wrong = |problem: &str| Err(Error::new(told.place("replace-net-config"), problem));
    match told.switch("replace-net-config")? {
        true if told.text("net-config").is_none() => wrong("needs net-config as well"),
        true if matches!(store(told)?, StoreChoice::Kubernetes(_)) => {
            wrong("is true, but with kubernetes the file net-config-path counts: change that one")
        }
        replaces => Ok(replaces),
    }
}

/// As flannel joins its keys, whatever was written.
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

/// Not separated by commas, which a pattern may have.
fn patterns(told: &Words<'_>) -> Result<Vec<Regex>, Error> {
    let words = told.values.get("iface-regex").map(|told| told.words.as_slice());
    let pattern = |text: &String| {
        Regex::new(text).map_err(|cause| {
            let problem = format!("is {text:?}, expected a regular expression: {cause}");
            Error::new(told.place("iface-regex"), problem)
        })
    };
    words.unwrap_or_default().iter().map(pattern).collect()
}

fn masquerade(told: &Words<'_>) -> Result<Option<Masquerade>, Error> {
    let except = told.parsed("non-masquerade-cidrs", "a network such as 10.0.0.0/8")?;
    let fully_random = !told.switch("ip-masq-fully-random-disable")?;
    Ok(told.switch("ip-masq")?.then_some(Masquerade { fully_random, except }))
}

fn health(told: &Words<'_>) -> Result<Option<(IpAddr, u16)>, Error> {
    let port = u16::try_from(told.number("healthz-port")?).unwrap_or(0);
    // Empty means all addresses, as it does for flanneld.
    let address = told.one("healthz-ip", "an IP address")?;
    let address = address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    Ok(Some((address, port)).filter(|_| port != 0))
}

/// What is said by name, else what other options imply, else this machine alone.
fn store(told: &Words<'_>) -> Result<StoreChoice, Error> {
    let by_name = told.choice("store", &["", "embedded", "etcd", "kubernetes"])?;
    let is_kubernetes = told.switch("kube-subnet-mgr")?;
    if is_kubernetes && !["", "kubernetes"].contains(&by_name.as_str()) {
        let place = told.place("store");
        let problem = format!("is {by_name:?}, but kube-subnet-mgr asks for kubernetes");
        return Err(Error::new(place, problem));
    }
    let says_etcd = ["etcd-endpoints", "etcd-prefix", "etcd-cafile", "etcd-certfile"];
    let chosen = match by_name.as_str() {
        "" if is_kubernetes => "kubernetes",
        "" if says_etcd.iter().any(|name| told.is_told(name)) => "etcd",
        "" => "embedded",
        other => other,
    };
    Ok(match chosen {
        "kubernetes" => StoreChoice::Kubernetes(kubernetes(told)?),
        "etcd" => StoreChoice::Etcd(etcd(told)?),
        _ => StoreChoice::Embedded(told.path("store-file")),
    })
}

fn etcd(told: &Words<'_>) -> Result<Etcd, Error> {
    let together = |one: &str, other: &str| match (told.text(one), told.text(other)) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::new(told.place(one), format!("needs {other} as well"))),
        (None, Some(_)) => Err(Error::new(told.place(other), format!("needs {one} as well"))),
    };
    let identity = together("etcd-certfile", "etcd-keyfile")?;
    let is_secure = |endpoint: &&String| endpoint.starts_with("https://");
    if let Some(one) = told.list("etcd-endpoints").iter().find(is_secure)
        && told.text("etcd-cafile").is_none()
    {
        let problem = format!("is {one:?}, which needs etcd-cafile as well");
        return Err(Error::new(told.place("etcd-endpoints"), problem));
    }
    Ok(Etcd {
        endpoints: told.list("etcd-endpoints"),
        prefix: clean(&told.text("etcd-prefix").unwrap_or_default()),
        tls: Tls {
            authority: told.text("etcd-cafile").map(PathBuf::from),
            identity: identity.map(|(cert, key)| (cert.into(), key.into())),
        },
        user: together("etcd-username", "etcd-password")?
            .map(|(user, password)| (user, Secret::new(password))),
    })
}

fn kubernetes(told: &Words<'_>) -> Result<Kubernetes, Error> {
    let prefix = told.last("kube-annotation-prefix");
    Ok(Kubernetes {
        api_url: told.text("kube-api-url"),
        kubeconfig: told.text("kubeconfig-file").map(PathBuf::from),
        service: None,
        pod: None,
        annotation_prefix: told.parse("kube-annotation-prefix", &prefix, AnnotationPrefix::FORM)?,
        net_config: told.path("net-config-path"),
        sets_condition: told.switch("set-node-network-unavailable")?,
    })
}
