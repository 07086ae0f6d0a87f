// SPDX-License-Identifier: Apache-2.0
//! `calico-ipam`: addresses from the pools of the cluster. The node agent assigns and releases them;
//! this plugin sends it requests over its unix socket.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_client::ipam::{
    self as agent, AssignRequest, AssignResponse, GcRequest, ReleaseRequest, ValidAttachment,
    journal,
};
use agent_client::{ClientError, DEFAULT_SOCKET, DEFAULT_STATE_DIR};
use cni::{CniResult, Code, Error, IpConfig, Plugin, Request, Route, Version};
use ipnet::IpNet;
use serde_json::Value;

use crate::main::calico::{Keys, gateway, pod};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "calico-ipam",
    about: "assigns addresses from pools of the cluster, through the node agent",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

/// Time limit for ADD: the agent may have to claim a new block in a slow store.
const ADD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for other commands, for which the agent needs no store.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A boolean, which Calico's configurations write as a text.
fn flag(keys: &Keys, path: &str, default: bool) -> Result<bool, Error> {
    match keys.find(path)? {
        None => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
        Some(other) => {
            let msg = format!("key {path:?} is {other}, expected \"true\" or \"false\"");
            Err(Error::invalid_config(msg))
        }
    }
}

/// An address; a prefix length is ignored.
fn requested(key: &str, text: &str, code: Code) -> Result<IpAddr, Error> {
    let address = text.split('/').next().and_then(|address| address.parse().ok());
    address.ok_or_else(|| {
        let details = format!("{key} must be an address such as 10.1.2.3");
        Error::new(code, format!("invalid IP address {text}")).with_details(details)
    })
}

/// The agent of this node.
#[derive(Debug)]
pub(crate) struct Agent {
    socket: PathBuf,
    state_dir: PathBuf,
}

impl Agent {
    pub(crate) fn of(keys: &Keys) -> Result<Agent, Error> {
        let socket = keys.path("agent_socket", DEFAULT_SOCKET)?;
        Ok(Agent { socket, state_dir: keys.path("agent_state_dir", DEFAULT_STATE_DIR)? })
    }

    fn journal_file(&self, request: &Request) -> PathBuf {
        journal::file(&self.state_dir, &handle(request), &request.ifname)
    }

    /// Requires an agent that is ready, and that has pools if `has_pools` is set.
    pub(crate) fn require_ready(&self, has_pools: bool) -> Result<(), Error> {
        let page = if has_pools { agent::STATUS } else { "/readyz" };
        let answer = agent_client::get(&self.socket, page, TIMEOUT)
            .map_err(|error| self.to_cni(error.into(), Code::NOT_AVAILABLE))?;
        match answer.status {
            200 => Ok(()),
            _ if has_pools => match agent::decode::<Value>(&answer) {
                Ok(_) => Ok(()),
                Err(error) => Err(self.to_cni(error, Code::NOT_AVAILABLE)),
            },
            _ => {
                let (first, more) = answer.body.split_once('\n').unwrap_or((&answer.body, ""));
                let msg = format!("the node agent is not ready: {first}");
                let details = more.trim_end().replace('\n', "; ");
                Err(Error::new(Code::NOT_AVAILABLE, msg).with_details(details))
            }
        }
    }

    /// Converts an error; `temporary` is the code if the agent may answer later.
    fn to_cni(&self, error: agent::Error, temporary: Code) -> Error {
        let socket = self.socket.display();
        match error {
            agent::Error::Client(cause @ ClientError::Connect(_)) => {
                let msg = format!("no node agent listens on {socket}: {cause}");
                let hint = "start `podwire agent` on this node, or set key \"agent_socket\"";
                Error::new(temporary, msg).with_details(hint)
            }
            agent::Error::Client(cause) => {
                Error::new(temporary, format!("the node agent at {socket}: {cause}"))
            }
            agent::Error::Refused(failure) => {
                let code = match Code(failure.code) {
                    Code::TRY_LATER => temporary,
                    Code(0) => Code::INTERNAL,
                    code => code,
                };
                Error::new(code, failure.msg).with_details(failure.details)
            }
            agent::Error::Unknown => {
                let msg = format!("the node agent at {socket} has no address pools");
                Error::new(temporary, msg).with_details("start it with the option --pool")
            }
            agent::Error::Invalid(_) => Error::internal(format!("{socket}: {error}")),
        }
    }
}

fn handle(request: &Request) -> String {
    agent::handle(&request.network, &request.container_id)
}

