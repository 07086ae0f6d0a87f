// SPDX-License-Identifier: Apache-2.0
//! Changes of pools that the command `pool` asks for: checks them and returns the write. Pure.

use agent_client::pools::{Change, NewPool};
use ipam::block::Block;
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
            let pods: usize = blocks.map(pods).sum();
            if pods > 0 {
                return Err(format!(
                    "pods have {pods} of the addresses of pool {name}: run `podwire pool disable {name}` and \
                     delete the pods first"
                ));
            }
            Ok((Key::Pool(name), Verb::Delete(revision)))
        }
    }
}

/// Returns how many addresses pods have. Tunnels take another pool by themselves.
fn pods(block: &Block) -> usize {
    let of_pods = block.allocations().filter(|(_, allocation)| {
        let attribute = &allocation.attribute;
        !attribute.is_cooling()
            && attribute.reserved_by().is_none()
            && !attribute.secondary.contains_key("type")
    });
    of_pods.count()
}

fn unknown(name: &str) -> String {
    format!("there is no pool {name:?}: run `podwire pool list`")
}

fn create(core: &Core, new: NewPool) -> Result<(Key, Verb), String> {
    let NewPool { name, cidr, block_size, encapsulation, nat_outgoing, .. } = new;
    if !is_name(&name) {
        return Err(format!(
            "invalid pool name {name:?}: expected at most 253 lower-case letters, digits, `-` and `.`, \
             with a letter or digit at both ends"
        ));
    }
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
    if let Some((node, address)) = core.node_addresses().find(|(_, one)| cidr.contains(one)) {
        return Err(format!("cidr {cidr} contains {address}, which is an address of node {node}"));
    }
    // Also against the other pools. The new pool must not take the place of another one.
    let rejected =
        |pools: Vec<PoolConf>| Pools::new(pools, &core.own_addresses()).rejected().to_vec();
    let before = rejected(core.pools().collect());
    let after = rejected(core.pools().chain([pool.clone()]).collect());
    if let Some(new) = after.into_iter().find(|one| !before.iter().any(|old| old.name == one.name))
    {
        let other = if new.name == name { String::new() } else { format!("IPPool {}: ", new.name) };
        return Err(format!("{other}{}", new.reason));
    }
    Ok((Key::Pool(name), Verb::Create(Object::Pool(pool))))
}

/// Returns whether Kubernetes accepts the name of an object, and the store as part of a key.
fn is_name(name: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    let is_allowed =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    bytes.len() <= 253
        && bytes.iter().all(is_allowed)
        && is_end(bytes.first())
        && is_end(bytes.last())
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
