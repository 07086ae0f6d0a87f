// SPDX-License-Identifier: Apache-2.0
//! Requests whose requesters give up.

use std::net::IpAddr;

use testkit::{EtcdServer, in_netns};

use super::machine::{Machine, assign, release};

#[test]
fn repeated_request_keeps_its_address_if_the_first_gives_up() {
    in_netns(|| {
        testkit::require!(Program("etcd"), Program("etcdctl"));
        let mut server = EtcdServer::at("/run/lab/etcd".as_ref(), "127.0.0.1");
        let mut machine = Machine::new(1, &server.endpoint());
        machine.add_flags(&["--pool-cidr", "10.6.0.0/24", "--pool-encapsulation", "none"]);
        machine.start();
        let netns = machine.create_netns("c1");
        let api = machine.api().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Both requests wait for the store. The plugin of the first is killed.
            tokio::select! {
                biased;
                answer = assign(&api, "c1", &netns) => panic!("answered without a store: {answer:?}"),
                () = std::future::ready(()) => {}
            }
            let repeated = assign(&api, "c1", &netns);
            let store = async {
                server.start();
                server.wait();
            };
            let (address, ()) = tokio::join!(repeated, store);
            let address = address.unwrap();
            let mut others: Vec<IpAddr> = Vec::new();
            for number in 2..20 {
                others.push(assign(&api, &format!("c{number}"), &netns).await.unwrap());
            }
            assert!(!others.contains(&address), "{address} was assigned again");
            assert_eq!(assign(&api, "c1", &netns).await.unwrap(), address);
            // A requester that asks for what it has, and gives up, must not release it either.
            tokio::select! {
                biased;
                _ = assign(&api, "c1", &netns) => {}
                () = std::future::ready(()) => {}
            }
            assert_eq!(assign(&api, "c1", &netns).await.unwrap(), address);
            release(&api, "c1").await.unwrap();
            assert_ne!(assign(&api, "c1", &netns).await.unwrap(), address);
        });
    });
}
