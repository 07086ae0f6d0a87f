// SPDX-License-Identifier: Apache-2.0
//! The configuration of calico. Keys that concern Calico's own processes, such as the addresses of
//! its data store, are ignored.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client::ClientError;
use agent_client::ipam::{self as agent, Pod, Texts};
use cni::{Code, Command, Error, Request};
use kernel::{IfName, Netlink, link, route};

use super::annotations::Annotations;
use super::extras::Extras;
use super::keys::Keys;
use super::names;
use crate::attach::{ipam, veth};
use crate::error::Context;

const NODENAME_FILE: &str = "/var/lib/calico/nodename";
const MTU_FILE: &str = "/var/lib/calico/mtu";
const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The MTU of an Ethernet, and the kernel's default for veth pairs.
const ETHERNET_MTU: u32 = 1500;

/// Addresses for documentation, which only a default route leads to.
const ANYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Maximum number of queues of an interface in Linux.
const MAX_QUEUES: i64 = 4096;

/// The pod's annotations, as containerd and CRI-O pass them.
const ANNOTATIONS: &str = "runtimeConfig/io.kubernetes.cri.pod-annotations";

/// The agent usually answers within a millisecond, on a busy node within seconds.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The parsed configuration.
#[derive(Debug)]
pub(super) struct Calico {
    /// The name of the host end.
    pub host_ifname: IfName,
    pub pod: Option<Pod>,
    pub queues: u32,
    /// The pod forwards packets.
    pub forwarding: bool,
    pub annotations: Annotations,
    pub extras: Extras,
    mtu: Option<u32>,
    require_mtu_file: bool,
    /// `None` if the file need not exist.
    nodename_file: Option<PathBuf>,
    pub ipam: Ipam,
}

/// The part of the configuration that concerns addresses.
#[derive(Debug)]
pub(super) struct Ipam {
    /// The subnets of this node, for `usePodCidr`.
    pub subnet_file: PathBuf,
    /// Routes of the pod instead of the default routes; empty for the default routes.
    pub routes: Vec<cni::Route>,
    pub include_default_routes: bool,
}

impl Calico {
    /// Parses the configuration for ADD, CHECK and STATUS. Only ADD asks the agent for annotations.
    pub(super) fn parse(request: &Request) -> Result<Calico, Error> {
        let keys = Keys::of(request);
        let Some(kind) = request.ipam_type()? else {
            return Err(Error::invalid_config("no plugin name provided")
                .with_details("key \"ipam.type\" must be set: calico routes by address"));
        };
        ipam::refuse_if_needs_interface(
            request,
            "the interface of calico leads to this host only",
        )?;
        let pod = names::pod(request)?;
        let annotations = annotations(request, &keys, pod.as_ref())?;
        refuse_unsupported(request, &keys, &annotations, kind, pod.is_some())?;
        let device_type: String = keys.get("device_type")?;
        if !["", "veth", "netkit"].contains(&device_type.as_str()) {
            let msg = format!(
                "key \"device_type\" is {device_type:?}, allowed are \"veth\" and \"netkit\""
            );
            return Err(Error::invalid_config(msg));
        }
        keys.number("policy_setup_timeout_seconds", 0, i64::MAX)?;
        let queues = keys.number("num_queues", i64::MIN, MAX_QUEUES)?.max(1);
        let has_routes = kind == "host-local" && pod.is_some();
        let routes = has_routes.then(|| keys.get("ipam.routes")).transpose()?;
        let is_optional: bool = keys.get("nodename_file_optional")?;
        let nodename_file = keys.path("nodename_file", NODENAME_FILE)?;
        Ok(Calico {
            host_ifname: names::host_ifname(request, pod.as_ref())?,
            queues: u32::try_from(queues).unwrap_or(1),
            forwarding: keys.get("container_settings.allow_ip_forwarding")?,
            extras: Extras::parse(request, &annotations)?,
            mtu: veth::parse_mtu(keys.get("mtu")?, veth::MAX_MTU)?,
            require_mtu_file: keys.get("require_mtu_file")?,
            nodename_file: (!is_optional).then_some(nodename_file),
            ipam: Ipam {
                subnet_file: keys.path("subnet_file", SUBNET_FILE)?,
                routes: routes.unwrap_or_default(),
                include_default_routes: keys.get("include_default_routes")?,
            },
            annotations,
            pod,
        })
    }

    /// Requires the file that Calico's daemon writes when it is ready.
    pub(super) fn require_nodename(&self, code: Code) -> Result<(), Error> {
        let Some(file) = &self.nodename_file else { return Ok(()) };
        std::fs::metadata(file).map(drop).map_err(|cause| {
            let hint = "the daemon of this node writes it when it is ready; \
                        key \"nodename_file_optional\" makes it optional";
            Error::because(code, format!("stat {}", file.display()), &cause).with_details(hint)
        })
    }

