// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use overlay::Addresses;
use overlay::backend::BackendData;
use store::embedded::Embedded;
use tempfile::TempDir;

use super::*;
use crate::lease::{PeerEvents, PeerWatch};

struct Lab {
    dir: TempDir,
    conf: RawNetConf,
}

impl Lab {
    fn new(conf: &str) -> Self {
        let conf = RawNetConf::parse(conf).unwrap();
        Self { dir: TempDir::new().unwrap(), conf }
    }

    /// Opens the store again, as another process would.
    async fn leases(&self) -> KeyValueLeases {
        let store = Embedded::open(self.dir.path().join("store.db")).await.unwrap();
        KeyValueLeases::new(Arc::new(store), "/n")
    }

    async fn acquire(
        &self,
        leases: &KeyValueLeases,
        number: u8,
    ) -> Result<HeldLease, AcquireError> {
        self.acquire_with(leases, &attributes(number), u64::from(number) * 7919).await
    }

    async fn acquire_with(
        &self,
        leases: &KeyValueLeases,
        attributes: &Attributes,
        random: u64,
    ) -> Result<HeldLease, AcquireError> {
        let pools = self.conf.pools().unwrap();
        let request = LeaseRequest { pools: &pools, attributes, previous: None, random };
        leases.list().await.unwrap();
        leases.acquire(&request).await
    }
}

fn attributes(number: u8) -> Attributes {
    let v4 = Some(Ipv4Addr::new(192, 0, 2, number));
    Attributes { public: Addresses { v4, v6: None }, data: BackendData::HostGw }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

const SMALL: &str = r#"{"Network": "10.5.0.0/16", "SubnetMax": "10.5.20.0",
    "Backend": {"Type": "host-gw"}}"#;
const DUAL: &str = r#"{"Network": "10.5.0.0/16", "SubnetMax": "10.5.20.0", "EnableIPv6": true,
    "IPv6Network": "fd00:5::/48", "IPv6SubnetMax": "fd00:5:0:14::", "Backend": {"Type": "host-gw"}}"#;

/// As many nodes as there are subnets acquire a lease at the same time, each with its own handle on the file.
fn check_concurrent_acquire(conf: &str) {
    let lab = Lab::new(conf);
    let held = block_on(async {
        let nodes = (1..=20).map(|number| {
            let lab = &lab;
            async move { lab.acquire(&lab.leases().await, number).await.unwrap() }
        });
        join_all(nodes).await
    });
    for family in kernel::Family::ALL {
        let subnets: Vec<_> =
            held.iter().filter_map(|held| held.lease.subnets.get(family)).collect();
        let distinct: BTreeSet<_> = subnets.iter().collect();
        assert_eq!(subnets.len(), distinct.len(), "{subnets:?}");
    }
    let names: BTreeSet<_> = held.iter().map(|held| &held.name).collect();
    assert_eq!(names.len(), 20);
    block_on(async {
        let leases = lab.leases().await;
        assert_eq!(leases.list_entries().await.unwrap().entries.len(), 20);
        let error = lab.acquire(&leases, 99).await.unwrap_err().to_string();
        assert!(error.contains("all 20 subnets from 10.5.1.0 to 10.5.20.0"), "{error}");
    });
}

/// Polls all futures in turn until all are done.
async fn join_all<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = all.map(Box::pin).map(|future| (future, None)).collect();
    std::future::poll_fn(|context| {
        for (future, done) in &mut waiting {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *done = Some(value);
            }
        }
        match waiting.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

#[test]
fn concurrent_nodes_get_different_subnets() {
    check_concurrent_acquire(SMALL);
}

/// Keys with subnets of both families may differ and still overlap.
#[test]
fn concurrent_nodes_get_different_dual_stack_subnets() {
    check_concurrent_acquire(DUAL);
}

/// Every node rejects such a key, so it takes no subnet and wins no race.
#[test]
fn key_that_covers_the_network_takes_no_subnet() {
    for (conf, key) in [(SMALL, "0.0.0.0-0"), (DUAL, "0.0.0.0-0"), (DUAL, "10.5.0.0-16&::-0")] {
        let lab = Lab::new(conf);
        block_on(async {
            let leases = lab.leases().await;
            let key = leases.keys.lease(key);
            let value = attributes(200).print();
            let created = leases.store.create(&key, value.as_bytes(), None).await.unwrap();
            assert!(created.is_done());
            let held = lab.acquire(&leases, 1).await.unwrap();
            let again = lab.acquire(&leases, 1).await.unwrap();
            assert_eq!(again.name, held.name);
        });
    }
}

#[test]
fn acquire_again_writes_only_changes() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let first = lab.acquire(&leases, 1).await.unwrap();
        let again = lab.acquire(&leases, 1).await.unwrap();
        assert_eq!(again, first, "nothing was written");
        let attributes = Attributes { data: BackendData::Ipip, ..attributes(1) };
        let changed = lab.acquire_with(&leases, &attributes, 0).await.unwrap();
        assert_eq!(changed.name, first.name);
        assert!(changed.revision > first.revision);
        let entries = leases.list_entries().await.unwrap().entries;
        assert_eq!(entries.len(), 1);
        assert!(entries[0].expires);
        assert_eq!(entries[0].value, attributes.print().as_bytes());
    });
}

