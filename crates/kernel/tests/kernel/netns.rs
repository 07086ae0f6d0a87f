// SPDX-License-Identifier: Apache-2.0
//! Namespaces and sysctls.

use std::fs;
use std::path::Path;

use kernel::{Errno, Netns, link, sysctl};
use testkit::{Ns, in_netns};

use crate::{ip, name};

fn own_inode() -> String {
    fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
}

#[test]
fn thread_returns_to_its_namespace() {
    in_netns(|| {
        let pod = Ns::new("pod");
        pod.ip(&["link", "add", "a0", "type", "veth", "peer", "name", "a1"]);
        let home = own_inode();
        let ns = Netns::open(pod.path()).unwrap();
        let inside = || {
            let nl = kernel::Netlink::open().unwrap();
            (own_inode(), link::by_name(&nl, name("a0")).unwrap())
        };
        let (there, link) = ns.enter(inside).unwrap();
        assert_ne!(there, home);
        assert!(link.is_some());
        assert_eq!(own_inode(), home);

        assert!(std::panic::catch_unwind(|| ns.enter(|| panic!("inside"))).is_err());
        assert_eq!(own_inode(), home);

        let nl = ns.netlink().unwrap();
        assert!(link::by_name(&nl, name("a0")).unwrap().is_some());
        assert_eq!(own_inode(), home);
    });
}

#[test]
fn is_same_compares_namespaces() {
    in_netns(|| {
        let pod = Ns::new("pod");
        let ns = Netns::open(pod.path()).unwrap();
        assert!(ns.is_same(&Netns::open(pod.path()).unwrap()).unwrap());
        let here = Netns::current().unwrap();
        assert!(!ns.is_same(&here).unwrap());
        assert!(here.is_same(&Netns::open("/proc/thread-self/ns/net").unwrap()).unwrap());
        let new = Netns::new_anonymous().unwrap();
        assert!(!new.is_same(&here).unwrap());
        assert!(here.is_same(&Netns::current().unwrap()).unwrap());
        assert_eq!(link::list(&new.netlink().unwrap()).unwrap()[0].name, name("lo"));
    });
}

#[test]
fn open_of_another_file_fails() {
    in_netns(|| {
        let error = Netns::open("/run/netns/none").unwrap_err();
        assert_eq!(error.errno, Errno::NOENT);
        assert_eq!(
            error.to_string(),
            "open network namespace /run/netns/none: No such file or directory"
        );
        fs::write("/run/netns/file", "").unwrap();
        let error = Netns::open("/run/netns/file").unwrap_err();
        assert_eq!(error.errno, Errno::INVAL);
        assert!(error.to_string().contains("not a namespace: file system magic 0x1021994"));
        let error = Netns::open("/proc/self/ns/uts").unwrap_err();
        assert!(error.to_string().contains("not a network namespace"), "{error}");
        assert_eq!(Netns::open("/proc/self/mem").unwrap_err().errno, Errno::INVAL);
    });
}

#[test]
fn named_namespace_is_visible_to_ip_netns() {
    in_netns(|| {
        let path = Path::new("/run/netns/blue");
        let home = own_inode();
        let ns = Netns::create_named(path).unwrap();
        assert_eq!(own_inode(), home);
        assert_eq!(ip("netns list").trim(), "blue");
        assert_eq!(ip("-n blue -o link show").lines().count(), 1);
        assert!(ns.is_same(&Netns::open(path).unwrap()).unwrap());
        assert!(Netns::create_named(path).unwrap_err().already_exists());

        Netns::remove_named(path).unwrap();
        assert!(!path.exists());
        Netns::remove_named(path).unwrap();
        // An interrupted creation leaves the file without a mount.
        fs::write(path, "").unwrap();
        Netns::remove_named(path).unwrap();
        assert!(!path.exists());
    });
}

#[test]
fn later_ip_netns_add_keeps_named_namespace() {
    in_netns(|| {
        let path = Path::new("/run/netns/blue");
        Netns::create_named(path).unwrap();
        ip("netns add other");
        assert_eq!(ip("-n blue -o link show").lines().count(), 1);
        Netns::remove_named(path).unwrap();
        assert_eq!(ip("netns list").trim(), "other");
    });
}

#[test]
fn sysctls_belong_to_the_entered_namespace() {
    in_netns(|| {
        let pod = Ns::new("pod");
        pod.ip(&["link", "add", "a.0", "type", "veth", "peer", "name", "a1"]);
        let ns = Netns::open(pod.path()).unwrap();
        const PATH: &str = "net/ipv4/conf/a.0/arp_notify";
        assert!(sysctl::read(PATH).unwrap_err().is_not_found());
        assert!(sysctl::write(PATH, "1").unwrap_err().is_not_found());
        ns.enter(|| {
            assert_eq!(sysctl::read(PATH).unwrap(), "0");
            assert!(sysctl::ensure(PATH, "1").unwrap());
            assert!(!sysctl::ensure(PATH, "1").unwrap());
        })
        .unwrap();
        assert_eq!(pod.exec("cat", &["/proc/sys/net/ipv4/conf/a.0/arp_notify"]), "1\n");
        let error = sysctl::write("net/ipv4/ip_forward", "x").unwrap_err();
        assert_eq!(error.to_string(), "write sysctl net/ipv4/ip_forward: Invalid argument");
    });
}

#[test]
fn lock_is_held_by_one_at_a_time() {
    in_netns(|| {
        let here = Netns::current().unwrap();
        let held = here.lock("test").unwrap();
        let (sender, locked) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _held = Netns::current().unwrap().lock("test").unwrap();
            sender.send(()).unwrap();
        });
        assert!(locked.recv_timeout(std::time::Duration::from_millis(100)).is_err());
        drop(here.lock("other").unwrap());
        drop(held);
        locked.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        other.join().unwrap();
    });
}
