// SPDX-License-Identifier: Apache-2.0
//! The configuration of flannel, and the configuration of the delegate.

use std::path::{Path, PathBuf};

use cni::{Code, Error, Request};
use overlay::subnet_env::SubnetEnv;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// Separate from the other keys, so that DEL finds the files even if other keys are invalid.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PathsConf {
    subnet_file: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    agent_socket: Option<PathBuf>,
}

/// The parsed configuration.
#[derive(Debug)]
pub(super) struct Flannel {
    pub subnet_file: PathBuf,
    pub data_dir: PathBuf,
    /// The socket of the node agent, if an agent may write the subnet file.
    pub agent_socket: Option<PathBuf>,
    delegate: Map<String, Value>,
    ipam: Map<String, Value>,
}

impl Flannel {
    pub(super) fn parse(request: &Request) -> Result<Flannel, Error> {
        let paths: PathsConf = request.conf()?;
        let delegate = object(request, "delegate")?;
        for key in ["name", "ipam"] {
            if delegate.contains_key(key) {
                let msg = format!("key \"delegate\" must not hold {key:?}, which flannel sets");
                return Err(Error::invalid_config(msg));
            }
        }
        if delegate.contains_key("type") {
            kind_of(&delegate)?;
        }
        let ipam = object(request, "ipam")?;
        base_routes(&ipam)?;
        let subnet_file = paths.subnet_file.unwrap_or_else(|| SUBNET_FILE.into());
        // A file at another path may belong to another daemon.
        let default_socket =
            || (subnet_file == Path::new(SUBNET_FILE)).then(|| agent_client::DEFAULT_SOCKET.into());
        let agent_socket = paths.agent_socket.or_else(default_socket);
        Ok(Flannel {
            subnet_file,
            agent_socket,
            data_dir: paths.data_dir.unwrap_or_else(|| DATA_DIR.into()),
            delegate,
            ipam,
        })
    }

    /// The configuration of the delegate. Without `env` it is sufficient for removals only.
    pub(super) fn delegate_config(
        &self,
        request: &Request,
        env: Option<&SubnetEnv>,
    ) -> Result<Map<String, Value>, Error> {
        let mut config = self.delegate.clone();
        config.insert("name".into(), request.network.as_str().into());
        if let Some(version) = gojson::get(&request.config, "cniVersion") {
            config.insert("cniVersion".into(), version.clone());
        }
        let mut default = |key: &str, value: Value| {
            config.entry(key).or_insert(value);
        };
        default("type", "bridge".into());
        if let Some(env) = env {
            // Either the daemon or the delegate masquerades.
            default("ipMasq", (!env.ip_masq).into());
            default("mtu", env.mtu.into());
        }
        if config["type"] == "bridge" {
            config.entry("isGateway").or_insert(true.into());
        }
        config.insert("ipam".into(), Value::Object(self.delegate_ipam(env)?));
        Ok(config)
    }

    fn delegate_ipam(&self, env: Option<&SubnetEnv>) -> Result<Map<String, Value>, Error> {
        let mut ipam = self.ipam.clone();
        ipam.entry("type").or_insert("host-local".into());
        let Some(env) = env else { return Ok(ipam) };
        let ranges: Vec<Value> =
            env.subnets.iter().map(|subnet| json!([{"subnet": subnet.to_string()}])).collect();
        ipam.insert("ranges".into(), ranges.into());
        let mut routes = base_routes(&self.ipam)?;
        routes.extend(env.networks.iter().map(|network| json!({"dst": network.to_string()})));
        ipam.insert("routes".into(), routes.into());
        Ok(ipam)
    }
}

/// The routes of the configuration itself, after a check of their syntax.
fn base_routes(ipam: &Map<String, Value>) -> Result<Vec<Value>, Error> {
    let routes = match ipam.get("routes") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(routes)) => routes,
        Some(other) => {
            let msg = format!("key \"ipam.routes\" is {other}, expected a list of routes");
            return Err(Error::invalid_config(msg));
        }
    };
    for (at, route) in routes.iter().enumerate() {
        cni::Route::parse(route.clone()).map_err(|problem| {
            let within = problem.under("ipam.routes", at);
            Error::because(Code::INVALID_CONFIG, "flannel", &within)
        })?;
    }
    Ok(routes.clone())
}

/// The object under a key; empty if the key is missing.
fn object(request: &Request, key: &str) -> Result<Map<String, Value>, Error> {
    match gojson::get(&request.config, key) {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(other) => {
            Err(Error::invalid_config(format!("key {key:?} is {other}, expected an object")))
        }
    }
}

/// The plugin name of a configuration.
pub(super) fn kind_of(config: &Map<String, Value>) -> Result<&str, Error> {
    match config.get("type") {
        Some(Value::String(kind)) if kind == "flannel" => {
            let msg = "key \"delegate.type\" is \"flannel\", which would delegate to itself";
            Err(Error::invalid_config(msg))
        }
        Some(Value::String(kind)) if !kind.is_empty() => Ok(kind),
        other => {
            let shown = other.unwrap_or(&Value::Null);
            let msg = format!("key \"delegate.type\" is {shown}, expected the name of a plugin");
            Err(Error::invalid_config(msg))
        }
    }
}

/// The directory of saved configurations; the default if the key cannot be read.
pub(super) fn data_dir_of(request: &Request) -> PathBuf {
    let paths: PathsConf = request.conf().unwrap_or_default();
    paths.data_dir.unwrap_or_else(|| DATA_DIR.into())
}
