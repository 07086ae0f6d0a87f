// SPDX-License-Identifier: Apache-2.0
//! What flannel's udp backend does, and nothing of ours but the opening of the interface: one packet a
//! call, a hop taken at both ends.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernel::tun::{self, NewTun};

use crate::lab::{DEVICE, Node, PORT};

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Flannel {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Both ways between `node` and the one other node.
pub fn start(node: &Node, other: [u8; 4]) -> Flannel {
    let new = NewTun { name: DEVICE.parse().unwrap(), queues: 1, offload: false };
    let open = || (tun::carry(&new).unwrap().remove(0), UdpSocket::bind(node.config().listen));
    let (device, socket) = node.netns().enter(open).unwrap();
    let (device, socket) = (Arc::new(device), socket.unwrap());
    node.set_up_device();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (out, into, reader) =
        (socket.try_clone().unwrap(), Arc::clone(&device), Arc::clone(&is_over));
    let over = Arc::clone(&is_over);
    let outward = thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let mut packet = vec![0; 65_536];
            let Some(len) = read(&device, &mut packet).filter(|_| is_v4(&packet)) else { continue };
            take_hop(&mut packet[..len]);
            let _ = out.send_to(&packet[..len], SocketAddr::from((other, PORT)));
        }
    });
    let inward = thread::spawn(move || {
        while !reader.load(Ordering::Relaxed) {
            let mut packet = vec![0; 65_536];
            let Some(len) = socket.recv(&mut packet).ok().filter(|_| is_v4(&packet)) else {
                continue;
            };
            take_hop(&mut packet[..len]);
            let _ = (&*into).write(&packet[..len]);
        }
    });
    Flannel { is_over, threads: vec![outward, inward] }
}

/// Waits at most a moment, so that the end is seen.
fn read(mut device: &File, packet: &mut [u8]) -> Option<usize> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&moment)).ok()?;
    device.read(packet).ok()
}

/// IPv4 only, as there: what the kernel says of its own over IPv6 is left out.
fn is_v4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

/// The header's sum is one less in its high byte.
fn take_hop(packet: &mut [u8]) {
    packet[8] -= 1;
    let sum = u32::from(packet[10]) * 256 + u32::from(packet[11]) + 256;
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(sum as u16).to_be_bytes());
}

impl Drop for Flannel {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
