// SPDX-License-Identifier: Apache-2.0
//! Objects in the directory that no plugin creates: FIFOs, symbolic links, locks held by another
//! process.

use std::error::Error as _;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

const SUBNET: &str = "10.1.0.0/29";

fn make_fifo(bench: &Bench, name: &str) {
    fs::create_dir_all(bench.path("")).unwrap();
    mknodat(CWD, bench.path(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
}

fn cause_of(error: &Error) -> String {
    error.source().unwrap().to_string()
}

/// No operation blocks, and none uses the FIFO's address.
#[test]
fn fifo_reserves_its_address_and_blocks_nothing() {
    let bench = Bench::new();
    make_fifo(&bench, "10.1.0.2");
    assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.3");
    assert!(matches!(bench.add(SUBNET, "10.1.0.2", "abd"), Err(Error::RequestedTaken { .. })));
    assert_eq!(bench.addresses_of("abc"), "10.1.0.3");
    assert_eq!(bench.del("abc", "10.1.0.2 10.1.0.3"), "10.1.0.3");
    assert_eq!(bench.del("abc", "10.1.0.2"), "");
    assert!(bench.open().retain(|_, _| false).unwrap().is_empty());
    assert!(bench.open().is_exhausted(&sets_of("10.1.0.0/30")[0]).unwrap());
    assert_eq!(bench.held(), "10.1.0.2");
}

#[test]
fn lock_of_another_file_type_is_an_error() {
    let bench = Bench::new();
    make_fifo(&bench, "lock");
    let error = Store::open(bench.0.path(), NET).unwrap_err();
    assert_eq!(error.to_string(), format!("lock {}", bench.path("lock").display()));
    assert_eq!(cause_of(&error), "it is a FIFO, expected a regular file");
    fs::remove_file(bench.path("lock")).unwrap();
    fs::write(bench.0.path().join("victim"), "").unwrap();
    symlink("../victim", bench.path("lock")).unwrap();
    let error = Store::open_existing(bench.0.path(), NET).unwrap_err();
    assert_eq!(cause_of(&error), "it is a symbolic link, expected a regular file");
}

/// With a planted link, the plugin would write to any file as root.
#[test]
fn symbolic_link_is_not_followed() {
    for (name, target) in [("last_reserved_ip.0", "../victim"), ("last_reserved_ip.0", "../new")] {
        let bench = Bench::new();
        let victim = bench.0.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        fs::create_dir_all(bench.path("")).unwrap();
        symlink(target, bench.path(name)).unwrap();
        let error = bench.add(SUBNET, "", "abc").unwrap_err();
        assert_eq!(cause_of(&error), "it is a symbolic link, expected a regular file");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!bench.0.path().join("new").exists());
        assert_eq!(bench.held(), "");
        // A link in place of an address file is not read through.
        fs::remove_file(bench.path(name)).unwrap();
        fs::write(&victim, "abc\r\neth0").unwrap();
        symlink("../victim", bench.path("10.1.0.2")).unwrap();
        assert_eq!(bench.add(SUBNET, "", "abc").unwrap(), "10.1.0.3");
        assert_eq!(bench.del("abc", "10.1.0.2"), "10.1.0.3");
        assert!(bench.path("10.1.0.2").is_symlink());
    }
}

/// The Go plugin locks the same file in the same way.
#[test]
fn lock_timeout_names_the_holder() {
    let bench = Bench::new();
    bench.add(SUBNET, "", "abc").unwrap();
    let held = fs::File::open(bench.path("lock")).unwrap();
    held.lock().unwrap();
    let error = Store::open_within(bench.0.path(), NET, Duration::from_millis(20)).unwrap_err();
    let cause = cause_of(&error);
    assert!(cause.starts_with(&format!("process {} (", std::process::id())), "{cause}");
    drop(held);
    assert_eq!(bench.del("abc", ""), "10.1.0.2");
}