#[test]
fn reservation_never_expires() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        // As an administrator writes it.
        let key = "/n/subnets/10.5.7.0-24";
        leases.store.create(key, br#"{"PublicIP": "192.0.2.1"}"#, None).await.unwrap();
        let mut held = lab.acquire(&leases, 1).await.unwrap();
        assert_eq!((held.name.as_str(), held.is_reservation), ("10.5.7.0-24", true));
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Done);
        leases.release(&held).await.unwrap();
        let entry = leases.store.get(key).await.unwrap().unwrap();
        assert!(!entry.expires);
        assert_eq!(entry.value, attributes(1).print().as_bytes());
    });
}

#[test]
fn own_lease_outside_the_pool_is_deleted() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let value = attributes(1).print();
        let key = "/n/subnets/10.5.128.0-24";
        leases.store.create(key, value.as_bytes(), Some(TIME_TO_LIVE)).await.unwrap();
        let held = lab.acquire(&leases, 1).await.unwrap();
        assert_ne!(held.name, "10.5.128.0-24");
        assert_eq!(leases.list_entries().await.unwrap().entries.len(), 1);
    });
}

#[test]
fn renew_repairs_own_lease_and_reports_a_lost_one() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let mut held = lab.acquire(&leases, 1).await.unwrap();
        let key = format!("/n/subnets/{}", held.name);
        // An administrator has replaced the value, for the same node.
        let text = br#"{"PublicIP": "192.0.2.1"}"#;
        leases.store.compare_and_swap(&key, text, held.revision, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Done);
        let entry = leases.store.get(&key).await.unwrap().unwrap();
        assert_eq!((entry.value, entry.revision), (attributes(1).print().into(), held.revision));
        // An administrator has given the subnet to another node.
        let text = br#"{"PublicIP": "192.0.2.2"}"#;
        leases.store.compare_and_swap(&key, text, held.revision, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Lost);
        leases.store.delete(&key, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn saved_lease_is_found_only_if_unchanged() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let held = lab.acquire(&leases, 1).await.unwrap();
        leases.list().await.unwrap();
        let saved = saved_text(&held.lease);
        assert_eq!(leases.saved_lease(&saved), Some(held.clone()));
        let other = saved.replace("192.0.2.1", "192.0.2.9");
        assert_eq!(leases.saved_lease(&other), None);
        assert!(!leases.release_saved(&other, false).await.unwrap());
        assert!(leases.release_saved(&saved, true).await.unwrap(), "a dry run deletes nothing");
        assert!(leases.release_saved(&saved, false).await.unwrap());
        assert!(!leases.release_saved(&saved, false).await.unwrap());
    });
}

#[test]
fn cache_restores_the_mirror() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        leases.create_config_if_absent(SMALL).await.unwrap();
        lab.acquire(&leases, 1).await.unwrap();
        // A value that is not UTF-8 is no lease.
        leases.store.create("/n/subnets/x", &[0xff], None).await.unwrap();
        leases.list().await.unwrap();
        let cached = leases.export_cache().unwrap();
        assert_eq!(cached.entries.len(), 2);
        let restarted = lab.leases().await;
        assert_eq!(restarted.last_known(), None);
        restarted.import_cache(cached.clone());
        assert_eq!(restarted.export_cache(), Some(cached));
        let known = restarted.last_known().unwrap();
        assert_eq!(restarted.config(&known.items).await.unwrap().as_deref(), Some(SMALL));
    });
}

#[test]
fn watch_reports_config_and_peers() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let (leases, other) = (lab.leases().await, lab.leases().await);
        let mut watch = PeerWatch::new(&leases, leases.list().await.unwrap().revision);
        assert!(other.create_config_if_absent(SMALL).await.unwrap());
        assert!(!other.create_config_if_absent("{}").await.unwrap());
        let held = lab.acquire(&other, 2).await.unwrap();
        other.release(&held).await.unwrap();
        let mut items = Vec::new();
        while items.len() < 3 {
            match watch.next().await.unwrap() {
                PeerEvents::Changed(changes) => items.extend(changes),
                PeerEvents::All(_) => panic!("the store has the whole history"),
            }
        }
        assert_eq!(items[0], StoreItem::Config(Some(SMALL.to_owned())));
        let StoreItem::Node(added) = &items[1] else { panic!("{items:?}") };
        assert!(
            matches!(&added.state, NodeRecordState::Active { lease, .. } if **lease == held.lease)
        );
        let StoreItem::Node(removed) = &items[2] else { panic!("{items:?}") };
        assert_eq!((&removed.name, &removed.state), (&held.name, &NodeRecordState::Removed));
    });
}

#[test]
fn watch_lists_again_after_compaction() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let held = lab.acquire(&leases, 1).await.unwrap();
        let store = Embedded::open(lab.dir.path().join("store.db")).await.unwrap();
        lab.acquire(&leases, 2).await.unwrap();
        store.compact().await.unwrap();
        let mut watch = PeerWatch::new(&leases, held.revision);
        let PeerEvents::All(all) = watch.next().await.unwrap() else { panic!("changes were lost") };
        assert_eq!(all.len(), 2);
        lab.acquire(&leases, 3).await.unwrap();
        let PeerEvents::Changed(changes) = watch.next().await.unwrap() else {
            panic!("listed twice")
        };
        assert_eq!(changes.len(), 1);
    });
}