fn parse(request: &Request) -> Result<AssignRequest, Error> {
    let keys = Keys::of(request);
    if keys.find("ipam")?.is_none() {
        return Err(super::no_ipam_key());
    }
    let mut addresses = Vec::new();
    for text in keys.get::<Vec<String>>("runtimeConfig.ips")? {
        addresses.push(requested("key \"runtimeConfig.ips\"", &text, Code::INVALID_CONFIG)?);
    }
    let args = request.args()?;
    if let Some(text) = args.get("IP").filter(|text| !text.is_empty()) {
        addresses.push(requested("IP in CNI_ARGS", text, Code::BAD_ENVIRONMENT)?);
    }
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    if v4 > 1 || addresses.len() - v4 > 1 {
        return Err(Error::invalid_config("more than one address of a family is requested"));
    }
    let ipv4 = flag(&keys, "ipam.assign_ipv4", true)?;
    let ipv6 = flag(&keys, "ipam.assign_ipv6", false)?;
    if !ipv4 && !ipv6 {
        let msg = "keys \"ipam.assign_ipv4\" and \"ipam.assign_ipv6\" are both \"false\"";
        return Err(Error::invalid_config(msg));
    }
    let ipv4_pools: Vec<String> = keys.get("ipam.ipv4_pools")?;
    let ipv6_pools: Vec<String> = keys.get("ipam.ipv6_pools")?;
    for (key, pools, is_v4) in [("ipv4", &ipv4_pools, true), ("ipv6", &ipv6_pools, false)] {
        let networks = pools.iter().filter_map(|pool| pool.parse::<IpNet>().ok());
        if let Some(wrong) = networks.into_iter().find(|net| net.addr().is_ipv4() != is_v4) {
            let msg = format!("key \"ipam.{key}_pools\" has {wrong}, which is of the other family");
            return Err(Error::invalid_config(msg));
        }
    }
    let netns = std::path::absolute(&request.netns).unwrap_or_default().display().to_string();
    Ok(AssignRequest {
        network: request.network.clone(),
        container_id: request.container_id.clone(),
        ifname: request.ifname.clone(),
        netns,
        handle: handle(request),
        pod: pod(request)?,
        ipv4,
        ipv6,
        ipv4_pools,
        ipv6_pools,
        addresses,
    })
}

/// The result has a route to each address, as Calico's. ptp needs gateways and a default route.
fn add(request: &Request) -> Result<CniResult, Error> {
    let assign = parse(request)?;
    let agent = Agent::of(&Keys::of(request))?;
    let assigned: AssignResponse = agent::post(&agent.socket, agent::ASSIGN, &assign, ADD_TIMEOUT)
        .map_err(|error| agent.to_cni(error, Code::TRY_LATER))?;
    let needs_gateway = Keys::of(request).get::<String>("type")? == "ptp";
    let gateway = |address| needs_gateway.then(|| gateway(address));
    let ips = assigned.addresses.iter().map(|ip| IpConfig::new((*ip).into(), gateway(*ip)));
    let routes = assigned.addresses.iter().map(|ip| match gateway(*ip) {
        Some(gateway) => {
            Route::new(kernel::route::default_dst(kernel::Family::of(*ip)), Some(gateway))
        }
        None => Route::new((*ip).into(), None),
    });
    Ok(CniResult { ips: ips.collect(), routes: routes.collect(), ..CniResult::default() })
}

/// Without an agent, the journal file is removed: the agent releases the addresses when it starts.
fn del(request: &Request) -> Result<(), Error> {
    let agent = Agent::of(&Keys::of(request))?;
    let release = ReleaseRequest {
        network: request.network.clone(),
        container_id: request.container_id.clone(),
        ifname: request.ifname.clone(),
        handle: handle(request),
        // Invalid CNI_ARGS must not keep the addresses from being released.
        pod: pod(request).unwrap_or_default(),
    };
    let released: Result<Value, _> = agent::post(&agent.socket, agent::RELEASE, &release, TIMEOUT);
    match released {
        Ok(_) => Ok(()),
        Err(agent::Error::Client(_) | agent::Error::Unknown) => {
            // Best effort: the agent collects addresses of containers that are gone.
            let _ = std::fs::remove_file(agent.journal_file(request));
            Ok(())
        }
        Err(error) => Err(agent.to_cni(error, Code::TRY_LATER)),
    }
}

/// Compares the journal of the agent with the result.
fn check(request: &Request) -> Result<(), Error> {
    parse(request)?;
    let agent = Agent::of(&Keys::of(request))?;
    let file = agent.journal_file(request);
    let lost = |what: &str| {
        let id = &request.container_id;
        Error::internal(format!("calico-ipam: {what} to container {id}"))
            .with_details(format!("look at {}", file.display()))
    };
    let text = std::fs::read_to_string(&file).map_err(|_| lost("no address is assigned"))?;
    let assigned = journal::addresses(&text);
    let result = request.prev_result()?.unwrap_or_default();
    let mut addresses = result.ips.iter().map(|ip| ip.address.addr());
    match addresses.find(|address| !assigned.contains(address)) {
        Some(address) => Err(lost(&format!("address {address} is not assigned"))),
        None => Ok(()),
    }
}

fn status(request: &Request) -> Result<(), Error> {
    parse(request)?;
    Agent::of(&Keys::of(request))?.require_ready(true)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let agent = Agent::of(&Keys::of(request))?;
    let valid = valid.into_iter().map(|one| {
        let cni::Attachment { container_id, ifname } = one;
        ValidAttachment { container_id, ifname }
    });
    let gc = GcRequest { network: request.network.clone(), valid: valid.collect() };
    let released: Result<Value, _> = agent::post(&agent.socket, agent::GC, &gc, TIMEOUT);
    released.map(drop).map_err(|error| agent.to_cni(error, Code::TRY_LATER))
}
