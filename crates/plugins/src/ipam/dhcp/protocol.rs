// SPDX-License-Identifier: Apache-2.0
//! What plugin and daemon say to each other: one line of JSON each way, on a socket for root alone.

use cni::{Attachment, Code, Error};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conf::Asked;

/// The longest line.
pub const MAX_LINE: usize = 4 << 20;

/// What the plugin asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", tag = "verb")]
pub enum Question {
    /// Get leases and keep them.
    Add(Box<AddQuestion>),
    /// Give them back.
    Del(Place),
    /// Are they held? Those that nobody holds are taken over.
    Check(Box<CheckQuestion>),
    /// Is anybody there?
    Status,
    /// Give back what is not listed.
    Gc {
        /// The network that this is about.
        network: String,
        /// What to keep.
        valid: Vec<Attachment>,
    },
}

/// Which attachment, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The network.
    pub network: String,
    /// The container.
    pub container_id: String,
    /// Its interface.
    pub ifname: String,
}

/// An attachment and its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Whose.
    pub key: Key,
    /// The namespace as an absolute path; empty where there is none any more.
    pub netns: String,
}

/// Get leases and keep them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddQuestion {
    /// For whom.
    pub place: Place,
    /// Which.
    pub asked: Asked,
}

/// Are leases of these addresses held?
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckQuestion {
    /// For whom.
    pub place: Place,
    /// Which.
    pub asked: Asked,
    /// The addresses that the result of the ADD tells.
    pub addresses: Vec<IpNet>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is done; for ADD with a result of the newest version.
    Done(Option<Value>),
    /// It is not, in the specification's words.
    Failed {
        /// Its code.
        code: u32,
        /// One line.
        msg: String,
        /// More.
        details: String,
    },
}

impl Answer {
    /// An error to be told.
    pub fn failed(error: &Error) -> Answer {
        let (code, msg, details) = (error.code.0, error.msg.clone(), error.details.clone());
        Answer::Failed { code, msg, details }
    }

    /// As what a plugin returns.
    pub fn into_result(self) -> Result<Option<Value>, Error> {
        match self {
            Answer::Done(value) => Ok(value),
            Answer::Failed { code, msg, details } => {
                Err(Error::new(Code(code), msg).with_details(details))
            }
        }
    }
}

impl Key {
    /// As logs and errors show it, and as servers know it.
    pub fn text(&self) -> String {
        super::identity::text(&self.container_id, &self.network, &self.ifname)
    }
}
