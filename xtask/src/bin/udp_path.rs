// SPDX-License-Identifier: Apache-2.0
//! TCP through a UDP tunnel between two namespaces, for `cargo xtask bench`: by the crate `tunnel`
//! (`ours`), and by a loop that carries one packet a call in the same form (`naive`), as flannel's does.
//! Prints bits a second.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, NewLink, Peer};
use kernel::route::{self, Route};
use kernel::tun::{self, NewTun};
use kernel::{IfName, Netns};
use rustix::event::{PollFd, PollFlags, poll};
use tunnel::{Config, Tunnel};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PORT: u16 = 8285;
/// Of the wire, less the headers of IPv4 and UDP.
const MTU: u32 = 1472;
/// Until TCP has found its speed.
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [who, seconds] = args.as_slice() else {
        return Err("udp-path is started by `cargo xtask bench` only".into());
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let nodes = [Node::new(1)?, Node::new(2)?];
    connect(&nodes)?;
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
    println!("{:.0}", throughput(&nodes, time)?);
    drop(tunnels);
    Ok(())
}

struct Node {
    netns: Netns,
    number: u8,
}

impl Node {
    fn new(number: u8) -> Outcome<Node> {
        Ok(Node { netns: Netns::new_anonymous()?, number })
    }

    /// Where the tunnel takes packets.
    fn listen(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, self.number], PORT))
    }

    /// Its one address of the network.
    fn inside(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, 0)
    }

    fn set_up(&self, device: IfName, prefix: IpNet, routes: &[IpNet]) -> Outcome {
        let nl = self.netns.netlink()?;
        let index = link::index_of(&nl, device)?;
        let mut requests =
            vec![addr::add(index, prefix, AddrOptions::default()), link::set_up(index)];
        requests.extend(routes.iter().map(|dst| route::create(&Route::new(*dst).dev(index))));
        Ok(nl.apply(requests)?)
    }

    fn set_up_tun(&self, device: IfName) -> Outcome {
        let nl = self.netns.netlink()?;
        nl.apply([link::set_mtu(link::index_of(&nl, device)?, MTU)])?;
        let network: IpNet = Ipv4Net::new(Ipv4Addr::new(10, 244, 0, 0), 16)?.into();
        self.set_up(device, Ipv4Net::new(self.inside(), 32)?.into(), &[network])
    }
}

fn device() -> Outcome<IfName> {
    Ok("flannel0".parse()?)
}

fn connect([a, b]: &[Node; 2]) -> Outcome {
    let eth0: IfName = "eth0".parse()?;
    let peer = Peer { name: eth0, mac: None, mtu: None, netns: Some(b.netns.as_fd()) };
    a.netns.netlink()?.apply([link::create(&NewLink::new(eth0, Kind::Veth(peer)))])?;
    for node in [a, b] {
        let SocketAddr::V4(at) = node.listen() else { continue };
        node.set_up(eth0, Ipv4Net::new(*at.ip(), 24)?.into(), &[])?;
    }
    Ok(())
}

fn ours(node: &Node, other: &Node) -> Outcome<Tunnel> {
    let config = Config { device: device()?, listen: node.listen(), queues: 2 };
    let tunnel = node.netns.enter(|| Tunnel::start(&config))??;
    node.set_up_tun(device()?)?;
    let prefix = Ipv4Net::new(other.inside(), 24)?.into();
    let refused = tunnel.set_peers(&[tunnel::Peer { prefix, via: other.listen() }]);
    if refused.is_empty() { Ok(tunnel) } else { Err("a peer is refused".into()) }
}

/// A thread that alternates between interface and socket while there is something, and waits then.
fn naive(node: &Node, other: &Node) -> Outcome {
    let new = NewTun { name: device()?, queues: 1, offload: false };
    let mut queues = node.netns.enter(|| tun::carry(&new))??;
    let queue = queues.pop().ok_or("no queue")?;
    let socket = node.netns.enter(|| UdpSocket::bind(node.listen()))??;
    socket.set_nonblocking(true)?;
    node.set_up_tun(device()?)?;
    let to = other.listen();
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

/// Of one connection, as its receiver sees it.
fn throughput([a, b]: &[Node; 2], time: Duration) -> Outcome<f64> {
    let at = SocketAddr::new(b.inside().into(), 7000);
    let listener = b.netns.enter(|| TcpListener::bind(at))??;
    let mut client = a.netns.enter(|| TcpStream::connect(at))??;
    let (mut server, _) = listener.accept()?;
    thread::spawn(move || {
        let block = vec![7; 256 * 1024];
        while client.write_all(&block).is_ok() {}
    });
    let mut block = vec![0; 256 * 1024];
    let mut read = |time: Duration| -> Outcome<f64> {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            bytes += server.read(&mut block)?;
        }
        // Far below 2^52.
        Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
    };
    read(WARM_UP)?;
    read(time)
}
