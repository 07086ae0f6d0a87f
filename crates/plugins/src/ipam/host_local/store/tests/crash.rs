// SPDX-License-Identifier: Apache-2.0
//! States left by a crash, by the Go plugin, or by an administrator.

use std::os::unix::fs::symlink;

use super::*;

const SUBNET: &str = "10.1.0.0/28";

/// Stamps both directories, as if the index matched the files.
fn stamp_in_sync(bench: &Bench) {
    let files = Dir::open(bench.path("")).unwrap();
    let index = Dir::open(bench.entry("")).unwrap();
    files.stamp_alike(&index).unwrap();
}

#[test]
fn empty_file_reserves_nothing() {
    let bench = Bench::new();
    bench.write("10.1.0.2", "");
    assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.2");
    assert_eq!(bench.del("abc", ""), "10.1.0.2");
    // An empty file that the index does not know is reused.
    bench.write("10.1.0.5", "");
    stamp_in_sync(&bench);
    assert_eq!(bench.held(), "10.1.0.5");
    assert_eq!(bench.add(SUBNET, "10.1.0.5", "abd").unwrap(), "10.1.0.5");
    assert_eq!(bench.read("10.1.0.5"), "abd\r\neth0");
    assert_eq!(bench.add(SUBNET, "", "abe").unwrap(), "10.1.0.6");
}

#[test]
fn changes_of_the_go_plugin_are_noticed_at_once() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "ours").unwrap();
    for n in 3..9 {
        // Right after our own change: much less than a timer tick.
        bench.write(&format!("10.1.0.{n}"), "go\r\neth0");
        assert_eq!(bench.addresses_of("go"), format!("10.1.0.{n}"));
        assert!(matches!(bench.add(SUBNET, "", "go"), Err(Error::Duplicate { .. })));
        assert_eq!(bench.addresses_of("ours"), "10.1.0.2");
        assert_eq!(bench.del("go", ""), format!("10.1.0.{n}"));
    }
    fs::remove_file(bench.path("10.1.0.2")).unwrap();
    assert_eq!(bench.addresses_of("ours"), "");
    assert!(!bench.entry("ours:eth0").is_symlink());
}

#[test]
fn directories_changed_within_one_tick_do_not_agree() {
    let bench = Bench::new();
    for n in 2..30 {
        let _ = fs::remove_dir_all(bench.0.path().join(INDEXES));
        bench.write(&format!("10.1.0.{n}"), &format!("c{n}"));
        assert_eq!(bench.addresses_of(&format!("c{n}")), format!("10.1.0.{n}"));
    }
}

#[test]
fn missing_entry_is_restored() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "abc").unwrap();
    fs::remove_file(bench.entry("abc:eth0")).unwrap();
    assert_eq!(bench.addresses_of("abc"), "10.1.0.2");
    fs::remove_dir_all(bench.0.path().join(INDEXES)).unwrap();
    assert_eq!(bench.del("abc", ""), "10.1.0.2");
}

#[test]
fn entry_without_its_file_is_ignored() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "abc").unwrap();
    symlink("10.1.0.2,10.1.0.9", bench.entry("abd:eth0")).unwrap();
    stamp_in_sync(&bench);
    assert_eq!(bench.addresses_of("abd"), "");
    assert_eq!(bench.del("abd", "10.1.0.2"), "");
    assert!(!bench.entry("abd:eth0").is_symlink());
    assert_eq!(bench.addresses_of("abc"), "10.1.0.2");
}

#[test]
fn stale_entry_does_not_hide_a_new_address() {
    let bench = Bench::new();
    bench.open();
    symlink("10.1.0.9", bench.entry("abc:eth0")).unwrap();
    stamp_in_sync(&bench);
    assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.2");
    assert_eq!(bench.addresses_of("abc"), "10.1.0.2");
}

#[test]
fn candidate_missing_in_the_index_is_released() {
    let bench = Bench::new();
    bench.open();
    bench.write("10.1.0.3", "abc\r\neth0");
    bench.write("10.1.0.4", "abc\r\neth1");
    bench.write("10.1.0.5", "old");
    stamp_in_sync(&bench);
    // Not found: only the files that the index names are read.
    assert_eq!(bench.addresses_of("abc"), "");
    assert_eq!(bench.del("abc", "10.1.0.3 ::ffff:10.1.0.3 10.1.0.4 10.1.0.5 10.1.0.6"), "10.1.0.3");
    stamp_in_sync(&bench);
    assert_eq!(bench.del("old", "10.1.0.4 10.1.0.5"), "10.1.0.5");
    assert_eq!(bench.held(), "10.1.0.4");
}

