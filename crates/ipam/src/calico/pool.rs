// SPDX-License-Identifier: Apache-2.0
//! Pools: `IPPoolSpec` in api/pkg/apis/projectcalico/v3/ippool.go. etcd and Kubernetes have the same fields.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calico::Malformed;
use crate::calico::fields::Resource;
use crate::pool::{Assignment, Mode, PoolConf, Use};

impl PoolConf {
    pub(super) fn from_resource(name: &str, mut resource: Resource) -> Result<Self, Malformed> {
        let created = resource.envelope.get("metadata");
        let created = created.and_then(|metadata| metadata.get("creationTimestamp"));
        let created = created.and_then(Value::as_str).and_then(crate::Timestamp::parse);
        let spec = &mut resource.spec;
        let cidr: String = spec.required("cidr")?;
        let cidr = cidr.parse().map_err(|e| spec.error("cidr", format!("{cidr:?}: {e}")))?;
        let uses: Vec<String> = spec.optional("allowedUses")?.unwrap_or_default();
        let uses = uses.iter().map(|text| match text.as_str() {
            "Workload" => Ok(Use::Workload),
            "Tunnel" => Ok(Use::Tunnel),
            "LoadBalancer" => Ok(Use::LoadBalancer),
            other => {
                let reason = format!("{other:?}; expected Workload, Tunnel or LoadBalancer");
                Err(spec.error("allowedUses", reason))
            }
        });
        let uses = uses.collect::<Result<_, _>>()?;
        let modes: [Option<ModeName>; 2] =
            [spec.optional("ipipMode")?, spec.optional("vxlanMode")?];
        let [ipip, vxlan] = modes.map(|mode| mode.map(Mode::from).unwrap_or_default());
        let assignment = match spec.optional::<String>("assignmentMode")?.as_deref() {
            None | Some("" | "Automatic") => Assignment::Automatic,
            Some("Manual") => Assignment::Manual,
            Some(other) => {
                let reason = format!("{other:?}; expected Automatic or Manual");
                return Err(spec.error("assignmentMode", reason));
            }
        };
        Ok(Self {
            name: name.to_owned(),
            cidr,
            block_size: spec.optional("blockSize")?.filter(|size| *size != 0),
            ipip,
            vxlan,
            nat_outgoing: spec.optional("natOutgoing")?.unwrap_or_default(),
            disabled: spec.optional("disabled")?.unwrap_or_default(),
            disable_bgp_export: spec.optional("disableBGPExport")?.unwrap_or_default(),
            node_selector: spec.optional("nodeSelector")?.unwrap_or_default(),
            namespace_selector: spec.optional("namespaceSelector")?.unwrap_or_default(),
            allowed_uses: uses,
            assignment,
            created,
            preserved: resource.preserved(),
        })
    }

    pub(super) fn spec(&self) -> Map<String, Value> {
        let mut map = self.preserved.spec.clone();
        let mut set = |key: &str, value: Value| map.insert(key.to_owned(), value);
        set("cidr", self.cidr.to_string().into());
        set("ipipMode", self.ipip.as_str().into());
        set("vxlanMode", self.vxlan.as_str().into());
        for (key, value) in [
            ("natOutgoing", self.nat_outgoing),
            ("disabled", self.disabled),
            ("disableBGPExport", self.disable_bgp_export),
        ] {
            if value {
                set(key, true.into());
            }
        }
        // Calico's clients write these defaults, so that readers need not know them.
        set("blockSize", self.block_size_or_default().into());
        let selector = Some(self.node_selector.as_str()).filter(|text| !text.is_empty());
        set("nodeSelector", selector.unwrap_or("all()").into());
        if !self.namespace_selector.is_empty() {
            set("namespaceSelector", self.namespace_selector.as_str().into());
        }
        let uses: Vec<Value> = self.uses().iter().map(|kind| kind.as_str().into()).collect();
        set("allowedUses", uses.into());
        let mode = match self.assignment {
            Assignment::Automatic => "Automatic",
            Assignment::Manual => "Manual",
        };
        set("assignmentMode", mode.into());
        map
    }
}

/// A mode as Calico writes it. An empty text means that it is off.
#[derive(Deserialize)]
enum ModeName {
    #[serde(alias = "")]
    Never,
    Always,
    CrossSubnet,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Never => Self::Never,
            ModeName::Always => Self::Always,
            ModeName::CrossSubnet => Self::CrossSubnet,
        }
    }
}
