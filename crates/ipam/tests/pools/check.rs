// SPDX-License-Identifier: Apache-2.0
//! Conditions that hold at any time, and conditions that hold when everything has been collected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::calico::{AffinityState, Key, Object};

use crate::cluster::{Cluster, OUTSIDER, PodState};

/// Addresses of running containers.
fn in_use(cluster: &Cluster) -> Vec<(IpAddr, &str)> {
    let mut all = Vec::new();
    for pod in &cluster.pods {
        if let PodState::Running(addresses) = &pod.state {
            all.extend(addresses.iter().map(|address| (*address, pod.handle.as_str())));
        }
    }
    all
}

/// No address is used twice, and no node can assign an address that is used, or that another node can assign.
pub fn no_address_twice(cluster: &Cluster) -> Result<(), String> {
    let mut owners: BTreeMap<IpAddr, String> = BTreeMap::new();
    let mut claim = |address: IpAddr, user: String| match owners.insert(address, user.clone()) {
        None => Ok(()),
        Some(other) => Err(format!("{address} belongs to {other} and to {user}")),
    };
    for (address, handle) in in_use(cluster) {
        claim(address, handle.to_owned())?;
    }
    for host in &cluster.hosts {
        let Some(machine) = &host.machine else { continue };
        for address in machine.ready_addresses(cluster.now) {
            claim(address, format!("the queue of {}", host.name))?;
        }
    }
    let mut calico: BTreeMap<IpAddr, &str> =
        cluster.calico_pods.iter().map(|pod| (pod.address, pod.handle.as_str())).collect();
    for (_, block) in cluster.store.blocks() {
        for (ordinal, allocation) in block.allocations() {
            let (address, attribute) = (block.address(ordinal), &allocation.attribute);
            if attribute.node() == Some(OUTSIDER) {
                claim(address, "the outsider".to_owned())?;
            }
            if calico.get(&address).copied() == attribute.handle() && attribute.handle().is_some() {
                claim(address, "Calico's plugin".to_owned())?;
                calico.remove(&address);
            }
        }
    }
    match calico.first_key_value() {
        Some((address, handle)) => Err(format!("{address} of {handle} was released")),
        None => Ok(()),
    }
}

/// Every address is free, or set aside by the owner of its block, or used by a running container. Journals, handles
/// and affinities agree.
pub fn nothing_lost(cluster: &Cluster) -> Result<(), String> {
    let in_use: BTreeMap<IpAddr, &str> = in_use(cluster).into_iter().collect();
    let calico: BTreeSet<_> = cluster.calico_pods.iter().map(|pod| pod.address).collect();
    let nodes: BTreeSet<&str> =
        cluster.hosts.iter().filter(|host| host.is_registered).map(|h| h.name.as_str()).collect();
    let (mut stored, mut owned) = (BTreeMap::new(), BTreeSet::new());
    let mut handles = BTreeMap::new();
    for (_, block) in cluster.store.blocks() {
        let cidr = block.cidr();
        if let Some(owner) = block.owner() {
            if !nodes.contains(owner) {
                return Err(format!("block {cidr} belongs to {owner}, which does not exist"));
            }
            owned.insert((owner.to_owned(), cidr));
        } else if block.allocations().next().is_none() {
            return Err(format!("block {cidr} has neither owner nor addresses"));
        }
        for (ordinal, allocation) in block.allocations() {
            let (address, attribute) = (block.address(ordinal), &allocation.attribute);
            let user = (attribute.node(), attribute.handle(), attribute.reserved_by());
            match user {
                _ if attribute.is_cooling() => {}
                (Some(OUTSIDER), ..) => {}
                _ if calico.contains(&address) => {}
                (.., Some(node)) if block.owner() == Some(node) => {}
                (_, Some(handle), _) if in_use.get(&address) == Some(&handle) => {
                    stored.insert(address, handle.to_owned());
                    let blocks: &mut BTreeMap<_, u32> =
                        handles.entry(handle.to_owned()).or_default();
                    *blocks.entry(cidr).or_default() += 1;
                }
                _ => return Err(format!("{address} is lost to {attribute:?}")),
            }
        }
    }
    if let Some((address, handle)) = in_use.iter().find(|(a, _)| !stored.contains_key(*a)) {
        return Err(format!("{address} of {handle} is not in the store"));
    }
    for host in &cluster.hosts {
        for (address, entry) in host.disk.iter().filter(|_| host.is_registered) {
            if in_use.get(address) != Some(&entry.attachment.handle.as_str()) {
                return Err(format!("journal of {} has {address}", host.name));
            }
        }
    }
    let (mut stored_handles, mut affinities) = (BTreeMap::new(), BTreeSet::new());
    for (key, _, object) in cluster.store.objects() {
        match (key, object) {
            (Key::Handle(id), Object::Handle(handle)) => {
                stored_handles.insert(id, handle.blocks);
            }
            (Key::Affinity { node, block }, Object::Affinity(affinity)) => {
                if affinity.state != AffinityState::Confirmed {
                    return Err(format!("affinity of {node} to {block} is {:?}", affinity.state));
                }
                affinities.insert((node, block));
            }
            _ => {}
        }
    }
    if stored_handles != handles {
        return Err(format!("handles are {stored_handles:?}; expected {handles:?}"));
    }
    if affinities != owned {
        return Err(format!("affinities are {affinities:?}; expected {owned:?}"));
    }
    Ok(())
}
