// SPDX-License-Identifier: Apache-2.0
//! The routes that follow from blocks: each block to its owner, each borrowed address to the borrower. Pure.

use std::collections::BTreeMap;

use ipam::block::Block;
use ipnet::IpNet;

/// The routes of all blocks, by block.
#[derive(Debug, Default)]
pub(super) struct BlockRoutes {
    by_block: BTreeMap<IpNet, BTreeMap<IpNet, String>>,
}

/// A destination and its node; `None` if the destination has no node any more.
pub(super) type RouteChange = (IpNet, Option<String>);

impl BlockRoutes {
    /// Takes a changed or removed block, and returns the routes that changed.
    pub(super) fn update(&mut self, cidr: IpNet, block: Option<&Block>) -> Vec<RouteChange> {
        let after = block.map(routes).unwrap_or_default();
        let before = self.by_block.remove(&cidr).unwrap_or_default();
        let gone = before.keys().filter(|dst| !after.contains_key(dst)).map(|dst| (*dst, None));
        let changed = after.iter().filter(|(dst, node)| before.get(*dst) != Some(node));
        let changed = changed.map(|(dst, node)| (*dst, Some(node.clone())));
        let changes = gone.chain(changed).collect();
        if !after.is_empty() {
            self.by_block.insert(cidr, after);
        }
        changes
    }

    /// Returns all routes.
    pub(super) fn all(&self) -> BTreeMap<IpNet, String> {
        let routes = self.by_block.values().flatten();
        routes.map(|(dst, node)| (*dst, node.clone())).collect()
    }
}

fn routes(block: &Block) -> BTreeMap<IpNet, String> {
    let owner = block.owner().map(|owner| (block.cidr(), owner.to_owned()));
    let borrowed = block.borrowed().map(|(address, node)| (IpNet::from(address), node.to_owned()));
    owner.into_iter().chain(borrowed).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ipam::Timestamp;
    use ipam::block::Attribute;

    use super::*;

    #[test]
    fn borrowed_address_is_routed_until_its_release() {
        let cidr: IpNet = "10.6.0.0/26".parse().unwrap();
        let now = Timestamp::from_millis(0);
        let mut block = Block::new(cidr, "n1", now);
        let mut routes = BlockRoutes::default();
        assert_eq!(routes.update(cidr, Some(&block)), [(cidr, Some("n1".to_owned()))]);
        assert_eq!(routes.update(cidr, Some(&block)), []);
        let secondary = BTreeMap::from([("node".to_owned(), "n2".to_owned())]);
        let attribute =
            Attribute { handle: Some("net.c1".to_owned()), secondary, ..Attribute::default() };
        let ordinal = block.ordinal("10.6.0.5".parse().unwrap()).unwrap();
        block.assign(ordinal, &Arc::new(attribute)).unwrap();
        let borrowed: IpNet = "10.6.0.5/32".parse().unwrap();
        assert_eq!(routes.update(cidr, Some(&block)), [(borrowed, Some("n2".to_owned()))]);
        assert_eq!(routes.all().len(), 2);
        block.release(ordinal, now, std::time::Duration::ZERO);
        assert_eq!(routes.update(cidr, Some(&block)), [(borrowed, None)]);
        assert_eq!(routes.update(cidr, None), [(cidr, None)]);
        assert!(routes.all().is_empty());
    }
}
