// SPDX-License-Identifier: Apache-2.0
//! The data for the commands `pool` and `ipam`. Pure.

use agent_client::pools::{AssignedView, BlockView, BorrowedView, PoolView, View};
use ipam::node::Node;
use ipam::pool::{Assignment, Encapsulation, Pool};
use ipnet::IpNet;

use super::core::Core;

pub(super) fn view(core: &Core) -> View {
    let node = core.node();
    let mut blocks: Vec<_> = node.blocks().collect();
    blocks.sort_by_key(|block| block.cidr());
    let pools = node.settings().pools.iter().map(|pool| pool_view(node, pool));
    let borrowed = blocks.iter().flat_map(|block| {
        block.borrowed().map(|(address, node)| BorrowedView {
            address: address.to_string(),
            block: block.cidr().to_string(),
            node: node.to_owned(),
        })
    });
    let assigned = node.assignments().map(|entry| AssignedView {
        address: entry.address.to_string(),
        handle: entry.attachment.handle.clone(),
        interface: entry.attachment.interface.clone(),
        pod: entry
            .attachment
            .pod
            .as_ref()
            .map_or_else(String::new, |pod| format!("{}/{}", pod.namespace, pod.name)),
        netns: entry.attachment.netns.clone().unwrap_or_default(),
    });
    View {
        node: node.name().to_owned(),
        pools: pools.collect(),
        rejected: core.rejected(),
        borrowed: borrowed.collect(),
        assigned: assigned.collect(),
        blocks: blocks.into_iter().map(block_view).collect(),
    }
}

fn pool_view(node: &Node, pool: &Pool) -> PoolView {
    let (cidr, conf) = (pool.cidr(), pool.conf());
    let blocks = node.blocks().filter(|block| cidr.contains(&block.cidr()));
    let (count, used) =
        blocks.fold((0, 0), |(count, used), block| (count + 1, used + block.counts().used as u64));
    PoolView {
        name: pool.name().to_owned(),
        cidr: cidr.to_string(),
        block_size: pool.block_size(),
        encapsulation: encapsulation(pool.encapsulation()).to_owned(),
        nat_outgoing: conf.nat_outgoing,
        disabled: conf.disabled,
        size: size(cidr),
        used,
        blocks: count,
        node_selector: conf.node_selector.clone(),
        namespace_selector: conf.namespace_selector.clone(),
        manual: conf.assignment == Assignment::Manual,
    }
}

fn block_view(block: &ipam::block::Block) -> BlockView {
    let counts = block.counts();
    BlockView {
        cidr: block.cidr().to_string(),
        node: block.owner().unwrap_or_default().to_owned(),
        size: counts.size as u64,
        used: counts.used as u64,
        reserved: counts.reserved as u64,
        cooling: counts.cooling as u64,
        borrowed: counts.borrowed as u64,
        free: counts.free as u64,
    }
}

fn encapsulation(encapsulation: Encapsulation) -> &'static str {
    match encapsulation {
        Encapsulation::None => "none",
        Encapsulation::Vxlan { cross_subnet: false } => "vxlan",
        Encapsulation::Vxlan { cross_subnet: true } => "vxlan-cross-subnet",
        Encapsulation::Ipip { cross_subnet: false } => "ipip",
        Encapsulation::Ipip { cross_subnet: true } => "ipip-cross-subnet",
    }
}

fn size(cidr: IpNet) -> u64 {
    let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len());
    1_u64.checked_shl(bits).unwrap_or(u64::MAX)
}
