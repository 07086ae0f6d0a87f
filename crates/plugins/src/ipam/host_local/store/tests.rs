// SPDX-License-Identifier: Apache-2.0
//! Tests of the store in a real directory: the files of the Go plugin, allocation, release, and
//! states that no run of the plugin leaves.

mod crash;
mod foreign;
mod no_index;
mod properties;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use ::ipam::{Range, RangeConf};
use tempfile::TempDir;

use super::*;

const NET: &str = "net";

/// A data directory with one network in it.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// ext4 checks every inode that was freed within the last half minute before it assigns one,
    /// which makes tests with thousands of files slow.
    fn in_memory() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn open(&self) -> Store {
        Store::open(self.0.path(), NET).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(NET).join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a file as the Go plugin or an administrator does.
    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path("")).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn entry(&self, name: &str) -> PathBuf {
        self.0.path().join(INDEXES).join(NET).join(name)
    }

    fn add(&self, sets: &str, requested: &str, id: &str) -> Result<String, Error> {
        let found = allocate(&mut self.open(), &sets_of(sets), &ips(requested), id, "eth0")?;
        Ok(texts(found.into_iter().map(|(ip, _)| ip)))
    }

    fn del(&self, id: &str, candidates: &str) -> String {
        texts(self.open().release(id, "eth0", &ips(candidates)).unwrap())
    }

    fn addresses_of(&self, id: &str) -> String {
        texts(self.open().addresses_of(id, "eth0").unwrap())
    }

    /// The address files, in order.
    fn held(&self) -> String {
        texts(self.open().taken().unwrap())
    }
}

fn ips(text: &str) -> Vec<IpAddr> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn texts(ips: impl IntoIterator<Item = IpAddr>) -> String {
    let mut ips: Vec<_> = ips.into_iter().collect();
    ips.sort();
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ")
}

/// `10.1.0.0/29 fd00::/64` → two sets of one range each.
fn sets_of(text: &str) -> Vec<RangeSet> {
    let range = |word: &str| Range::new(RangeConf::whole(word.parse().unwrap())).unwrap();
    text.split_whitespace().map(|word| RangeSet::new(vec![range(word)]).unwrap()).collect()
}

fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn files_match_the_go_plugin() {
    let bench = Bench::new();
    assert_eq!(
        bench.add("10.1.0.0/29 fd00:0:0:1::/64", "", "abc").unwrap(),
        "10.1.0.2 fd00:0:0:1::2"
    );
    assert_eq!(bench.read("10.1.0.2"), "abc\r\neth0");
    assert_eq!(bench.read("fd00:0:0:1::2"), "abc\r\neth0");
    assert_eq!(bench.read("last_reserved_ip.0"), "10.1.0.2");
    assert_eq!(bench.read("last_reserved_ip.1"), "fd00:0:0:1::2");
    assert_eq!(bench.read("lock"), "");
    let modes = ["", "10.1.0.2", "last_reserved_ip.0", "lock"].map(|n| mode(bench.path(n)));
    assert_eq!(modes, [0o755, 0o600, 0o600, 0o750]);
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 5);
    assert_eq!(mode(bench.0.path().join(INDEXES)), 0o700);
    assert_eq!(
        fs::read_link(bench.entry("abc:eth0")).unwrap(),
        PathBuf::from("10.1.0.2,fd00:0:0:1::2")
    );
}

#[test]
fn open_existing_creates_nothing() {
    let bench = Bench::new();
    assert!(Store::open_existing(bench.0.path(), NET).unwrap().is_none());
    assert_eq!(fs::read_dir(bench.0.path()).unwrap().count(), 0);
    bench.write("10.1.0.2", "abc\r\neth0");
    let mut store = Store::open_existing(bench.0.path(), NET).unwrap().unwrap();
    assert_eq!(store.release("abc", "eth0", &[]).unwrap(), ips("10.1.0.2"));
}

