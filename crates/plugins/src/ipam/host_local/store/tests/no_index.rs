// SPDX-License-Identifier: Apache-2.0
//! An index that cannot be created, written or kept: all operations work without it.

use std::os::unix::fs::symlink;

use testkit::{in_netns, run};

use super::*;

const SUBNET: &str = "10.1.0.0/29";

/// Runs every operation with files of this plugin, of the Go plugin, and of its early versions.
fn check_operations(bench: &Bench) {
    bench.write("10.1.0.2", "go\r\neth0");
    bench.write("10.1.0.3", "old");
    fs::create_dir_all(bench.path("10.1.0.7")).unwrap();
    assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.4");
    assert!(matches!(bench.add(SUBNET, "", "abc"), Err(Error::Duplicate { .. })));
    assert_eq!(bench.add(SUBNET, "10.1.0.6", "abd").unwrap(), "10.1.0.6");
    for (id, expected) in [("go", "10.1.0.2"), ("old", "10.1.0.3"), ("abc", "10.1.0.4"), ("x", "")]
    {
        assert_eq!(bench.addresses_of(id), expected, "{id}");
    }
    assert!(!bench.open().is_exhausted(&sets_of(SUBNET)[0]).unwrap());
    assert!(bench.open().is_exhausted(&sets_of("10.1.0.0/30")[0]).unwrap());
    assert_eq!(bench.del("go", ""), "10.1.0.2");
    assert_eq!(bench.del("abd", "10.1.0.4"), "10.1.0.6");
    assert_eq!(bench.del("old", ""), "10.1.0.3");
    assert_eq!(bench.del("x", "10.1.0.4"), "");
    bench.write("10.1.0.5", "gone\r\neth0");
    let freed = bench.open().retain(|id, _| id == "abc").unwrap();
    assert_eq!(texts(freed.into_iter().map(|r| r.ip)), "10.1.0.5");
    assert_eq!(bench.held(), "10.1.0.4 10.1.0.7");
    let mut store = bench.open();
    assert!(store.index.is_none() && !store.in_sync);
    assert_eq!(texts(store.addresses_of("abc", "eth0").unwrap()), "10.1.0.4");
}

/// The index exists again, matches the files, and is used.
fn check_recovered(bench: &Bench) {
    assert_eq!(bench.addresses_of("abc"), "10.1.0.4");
    assert_eq!(fs::read_link(bench.entry("abc:eth0")).unwrap(), PathBuf::from("10.1.0.4"));
    assert_eq!(fs::read_dir(bench.entry("")).unwrap().count(), 1);
    let before = fs::metadata(bench.entry("")).unwrap().modified().unwrap();
    let store = bench.open();
    assert!(store.in_sync);
    assert_eq!(store.listed(Owner::new("abc", "eth0")).unwrap(), (ips("10.1.0.4"), true));
    assert_eq!(store.listed(Owner::new("x", "eth0")).unwrap(), (vec![], false));
    assert_eq!(fs::metadata(bench.entry("")).unwrap().modified().unwrap(), before);
}

#[test]
fn file_in_place_of_the_index_directory_is_tolerated() {
    let bench = Bench::new();
    let obstacle = bench.0.path().join(INDEXES);
    fs::write(&obstacle, "mine").unwrap();
    check_operations(&bench);
    assert_eq!(fs::read_to_string(&obstacle).unwrap(), "mine");
    fs::remove_file(&obstacle).unwrap();
    check_recovered(&bench);
}

#[test]
fn file_in_place_of_the_index_is_tolerated() {
    let bench = Bench::new();
    let obstacle = bench.0.path().join(INDEXES).join(NET);
    fs::create_dir(bench.0.path().join(INDEXES)).unwrap();
    fs::write(&obstacle, "mine").unwrap();
    check_operations(&bench);
    assert_eq!(fs::read_to_string(&obstacle).unwrap(), "mine");
    fs::remove_file(&obstacle).unwrap();
    check_recovered(&bench);
}

#[test]
fn entry_that_cannot_be_removed_is_tolerated() {
    let bench = Bench::new();
    fs::create_dir_all(bench.entry("abc:eth0")).unwrap();
    check_operations(&bench);
    fs::remove_dir(bench.entry("abc:eth0")).unwrap();
    check_recovered(&bench);
}

