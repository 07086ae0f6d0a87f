// SPDX-License-Identifier: Apache-2.0
//! Files and devices of the node that plugins and container runtimes use: subnet.env, the CNI
//! configuration, and the pods' bridge.

pub mod bridge;
pub(crate) mod calico;
pub mod cni_conf;
pub mod subnet_env;

use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::subnet_env::SubnetEnv;

use crate::overlay::Programmed;
use crate::settings::Settings;
use crate::status;

/// The content of subnet.env.
pub(crate) fn subnet_env(
    settings: &Settings,
    conf: &NetConf,
    lease: &Lease,
    mtu: u32,
) -> SubnetEnv {
    SubnetEnv {
        networks: conf.networks.iter().collect(),
        subnets: lease.subnets.iter().collect(),
        mtu,
        ip_masq: settings.nat.masquerade.is_some(),
    }
}

/// The subnets that the pods' bridge is checked against.
pub(crate) fn expected_bridge(
    settings: &Settings,
    conf: &NetConf,
    lease: &Lease,
) -> bridge::Expected {
    bridge::Expected {
        networks: conf.networks.iter().collect(),
        subnets: lease.subnets.iter().collect(),
        has_cni_conf: settings.files.cni_conf.is_some(),
    }
}

/// The network as the status shows it.
fn shown(owner: &str, Programmed { joined, pod_mtu }: &Programmed) -> status::NetworkStatus {
    status::NetworkStatus {
        owner: owner.to_owned(),
        networks: joined.conf.networks.iter().collect(),
        backend: joined.conf.backend.name().to_owned(),
        pod_mtu: *pod_mtu,
        lease: status::LeaseStatus {
            subnets: joined.lease.subnets.iter().collect(),
            public: joined.lease.attributes.public.iter().collect(),
        },
        underlay: status::UnderlayStatus {
            name: joined.underlay.name.to_string(),
            addresses: joined.underlay.addresses.iter().collect(),
            mtu: joined.underlay.mtu,
        },
    }
}