#[test]
fn network_name_cannot_leave_the_directory() {
    let bench = Bench::new();
    for name in ["", ".podwire", "..", "/etc", "a/../../b"] {
        let refused = Store::open(bench.0.path(), name);
        assert!(matches!(refused, Err(Error::Network { .. })), "{name}");
    }
}

#[test]
fn second_add_of_an_attachment_is_refused() {
    let bench = Bench::new();
    bench.add("10.1.0.0/29", "", "abc").unwrap();
    let again = bench.add("10.1.0.0/29", "", "abc").unwrap_err();
    assert!(matches!(again, Error::Duplicate { index: 0, .. }));
    assert_eq!(
        again.to_string(),
        "10.1.0.2 has been allocated to abc, duplicate allocation is not allowed"
    );
    let requested = bench.add("10.1.0.0/29", "10.1.0.5", "abc");
    assert!(matches!(requested, Err(Error::Duplicate { .. })));
    // Another set, another container and another interface are allowed.
    assert_eq!(bench.add("10.2.0.0/29", "", "abc").unwrap(), "10.2.0.2");
    assert_eq!(bench.add("10.1.0.0/29", "", "abd").unwrap(), "10.1.0.3");
    let other = allocate(&mut bench.open(), &sets_of("10.1.0.0/29"), &[], "abc", "eth1").unwrap();
    assert_eq!(other[0].0, ips("10.1.0.4")[0]);
    assert_eq!(bench.addresses_of("abc"), "10.1.0.2 10.2.0.2");
    assert_eq!(bench.del("abc", ""), "10.1.0.2 10.2.0.2");
    assert_eq!(bench.held(), "10.1.0.3 10.1.0.4");
}

#[test]
fn released_address_is_reused_last() {
    let bench = Bench::new();
    for expected in ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"] {
        assert_eq!(bench.add("10.1.0.0/29", "", "abc").unwrap(), expected);
        assert_eq!(bench.del("abc", ""), expected);
        assert_eq!(bench.read("last_reserved_ip.0"), expected);
    }
    assert_eq!(bench.held(), "");
}

#[test]
fn shorter_last_address_leaves_no_tail() {
    let bench = Bench::new();
    bench.add("10.1.0.0/24", "10.1.0.100", "a").unwrap();
    bench.add("10.1.0.0/24", "10.1.0.9", "b").unwrap();
    assert_eq!(bench.read("last_reserved_ip.0"), "10.1.0.9");
}

#[test]
fn exhausted_set_reserves_nothing() {
    let bench = Bench::new();
    bench.add("10.1.0.0/30", "", "abc").unwrap();
    let full = bench.add("10.2.0.0/29 10.1.0.0/30", "", "abd").unwrap_err();
    assert!(matches!(full, Error::Exhausted { index: 1, .. }));
    assert_eq!(full.set_index(), Some(1));
    assert_eq!(full.to_string(), "no IP addresses available in range set: 10.1.0.1-10.1.0.2");
    assert_eq!(bench.held(), "10.1.0.2");
    let store = bench.open();
    let exhausted = |sets| store.is_exhausted(&sets_of(sets)[0]).unwrap();
    assert!(exhausted("10.1.0.0/30"));
    assert!(!exhausted("10.1.0.0/29"));
    assert!(!exhausted("fd00::/8"));
}

