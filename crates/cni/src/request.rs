// SPDX-License-Identifier: Apache-2.0
//! What a plugin is asked: the environment and the configuration, checked.

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

/// The verbs that act on a network; VERSION is answered before there is a request.
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
    /// As CNI_COMMAND says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
        }
    }

    /// Reads CNI_COMMAND; upper case only.
    pub fn parse(text: &str) -> Option<Command> {
        let all = [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status];
        all.into_iter().find(|command| command.as_str() == text)
    }

    /// Whether it is about one container, and not the network as a whole.
    pub fn is_about_container(self) -> bool {
        matches!(self, Command::Add | Command::Del | Command::Check)
    }

    /// The first version that has it.
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

/// One container's place on one network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct Attachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Its interface.
    pub ifname: String,
}

/// A verb with all that comes with it.
#[derive(Clone, Debug)]
pub struct Request<'host> {
    /// What to do.
    pub command: Command,
    /// CNI_CONTAINERID; empty for GC and STATUS.
    pub container_id: String,
    /// CNI_NETNS as given; empty where there is none.
    pub netns: String,
    /// CNI_IFNAME; empty for GC and STATUS.
    pub ifname: String,
    /// CNI_ARGS as given; [`Request::args`] reads it.
    pub raw_args: String,
    /// CNI_PATH as given.
    pub path: String,
    /// The configuration's version.
    pub version: Version,
    /// The network's name.
    pub network: String,
    /// The whole configuration; shared, as a request is handed on with another verb.
    pub config: Arc<Map<String, Value>>,
    /// The configuration as it was read, or nothing if a runtime in this process built it. It shows keys that
    /// stand twice, of which `config` holds the last one.
    pub config_text: Arc<Vec<u8>>,
    /// Set by the plugin that delegates to this one.
    pub delegation: Delegation<'host>,
    /// The program that this runs in.
    pub host: &'host Host,
}

/// What a delegating plugin passes on besides configuration and environment. Default for a plugin that a runtime calls.
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
    /// The configuration as the plugin's own type.
    pub fn conf<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.conf_or("failed to load netconf")
    }

    /// The same with other words for a failure, where the Go plugin has others.
    pub fn conf_or<T: DeserializeOwned>(&self, failed: &str) -> Result<T, Error> {
        gojson::decode_object(&self.config).map_err(|problem| {
            Error::because(Code::INVALID_CONFIG, failed, &problem)
                .with_details(format!("network {:?}", self.network))
        })
    }

    /// CNI_ARGS. Only plugins that look at it find fault with it.
    pub fn args(&self) -> Result<Args, Error> {
        Args::parse(&self.raw_args)
    }

    /// The result of the plugin before this one in the list, or of the ADD that this undoes.
    pub fn prev_result(&self) -> Result<Option<CniResult>, Error> {
        if let Some(known) = &self.delegation.prev_result {
            return Ok(Some(CniResult::clone(known)));
        }
        let Some(value) = gojson::get(&self.config, "prevResult") else { return Ok(None) };
        CniResult::parse(value.clone(), self.version).map(Some).map_err(|error| {
            Error::new(error.code, format!("could not parse prevResult: {}", error.msg))
                .with_details(error.details)
        })
    }

    /// The same for verbs that cannot do without.
    pub fn required_prev_result(&self) -> Result<CniResult, Error> {
        self.prev_result()?.ok_or_else(|| Error::invalid_config("Required prevResult missing"))
    }

    /// The configuration as a program gets it.
    pub(crate) fn to_stdin(&self) -> Result<Vec<u8>, Error> {
        let mut config = Cow::Borrowed(&*self.config);
        if let Some(known) = &self.delegation.prev_result {
            config.to_mut().insert("prevResult".into(), known.to_json(self.version)?);
        }
        serde_json::to_vec(&*config)
            .map_err(|cause| Error::because(Code::INTERNAL, "print configuration", &cause))
    }

    /// `ipam.type`, or `None` where the network gives no addresses.
    pub fn ipam_type(&self) -> Result<Option<&str>, Error> {
        let wrong = |key: &str, value: &Value, wanted: &str| {
            let value = shorten_value(value);
            let msg = format!("failed to load netconf: key {key:?} is {value}, expected {wanted}");
            Error::invalid_config(msg)
        };
        let kind = match gojson::get(&self.config, "ipam") {
            None => None,
            Some(Value::Object(ipam)) => gojson::get(ipam, "type"),
            Some(other) => return Err(wrong("ipam", other, "an object")),
        };
        match kind {
            None => Ok(None),
            Some(Value::String(kind)) => Ok(Some(kind.as_str()).filter(|kind| !kind.is_empty())),
            Some(other) => Err(wrong("ipam.type", other, "the name of a plugin")),
        }
    }

    /// GC: the attachments to keep. `None` where the runtime did not say, and then nothing may
    /// be removed.
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

    /// The attachment that this request is about.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }
}
