// SPDX-License-Identifier: Apache-2.0
//! Tap and TUN interfaces.

use std::io::{ErrorKind, Read, Write};

use kernel::tun::{self, NewTap, NewTun};
use kernel::{Errno, Netns};
use serde_json::json;
use testkit::{Ns, in_netns, require};

use crate::{ip, ip_json, name};

fn tap0() -> NewTap<'static> {
    NewTap { name: name("tap0"), multi_queue: false, owner: None, group: None, label: None }
}

#[test]
fn tap_has_options_and_persists() {
    in_netns(|| {
        require!(File("/dev/net/tun"));
        assert!(tun::is_supported().unwrap());
        tun::create(&tap0()).unwrap();
        let shown = ip_json(&Ns::here(), "link show tap0")["linkinfo"].clone();
        let data = &shown["info_data"];
        assert_eq!((&shown["info_kind"], &data["type"]), (&json!("tun"), &json!("tap")));
        assert_eq!((&data["pi"], &data["persist"]), (&json!(false), &json!(true)));
        assert_eq!((&data["vnet_hdr"], &data["user"]), (&json!(true), &json!(null)));
        ip("link del tap0");

        tun::create(&NewTap { multi_queue: true, owner: Some(0), group: Some(44), ..tap0() })
            .unwrap();
        let shown = ip_json(&Ns::here(), "link show tap0")["linkinfo"]["info_data"].clone();
        assert_eq!(shown["multi_queue"], true, "{shown}");
        let tuntap = ip("-d tuntap show");
        assert!(tuntap.contains("user 0 group 44"), "{tuntap}");
    });
}

#[test]
fn tap_is_created_in_the_entered_namespace() {
    in_netns(|| {
        let pod = Ns::new("pod");
        let ns = Netns::open(pod.path()).unwrap();
        ns.enter(|| tun::create(&tap0())).unwrap().unwrap();
        ip_json(&pod, "link show tap0");
        assert!(!ip("link").contains("tap0"));
    });
}

#[test]
fn tap_with_taken_name_or_bad_owner_fails() {
    in_netns(|| {
        tun::create(&tap0()).unwrap();
        let twice = tun::create(&tap0()).unwrap_err();
        assert!(twice.already_exists(), "{twice}");
        ip("link del tap0");
        ip("link add tap0 type veth peer name other");
        let other = tun::create(&tap0()).unwrap_err();
        assert!(other.already_exists(), "{other}");
        ip("link del tap0");
        let error = tun::create(&NewTap { owner: Some(u32::MAX), ..tap0() }).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL);
        assert!(!ip("link").contains("tap0"), "the failed tap is gone");
    });
}

/// Without SELinux the child cannot set its label.
#[test]
fn label_without_selinux_fails() {
    in_netns(|| {
        if tun::is_selinux_enabled() {
            testkit::not_run(&testkit::test_name(), "SELinux is enabled");
            return;
        }
        let error = tun::create(&NewTap { label: Some(c"a:b:c:s0"), ..tap0() }).unwrap_err();
        assert_eq!(error.op, "set SELinux label for tap", "{error}");
        assert!(!ip("link").contains("tap0"));
    });
}

/// The test reads an echo request, turns it into a reply and writes it.
#[test]
fn tun_queue_reads_and_writes_packets() {
    in_netns(|| {
        let new = NewTun { name: name("tun0"), queues: 1, offload: false };
        let mut queue = tun::open_queues(&new).unwrap().remove(0);
        // Otherwise the kernel would send IPv6 packets on its own.
        std::fs::write("/proc/sys/net/ipv6/conf/tun0/disable_ipv6", "1").unwrap();
        ip("link set tun0 up");
        ip("addr add 10.0.0.1/24 dev tun0");
        let nothing = queue.read(&mut [0; 100]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            let ping = scope.spawn(|| testkit::answers(&Ns::here(), [10, 0, 0, 2].into()));
            let mut packet = [0; 2000];
            let deadline = std::time::Duration::from_secs(30);
            let len = testkit::wait_some(deadline, || queue.read(&mut packet).ok()).unwrap();
            assert_eq!((packet[0], packet[9], packet[20]), (0x45, 1, 8));
            // Swapping the addresses does not change the header checksum.
            let (from, to) = packet[12..20].split_at_mut(4);
            from.swap_with_slice(to);
            packet[20] = 0;
            let sum = u32::from(u16::from_be_bytes([packet[22], packet[23]])) + 0x800;
            let sum = (sum + (sum >> 16)) as u16;
            packet[22..24].copy_from_slice(&sum.to_be_bytes());
            queue.write_all(&packet[..len]).unwrap();
            assert!(ping.join().unwrap());
        });
        drop(queue);
        assert!(!ip("link").contains("tun0"), "the interface vanishes with its last queue");
    });
}

#[test]
fn tun_has_queues_and_offload_and_unique_name() {
    in_netns(|| {
        let new = NewTun { name: name("tun0"), queues: 3, offload: true };
        let queues = tun::open_queues(&new).unwrap();
        assert_eq!(queues.len(), 3);
        let shown = ip_json(&Ns::here(), "link show tun0")["linkinfo"]["info_data"].clone();
        assert_eq!((&shown["type"], &shown["persist"]), (&json!("tun"), &json!(false)));
        assert_eq!((&shown["vnet_hdr"], &shown["multi_queue"]), (&json!(true), &json!(true)));
        assert_eq!(shown["numqueues"], 3, "{shown}");
        let twice = tun::open_queues(&new).unwrap_err();
        assert!(twice.already_exists(), "{twice}");
        drop(queues);
        ip("link add tun0 type veth peer name other");
        let other = tun::open_queues(&new).unwrap_err();
        assert!(other.already_exists(), "{other}");
    });
}
