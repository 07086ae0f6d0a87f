// SPDX-License-Identifier: Apache-2.0
//! The configuration of bridge.

use cni::{Code, Error, Request};
use kernel::{IfName, MacAddr};
use serde::Deserialize;

use super::vlan::gateway::Gateway;
use super::vlan::{Vlans, VlansConf};
use crate::attach::dns::DnsConf;
use crate::attach::interface::Dad;
use crate::attach::mac::{self, Source};
use crate::attach::veth;
use crate::nftables::masquerade::Masquerade;

/// The parsed configuration, without contradictions.
#[derive(Debug, Clone)]
pub(super) struct Bridge {
    pub name: IfName,
    /// The bridge has the containers' gateway address.
    pub is_gateway: bool,
    /// Containers get a default route through the bridge.
    pub is_default_gateway: bool,
    /// Replaces a conflicting address on the bridge instead of failing.
    pub force_address: bool,
    /// MTU of the veth pair, and of a new bridge.
    pub mtu: Option<u32>,
    /// A container may reach itself through the bridge.
    pub hairpin: bool,
    /// Promiscuous mode of the bridge.
    pub promisc: bool,
    /// Containers of this network cannot reach each other.
    pub isolated: bool,
    pub dad: Dad,
    /// The container's interface stays down and without addresses.
    pub leave_down: bool,
    /// VLANs of the container's port; the bridge then filters VLANs.
    pub vlans: Option<Vlans>,
    /// The interface with the gateway address, instead of the bridge, if the containers are in a
    /// VLAN.
    pub vlan_gateway: Option<Gateway>,
    /// MAC address of the container's interface.
    pub mac: Option<MacAddr>,
    /// A port accepts frames from its container's MAC address only.
    pub check_spoofing: bool,
    pub masquerade: Option<Masquerade>,
    /// Overrides the DNS settings of the IPAM plugin.
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
    pub(super) fn parse(request: &Request) -> Result<Bridge, Error> {
        let conf: BridgeConf = request.conf()?;
        refuse_contradictions(&conf, request)?;
        let vlans = request.conf::<VlansConf>()?.validate()?;
        let name = parse_name(conf.bridge.as_deref())?;
        let is_gateway = conf.is_gateway || conf.is_default_gateway;
        let vlan = vlans.as_ref().and_then(|vlans| vlans.native).filter(|_| is_gateway);
        Ok(Bridge {
            mac: mac::requested(
                request,
                &[Source::RuntimeConfig, Source::Args, Source::Environment],
            )?,
            name,
            is_gateway,
            is_default_gateway: conf.is_default_gateway,
            force_address: conf.force_address,
            mtu: veth::parse_mtu(conf.mtu, veth::MAX_MTU)?,
            hairpin: conf.hairpin_mode,
            promisc: conf.promisc_mode,
            isolated: conf.port_isolation,
            dad: if conf.enabledad { Dad::Wait } else { Dad::Skip },
            leave_down: conf.disable_container_interface,
            check_spoofing: conf.macspoofchk,
            masquerade: Masquerade::parse(request)?,
            vlan_gateway: vlan.map(|vlan| parse_gateway(name, vlan)).transpose()?,
            vlans,
            dns: conf.dns,
        })
    }
}

/// The gateway of the configured VLAN, for DEL and GC, even if other keys are invalid.
pub(super) fn vlan_gateway(request: &Request) -> Option<Gateway> {
    let vlan = request.conf::<VlansConf>().ok()?.validate().ok()??.native?;
    let conf: BridgeConf = request.conf().ok()?;
    Gateway::of(parse_name(conf.bridge.as_deref()).ok()?, vlan).ok()
}

fn parse_gateway(bridge: IfName, vlan: u16) -> Result<Gateway, Error> {
    Gateway::of(bridge, vlan).map_err(|cause| {
        let keys = "keys \"bridge\" and \"vlan\" form the name of the VLAN's gateway interface";
        Error::because(Code::INVALID_CONFIG, keys, &cause)
    })
}

fn parse_name(name: Option<&str>) -> Result<IfName, Error> {
    let name = name.unwrap_or("cni0");
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