#[test]
fn index_that_fails_during_use_is_rebuilt() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "first").unwrap();
    let mut store = bench.open();
    assert!(store.in_sync);
    fs::create_dir(bench.entry("abc:eth0")).unwrap();
    let found = allocate(&mut store, &sets_of(SUBNET), &[], "abc", "eth0").unwrap();
    assert_eq!(found[0].0, ips("10.1.0.3")[0]);
    for (id, expected) in [("first", "10.1.0.2"), ("abc", "10.1.0.3")] {
        assert_eq!(texts(store.addresses_of(id, "eth0").unwrap()), expected);
    }
    drop(store);
    // The obstacle keeps the directory, which gets a time that never matches.
    let left = fs::metadata(bench.entry("")).unwrap().modified().unwrap();
    assert_eq!(left, std::time::SystemTime::UNIX_EPOCH);
    fs::remove_dir(bench.entry("abc:eth0")).unwrap();
    for (id, expected) in [("first", "10.1.0.2"), ("abc", "10.1.0.3")] {
        assert_eq!(bench.addresses_of(id), expected);
        assert!(bench.entry(&format!("{id}:eth0")).is_symlink());
    }
}

#[test]
fn reused_empty_file_is_not_missing_in_the_index() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "first").unwrap();
    let mut store = bench.open();
    bench.write("10.1.0.3", "");
    symlink("10.1.0.9", bench.entry("stale:eth0")).unwrap();
    store.files.dir().stamp_alike(store.index.as_ref().unwrap().dir()).unwrap();
    // As after a crash between writing the file and the index.
    store.take(Owner::new("abc", "eth0"), &[Pick { ip: ips("10.1.0.3")[0], set: 0 }]).unwrap();
    drop(store);
    assert_eq!(bench.addresses_of("abc"), "10.1.0.3");
    assert!(!bench.entry("stale:eth0").is_symlink());
}

/// Fills a file system except for this number of inodes.
fn fill(path: &Path, free: usize) {
    for n in 0.. {
        if fs::write(path.join(format!("filler{n}")), "").is_err() {
            (n - free..n).for_each(|n| fs::remove_file(path.join(format!("filler{n}"))).unwrap());
            return;
        }
    }
}

#[test]
fn full_disk_is_usable_to_the_last_inode() {
    in_netns(|| {
        for free in 0..6 {
            let bench = Bench::new();
            let path = bench.0.path();
            let target = path.to_str().unwrap();
            run("mount", &["-t", "tmpfs", "-o", "nr_inodes=32", "none", target]);
            for n in 2..5 {
                bench.write(&format!("10.1.0.{n}"), &format!("go{n}\r\neth0"));
            }
            bench.write("last_reserved_ip.0", "10.1.0.4");
            bench.write("lock", "");
            fill(path, free);
            assert_eq!(bench.addresses_of("go3"), "10.1.0.3", "{free}");
            assert_eq!(bench.del("go2", ""), "10.1.0.2", "{free}");
            for n in 0..=free {
                let id = format!("abc{n}");
                let ip = bench.add("10.1.0.0/28", "", &id).unwrap();
                assert_eq!(bench.addresses_of(&id), ip, "{free}");
            }
            let full = bench.add("10.1.0.0/28", "", "more").unwrap_err();
            assert!(full.is_full(), "{full}");
            assert_eq!(bench.open().retain(|id, _| id == "go4").unwrap().len(), free + 2);
            assert_eq!(bench.held(), "10.1.0.4");
            run("umount", &[target]);
        }
    });
}

#[test]
fn read_only_disk_can_be_read() {
    in_netns(|| {
        let bench = Bench::new();
        let target = bench.0.path().to_str().unwrap();
        run("mount", &["-t", "tmpfs", "none", target]);
        bench.add(SUBNET, "", "abc").unwrap();
        bench.write("10.1.0.3", "go\r\neth0");
        bench.write("10.1.0.4", "");
        run("mount", &["-o", "remount,ro", target]);
        for (id, expected) in [("abc", "10.1.0.2"), ("go", "10.1.0.3"), ("x", "")] {
            assert_eq!(bench.addresses_of(id), expected, "{id}");
        }
        assert!(!bench.open().is_exhausted(&sets_of(SUBNET)[0]).unwrap());
        assert_eq!(bench.del("x", ""), "");
        assert!(matches!(bench.open().release("go", "eth0", &[]), Err(Error::Release { .. })));
        run("mount", &["-o", "remount,rw", target]);
        assert_eq!(bench.del("go", ""), "10.1.0.3");
        assert!(bench.entry("abc:eth0").is_symlink() && bench.open().in_sync);
        run("umount", &[target]);
    });
}
