// SPDX-License-Identifier: Apache-2.0
//! A stand-in for flannel's udp backend: one packet per system call, and a TTL that is decremented
//! at both ends. It shares only the opening of the interface with the code under test.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernel::tun::{self, NewTun};

use crate::lab::{DEVICE, Node, PORT};

/// Forwards packets until it is dropped.
#[derive(Debug)]
pub struct Flannel {
    is_stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Forwards packets in both directions between `node` and one other node.
pub fn start(node: &Node, other: [u8; 4]) -> Flannel {
    let new = NewTun { name: DEVICE.parse().unwrap(), queues: 1, offload: false };
    let open =
        || (tun::open_queues(&new).unwrap().remove(0), UdpSocket::bind(node.config().listen));
    let (device, socket) = node.netns().enter(open).unwrap();
    let (device, socket) = (Arc::new(device), socket.unwrap());
    node.set_up_device();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let (out, into, receiver_stopped) =
        (socket.try_clone().unwrap(), Arc::clone(&device), Arc::clone(&is_stopped));
    let sender_stopped = Arc::clone(&is_stopped);
    let sender = thread::spawn(move || {
        while !sender_stopped.load(Ordering::Relaxed) {
            let mut packet = vec![0; 65_536];
            let Some(len) = read(&device, &mut packet).filter(|_| is_v4(&packet)) else { continue };
            decrement_ttl(&mut packet[..len]);
            let _ = out.send_to(&packet[..len], SocketAddr::from((other, PORT)));
        }
    });
    let receiver = thread::spawn(move || {
        while !receiver_stopped.load(Ordering::Relaxed) {
            let mut packet = vec![0; 65_536];
            let Some(len) = socket.recv(&mut packet).ok().filter(|_| is_v4(&packet)) else {
                continue;
            };
            decrement_ttl(&mut packet[..len]);
            let _ = (&*into).write(&packet[..len]);
        }
    });
    Flannel { is_stopped, threads: vec![sender, receiver] }
}

/// Waits at most 20 ms, so that the thread notices the stop flag.
fn read(mut device: &File, packet: &mut [u8]) -> Option<usize> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&timeout)).ok()?;
    device.read(packet).ok()
}

/// Accepts IPv4 only, like flannel, and so ignores the kernel's own IPv6 packets.
fn is_v4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

/// The TTL is the high byte of its word, so the checksum grows by 256.
fn decrement_ttl(packet: &mut [u8]) {
    packet[8] -= 1;
    let sum = u32::from(packet[10]) * 256 + u32::from(packet[11]) + 256;
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(sum as u16).to_be_bytes());
}

impl Drop for Flannel {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
