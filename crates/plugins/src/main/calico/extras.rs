// SPDX-License-Identifier: Apache-2.0
//! Bandwidth limits and host ports in the same process, if the runtime gives them to calico itself or
//! annotations ask for them. The work is that of the plugins bandwidth and portmap, called as
//! functions.

use std::sync::Arc;

use cni::{CniResult, Command, Error, Plugin, Request};
use serde_json::{Map, Value, json};

use super::annotations::Annotations;
use super::keys::Keys;
use crate::attach::undo::Undo;
use crate::meta::bandwidth::conf::Bandwidth;
use crate::meta::portmap::conf::Portmap;
use crate::meta::{bandwidth, portmap};

/// The arguments for both plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Extras {
    /// Keys of `runtimeConfig.bandwidth`.
    bandwidth: Map<String, Value>,
    /// `runtimeConfig.portMappings`.
    port_mappings: Option<Value>,
}

impl Extras {
    fn of(keys: &Keys) -> Result<Extras, Error> {
        let bandwidth = keys.get("runtimeConfig.bandwidth")?;
        Ok(Extras { bandwidth, port_mappings: keys.find("runtimeConfig.portMappings")?.cloned() })
    }

    /// Parses the arguments. Annotations take precedence over the runtime's limits, as in Calico.
    pub(super) fn parse(request: &Request, annotations: &Annotations) -> Result<Extras, Error> {
        let mut extras = Extras::of(&Keys::of(request))?;
        extras.bandwidth.extend(annotations.bandwidth.clone());
        extras.active().try_for_each(|plugin| {
            let call = extras.request(plugin, request);
            let parsed = match plugin.name == portmap::PLUGIN.name {
                true => Portmap::parse(&call).map(drop),
                false => Bandwidth::parse(&call).map(drop),
            };
            parsed.map_err(|error| named(plugin, error))
        })?;
        Ok(extras)
    }

    pub(super) fn limits_bandwidth(&self) -> bool {
        !self.bandwidth.is_empty()
    }

    /// Limits the bandwidth of an interface that is not up yet.
    pub(super) fn limit<'a>(
        &self,
        request: &Request<'a>,
        result: CniResult,
        undo: &mut Undo<'a>,
    ) -> Result<CniResult, Error> {
        self.add(&bandwidth::PLUGIN, request, result, undo)
    }

    /// Maps the host's ports.
    pub(super) fn map_ports<'a>(
        &self,
        request: &Request<'a>,
        result: CniResult,
        undo: &mut Undo<'a>,
    ) -> Result<CniResult, Error> {
        match &self.port_mappings {
            Some(_) => self.add(&portmap::PLUGIN, request, result, undo),
            None => Ok(result),
        }
    }

    fn add<'a>(
        &self,
        plugin: &'static Plugin,
        request: &Request<'a>,
        result: CniResult,
        undo: &mut Undo<'a>,
    ) -> Result<CniResult, Error> {
        let mut call = self.request(plugin, request);
        call.delegation.prev_result = Some(Arc::new(result));
        let added = (plugin.add)(&call).map_err(|error| named(plugin, error))?;
        undo.push(move || {
            // The error that caused the rollback is the one to report.
            let _ = (plugin.del)(&Request { command: Command::Del, ..call });
        });
        Ok(added)
    }

    /// The plugins of which CHECK and STATUS have something to say.
    fn active(&self) -> impl Iterator<Item = &'static Plugin> {
        let bandwidth = self.limits_bandwidth().then_some(&bandwidth::PLUGIN);
        bandwidth.into_iter().chain(self.port_mappings.as_ref().map(|_| &portmap::PLUGIN))
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), Error> {
        self.active().try_for_each(|plugin| {
            (plugin.check)(&self.request(plugin, request)).map_err(|error| named(plugin, error))
        })
    }

    /// The request that a runtime would make to the plugin.
    fn request<'a>(&self, plugin: &Plugin, request: &Request<'a>) -> Request<'a> {
        let mut config = Map::new();
        for key in ["name", "cniVersion", "prevResult"] {
            if let Some(value) = gojson::get(&request.config, key) {
                config.insert(key.to_owned(), value.clone());
            }
        }
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            if let Some(value) = request.config.get(key) {
                config.insert(key.to_owned(), value.clone());
            }
        }
        let runtime = json!({"bandwidth": self.bandwidth, "portMappings": self.port_mappings});
        config.insert("type".to_owned(), plugin.name.into());
        config.insert("runtimeConfig".to_owned(), runtime);
        Request { config: Arc::new(config), ..request.clone() }
    }
}

fn named(plugin: &Plugin, error: Error) -> Error {
    Error { msg: format!("{}: {}", plugin.name, error.msg), ..error }
}

/// Calls `verb` of the plugins that may have been called by an ADD of this network. DEL cannot know
/// which: the arguments may have changed, and annotations are known to ADD only.
pub(super) fn each(
    request: &Request,
    verb: impl Fn(&Plugin) -> fn(&Request) -> Result<(), Error>,
) -> Result<(), Error> {
    let keys = Keys::of(request);
    // Invalid keys must not keep DEL from removing anything.
    let extras = Extras::of(&keys).unwrap_or_default();
    let has = |path: &str| keys.get::<bool>(path).unwrap_or_default();
    let policy: String = keys.get("policy.type").unwrap_or_default();
    let has_annotations = has("capabilities/io.kubernetes.cri.pod-annotations") || policy == "k8s";
    let may_limit = has_annotations || has("capabilities.bandwidth") || extras.limits_bandwidth();
    let may_map = has("capabilities.portMappings") || extras.port_mappings.is_some();
    let plugins = [(&bandwidth::PLUGIN, may_limit), (&portmap::PLUGIN, may_map)];
    let called = plugins.into_iter().filter(|(_, is_needed)| *is_needed).map(|(plugin, _)| {
        verb(plugin)(&extras.request(plugin, request)).map_err(|error| named(plugin, error))
    });
    Error::all(called)
}
