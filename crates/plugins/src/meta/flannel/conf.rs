// SPDX-License-Identifier: Apache-2.0
//! The configuration of flannel, and the delegate's that is made from it.

use std::path::{Path, PathBuf};

use cni::{Code, Error, Request};
use overlay::subnet_env::SubnetEnv;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// Apart from the rest, so that DEL finds the files whatever has become of the other keys.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PlacesConf {
    subnet_file: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    agent_socket: Option<PathBuf>,
}

/// As parsed.
#[derive(Debug)]
pub struct Flannel {
    pub subnet_file: PathBuf,
    pub data_dir: PathBuf,
    /// Of the node agent, where it may be one that writes this file.
    pub agent_socket: Option<PathBuf>,
    delegate: Map<String, Value>,
    ipam: Map<String, Value>,
}

impl Flannel {
    pub fn parse(request: &Request) -> Result<Flannel, Error> {
        let places: PlacesConf = request.conf()?;
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
        let subnet_file = places.subnet_file.unwrap_or_else(|| SUBNET_FILE.into());
        // A file at another place may be another daemon's.
        let usual =
            || (subnet_file == Path::new(SUBNET_FILE)).then(|| agent_client::DEFAULT_SOCKET.into());
        let agent_socket = places.agent_socket.or_else(usual);
        Ok(Flannel {
            subnet_file,
            agent_socket,
            data_dir: places.data_dir.unwrap_or_else(|| DATA_DIR.into()),
            delegate,
            ipam,
        })
    }

    /// What the delegate is given. Without the daemon's file it is fit for removing only.
    pub fn delegate_config(
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
            // One of the two has to.
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

/// The configuration's own routes, once it is known that they are some.
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

/// The object under a key; an empty one where there is none.
fn object(request: &Request, key: &str) -> Result<Map<String, Value>, Error> {
    match gojson::get(&request.config, key) {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(other) => {
            Err(Error::invalid_config(format!("key {key:?} is {other}, expected an object")))
        }
    }
}

/// The plugin that a configuration is for.
pub fn kind_of(config: &Map<String, Value>) -> Result<&str, Error> {
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

/// Where the delegate's configurations are kept; a key that cannot be read is nothing to act on.
pub fn data_dir_of(request: &Request) -> PathBuf {
    let places: PlacesConf = request.conf().unwrap_or_default();
    places.data_dir.unwrap_or_else(|| DATA_DIR.into())
}