    /// The MTU: that of the configuration, else that of Calico's file, else that of the interface
    /// with the default route. `None` leaves the choice to the kernel.
    pub(super) fn mtu(&self, host: &Netlink) -> Result<Option<u32>, Error> {
        let from_file = match self.mtu {
            Some(_) if !self.require_mtu_file => None,
            _ => self.read_mtu_file()?,
        };
        if let Some(mtu) = self.mtu.or(from_file) {
            return Ok(Some(mtu));
        }
        let doing = "look for the default route";
        // A lookup and not a list: there is a route for each pod.
        for address in ANYWHERE {
            let route = route::lookup(host, address).context(doing)?;
            if let Some(index) = route.and_then(|route| route.oif) {
                let found = link::by_index(host, index).context(doing)?;
                return Ok(found.map(|link| link.mtu).filter(|mtu| *mtu < ETHERNET_MTU));
            }
        }
        Ok(None)
    }

    fn read_mtu_file(&self) -> Result<Option<u32>, Error> {
        let failed = |cause: &std::io::Error| {
            Error::because(Code::TRY_LATER, format!("read {MTU_FILE}"), cause)
        };
        let text = match fsutil::read_following(Path::new(MTU_FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound && !self.require_mtu_file => {
                return Ok(None);
            }
            other => other.map_err(|cause| failed(&cause))?,
        };
        let text = String::from_utf8_lossy(&text);
        let mtu =
            text.trim().parse().ok().map(|mtu: u32| veth::parse_mtu(mtu.into(), veth::MAX_MTU));
        mtu.and_then(Result::ok).ok_or_else(|| {
            let (min, max) = (veth::MIN_MTU, veth::MAX_MTU);
            let msg = format!("{MTU_FILE} has {:?}, allowed are {min} to {max}", text.trim());
            Error::internal(msg)
        })
    }
}

/// Refuses annotations that the configuration does not allow.
fn refuse_unsupported(
    request: &Request,
    keys: &Keys,
    annotations: &Annotations,
    ipam: &str,
    is_pod: bool,
) -> Result<(), Error> {
    let refused = |msg: &str| Err(Error::invalid_config(msg));
    let (requested, fixed) = (&annotations.addresses, &annotations.addresses_without_ipam);
    for (annotation, addresses) in [("ipAddrs", requested), ("ipAddrsNoIpam", fixed)] {
        if !addresses.is_empty() && ipam != "calico-ipam" {
            return refused(&format!(
                "annotation {annotation:?} is not compatible with configured IPAM: {ipam}"
            ));
        }
    }
    let may_bypass: bool = keys.get("feature_control.ip_addrs_no_ipam")?;
    let may_float: bool = keys.get("feature_control.floating_ips")?;
    match () {
        () if !requested.is_empty() && !fixed.is_empty() => refused(
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
        ),
        () if !fixed.is_empty() && !may_bypass => {
            refused("requested feature is not enabled: ip_addrs_no_ipam")
        }
        () if may_bypass && !is_pod && request.command == Command::Add => {
            refused("requested feature is not supported for this runtime: ip_addrs_no_ipam")
        }
        () if annotations.has_floating_ips && may_float => {
            refused("annotation \"floatingIPs\" is not supported")
        }
        () if annotations.has_floating_ips => {
            refused("requested feature is not enabled: floating_ips")
        }
        () => Ok(()),
    }
}

/// The annotations that the runtime passes. If it passes none and the configuration wants those of
/// Kubernetes, ADD asks the agent. Without an agent, or if it does not know the pod, there are none.
fn annotations(request: &Request, keys: &Keys, pod: Option<&Pod>) -> Result<Annotations, Error> {
    let none = Texts::new();
    if keys.find(ANNOTATIONS)?.is_some() {
        let annotations: Texts = keys.get(ANNOTATIONS)?;
        if let Some((name, value)) = annotations.iter().find(|(_, value)| !value.is_string()) {
            let msg =
                format!("key {ANNOTATIONS:?}: annotation {name:?} is {value}, expected a text");
            return Err(Error::invalid_config(msg));
        }
        return Annotations::parse(&annotations, &none);
    }
    let policy: String = keys.get("policy.type")?;
    let wanted = pod.filter(|_| policy == "k8s" && request.command == Command::Add);
    let Some(pod) = wanted else { return Ok(Annotations::default()) };
    let socket = keys.path("agent_socket", agent_client::DEFAULT_SOCKET)?;
    let path = agent::pod_path(pod);
    match agent::get::<agent::PodInfo>(&socket, &path, AGENT_TIMEOUT) {
        Ok(info) => Annotations::parse(&info.annotations, &info.namespace_annotations),
        Err(agent::Error::Unknown | agent::Error::Client(ClientError::Connect(_))) => {
            Ok(Annotations::default())
        }
        Err(error) => {
            let Pod { namespace, name, .. } = pod;
            let doing = format!("ask the node agent for annotations of pod {namespace}/{name}");
            Err(Error::because(Code::TRY_LATER, doing, &error))
        }
    }
}
