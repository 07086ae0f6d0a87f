// SPDX-License-Identifier: Apache-2.0
//! Tap interfaces.

use kernel::tun::{self, NewTap};
use kernel::{Errno, Netns};
use serde_json::json;
use testkit::{Ns, in_netns, require};

use crate::{ip, ip_json, name};

fn plain() -> NewTap<'static> {
    NewTap { name: name("tap0"), multi_queue: false, owner: None, group: None, label: None }
}

#[test]
fn tap_stays_and_is_as_asked() {
    in_netns(|| {
        require!(File("/dev/net/tun"));
        assert!(tun::is_supported().unwrap());
        tun::create(&plain()).unwrap();
        let made = ip_json(&Ns::here(), "link show tap0")["linkinfo"].clone();
        let data = &made["info_data"];
        assert_eq!((&made["info_kind"], &data["type"]), (&json!("tun"), &json!("tap")));
        assert_eq!((&data["pi"], &data["persist"]), (&json!(false), &json!(true)));
        assert_eq!((&data["vnet_hdr"], &data["user"]), (&json!(true), &json!(null)));
        ip("link del tap0");

        tun::create(&NewTap { multi_queue: true, owner: Some(0), group: Some(44), ..plain() })
            .unwrap();
        let made = ip_json(&Ns::here(), "link show tap0")["linkinfo"]["info_data"].clone();
        assert_eq!(made["multi_queue"], true, "{made}");
        let tuntap = ip("-d tuntap show");
        assert!(tuntap.contains("user 0 group 44"), "{tuntap}");
    });
}

#[test]
fn tap_is_born_in_the_namespace_of_its_maker() {
    in_netns(|| {
        let pod = Ns::new("pod");
        let ns = Netns::open(pod.path()).unwrap();
        ns.enter(|| tun::create(&plain())).unwrap().unwrap();
        ip_json(&pod, "link show tap0");
        assert!(!ip("link").contains("tap0"));
    });
}

#[test]
fn taken_name_and_bad_owner_are_refused() {
    in_netns(|| {
        tun::create(&plain()).unwrap();
        let twice = tun::create(&plain()).unwrap_err();
        assert!(twice.is_exists(), "{twice}");
        ip("link del tap0");
        ip("link add tap0 type veth peer name other");
        let other = tun::create(&plain()).unwrap_err();
        assert!(other.is_exists(), "{other}");
        ip("link del tap0");
        let nobody = tun::create(&NewTap { owner: Some(u32::MAX), ..plain() }).unwrap_err();
        assert_eq!(nobody.errno, Errno::INVAL);
        assert!(!ip("link").contains("tap0"), "a tap that is not finished goes");
    });
}

/// Without SELinux the child cannot take a label, and says so.
#[test]
fn label_is_refused_without_selinux() {
    in_netns(|| {
        if tun::has_labels() {
            testkit::not_run(&testkit::test_name(), "SELinux is on");
            return;
        }
        let refused = tun::create(&NewTap { label: Some(c"a:b:c:s0"), ..plain() }).unwrap_err();
        assert_eq!(refused.op, "take the SELinux label for tap", "{refused}");
        assert!(!ip("link").contains("tap0"));
    });
}
