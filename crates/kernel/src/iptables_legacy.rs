// SPDX-License-Identifier: Apache-2.0
//! Read-only access to the kernel's older packet filter, used by `iptables-legacy`: whether it is
//! in use, and whether it drops forwarded packets. nf_tables cannot see or override its rules.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ::netlink::Errno;

use crate::error::{Error, Result};
use crate::types::Family;

// linux/netfilter_ipv4/ip_tables.h; linux/netfilter_ipv6/ip6_tables.h has the same values.
const SO_GET_INFO: libc::c_int = 64;
const SO_GET_ENTRIES: libc::c_int = 65;
const XT_TABLE_MAXNAMELEN: usize = 32; // linux/netfilter/x_tables.h
/// Length of `name`, `size` and padding of `struct ipt_get_entries`.
const ENTRIES_HEADER: usize = 40;
/// Length of `struct xt_entry_target`, which the verdict of a standard target follows.
const TARGET_HEADER: usize = 32;
const FORWARD: usize = 2; // NF_INET_FORWARD, linux/netfilter.h
const DROP: i32 = -1; // -NF_DROP - 1

/// Maximum size of a table. The kernel reports the size, and memory is allocated accordingly.
const MAX_SIZE: usize = 256 << 20;

/// `struct ipt_getinfo`: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size.
const INFO_LEN: usize = XT_TABLE_MAXNAMELEN + 13 * 4;
const INFO_UNDERFLOW: usize = XT_TABLE_MAXNAMELEN + 6 * 4;

/// Returns whether a table is in use in the calling thread's namespace. The kernel creates a table
/// when it is first requested, so this reads the list of existing tables instead.
pub fn is_in_use(family: Family, table: &str) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == table))
}

/// Returns whether a table contains a text, such as the name of a chain or a comment.
pub fn mentions(family: Family, table: &str, text: &str) -> Result<bool> {
    if !is_in_use(family, table) {
        return Ok(false);
    }
    match read(family, table) {
        Ok((_, entries)) => {
            Ok(entries.windows(text.len().max(1)).any(|part| part == text.as_bytes()))
        }
        Err(errno) => Err(Error::from_errno("read iptables-legacy", table, errno)),
    }
}

/// Returns whether the policy of the chain `FORWARD` is `DROP`.
pub fn drops_forwarded(family: Family) -> Result<bool> {
    if !is_in_use(family, "filter") {
        return Ok(false);
    }
    policy(family)
        .map(|verdict| verdict == Some(DROP))
        .map_err(|errno| Error::from_errno("read iptables-legacy", "filter", errno))
}

fn policy(family: Family) -> std::result::Result<Option<i32>, Errno> {
    // Offset of target_offset in struct ipt_entry and struct ip6t_entry.
    let target_offset = match family {
        Family::V4 => 88,
        Family::V6 => 140,
    };
    let (info, entries) = read(family, "filter")?;
    let underflow = u32_at(&info, INFO_UNDERFLOW + 4 * FORWARD);
    Ok(underflow.and_then(|underflow| verdict(&entries, underflow as usize, target_offset)))
}

/// Reads the information about a table and its entries.
fn read(family: Family, table: &str) -> std::result::Result<([u8; INFO_LEN], Vec<u8>), Errno> {
    let (domain, level) = match family {
        Family::V4 => (libc::AF_INET, libc::SOL_IP),
        Family::V6 => (libc::AF_INET6, libc::SOL_IPV6),
    };
    let socket = raw_socket(domain)?;
    let name = table.as_bytes().get(..XT_TABLE_MAXNAMELEN - 1).unwrap_or(table.as_bytes());
    let mut info = [0; INFO_LEN];
    info[..name.len()].copy_from_slice(name);
    get(&socket, level, SO_GET_INFO, &mut info)?;
    let size = u32_at(&info, INFO_LEN - 4).unwrap_or_default();
    if size as usize > MAX_SIZE {
        return Err(Errno::TOOBIG);
    }
    let mut entries = vec![0; ENTRIES_HEADER + size as usize];
    entries[..name.len()].copy_from_slice(name);
    entries[XT_TABLE_MAXNAMELEN..XT_TABLE_MAXNAMELEN + 4].copy_from_slice(&size.to_ne_bytes());
    get(&socket, level, SO_GET_ENTRIES, &mut entries)?;
    Ok((info, entries.split_off(ENTRIES_HEADER)))
}

/// Returns the verdict of the entry at the end of a chain, which is the chain's policy.
fn verdict(table: &[u8], entry: usize, target_offset: usize) -> Option<i32> {
    let offset = table.get(entry + target_offset..)?.first_chunk::<2>()?;
    let target = entry + usize::from(u16::from_ne_bytes(*offset));
    u32_at(table, target + TARGET_HEADER).map(u32::cast_signed)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn raw_socket(domain: libc::c_int) -> std::result::Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(domain, kind, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn get(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    bytes: &mut [u8],
) -> std::result::Result<(), Errno> {
    let mut len = libc::socklen_t::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
    let pointer = bytes.as_mut_ptr().cast();
    // SAFETY: the kernel reads and writes at most `len` bytes, the length of the slice.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer, &raw mut len) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
