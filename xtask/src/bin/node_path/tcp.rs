// SPDX-License-Identifier: Apache-2.0
//! TCP between two nodes: as agents set them up, and as `ip` and `bridge` do by hand.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::agent::{Agent, embedded, flags_of};
use super::mover::throughput;
use super::node::{self, Node};
use super::process::run;
use super::{Outcome, wait};

/// Bits a second.
pub fn measure(file: &Path, dir: &Path, backend: &str, who: &str, time: Duration) -> Outcome<f64> {
    let nodes = node::two()?;
    let [a, b] = &nodes;
    let conf = format!(r#"{{"Network": "10.244.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let flags = flags_of(&embedded(&dir.join("store.db")), &conf);
    let mut agents = Vec::new();
    let to = match (who, backend) {
        ("ours", _) => {
            for node in &nodes {
                agents.push(Agent::start(file, node, dir, &flags)?);
            }
            let subnets = agents.iter_mut().map(Agent::settled).collect::<Outcome<Vec<_>>>()?;
            subnets[1].addr()
        }
        ("by-hand", "vxlan") => {
            vxlan(a, b)?;
            vxlan(b, a)?;
            gateway(b)
        }
        ("by-hand", "host-gw") => {
            host_gw(a, b)?;
            host_gw(b, a)?;
            gateway(b)
        }
        _ => return Err("ours or by-hand; vxlan or host-gw".into()),
    };
    // In place of the bridge that pods would be on.
    run(b, &format!("ip address add {to}/32 dev lo"))?;
    reach(a, to)?;
    throughput(&nodes, to.into(), time)
}

/// By hand a node's subnet follows from its number.
fn subnet(node: &Node) -> String {
    format!("10.244.{}.0/24", node.number)
}

fn gateway(node: &Node) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node.number, 1)
}

fn mac(node: &Node) -> String {
    format!("02:00:00:00:00:{:02x}", node.number)
}

/// What flannel would make, line by line.
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

/// Until both ends know the way: refused is answered.
fn reach(from: &Node, to: Ipv4Addr) -> Outcome {
    let at = SocketAddr::new(to.into(), 7);
    wait::until("a way to the other node", Duration::from_millis(5), || {
        let tried =
            from.netns.enter(|| TcpStream::connect_timeout(&at, Duration::from_millis(200)))?;
        let is_refused =
            |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        Ok(tried.err().is_none_or(is_refused).then_some(()))
    })
}
