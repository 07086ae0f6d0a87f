// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use overlay::Addresses;
use overlay::backend::BackendData;
use overlay::lease::Attributes;
use overlay::netconf::RawNetConf;
use store::embedded::Embedded;
use tempfile::TempDir;

use super::*;

struct Lab {
    dir: TempDir,
    conf: RawNetConf,
}

impl Lab {
    fn new(conf: &str) -> Self {
        let conf = RawNetConf::parse(conf).unwrap();
        Self { dir: TempDir::new().unwrap(), conf }
    }

    /// As another process would.
    async fn leases(&self) -> Leases {
        let store = Embedded::open(self.dir.path().join("store.db")).await.unwrap();
        Leases::new(Arc::new(store), "/n")
    }

    async fn acquire(&self, leases: &Leases, number: u8) -> Result<Held, AcquireError> {
        let pools = self.conf.pools().unwrap();
        let attributes = attributes(number);
        let random = u64::from(number) * 7919;
        let want = Want { pools: &pools, attributes: &attributes, previous: None, random };
        leases.acquire(leases.list().await.unwrap(), &want).await
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

/// As many nodes as there are subnets, all at once, each with its own handle on the file.
fn all_get_one(conf: &str) {
    let lab = Lab::new(conf);
    let held = block_on(async {
        let nodes = (1..=20).map(|number| {
            let lab = &lab;
            async move { lab.acquire(&lab.leases().await, number).await.unwrap() }
        });
        futures_of(nodes).await
    });
    for family in kernel::Family::ALL {
        let subnets: Vec<_> =
            held.iter().filter_map(|held| held.lease.subnets.get(family)).collect();
        let distinct: BTreeSet<_> = subnets.iter().collect();
        assert_eq!(subnets.len(), distinct.len(), "{subnets:?}");
    }
    let names: BTreeSet<_> = held.iter().map(|held| &held.name).collect();
    assert_eq!(names.len(), 20);
    // They are all there, and they are all taken.
    block_on(async {
        let leases = lab.leases().await;
        assert_eq!(leases.list().await.unwrap().entries.len(), 20);
        let error = lab.acquire(&leases, 99).await.unwrap_err().to_string();
        assert!(error.contains("all 20 subnets from 10.5.1.0 to 10.5.20.0"), "{error}");
    });
}

/// All at the same time.
async fn futures_of<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
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
fn nodes_that_start_together_get_different_subnets() {
    all_get_one(SMALL);
}

/// Keys of both families may differ and overlap all the same.
#[test]
fn nodes_that_start_together_get_different_subnets_of_both_families() {
    all_get_one(DUAL);
}

/// Every node refuses such a key, so it takes no subnet and wins no race.
#[test]
fn a_key_that_covers_the_network_keeps_no_node_out() {
    for (conf, key) in [(SMALL, "0.0.0.0-0"), (DUAL, "0.0.0.0-0"), (DUAL, "10.5.0.0-16&::-0")] {
        let lab = Lab::new(conf);
        block_on(async {
            let leases = lab.leases().await;
            let key = leases.layout.lease(key);
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
fn a_node_keeps_its_lease_and_tells_what_has_changed() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let first = lab.acquire(&leases, 1).await.unwrap();
        let again = lab.acquire(&leases, 1).await.unwrap();
        assert_eq!(again, first, "the same, not even written again");
        let pools = lab.conf.pools().unwrap();
        let attributes = Attributes { data: BackendData::Ipip, ..attributes(1) };
        let want = Want { pools: &pools, attributes: &attributes, previous: None, random: 0 };
        let other = leases.acquire(leases.list().await.unwrap(), &want).await.unwrap();
        assert_eq!(other.name, first.name);
        assert!(other.revision > first.revision);
        let entries = leases.list().await.unwrap().entries;
        assert_eq!(entries.len(), 1);
        assert!(entries[0].expires);
        assert_eq!(entries[0].value, attributes.print().as_bytes());
    });
}

#[test]
fn a_reservation_stays_one() {
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
fn what_no_longer_fits_is_given_back() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let value = attributes(1).print();
        let ttl = Some(acquire::TIME_TO_LIVE);
        let key = "/n/subnets/10.5.128.0-24";
        leases.store.create(key, value.as_bytes(), ttl).await.unwrap();
        let held = lab.acquire(&leases, 1).await.unwrap();
        assert_ne!(held.name, "10.5.128.0-24");
        assert_eq!(leases.list().await.unwrap().entries.len(), 1);
    });
}

#[test]
fn renewal_notices_what_others_did() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let mut held = lab.acquire(&leases, 1).await.unwrap();
        let key = format!("/n/subnets/{}", held.name);
        // Somebody has written it anew, for this node.
        let text = br#"{"PublicIP": "192.0.2.1"}"#;
        leases.store.swap(&key, text, held.revision, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Done);
        let entry = leases.store.get(&key).await.unwrap().unwrap();
        assert_eq!((entry.value, entry.revision), (attributes(1).print().into(), held.revision));
        // For another.
        let text = br#"{"PublicIP": "192.0.2.2"}"#;
        leases.store.swap(&key, text, held.revision, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Lost);
        leases.store.delete(&key, None).await.unwrap();
        assert_eq!(leases.renew(&mut held).await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn others_come_change_and_go() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let (leases, other) = (lab.leases().await, lab.leases().await);
        let mut follow = leases.follow(leases.list().await.unwrap().revision);
        other.offer_config(SMALL).await.unwrap();
        other.offer_config("{}").await.unwrap();
        let held = lab.acquire(&other, 2).await.unwrap();
        other.release(&held).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            match follow.next().await.unwrap() {
                News::Changes(changes) => seen.extend(changes),
                News::All(_) => panic!("nothing was lost"),
            }
        }
        assert_eq!(seen[0], Seen::Config(Some(SMALL.to_owned())));
        let lease = Box::new(held.lease.clone());
        assert!(
            matches!(&seen[1], Seen::Node(NodeSeen { state: NodeState::In { lease: found, .. }, .. })
                if *found == lease)
        );
        assert!(matches!(&seen[2], Seen::Node(NodeSeen { name, state: NodeState::Gone, .. })
                if *name == held.name));
    });
}

#[test]
fn where_changes_are_lost_all_is_listed() {
    let lab = Lab::new(SMALL);
    block_on(async {
        let leases = lab.leases().await;
        let held = lab.acquire(&leases, 1).await.unwrap();
        let store = Embedded::open(lab.dir.path().join("store.db")).await.unwrap();
        lab.acquire(&leases, 2).await.unwrap();
        store.compact().await.unwrap();
        let mut follow = leases.follow(held.revision);
        let News::All(all) = follow.next().await.unwrap() else { panic!("changes were lost") };
        assert_eq!(all.len(), 2);
        lab.acquire(&leases, 3).await.unwrap();
        assert!(
            matches!(follow.next().await.unwrap(), News::Changes(changes) if changes.len() == 1)
        );
    });
}
