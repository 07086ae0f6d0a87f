// SPDX-License-Identifier: Apache-2.0
//! TCP throughput between two nodes, configured by agents or by hand with `ip` and `bridge`.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::agent::{Agent, embedded, flags_of};
use super::mover::Flow;
use super::node::{self, Node};
use super::process::run;
use super::{Outcome, wait};

/// Measures bit/s by hand and with agents in turn. Both networks exist at the same time, so that both see
/// the same load of the machine.
pub(crate) fn measure(
    file: &Path,
    dir: &Path,
    backend: &str,
    time: Duration,
    turns: usize,
) -> Outcome<Vec<[f64; 2]>> {
    let (by_hand, ours) = (node::two()?, node::two()?);
    let to = by_hand_to(&by_hand, backend)?;
    let mut by_hand = flow(&by_hand, to)?;
    let mut agents = Vec::new();
    let to = by_agents_to(&ours, file, dir, backend, &mut agents)?;
    let mut ours = flow(&ours, to)?;
    let mut turn = || Ok([by_hand.measure(time)?, ours.measure(time)?]);
    (0..turns).map(|_| turn()).collect()
}

fn by_hand_to([a, b]: &[Node; 2], backend: &str) -> Outcome<Ipv4Addr> {
    let connect = match backend {
        "vxlan" => vxlan,
        "host-gw" => host_gw,
        _ => return Err("expected vxlan or host-gw".into()),
    };
    connect(a, b)?;
    connect(b, a)?;
    Ok(gateway(b))
}

fn by_agents_to(
    nodes: &[Node; 2],
    file: &Path,
    dir: &Path,
    backend: &str,
    agents: &mut Vec<Agent>,
) -> Outcome<Ipv4Addr> {
    let conf = format!(r#"{{"Network": "10.244.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let flags = flags_of(&embedded(&dir.join("store.db")), &conf);
    for node in nodes {
        agents.push(Agent::start(file, node, dir, &flags)?);
    }
    let subnets = agents.iter_mut().map(Agent::wait_subnet).collect::<Outcome<Vec<_>>>()?;
    Ok(subnets[1].addr())
}

fn flow(nodes: &[Node; 2], to: Ipv4Addr) -> Outcome<Flow> {
    let [a, b] = nodes;
    // Replaces the bridge of the pods.
    run(b, &format!("ip address add {to}/32 dev lo"))?;
    reach(a, to)?;
    Flow::start(nodes, to.into())
}

/// Subnet of a node that is configured by hand.
fn subnet(node: &Node) -> String {
    format!("10.244.{}.0/24", node.number)
}

fn gateway(node: &Node) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node.number, 1)
}

fn mac(node: &Node) -> String {
    format!("02:00:00:00:00:{:02x}", node.number)
}

/// Creates the objects that flannel creates.
fn vxlan(node: &Node, other: &Node) -> Outcome {
    let tunnel = |node: &Node| Ipv4Addr::new(10, 244, node.number, 0);
    let (own, its) = (tunnel(node), tunnel(other));
    let (own_mac, its_mac) = (mac(node), mac(other));
    let (local, remote) = (node.underlay(), other.underlay());
    let kind = format!("vxlan id 1 local {local} dev eth0 dstport 8472 nolearning");
    let subnet = subnet(other);
    for line in [
        format!("ip link add flannel.1 address {own_mac} mtu 1450 type {kind}"),
        format!("ip address add {own}/32 dev flannel.1"),
        "ip link set flannel.1 up".to_owned(),
        format!("ip neighbour add {its} lladdr {its_mac} dev flannel.1 nud permanent"),
        format!("bridge fdb add {its_mac} dev flannel.1 dst {remote} self permanent"),
        format!("ip route add {subnet} via {its} dev flannel.1 onlink"),
    ] {
        run(node, &line)?;
    }
    Ok(())
}

fn host_gw(node: &Node, other: &Node) -> Outcome {
    let line = format!("ip route add {} via {} dev eth0", subnet(other), other.underlay());
    run(node, &line).map(drop)
}

/// Waits until both ends have a route. A refused connection is an answer, too.
fn reach(from: &Node, to: Ipv4Addr) -> Outcome {
    let at = SocketAddr::new(to.into(), 7);
    wait::until("a route to the other node", Duration::from_millis(5), || {
        let tried =
            from.netns.enter(|| TcpStream::connect_timeout(&at, Duration::from_millis(200)))?;
        let is_refused =
            |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        Ok(tried.err().is_none_or(is_refused).then_some(()))
    })
}
