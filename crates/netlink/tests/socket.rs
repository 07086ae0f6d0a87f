// SPDX-License-Identifier: Apache-2.0
//! The socket against the real kernel, with messages built by hand.

use std::time::{Duration, Instant};

use netlink::{
    AckStatus, Attrs, Errno, Message, Monitor, NLM_F_CREATE, NLM_F_EXCL, Protocol, Received, Socket,
};
use rustix::net::sockopt::socket_recv_buffer_size;
use rustix::net::{SendFlags, send};
use testkit::{in_netns, run};

const RTM_NEWLINK: u16 = 16; // linux/rtnetlink.h
const RTM_GETLINK: u16 = 18; // linux/rtnetlink.h
const RTM_SETLINK: u16 = 19; // linux/rtnetlink.h
const IFLA_IFNAME: u16 = 3; // linux/if_link.h
const IFLA_MTU: u16 = 4; // linux/if_link.h
const IFLA_LINKINFO: u16 = 18; // linux/if_link.h
const RTNLGRP_LINK: u32 = 1; // linux/rtnetlink.h
const TIMEOUT: Duration = Duration::from_secs(10);

fn link_message(kind: u16, flags: u16, name: &str) -> Message {
    let mut message = Message::new(kind, flags);
    message.header(&[0; 16]).str(IFLA_IFNAME, name);
    message
}

fn set_mtu(name: &str, mtu: u32) -> Message {
    let mut message = link_message(RTM_SETLINK, 0, name);
    message.u32(IFLA_MTU, mtu);
    message
}

fn create(name: &str, kind: &str) -> Message {
    let mut message = link_message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, name);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(1, kind);
    });
    message
}

fn all_links() -> Message {
    let mut message = Message::new(RTM_GETLINK, 0);
    message.header(&[0; 16]);
    message
}

fn link_name(payload: &[u8]) -> Option<String> {
    Attrs::after(payload, 16).find_kind(IFLA_IFNAME)?.str().map(str::to_owned)
}

#[test]
fn failures_have_index_and_explanation() {
    in_netns(|| {
        run("ip", &["link", "add", "a0", "type", "veth", "peer", "name", "a1"]);
        let socket = Socket::open(Protocol::Route).unwrap();
        let messages =
            [set_mtu("a0", 1), set_mtu("a0", 1400), set_mtu("none", 1400), set_mtu("a1", 1401)];
        let failures = socket.request(&messages).unwrap();
        assert_eq!(failures.iter().map(|failure| failure.index).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(failures[0].error.errno, Errno::INVAL);
        assert_eq!(failures[0].error.ext.as_deref(), Some("mtu less than device minimum"));
        assert_eq!(failures[1].error.errno, Errno::NODEV);
        assert!(run("ip", &["link", "show", "a1"]).contains("mtu 1401"));
        assert!(socket.request(&[]).unwrap().is_empty());

        let (kind, payload) = socket.get(&link_message(RTM_GETLINK, 0, "a0")).unwrap();
        assert_eq!((kind, link_name(&payload).as_deref()), (RTM_NEWLINK, Some("a0")));
        let error = socket.get(&link_message(RTM_GETLINK, 0, "none")).unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        // Strict checking is on: the kernel rejects an attribute without meaning in a dump.
        let mut invalid = all_links();
        invalid.u32(IFLA_MTU, 1);
        let error = socket.dump(&invalid, |_, _| Some(())).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL);
        assert!(error.ext.is_some(), "{error}");
    });
}

#[test]
fn dump_of_several_datagrams_is_complete() {
    in_netns(|| {
        let socket = Socket::open(Protocol::Route).unwrap();
        let names: Vec<_> = (0..200).map(|n| format!("br{n:03}")).collect();
        let messages: Vec<_> = names.iter().map(|name| create(name, "bridge")).collect();
        assert!(socket.request(&messages).unwrap().is_empty());
        let mut listed = socket.dump(&all_links(), |_, payload| link_name(payload)).unwrap();
        listed.retain(|name| name.starts_with("br"));
        listed.sort();
        assert_eq!(listed, names);
        // Every request fails: two datagrams of requests, 200 of answers.
        let failures = socket.request(&messages).unwrap();
        assert_eq!(failures.len(), 200);
        assert!(failures.iter().enumerate().all(|(index, failure)| failure.index == index));
    });
}

#[test]
fn late_answer_is_not_mistaken_for_another() {
    in_netns(|| {
        let socket = Socket::open(Protocol::Route).unwrap();
        let (seq, bytes) = socket.prepare(&create("br0", "bridge"));
        send(&socket, &bytes, SendFlags::empty()).unwrap();
        // The queue holds the acknowledgement of the prepared message, then the failure of this
        // request.
        let failures = socket.request(&[create("br0", "bridge")]).unwrap();
        assert_eq!(failures[0].error.errno, Errno::EXIST);
        assert_eq!(socket.ack_status(seq, Duration::ZERO).unwrap(), AckStatus::Pending);

        let (seq, bytes) = socket.prepare(&create("br1", "bridge"));
        send(&socket, &bytes, SendFlags::empty()).unwrap();
        assert_eq!(socket.ack_status(seq, TIMEOUT).unwrap(), AckStatus::Done);
        let (seq, bytes) = socket.prepare(&create("br1", "bridge"));
        send(&socket, &bytes, SendFlags::empty()).unwrap();
        assert_eq!(
            socket.ack_status(seq, TIMEOUT).unwrap(),
            AckStatus::Failed(Errno::EXIST.into())
        );
    });
}

