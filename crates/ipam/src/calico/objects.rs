// SPDX-License-Identifier: Apache-2.0
//! Affinities, handles, the configuration and reservations.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::calico::fields::{Fields, Resource};
use crate::calico::{Malformed, Preserved};

/// Claim of a node on a block. Two objects cannot change at once, so a claim has steps: the affinity is pending, then
/// the block is created, then the affinity is confirmed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockAffinity {
    pub state: AffinityState,
    /// Set by a Calico client just before it deletes the object. Treated like a deleted object.
    pub deleted: bool,
    pub preserved: Preserved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AffinityState {
    /// The block may not exist yet, or may belong to another node.
    Pending,
    #[default]
    Confirmed,
    /// The node gives up the block.
    PendingDeletion,
}

/// Number of addresses that a handle has in each block, so that other programs find addresses by handle.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Handle {
    pub blocks: BTreeMap<IpNet, u32>,
    pub deleted: bool,
    pub preserved: Preserved,
}

/// Settings for all nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamConfig {
    /// A node may not use addresses of a block of another node.
    pub strict_affinity: bool,
    pub auto_allocate_blocks: bool,
    /// 0 stands for the default.
    pub max_blocks_per_host: u32,
    /// Time for which a released address is not assigned again.
    pub cooldown: Duration,
    pub preserved: Preserved,
}

/// Addresses that are never assigned unless a request names them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reservation {
    pub cidrs: Vec<IpNet>,
    pub preserved: Preserved,
}

impl Default for IpamConfig {
    /// Returns what applies if the object does not exist.
    fn default() -> Self {
        Self {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: 0,
            cooldown: Duration::ZERO,
            preserved: Preserved::default(),
        }
    }
}

impl IpamConfig {
    /// Calico's limit if the object has none.
    const DEFAULT_MAX_BLOCKS: usize = 20;

    pub fn max_blocks(&self) -> usize {
        match self.max_blocks_per_host {
            0 => Self::DEFAULT_MAX_BLOCKS,
            n => n as usize,
        }
    }
}

impl AffinityState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::PendingDeletion => "pendingDeletion",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "pending" => Some(Self::Pending),
            // Old versions of Calico wrote no state.
            "confirmed" | "" => Some(Self::Confirmed),
            "pendingDeletion" => Some(Self::PendingDeletion),
            _ => None,
        }
    }
}

/// Names of the fields of the configuration, which differ between etcd and Kubernetes.
pub(super) struct ConfigNames {
    pub strict: &'static str,
    pub auto: &'static str,
}

impl BlockAffinity {
    pub(super) fn state_from(fields: &mut Fields) -> Result<AffinityState, Malformed> {
        let text: String = fields.optional("state")?.unwrap_or_default();
        AffinityState::parse(&text).ok_or_else(|| {
            let allowed = "expected pending, confirmed or pendingDeletion";
            fields.error("state", format!("{text:?}; {allowed}"))
        })
    }

    pub(super) fn from_etcd(mut fields: Fields) -> Result<Self, Malformed> {
        Ok(Self {
            state: Self::state_from(&mut fields)?,
            deleted: fields.optional("deleted")?.unwrap_or_default(),
            preserved: Preserved { spec: fields.rest(), ..Preserved::default() },
        })
    }

    pub(super) fn to_etcd(&self) -> Map<String, Value> {
        let mut map = self.preserved.spec.clone();
        map.insert("state".to_owned(), self.state.as_str().into());
        map.insert("deleted".to_owned(), self.deleted.into());
        map
    }
}

impl Handle {
    pub(super) fn read(fields: &mut Fields) -> Result<Self, Malformed> {
        let blocks: BTreeMap<String, u32> = fields.optional("block")?.unwrap_or_default();
        let blocks = blocks.into_iter().map(|(cidr, count)| match cidr.parse() {
            Ok(cidr) => Ok((cidr, count)),
            Err(e) => Err(fields.error("block", format!("{cidr:?}: {e}"))),
        });
        let blocks = blocks.collect::<Result<_, _>>()?;
        let deleted = fields.optional("deleted")?.unwrap_or_default();
        Ok(Self { blocks, deleted, preserved: Preserved::default() })
    }

    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        let blocks = self.blocks.iter().map(|(cidr, count)| (cidr.to_string(), (*count).into()));
        map.insert("block".to_owned(), Value::Object(blocks.collect()));
        map.insert("deleted".to_owned(), self.deleted.into());
    }
}

impl IpamConfig {
    pub(super) fn read(fields: &mut Fields, names: &ConfigNames) -> Result<Self, Malformed> {
        let cooldown: u64 = fields.optional("ipCooldownSeconds")?.unwrap_or_default();
        Ok(Self {
            strict_affinity: fields.optional(names.strict)?.unwrap_or_default(),
            // Calico omits `false`, so an object without this field forbids claims.
            auto_allocate_blocks: fields.optional(names.auto)?.unwrap_or_default(),
            max_blocks_per_host: fields.optional("maxBlocksPerHost")?.unwrap_or_default(),
            cooldown: Duration::from_secs(cooldown),
            preserved: Preserved::default(),
        })
    }

    /// Writes the fields. etcd has none that are `false`, Kubernetes always has them.
    pub(super) fn write(&self, map: &mut Map<String, Value>, names: &ConfigNames, omit: bool) {
        for (name, value) in
            [(names.strict, self.strict_affinity), (names.auto, self.auto_allocate_blocks)]
        {
            if value || !omit {
                map.insert(name.to_owned(), value.into());
            }
        }
        for (name, value) in [
            ("maxBlocksPerHost", u64::from(self.max_blocks_per_host)),
            ("ipCooldownSeconds", self.cooldown.as_secs()),
        ] {
            if value > 0 {
                map.insert(name.to_owned(), value.into());
            }
        }
    }
}

impl Reservation {
    pub(super) fn from_resource(mut resource: Resource) -> Result<Self, Malformed> {
        let texts: Vec<String> = resource.spec.optional("reservedCIDRs")?.unwrap_or_default();
        let cidrs = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
        let cidrs = cidrs.map(|text| {
            cidr_or_address(text).ok_or_else(|| {
                let reason = format!("{text:?}; expected an address or a CIDR");
                resource.spec.error("reservedCIDRs", reason)
            })
        });
        let cidrs = cidrs.collect::<Result<_, _>>()?;
        Ok(Self { cidrs, preserved: resource.preserved() })
    }

    pub(super) fn spec(&self) -> Map<String, Value> {
        let mut map = self.preserved.spec.clone();
        let cidrs: Vec<Value> = self.cidrs.iter().map(|cidr| cidr.to_string().into()).collect();
        if !cidrs.is_empty() {
            map.insert("reservedCIDRs".to_owned(), cidrs.into());
        }
        map
    }
}

fn cidr_or_address(text: &str) -> Option<IpNet> {
    let cidr = text.parse::<IpNet>().ok();
    cidr.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(|cidr| cidr.trunc())
}