#[test]
fn requested_addresses_are_assigned_or_refused() {
    let bench = Bench::new();
    let sets = "10.1.0.0/29 10.2.0.0/29 fd00::/64";
    let check = |requested: &str, expected: &str| {
        let found = bench.add(sets, requested, "abc").unwrap_or_else(|e| e.to_string());
        assert_eq!(found, expected, "{requested}");
        bench.del("abc", "");
        assert_eq!(bench.held(), "10.1.0.4");
    };
    bench.add(sets, "10.1.0.4", "abd").unwrap();
    bench.open().retain(|_, _| false).unwrap();
    bench.add("10.1.0.0/29", "10.1.0.4", "abd").unwrap();

    check("fd00::77 10.2.0.5", "10.1.0.5 10.2.0.5 fd00::77");
    check("::ffff:10.1.0.3 10.1.0.3", "10.1.0.3 10.2.0.6 fd00::78");
    check("10.1.0.1", "requested ip 10.1.0.1 is subnet's gateway");
    check(
        "10.2.0.2 10.1.0.4",
        "requested IP address 10.1.0.4 is not available in range set 10.1.0.1-10.1.0.6",
    );
    check("10.1.0.2 10.1.0.3 10.9.0.1", "failed to allocate all requested IPs: 10.1.0.3 10.9.0.1");
}

#[test]
fn reserve_is_all_or_nothing() {
    let bench = Bench::new();
    bench.write("10.1.0.3", "other\r\neth0");
    let picks: Vec<_> =
        ips("10.1.0.2 10.1.0.3").into_iter().map(|ip| Pick { ip, set: 0 }).collect();
    let taken = bench.open().reserve("abc", "eth0", &picks);
    assert!(matches!(taken, Err(Error::Taken { ip }) if ip == picks[1].ip));
    assert_eq!(bench.held(), "10.1.0.3");
    assert_eq!(bench.addresses_of("abc"), "");
}

#[test]
fn retain_releases_the_others() {
    let bench = Bench::new();
    for id in ["a", "b", "c"] {
        bench.add("10.1.0.0/28", "", id).unwrap();
    }
    bench.write("10.1.0.7", "old");
    bench.write("10.1.0.8", "gone");
    bench.write("10.1.0.9", "");
    let valid = [("b", "eth0"), ("c", "eth1"), ("old", "eth0")];
    let keep = |id: &str, ifname: Option<&str>| {
        valid.iter().any(|v| v.0 == id && ifname.is_none_or(|name| name == v.1))
    };
    let mut freed = bench.open().retain(keep).unwrap();
    freed.sort_by_key(|r| r.ip);
    let freed: Vec<_> = freed.iter().map(|r| (r.id.as_str(), r.ifname.as_deref())).collect();
    assert_eq!(freed, [("a", Some("eth0")), ("c", Some("eth0")), ("gone", None)]);
    assert_eq!(bench.held(), "10.1.0.3 10.1.0.7");
    assert_eq!(bench.addresses_of("old"), "10.1.0.7");
    assert_eq!(bench.open().reservations().unwrap().len(), 2);
}

#[test]
fn allocate_skips_a_long_run_of_reserved_addresses() {
    let bench = Bench::in_memory();
    let sets = sets_of("10.1.0.0/22");
    let all: Vec<_> = sets[0].candidates(None).collect();
    for ip in &all[..all.len() - 1] {
        bench.write(&ip.to_string(), "other\r\neth0");
    }
    assert_eq!(bench.add("10.1.0.0/22", "", "abc").unwrap(), "10.1.3.254");
    assert!(matches!(bench.add("10.1.0.0/22", "", "abd"), Err(Error::Exhausted { .. })));
    // A power failure may lose the contents of a file long after it was written, and no timestamp
    // shows it.
    let empty = fs::File::options().write(true).truncate(true).open(bench.path("10.1.3.7"));
    drop(empty.unwrap());
    assert_eq!(bench.add("10.1.0.0/22", "", "abd").unwrap(), "10.1.3.7");
}

#[test]
fn concurrent_threads_get_different_addresses() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                for n in 0..50 {
                    bench.add("10.1.0.0/24", "", &format!("{thread}-{n}")).unwrap();
                    if n % 2 == 0 {
                        assert_ne!(bench.del(&format!("{thread}-{n}"), ""), "");
                    }
                }
            });
        }
    });
    let held = bench.open().reservations().unwrap();
    assert_eq!(held.len(), 100);
    for reservation in held {
        assert_eq!(bench.addresses_of(&reservation.id), reservation.ip.to_string());
    }
}
