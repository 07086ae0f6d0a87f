// SPDX-License-Identifier: Apache-2.0
//! Changes of pools that the command `pool` asks for: checks them and returns the write. Pure.

use agent_client::pools::{Change, NewPool};
use ipam::calico::{Key, Object};
use ipam::node::Verb;
use ipam::pool::{Assignment, Mode, Pool, PoolConf};
use ipam::pools::Pools;
use ipnet::IpNet;

use super::core::Core;

/// Returns the write for a change, or why it is refused.
pub(super) fn write(core: &Core, change: Change) -> Result<(Key, Verb), String> {
    match change {
        Change::Create(new) => create(core, new),
        Change::Disable { name, disabled } => {
            let (revision, pool) = core.pool(&name).ok_or_else(|| unknown(&name))?;
            let pool = PoolConf { disabled, ..pool.clone() };
            Ok((Key::Pool(name), Verb::Replace(revision, Object::Pool(pool))))
        }
        Change::Delete { name } => {
            let (revision, pool) = core.pool(&name).ok_or_else(|| unknown(&name))?;
            let blocks = core.node().blocks().filter(|block| pool.cidr.contains(&block.cidr()));
            let used: usize = blocks.map(|block| block.counts().used).sum();
            if used > 0 {
                return Err(format!(
                    "{used} addresses of pool {name} are used: run `podwire pool disable {name}` and delete \
                     its pods first"
                ));
            }
            Ok((Key::Pool(name), Verb::Delete(revision)))
        }
    }
}

fn unknown(name: &str) -> String {
    format!("there is no pool {name:?}: run `podwire pool list`")
}

fn create(core: &Core, new: NewPool) -> Result<(Key, Verb), String> {
    let NewPool { name, cidr, block_size, encapsulation, nat_outgoing, .. } = new;
    if core.pool(&name).is_some() {
        return Err(format!("pool {name} exists already"));
    }
    let cidr: IpNet = cidr
        .parse()
        .map_err(|_| format!("{cidr:?} is not an address range such as 10.244.0.0/16"))?;
    let (ipip, vxlan) = modes(&encapsulation)?;
    let pool = PoolConf {
        block_size: (block_size > 0).then_some(block_size),
        ipip,
        vxlan,
        nat_outgoing,
        node_selector: new.node_selector,
        namespace_selector: new.namespace_selector,
        assignment: if new.manual { Assignment::Manual } else { Assignment::Automatic },
        ..PoolConf::new(&name, cidr)
    };
    Pool::new(pool.clone()).map_err(|error| error.to_string())?;
    // Also against the other pools and the addresses of this node.
    let all = core.pools().chain([pool.clone()]);
    let all = Pools::new(all, &core.own_addresses());
    if let Some(rejected) = all.rejected().iter().find(|one| one.name == name) {
        return Err(rejected.reason.to_string());
    }
    Ok((Key::Pool(name), Verb::Create(Object::Pool(pool))))
}

/// Returns the modes of IPIP and of VXLAN.
pub(crate) fn modes(encapsulation: &str) -> Result<(Mode, Mode), String> {
    Ok(match encapsulation {
        "none" => (Mode::Never, Mode::Never),
        "vxlan" => (Mode::Never, Mode::Always),
        "vxlan-cross-subnet" => (Mode::Never, Mode::CrossSubnet),
        "ipip" => (Mode::Always, Mode::Never),
        "ipip-cross-subnet" => (Mode::CrossSubnet, Mode::Never),
        _ => return Err(format!("invalid encapsulation {encapsulation:?}, expected {MODES}")),
    })
}

pub(crate) const MODES: &str = "none, vxlan, vxlan-cross-subnet, ipip or ipip-cross-subnet";