#[test]
fn receive_returns_events_or_the_deadline() {
    in_netns(|| {
        let mut monitor = Monitor::open(Protocol::Route, &[RTNLGRP_LINK]).unwrap();
        let mut names = Vec::new();
        let mut receive = |deadline| {
            monitor.receive(deadline, |_, payload| names.extend(link_name(payload))).unwrap()
        };
        assert_eq!(receive(Instant::now()), Received::Deadline);
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(receive(soon), Received::Deadline);
        assert!(Instant::now() >= soon);
        run("ip", &["link", "add", "br0", "type", "bridge"]);
        assert_eq!(receive(Instant::now() + TIMEOUT), Received::Events);
        assert_eq!(names, ["br0"]);
    });
}

#[test]
fn too_many_events_cause_an_overrun() {
    in_netns(|| {
        run("ip", &["link", "add", "br0", "type", "bridge"]);
        let mut monitor = Monitor::open(Protocol::Route, &[RTNLGRP_LINK]).unwrap();
        let socket = Socket::open(Protocol::Route).unwrap();
        for round in 0..40 {
            let messages: Vec<_> = (0..100).map(|n| set_mtu("br0", 1000 + n + round % 2)).collect();
            assert!(socket.request(&messages).unwrap().is_empty());
        }
        let received = monitor.receive(Instant::now(), |_, _| {}).unwrap();
        assert_eq!(received, Received::Overrun);
        // The old events are discarded; the next event arrives.
        let received = monitor.receive(Instant::now(), |_, _| {}).unwrap();
        assert_eq!(received, Received::Deadline);
        run("ip", &["link", "set", "br0", "mtu", "1499"]);
        let received = monitor.receive(Instant::now() + TIMEOUT, |_, _| {}).unwrap();
        assert_eq!(received, Received::Events);
    });
}

#[test]
fn larger_buffer_holds_more_events() {
    in_netns(|| {
        run("ip", &["link", "add", "br0", "type", "bridge"]);
        let mut monitor = Monitor::open(Protocol::Route, &[RTNLGRP_LINK]).unwrap();
        monitor.set_receive_buffer(16 << 20).unwrap();
        if socket_recv_buffer_size(&monitor).unwrap() < 16 << 20 {
            let reason = "only root outside of user namespaces may exceed the buffer limit";
            return testkit::not_run(&testkit::test_name(), reason);
        }
        let socket = Socket::open(Protocol::Route).unwrap();
        for round in 0..10 {
            let messages: Vec<_> = (0..100).map(|n| set_mtu("br0", 1000 + n + round % 2)).collect();
            assert!(socket.request(&messages).unwrap().is_empty());
        }
        let mut events = 0;
        while monitor.receive(Instant::now(), |_, _| events += 1).unwrap() == Received::Events {}
        assert!(events >= 1000, "{events}");
        assert_eq!(monitor.receive(Instant::now(), |_, _| {}).unwrap(), Received::Deadline);
    });
}

#[test]
fn nf_tables_batch_is_all_or_nothing() {
    in_netns(|| {
        const NFNL_MSG_BATCH_BEGIN: u16 = 16; // linux/netfilter/nfnetlink.h
        const NFNL_MSG_BATCH_END: u16 = 17; // linux/netfilter/nfnetlink.h
        const NFT_MSG_NEWTABLE: u16 = 10 << 8; // linux/netfilter/nf_tables.h, NFNL_SUBSYS_NFTABLES
        let batch_message = |kind| {
            let mut message = Message::new(kind, 0);
            message.header(&[0, 0, 0, 10]);
            message
        };
        let table = |name: &str| {
            let mut message = Message::new(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL);
            message.header(&[2, 0, 0, 0]).str(1, name);
            message
        };
        let batch = |names: &[&str]| {
            let mut batch = vec![batch_message(NFNL_MSG_BATCH_BEGIN)];
            batch.extend(names.iter().map(|name| table(name)));
            batch.push(batch_message(NFNL_MSG_BATCH_END));
            batch
        };
        let socket = Socket::open(Protocol::Netfilter).unwrap();
        assert_eq!(socket.transact(&batch(&["one", "two"]), 2).unwrap(), None);
        let failure = socket.transact(&batch(&["three", "one", "four"]), 3).unwrap().unwrap();
        assert_eq!((failure.index, failure.error.errno), (2, Errno::EXIST));
        assert_eq!(socket.transact(&batch(&["five"]), 1).unwrap(), None);
        assert_eq!(run("nft", &["list", "tables"]), "table ip one\ntable ip two\ntable ip five\n");
    });
}
