// SPDX-License-Identifier: Apache-2.0
//! `podwire pod`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::Places;
use crate::pod::{PodName, PortMapping};

/// What to do with a pod.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  podwire pod ready
  podwire pod up default/web --port 8080:80
  podwire pod status default/web
  podwire pod down default/web

A pod gets loopback and the first valid network of the configuration directory, which is read
anew at each call.")]
pub enum PodCommand {
    /// Make a pod's namespace and connect it
    #[command(after_help = "\
Examples:
  podwire pod up default/web
  podwire pod up default/web --port 8080:80/tcp --port '[fd00::1]:5353:53/udp'
  podwire pod up default/web --annotation kubernetes.io/ingress-bandwidth=10M
  podwire pod up default/web --netns /proc/4711/ns/net")]
    Up(PodUp),
    /// Disconnect a pod and remove its namespace; a pod that is not up is fine
    #[command(after_help = "Example:\n  podwire pod down default/web")]
    Down(PodDown),
    /// Show the addresses that a pod really has
    #[command(after_help = "\
Examples:
  podwire pod status default/web
  podwire pod status default/web -o json | jq -r .ip")]
    Status(PodStatus),
    /// Say whether pods can be connected, and why not
    #[command(after_help = "\
Examples:
  podwire pod ready
  podwire pod ready default/web        this pod's attachment is checked too
  podwire pod ready --watch            a line at each change, until interrupted")]
    Ready(PodReady),
}

/// Where we remember pods.
#[derive(Clone, Debug, Args)]
pub struct StateDir {
    /// Directory with one file for each pod.
    #[arg(long, default_value = "/run/podwire/pods", value_name = "DIR")]
    pub state_dir: PathBuf,
}

/// `up`.
#[derive(Debug, Args)]
pub struct PodUp {
    /// The pod.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub pod: PodName,
    /// Use this namespace, and leave making and removing it to others.
    #[arg(long, value_name = "PATH")]
    pub netns: Option<PathBuf>,
    /// Lead a port of the host to the pod.
    #[arg(
        long = "port",
        value_name = "PORTS",
        help = "Lead a port of the host to the pod: [HOSTIP:]HOSTPORT:PORT[/tcp|udp|sctp]"
    )]
    pub ports: Vec<PortMapping>,
    /// An annotation of the pod; kubernetes.io/ingress-bandwidth and egress-bandwidth count.
    #[arg(long = "annotation", value_name = "KEY=VALUE", value_parser = annotation)]
    pub annotations: Vec<(String, String)>,
    /// The node's range of pod addresses, for networks that want it; once for each family.
    #[arg(long = "pod-cidr", value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub pod_cidrs: Vec<IpNet>,
    /// The pod's uid.
    #[arg(long)]
    pub uid: Option<String>,
    /// The sandbox's id, usually a new one.
    #[arg(long, value_name = "ID")]
    pub sandbox_id: Option<String>,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub places: Places,
}

/// `down`.
#[derive(Debug, Args)]
pub struct PodDown {
    /// The pod.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub pod: PodName,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub places: Places,
}

/// `status`.
#[derive(Debug, Args)]
pub struct PodStatus {
    /// The pod.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub pod: PodName,
    #[command(flatten)]
    pub state: StateDir,
}

/// `ready`.
#[derive(Debug, Args)]
pub struct PodReady {
    /// A pod whose attachment is checked too.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub pod: Option<PodName>,
    /// Stay and print a line whenever it changes.
    #[arg(long)]
    pub watch: bool,
    /// The node's range of pod addresses, for networks that want it; once for each family.
    #[arg(long = "pod-cidr", value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub pod_cidrs: Vec<IpNet>,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub places: Places,
}

fn cidr(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| "expected a network such as 10.244.0.0/24".to_owned())
}

fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
