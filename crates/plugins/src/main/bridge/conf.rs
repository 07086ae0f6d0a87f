// SPDX-License-Identifier: Apache-2.0
//! The configuration of bridge: as written, and as understood.

use cni::{Code, Error, Request};
use kernel::{IfName, MacAddr};
use serde::Deserialize;

use super::vlan::gateway::Gateway;
use super::vlan::{Vlans, VlansConf};
use crate::dns::DnsConf;
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
    /// VLANs of the container's port, where the bridge must filter them.
    pub vlans: Option<Vlans>,
    /// What holds the gateway address in place of the bridge, where the containers are in a VLAN.
    pub vlan_gateway: Option<Gateway>,
    /// Hardware address of the container's interface.
    pub mac: Option<MacAddr>,
    /// Ports take frames only from their container's hardware address.
    pub check_spoofing: bool,
    /// How containers leave the network, if with the host's address.
    pub masquerade: Option<Masquerade>,
    /// Overrides the IPAM plugin's.
    pub dns: DnsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BridgeConf {
    bridge: Option<String>,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    mtu: i64,
    hairpin_mode: bool,
    promisc_mode: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    dns: DnsConf,
}

impl Bridge {
    /// Reads and checks the configuration.
    pub fn understand(request: &Request) -> Result<Bridge, Error> {
        let conf: BridgeConf = request.conf()?;
        refuse_contradictions(&conf, request)?;
        let vlans = request.conf::<VlansConf>()?.understand()?;
        let name = understand_name(conf.bridge.as_deref())?;
        let is_gateway = conf.is_gateway || conf.is_default_gateway;
        let vlan = vlans.as_ref().and_then(|vlans| vlans.native).filter(|_| is_gateway);
        Ok(Bridge {
            mac: mac::wanted(request, &[Source::RuntimeConfig, Source::Args, Source::Environment])?,
            name,
            is_gateway,
            is_default_gateway: conf.is_default_gateway,
            force_address: conf.force_address,
            mtu: veth::understand_mtu(conf.mtu, veth::MOST_MTU)?,
            hairpin: conf.hairpin_mode,
            promisc: conf.promisc_mode,
            isolated: conf.port_isolation,
            dad: conf.enabledad,
            leave_down: conf.disable_container_interface,
            check_spoofing: conf.macspoofchk,
            masquerade: Masquerade::understand(request)?,
            vlan_gateway: vlan.map(|vlan| understand_gateway(name, vlan)).transpose()?,
            vlans,
            dns: conf.dns,
        })
    }
}

/// The gateway of the VLAN that a configuration names, whatever else it says.
pub fn vlan_gateway(request: &Request) -> Option<Gateway> {
    let vlan = request.conf::<VlansConf>().ok()?.understand().ok()??.native?;
    let conf: BridgeConf = request.conf().ok()?;
    Gateway::of(understand_name(conf.bridge.as_deref()).ok()?, vlan).ok()
}

fn understand_gateway(bridge: IfName, vlan: u16) -> Result<Gateway, Error> {
    Gateway::of(bridge, vlan).map_err(|cause| {
        let keys = "keys \"bridge\" and \"vlan\" name the interface of the VLAN's gateway";
        Error::because(Code::INVALID_CONFIG, keys, &cause)
    })
}

fn understand_name(written: Option<&str>) -> Result<IfName, Error> {
    let name = written.unwrap_or("cni0");
    name.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(Code::INVALID_CONFIG, "key \"bridge\"", &cause)
    })
}

fn refuse_contradictions(conf: &BridgeConf, request: &Request) -> Result<(), Error> {
    if conf.hairpin_mode && conf.promisc_mode {
        let msg = "cannot set hairpin mode and promiscuous mode at the same time";
        return Err(Error::invalid_config(msg)
            .with_details("keys \"hairpinMode\" and \"promiscMode\" are both true"));
    }
    if conf.disable_container_interface && request.ipam_type()?.is_some() {
        let msg = "cannot use IPAM when DisableContainerInterface flag is set";
        return Err(Error::invalid_config(msg)
            .with_details("keys \"ipam\" and \"disableContainerInterface\" are both set"));
    }
    Ok(())
}
