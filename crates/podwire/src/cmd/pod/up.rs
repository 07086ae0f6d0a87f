// SPDX-License-Identifier: Apache-2.0
//! A pod coming up. What was begun is undone when a step fails.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cni::CniResult;
use cni::runtime::{NetworkList, Runtime};
use kernel::{Netns, link};
use serde_json::{Value, json};

use super::name::PodName;
use super::state::{PodState, Store};
use super::{capability, network, ready, teardown};
use crate::cli::PodUp;
use crate::output::{self, Format};
use crate::report::{self, Hint, Usage};
use crate::{config, id, place};

pub fn run(asked: &PodUp, format: Format) -> Result<()> {
    let host = place::host(&asked.places);
    let runtime = place::runtime(&host, &asked.places);
    let store = Store::new(&asked.state.state_dir, &asked.pod);
    let _lock = store.lock()?;
    clear_way(&asked.pod, &store, &runtime)?;

    let started = Instant::now();
    let chosen = network::default(&asked.places.conf_dir, &runtime)?;
    network::passed_over(&chosen)
        .iter()
        .for_each(|why| report::warn(&format!("passed over {why}")));
    let list = chosen.list;
    let mut state = plan(asked, &list)?;
    for warning in capability::unmet(&state.capability_args, &list.capabilities()) {
        report::warn(&warning);
    }
    let is_possible = match state.owns_netns {
        true => require_free(&state.netns),
        false => require_fit(&state, &runtime),
    };
    is_possible.with_context(|| format!("connect pod {}", asked.pod))?;
    store.write(&state)?;
    let dir = &asked.state.state_dir;
    let connected = connect(&state, &list, &runtime, dir).and_then(|raw| {
        state.is_up = true;
        store.write(&state).map(|()| raw)
    });
    let raw = match connected {
        Ok(raw) => raw,
        Err(error) => {
            undo(&state, &store, &runtime);
            return Err(error.context(format!("connect pod {}", asked.pod)));
        }
    };
    let took = started.elapsed();
    let result = CniResult::parse(raw.clone(), list.version)?;
    let ips: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    if list.capabilities().contains("portMappings") {
        capability::unreached(&asked.ports, &ips).iter().for_each(|why| report::warn(why));
    }
    show(&asked.pod, &state, &ips, &raw, took, format)
}

/// A pod that is up stays as it is; what a crash left of one is removed.
fn clear_way(pod: &PodName, store: &Store, runtime: &Runtime) -> Result<()> {
    let Some(state) = store.read()? else { return Ok(()) };
    if state.is_up {
        let failure = Err(anyhow::anyhow!("pod {pod} is up already"));
        return failure.hint(|| format!("take it down first: podwire pod down {pod}"));
    }
    teardown::take_down(&state, store, runtime)
        .with_context(|| format!("remove what an interrupted call has left of pod {pod}"))
}

/// Everything that is decided before the first change is made.
fn plan(asked: &PodUp, list: &NetworkList) -> Result<PodState> {
    let capability_args =
        capability::arguments(&asked.ports, &asked.annotations, &asked.pod_cidrs)?;
    if let Some(reason) = ready::lacks_pod_cidr(list, &asked.pod_cidrs) {
        bail!(reason);
    }
    let sandbox_id = match &asked.sandbox_id {
        Some(id) => id.clone(),
        None => id::fresh()?,
    };
    cni::validate::container_id(&sandbox_id)?;
    let netns = match &asked.netns {
        Some(path) => place::netns_path(place::as_text(path)?)?,
        None => place::named_netns(&asked.pod.netns()),
    };
    Ok(PodState {
        namespace: asked.pod.namespace.clone(),
        name: asked.pod.name.clone(),
        args: arguments(&asked.pod, &sandbox_id, asked.uid.as_deref())?,
        sandbox_id,
        netns,
        owns_netns: asked.netns.is_none(),
        ifname: "eth0".to_owned(),
        network: list.name.clone(),
        network_file: list.file.clone(),
        config: network::to_record(list),
        capability_args,
        is_up: false,
    })
}

/// An error unless a namespace of others can become the pod's. Asked before anything is done, so that
/// nothing of theirs is touched in undoing it.
fn require_fit(state: &PodState, runtime: &Runtime) -> Result<()> {
    let netns = place::require_netns(&state.netns)?;
    let path = state.netns.display();
    if !runtime.allow_own_netns && place::is_own(&netns)? {
        let msg = format!("{path} is the namespace that podwire itself runs in");
        return Err(cni::Error::new(cni::Code::INVALID_NETNS, msg)).hint(|| {
            "name the pod's namespace, or leave out --netns and get a new one".to_owned()
        });
    }
    let ifname = state.ifname.parse()?;
    if link::by_name(&netns.netlink()?, ifname)?.is_some() {
        bail!("there is an interface {ifname} in {path} already");
    }
    Ok(())
}

/// CNI_ARGS as kubelet writes them.
fn arguments(pod: &PodName, sandbox_id: &str, uid: Option<&str>) -> Result<Vec<(String, String)>> {
    let uid = uid.unwrap_or_default();
    if uid.contains([';', '=']) {
        let text = format!("the uid {uid:?} holds ';' or '=', which CNI_ARGS cannot");
        return Err(Usage(text).into());
    }
    let all = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
        ("K8S_POD_UID", uid),
    ];
    let said = all.into_iter().filter(|(_, value)| !value.is_empty());
    Ok(said.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// Makes the namespace and attaches it to both networks.
fn connect(state: &PodState, list: &NetworkList, runtime: &Runtime, dir: &Path) -> Result<Value> {
    if state.owns_netns {
        Netns::create_named(&state.netns)?;
    }
    let container = network::container(state)?;
    runtime
        .add_raw(&config::loopback()?, &network::on_loopback(&container))
        .context("set up loopback")?;
    runtime
        .add_raw(list, &container)
        .map_err(|error| by_name(error, dir))
        .with_context(|| format!("attach it to network {:?}", list.name))
}

/// Calls other pods, who may hold a port, by their names in place of their sandboxes.
fn by_name(mut error: cni::Error, dir: &Path) -> cni::Error {
    for PodState { namespace, name, sandbox_id, ifname, .. } in Store::all(dir) {
        let (holder, known) =
            (format!("{sandbox_id}/{ifname}"), format!("pod {namespace}/{name} on"));
        error.msg = error.msg.replace(&holder, &known);
    }
    error
}

/// Before anything is remembered: what is there under the pod's name is not ours to remove.
fn require_free(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().display();
    Err(anyhow::anyhow!("{} exists already", path.display()))
        .hint(|| format!("nobody remembers it; remove it: ip netns del {name}"))
}

/// The error of the ADD is the one to tell; this one is only a warning.
fn undo(state: &PodState, store: &Store, runtime: &Runtime) {
    if let Err(error) = teardown::take_down(state, store, runtime) {
        report::warn(&format!("not everything could be undone: {error:#}"));
    }
}

fn show(
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
    fn arguments_are_kubelets() {
        let pod: PodName = "default/web".parse().unwrap();
        let text = |uid| {
            let pairs = arguments(&pod, "abc", uid).unwrap();
            pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
        };
        let expected = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
                        K8S_POD_INFRA_CONTAINER_ID=abc";
        assert_eq!(text(None), expected);
        assert_eq!(text(Some("1-2")), format!("{expected};K8S_POD_UID=1-2"));
        assert!(arguments(&pod, "abc", Some("a;b")).is_err());
    }
}