#[test]
fn files_without_interface_are_supported() {
    let bench = Bench::new();
    bench.write("10.1.0.2", "abc");
    bench.write("10.1.0.3", "abc\r\n");
    assert_eq!(bench.addresses_of("abc"), "10.1.0.2 10.1.0.3");
    assert!(matches!(bench.add(SUBNET, "", "abc"), Err(Error::Duplicate { .. })));
    // As in the Go plugin, they are released only if there are no others.
    bench.write("10.1.0.4", "abc\r\neth0");
    assert_eq!(bench.del("abc", ""), "10.1.0.4");
    assert_eq!(bench.del("abc", ""), "10.1.0.2 10.1.0.3");
    assert_eq!(bench.del("abc", ""), "");
}

#[test]
fn invalid_last_address_is_ignored() {
    let bench = Bench::new();
    for text in ["", "nonsense", "10.9.0.1", "10.1.0.2\n"] {
        bench.write("last_reserved_ip.0", text);
        assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.2", "{text:?}");
        assert_eq!(bench.read("last_reserved_ip.0"), "10.1.0.2");
        bench.del("abc", "");
    }
}

#[test]
fn owner_with_many_addresses_is_supported() {
    let bench = Bench::in_memory();
    let many: Vec<_> = sets_of("10.1.0.0/22")[0].candidates(None).take(600).collect();
    for ip in &many {
        bench.write(&ip.to_string(), "reserved");
    }
    assert_eq!(bench.addresses_of("reserved"), texts(many.clone()));
    assert_eq!(fs::read_link(bench.entry("reserved:")).unwrap(), PathBuf::from("*"));
    assert_eq!(bench.add("10.2.0.0/28", "", "reserved").unwrap(), "10.2.0.2");
    assert_eq!(bench.del("reserved", ""), "10.2.0.2");
    assert_eq!(bench.del("reserved", ""), texts(many));
    assert_eq!(bench.held(), "");
}

#[test]
fn failure_halfway_reserves_nothing() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "abc").unwrap();
    let mut store = bench.open();
    fs::create_dir(bench.path("last_reserved_ip.1")).unwrap();
    let picks = [("10.1.0.3", 0), ("10.1.0.4", 1)].map(|(ip, set)| Pick { ip: ips(ip)[0], set });
    let failed = store.reserve("abd", "eth0", &picks);
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert!(!bench.path("10.1.0.3").exists() && !bench.path("10.1.0.4").exists());
    fs::remove_dir(bench.path("last_reserved_ip.1")).unwrap();
    // The same store continues to work.
    let found = allocate(&mut store, &sets_of(SUBNET), &[], "abd", "eth0").unwrap();
    assert_eq!(texts(found.into_iter().map(|(ip, _)| ip)), "10.1.0.4");
    assert_eq!(texts(store.addresses_of("abc", "eth0").unwrap()), "10.1.0.2");
}

#[test]
fn unrelated_files_are_kept() {
    let bench = Bench::new();
    bench.write("notes", "");
    bench.write("FD00::2", "");
    fs::create_dir(bench.path("10.1.0.2")).unwrap();
    assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.3");
    bench.open().retain(|_, _| false).unwrap();
    assert!(bench.path("notes").exists() && bench.path("FD00::2").exists());
    assert!(bench.path("10.1.0.2").is_dir());
}

/// Rewrites a file in place, which does not change the directory's modification time, so that the
/// index does not notice it.
fn rewrite(bench: &Bench, name: &str, text: &str) {
    fs::write(bench.path(name), text).unwrap();
    assert!(bench.open().in_sync, "the index is trusted");
}

#[test]
fn file_rewritten_in_place_is_released() {
    let bench = Bench::new();
    // Early versions of the Go plugin write no interface.
    bench.add("10.1.0.0/28", "", "abc").unwrap();
    rewrite(&bench, "10.1.0.2", "abc");
    assert_eq!(bench.del("abc", ""), "10.1.0.2");
    // Another container, which the index does not know.
    bench.add("10.1.0.0/28", "", "abc").unwrap();
    bench.add("10.1.0.0/28", "", "third").unwrap();
    rewrite(&bench, "10.1.0.3", "other\r\neth0");
    assert_eq!(bench.del("abc", ""), "");
    assert_eq!(bench.del("other", ""), "10.1.0.3");
    assert_eq!(bench.addresses_of("third"), "10.1.0.4");
    assert_eq!(bench.held(), "10.1.0.4");
    // The index is correct again.
    assert!(!bench.entry("abc:eth0").is_symlink());
    assert!(bench.entry("third:eth0").is_symlink() && bench.open().in_sync);
}

#[test]
fn rescan_finds_a_rewritten_file() {
    let bench = Bench::new();
    bench.add("10.1.0.0/28", "", "abc").unwrap();
    rewrite(&bench, "10.1.0.2", "other\r\neth0");
    let mut store = bench.open();
    assert_eq!(texts(store.addresses_of("other", "eth0").unwrap()), "");
    store.rescan();
    assert_eq!(texts(store.addresses_of("other", "eth0").unwrap()), "10.1.0.2");
    assert_eq!(texts(store.addresses_of("abc", "eth0").unwrap()), "");
}
