// SPDX-License-Identifier: Apache-2.0
//! TCP over a UDP tunnel between two namespaces, for `cargo xtask bench`: with the crate `tunnel`
//! (`ours`), or with a loop of one packet per system call (`naive`), like flannel's. Prints bit/s.

#[path = "node_path/mover.rs"]
mod mover;
#[path = "node_path/node.rs"]
mod node;

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use kernel::IfName;
use kernel::link;
use kernel::tun::{self, NewTun};
use rustix::event::{PollFd, PollFlags, poll};
use tunnel::{Config, Tunnel};

use self::mover::Flow;
use self::node::Node;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PORT: u16 = 8285;
/// MTU of the underlay minus the IPv4 and UDP headers.
const MTU: u32 = 1472;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [who, seconds] = args.as_slice() else {
        return Err("udp-path is run by `cargo xtask bench` only".into());
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let nodes = node::two()?;
    let mut tunnels = Vec::new();
    match who.as_str() {
        "naive" => {
            naive(&nodes[0], &nodes[1])?;
            naive(&nodes[1], &nodes[0])?;
        }
        "ours" => {
            tunnels.push(ours(&nodes[0], &nodes[1])?);
            tunnels.push(ours(&nodes[1], &nodes[0])?);
        }
        _ => return Err("expected naive or ours".into()),
    }
    println!("{:.0}", Flow::start(&nodes, inside(&nodes[1]).into())?.measure(time)?);
    drop(tunnels);
    Ok(())
}

/// Address on which the tunnel of a node receives packets.
fn listen(node: &Node) -> SocketAddr {
    SocketAddr::from((node.underlay(), PORT))
}

/// Address of a node in the overlay network.
fn inside(node: &Node) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node.number, 0)
}

fn set_up_tun(node: &Node, device: IfName) -> Outcome {
    let nl = node.netns.netlink()?;
    nl.apply([link::set_mtu(link::index_of(&nl, device)?, MTU)])?;
    let network: IpNet = Ipv4Net::new(Ipv4Addr::new(10, 244, 0, 0), 16)?.into();
    node.set_up(device, Ipv4Net::new(inside(node), 32)?.into(), &[network])
}

fn device() -> Outcome<IfName> {
    Ok("flannel0".parse()?)
}

fn ours(node: &Node, other: &Node) -> Outcome<Tunnel> {
    let config = Config { device: device()?, listen: listen(node), queues: 2 };
    let tunnel = node.netns.enter(|| Tunnel::start(&config))??;
    set_up_tun(node, device()?)?;
    let prefix = Ipv4Net::new(inside(other), 24)?.into();
    let rejected = tunnel.set_peers(&[tunnel::Peer { prefix, via: listen(other) }]);
    if rejected.is_empty() { Ok(tunnel) } else { Err("the tunnel rejected a peer".into()) }
}

/// Starts a thread that alternates between device and socket, and waits if both are empty.
fn naive(node: &Node, other: &Node) -> Outcome {
    let new = NewTun { name: device()?, queues: 1, offload: false };
    let mut queues = node.netns.enter(|| tun::open_queues(&new))??;
    let queue = queues.pop().ok_or("no queue")?;
    let socket = node.netns.enter(|| UdpSocket::bind(listen(node)))??;
    socket.set_nonblocking(true)?;
    set_up_tun(node, device()?)?;
    let to = listen(other);
    thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        loop {
            let out = send_packet(&queue, &socket, to, &mut packet);
            let into = receive_packet(&queue, &socket, &mut packet);
            if !out && !into {
                let mut both =
                    [PollFd::new(&queue, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
                let _ = poll(&mut both, None);
            }
        }
    });
    Ok(())
}

fn send_packet(mut queue: &File, socket: &UdpSocket, to: SocketAddr, packet: &mut [u8]) -> bool {
    let Ok(len) = queue.read(packet) else { return false };
    decrement_ttl(&mut packet[..len]);
    let _ = socket.send_to(&packet[..len], to);
    true
}

fn receive_packet(mut queue: &File, socket: &UdpSocket, packet: &mut [u8]) -> bool {
    let Ok(len) = socket.recv(packet) else { return false };
    decrement_ttl(&mut packet[..len]);
    let _ = queue.write(&packet[..len]);
    true
}

/// Decrements the TTL of an IPv4 header and updates the checksum.
fn decrement_ttl(packet: &mut [u8]) {
    let Some([.., _, ttl, _, high, low]) = packet.first_chunk_mut::<12>() else { return };
    *ttl = ttl.saturating_sub(1);
    let sum = u32::from(u16::from_be_bytes([*high, *low])) + 0x100;
    let sum = (sum & 0xffff) + (sum >> 16);
    [*high, *low] = [(sum >> 8) as u8, sum as u8];
}
