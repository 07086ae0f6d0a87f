// SPDX-License-Identifier: Apache-2.0
//! `podwire pod up`. If a step fails, the steps before it are undone.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use cni::CniResult;
use cni::runtime::{NetworkList, Runtime};
use kernel::{Netns, link};
use serde_json::{Value, json};

use super::name::PodName;
use super::port::PortMapping;
use super::state::{PodState, StateFile};
use super::{PodCidrArgs, StateArgs, capability, down, network, ready};
use crate::errors::{self, Hint, Usage};
use crate::output::{self, Format};
use crate::runtime::{self, RuntimeArgs};
use crate::{container_id, network_lookup};

/// Create a pod's network namespace and connect it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire pod up default/web
  podwire pod up default/web --port 8080:80/tcp --port '[fd00::1]:5353:53/udp'
  podwire pod up default/web --annotation kubernetes.io/ingress-bandwidth=10M
  podwire pod up default/web --netns /proc/4711/ns/net")]
pub(crate) struct Up {
    /// Pod to connect
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: PodName,
    /// Use an existing network namespace; podwire does not create or delete it
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    #[arg(
        long = "port",
        value_name = "PORTS",
        help = "Forward a host port to the pod: [HOSTIP:]HOSTPORT:PORT[/tcp|udp|sctp]"
    )]
    ports: Vec<PortMapping>,
    /// Annotation of the pod; only kubernetes.io/ingress-bandwidth and egress-bandwidth have an effect
    #[arg(long = "annotation", value_name = "KEY=VALUE", value_parser = parse_annotation)]
    annotations: Vec<(String, String)>,
    #[command(flatten)]
    cidrs: PodCidrArgs,
    /// UID of the pod
    #[arg(long, value_name = "UID")]
    uid: Option<String>,
    /// Sandbox ID [default: a random ID]
    #[arg(long, value_name = "ID")]
    sandbox_id: Option<String>,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

fn parse_annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

pub(crate) fn run(args: &Up, format: Format) -> Result<()> {
    let host = args.runtime.host();
    let runtime = args.runtime.runtime(&host);
    let file = StateFile::new(&args.state.state_dir, &args.pod);
    let _lock = file.lock()?;
    remove_stale(&args.pod, &file, &runtime)?;

    let started = Instant::now();
    let chosen = network::default(&args.runtime.conf_dir, &runtime)?;
    let ignored = network::ignored_files(&chosen);
    ignored.iter().for_each(|why| errors::warn(&format!("ignored {why}")));
    let list = chosen.list;
    let mut state = plan(args, &list)?;
    for warning in capability::unsupported(&state.capability_args, &list.capabilities()) {
        errors::warn(&warning);
    }
    let is_possible = match state.owns_netns {
        true => require_free(&state.netns),
        false => require_usable(&state, &runtime),
    };
    is_possible.with_context(|| format!("connect pod {}", args.pod))?;
    file.write(&state)?;
    let dir = &args.state.state_dir;
    let connected = connect(&state, &list, &runtime, dir).and_then(|raw| {
        state.is_up = true;
        file.write(&state).map(|()| raw)
    });
    let raw = match connected {
        Ok(raw) => raw,
        Err(error) => {
            undo(&state, &file, &runtime);
            return Err(error.context(format!("connect pod {}", args.pod)));
        }
    };
    let took = started.elapsed();
    let result = CniResult::parse(raw.clone(), list.version)?;
    let ips: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    if list.capabilities().contains("portMappings") {
        capability::unreachable(&args.ports, &ips).iter().for_each(|why| errors::warn(why));
    }
    print(&args.pod, &state, &ips, &raw, took, format)
}

/// Refuses a pod that is up; removes what an interrupted call has left of a pod.
fn remove_stale(pod: &PodName, file: &StateFile, runtime: &Runtime) -> Result<()> {
    let Some(state) = file.read()? else { return Ok(()) };
    if state.is_up {
        return Err(anyhow!("pod {pod} is already up"))
            .hint(|| format!("run `podwire pod down {pod}` first"));
    }
    down::disconnect(&state, file, runtime)
        .with_context(|| format!("remove the rest of an interrupted call for pod {pod}"))
}

/// Decides everything before the first change is made.
fn plan(args: &Up, list: &NetworkList) -> Result<PodState> {
    let pod_cidrs = &args.cidrs.pod_cidrs;
    let capability_args = capability::arguments(&args.ports, &args.annotations, pod_cidrs)?;
    if let Some(reason) = ready::lacks_pod_cidr(list, pod_cidrs) {
        bail!(reason);
    }
    let sandbox_id = match &args.sandbox_id {
        Some(id) => id.clone(),
        None => container_id::random()?,
    };
    cni::validate::container_id(&sandbox_id)?;
    let netns = match &args.netns {
        Some(path) => runtime::netns_path(runtime::as_text(path)?)?,
        None => runtime::named_netns(&args.pod.netns()),
    };
    Ok(PodState {
        namespace: args.pod.namespace.clone(),
        name: args.pod.name.clone(),
        args: cni_args(&args.pod, &sandbox_id, args.uid.as_deref())?,
        sandbox_id,
        netns,
        owns_netns: args.netns.is_none(),
        ifname: "eth0".to_owned(),
        network: list.name.clone(),
        network_file: list.file.clone(),
        config: network::to_record(list),
        capability_args,
        is_up: false,
    })
}

