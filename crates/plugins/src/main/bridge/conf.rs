// SPDX-License-Identifier: Apache-2.0
//! The configuration of bridge: as written, and as understood.

use cni::{Code, Dns, Error, Request};
use kernel::{IfName, MacAddr};
use serde::Deserialize;

use crate::mac::{self, Source};
use crate::masquerade::Masquerade;
use crate::veth;

/// What the network wants, free of contradictions.
#[derive(Debug, Clone)]
pub struct Bridge {
    /// The bridge's name.
    pub name: IfName,
    /// The bridge holds the containers' gateway address.
    pub is_gateway: bool,
    /// Containers get a default route to it.
    pub is_default_gateway: bool,
    /// A different address on the bridge is replaced and is no error.
    pub force_address: bool,
    /// MTU of both ends, and of a bridge that is made.
    pub mtu: Option<u32>,
    /// A container may reach itself through the bridge.
    pub hairpin: bool,
    /// The bridge takes every frame.
    pub promisc: bool,
    /// Containers of this network do not reach each other.
    pub isolated: bool,
    /// IPv6 addresses wait for duplicate detection.
    pub dad: bool,
    /// The container's interface is left down and without addresses.
    pub leave_down: bool,
    /// Hardware address of the container's interface.
    pub mac: Option<MacAddr>,
    /// Ports take frames only from their container's hardware address.
    pub check_spoofing: bool,
    /// How containers leave the network, if with the host's address.
    pub masquerade: Option<Masquerade>,
    /// Overrides the IPAM plugin's.
    pub dns: Dns,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BridgeConf {
    bridge: Option<String>,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Vec<serde_json::Value>,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    dns: Dns,
}

impl Bridge {
    /// Reads and checks the configuration.
    pub fn understand(request: &Request) -> Result<Bridge, Error> {
        let conf: BridgeConf = request.conf()?;
        refuse_contradictions(&conf, request)?;
        refuse_what_is_not_here_yet(&conf)?;
        Ok(Bridge {
            mac: mac::wanted(request, &[Source::RuntimeConfig, Source::Args, Source::Environment])?,
            name: understand_name(conf.bridge)?,
            is_gateway: conf.is_gateway || conf.is_default_gateway,
            is_default_gateway: conf.is_default_gateway,
            force_address: conf.force_address,
            mtu: veth::understand_mtu(conf.mtu)?,
            hairpin: conf.hairpin_mode,
            promisc: conf.promisc_mode,
            isolated: conf.port_isolation,
            dad: conf.enabledad,
            leave_down: conf.disable_container_interface,
            check_spoofing: conf.macspoofchk,
            masquerade: Masquerade::understand(request)?,
            dns: conf.dns,
        })
    }
}

fn understand_name(written: Option<String>) -> Result<IfName, Error> {
    let name = written.unwrap_or_else(|| "cni0".to_owned());
    name.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(Code::INVALID_CONFIG, "key \"bridge\"", &cause)
    })
}

fn refuse_contradictions(conf: &BridgeConf, request: &Request) -> Result<(), Error> {
    if conf.hairpin_mode && conf.promisc_mode {
        let msg = "cannot set hairpin mode and promiscuous mode at the same time: \
                   keys \"hairpinMode\" and \"promiscMode\" are both true";
        return Err(Error::invalid_config(msg));
    }
    if conf.disable_container_interface && request.ipam_type()?.is_some() {
        let msg = "cannot use IPAM when the container interface is disabled: \
                   keys \"ipam\" and \"disableContainerInterface\" are both set";
        return Err(Error::invalid_config(msg));
    }
    if !(0..=4094).contains(&conf.vlan) {
        let msg = format!("key \"vlan\" is {}, allowed are 0 to 4094", conf.vlan);
        return Err(Error::invalid_config(msg));
    }
    Ok(())
}

/// Better no network than one that silently lacks what was asked for.
fn refuse_what_is_not_here_yet(conf: &BridgeConf) -> Result<(), Error> {
    let asked = [("vlan", conf.vlan != 0), ("vlanTrunk", !conf.vlan_trunk.is_empty())];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((key, _)) => Err(super::super::not_here_yet(key)),
        None => Ok(()),
    }
}
