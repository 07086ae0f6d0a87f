// SPDX-License-Identifier: Apache-2.0
//! TCP through a UDP tunnel between two namespaces, for `cargo xtask bench`: by the crate `tunnel`
//! (`ours`), and by a loop that carries one packet a call in the same form (`naive`), as flannel's does.
//! Prints bits a second.

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
/// Of the wire, less the headers of IPv4 and UDP.
const MTU: u32 = 1472;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [who, seconds] = args.as_slice() else {
        return Err("udp-path is started by `cargo xtask bench` only".into());
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
        _ => return Err("naive or ours".into()),
    }
    println!("{:.0}", Flow::start(&nodes, inside(&nodes[1]).into())?.measure(time)?);
    drop(tunnels);
    Ok(())
}

/// Where a node's tunnel takes packets.
fn listen(node: &Node) -> SocketAddr {
    SocketAddr::from((node.underlay(), PORT))
}

/// A node's one address of the network.
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
    let refused = tunnel.set_peers(&[tunnel::Peer { prefix, via: listen(other) }]);
    if refused.is_empty() { Ok(tunnel) } else { Err("a peer is refused".into()) }
}

/// A thread that alternates between interface and socket while there is something, and waits then.
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
            let out = carry_out(&queue, &socket, to, &mut packet);
            let into = carry_in(&queue, &socket, &mut packet);
            if !out && !into {
                let mut both =
                    [PollFd::new(&queue, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
                let _ = poll(&mut both, None);
            }
        }
    });
    Ok(())
}

fn carry_out(mut queue: &File, socket: &UdpSocket, to: SocketAddr, packet: &mut [u8]) -> bool {
    let Ok(len) = queue.read(packet) else { return false };
    take_hop(&mut packet[..len]);
    let _ = socket.send_to(&packet[..len], to);
    true
}

fn carry_in(mut queue: &File, socket: &UdpSocket, packet: &mut [u8]) -> bool {
    let Ok(len) = socket.recv(packet) else { return false };
    take_hop(&mut packet[..len]);
    let _ = queue.write(&packet[..len]);
    true
}

/// Of an IPv4 header, with its checksum.
fn take_hop(packet: &mut [u8]) {
    let Some([.., _, ttl, _, high, low]) = packet.first_chunk_mut::<12>() else { return };
    *ttl = ttl.saturating_sub(1);
    let sum = u32::from(u16::from_be_bytes([*high, *low])) + 0x100;
    let sum = (sum & 0xffff) + (sum >> 16);
    [*high, *low] = [(sum >> 8) as u8, sum as u8];
}
