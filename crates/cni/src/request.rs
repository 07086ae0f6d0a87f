// SPDX-License-Identifier: Apache-2.0
//! A validated request to a plugin: command, environment and configuration.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use text::shorten_value;

use crate::args::Args;
use crate::error::{Code, Error};
use crate::plugin::Host;
use crate::result::{CniResult, Interface};
use crate::version::Version;

/// A command that acts on a network. VERSION is not one of them: it needs no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

impl Command {
    /// Returns the value of CNI_COMMAND.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
        }
    }

    /// Parses CNI_COMMAND, which must be in upper case.
    pub fn parse(text: &str) -> Option<Command> {
        let all = [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status];
        all.into_iter().find(|command| command.as_str() == text)
    }

    /// Returns whether the command acts on one container, not on the whole network.
    pub fn is_about_container(self) -> bool {
        matches!(self, Command::Add | Command::Del | Command::Check)
    }

    /// Returns the first version of the specification that has the command.
    pub fn since(self) -> Version {
        match self {
            Command::Add | Command::Del => Version::V0_1_0,
            Command::Check => Version::V0_4_0,
            Command::Gc | Command::Status => Version::V1_1_0,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One interface of one container on a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct Attachment {
    /// CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
}

/// A command with its environment and configuration.
#[derive(Clone, Debug)]
pub struct Request<'host> {
    /// CNI_COMMAND.
    pub command: Command,
    /// CNI_CONTAINERID; empty for GC and STATUS.
    pub container_id: String,
    /// CNI_NETNS as given; empty if it is not set.
    pub netns: String,
    /// CNI_IFNAME; empty for GC and STATUS.
    pub ifname: String,
    /// CNI_ARGS as given; [`Request::args`] parses it.
    pub raw_args: String,
    /// CNI_PATH as given.
    pub path: String,
    /// The configuration's version.
    pub version: Version,
    /// The network's name.
    pub network: String,
    /// The whole configuration. Shared, because a request is copied for each delegation.
    pub config: Arc<Map<String, Value>>,
    /// The text of the configuration; empty if a runtime in this process built it. The text shows repeated keys, of
    /// which `config` has the last one only.
    pub config_text: Arc<Vec<u8>>,
    /// Context from the plugin that delegates to this one.
    pub delegation: Delegation<'host>,
    /// The program that this runs in.
    pub host: &'host Host,
}

/// Context that a delegating plugin passes on besides configuration and environment. A runtime passes the default.
#[derive(Clone, Debug, Default)]
pub struct Delegation<'a> {
    /// Number of delegations that led to this request. The only field that also reaches a plugin in another process.
    pub depth: u32,
    /// Result of the previous plugin if that plugin ran in this process: it needs no printing and parsing. Takes
    /// precedence over the configuration's `prevResult`.
    pub prev_result: Option<Arc<CniResult>>,
    /// Work that another plugin does on the new interface before the interface is brought up.
    pub before_link_up: Option<BeforeLinkUp<'a>>,
}

/// Work on a new interface before it is brought up, when changes are cheapest. The argument names the interface and
/// its peer.
#[derive(Clone, Copy)]
pub struct BeforeLinkUp<'a>(pub &'a dyn Fn(&[Interface]) -> Result<(), Error>);

impl fmt::Debug for BeforeLinkUp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeLinkUp")
    }
}

impl Request<'_> {
    /// Decodes the configuration into the plugin's own type.
    pub fn conf<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.conf_or("failed to load netconf")
    }

    /// Decodes the configuration. The error starts with `failed`, for plugins whose Go version has its own text.
    pub fn conf_or<T: DeserializeOwned>(&self, failed: &str) -> Result<T, Error> {
        gojson::decode_object(&self.config).map_err(|problem| {
            Error::because(Code::INVALID_CONFIG, failed, &problem)
                .with_details(format!("network {:?}", self.network))
        })
    }

    /// Parses CNI_ARGS. Invalid arguments are an error only for plugins that use them.
    pub fn args(&self) -> Result<Args, Error> {
        Args::parse(&self.raw_args)
    }

    /// Returns the result of the previous plugin in the list. For CHECK and DEL it is the result of the ADD.
    pub fn prev_result(&self) -> Result<Option<CniResult>, Error> {
        if let Some(result) = &self.delegation.prev_result {
            return Ok(Some(CniResult::clone(result)));
        }
        let Some(value) = gojson::get(&self.config, "prevResult") else { return Ok(None) };
        CniResult::parse(value.clone(), self.version).map(Some).map_err(|error| {
            Error::new(error.code, format!("could not parse prevResult: {}", error.msg))
                .with_details(error.details)
        })
    }

    /// Returns the previous result, or an error if there is none.
    pub fn required_prev_result(&self) -> Result<CniResult, Error> {
        self.prev_result()?.ok_or_else(|| Error::invalid_config("Required prevResult missing"))
    }

    /// Returns the configuration as a plugin process gets it on standard input.
    pub(crate) fn to_stdin(&self) -> Result<Vec<u8>, Error> {
        let mut config = Cow::Borrowed(&*self.config);
        if let Some(result) = &self.delegation.prev_result {
            config.to_mut().insert("prevResult".into(), result.to_json(self.version)?);
        }
        serde_json::to_vec(&*config)
            .map_err(|cause| Error::because(Code::INTERNAL, "print configuration", &cause))
    }

    /// Returns `ipam.type`, or `None` if the network assigns no addresses.
    pub fn ipam_type(&self) -> Result<Option<&str>, Error> {
        let invalid = |key: &str, value: &Value, expected: &str| {
            let value = shorten_value(value);
            let msg =
                format!("failed to load netconf: key {key:?} is {value}, expected {expected}");
            Error::invalid_config(msg)
        };
        let kind = match gojson::get(&self.config, "ipam") {
            None => None,
            Some(Value::Object(ipam)) => gojson::get(ipam, "type"),
            Some(other) => return Err(invalid("ipam", other, "an object")),
        };
        match kind {
            None => Ok(None),
            Some(Value::String(kind)) => Ok(Some(kind.as_str()).filter(|kind| !kind.is_empty())),
            Some(other) => Err(invalid("ipam.type", other, "the name of a plugin")),
        }
    }

    /// Returns the attachments that GC must keep. With `None` the runtime gave no list, and GC must remove nothing.
    pub fn valid_attachments(&self) -> Result<Option<Vec<Attachment>>, Error> {
        let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let Some((key, value)) =
            keys.iter().find_map(|key| Some((key, gojson::get(&self.config, key)?)))
        else {
            return Ok(None);
        };
        gojson::decode(value).map(Some).map_err(|problem| {
            Error::because(Code::INVALID_CONFIG, format!("key {key:?}"), &problem)
        })
    }

    /// Returns the attachment that this request acts on.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }
}