/// Checks that an existing namespace can become the pod's. Runs before any change, so that undoing
/// never touches objects that podwire has not created.
fn require_usable(state: &PodState, runtime: &Runtime) -> Result<()> {
    let netns = runtime::require_netns(&state.netns)?;
    let path = state.netns.display();
    if !runtime.allow_own_netns && runtime::is_own(&netns)? {
        let msg = format!("{path} is the network namespace of podwire itself");
        return Err(cni::Error::new(cni::Code::INVALID_NETNS, msg))
            .hint(|| "pass the pod's namespace, or omit --netns to create a new one".to_owned());
    }
    let ifname = state.ifname.parse()?;
    if link::by_name(&netns.netlink()?, ifname)?.is_some() {
        bail!("interface {ifname} already exists in {path}");
    }
    Ok(())
}

/// CNI_ARGS in kubelet's form.
fn cni_args(pod: &PodName, sandbox_id: &str, uid: Option<&str>) -> Result<Vec<(String, String)>> {
    let uid = uid.unwrap_or_default();
    if uid.contains([';', '=']) {
        let text = format!("--uid is {uid:?}: CNI_ARGS allows neither ';' nor '=' in a value");
        return Err(Usage(text).into());
    }
    let all = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
        ("K8S_POD_UID", uid),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_empty());
    Ok(set.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// Creates the namespace and attaches it to both networks.
fn connect(state: &PodState, list: &NetworkList, runtime: &Runtime, dir: &Path) -> Result<Value> {
    if state.owns_netns {
        Netns::create_named(&state.netns)?;
    }
    let container = network::container(state)?;
    runtime
        .add_raw(&network_lookup::loopback()?, &network::on_loopback(&container))
        .context("set up loopback")?;
    runtime
        .add_raw(list, &container)
        .map_err(|error| with_pod_names(error, dir))
        .with_context(|| format!("attach it to network {:?}", list.name))
}

/// Replaces sandbox IDs by pod names: the error may name another pod that uses the same host port.
fn with_pod_names(mut error: cni::Error, dir: &Path) -> cni::Error {
    for PodState { namespace, name, sandbox_id, ifname, .. } in StateFile::all(dir) {
        let owner = format!("{sandbox_id}/{ifname}");
        error.msg = error.msg.replace(&owner, &format!("pod {namespace}/{name} on"));
    }
    error
}

/// Refuses an existing namespace with the pod's name: podwire must not remove it.
fn require_free(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().display();
    Err(anyhow!("{} already exists", path.display()))
        .hint(|| format!("no pod uses it; remove it with: ip netns del {name}"))
}

/// A failure here is only a warning: the error of the ADD is the one to report.
fn undo(state: &PodState, file: &StateFile, runtime: &Runtime) {
    if let Err(error) = down::disconnect(state, file, runtime) {
        errors::warn(&format!("clean-up incomplete: {error:#}"));
    }
}

fn print(
    pod: &PodName,
    state: &PodState,
    ips: &[IpAddr],
    raw: &Value,
    took: Duration,
    format: Format,
) -> Result<()> {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    if format == Format::Json {
        return output::print_json(&json!({
            "namespace": pod.namespace,
            "name": pod.name,
            "sandboxID": state.sandbox_id,
            "netns": state.netns,
            "network": state.network,
            "ip": ips.first(),
            "ips": ips,
            "result": raw,
        }));
    }
    let table = output::table(
        ["POD", "ADDRESSES", "NETWORK", "NAMESPACE"],
        [[
            pod.to_string(),
            ips.join(" "),
            state.network.clone(),
            state.netns.display().to_string(),
        ]],
    );
    output::print(&format!("{pod}: up in {}\n\n{table}", output::duration(took)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cni_args_have_kubelets_form() {
        let pod: PodName = "default/web".parse().unwrap();
        let text = |uid| {
            let pairs = cni_args(&pod, "abc", uid).unwrap();
            pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
        };
        let expected = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
                        K8S_POD_INFRA_CONTAINER_ID=abc";
        assert_eq!(text(None), expected);
        assert_eq!(text(Some("1-2")), format!("{expected};K8S_POD_UID=1-2"));
        assert!(cni_args(&pod, "abc", Some("a;b")).is_err());
    }
}
