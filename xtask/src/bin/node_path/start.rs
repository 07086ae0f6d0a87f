// SPDX-License-Identifier: Apache-2.0
//! Measures the time from the start of an agent without state to the first ping answered by another
//! node.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use kernel::Family;
use kernel::socket::icmp_probe::{ChecksumBy, ProbeSocket};

use super::agent::{Agent, embedded, flags_of, tunnel};
use super::etcd::Etcd;
use super::node::{self, Node};
use super::{Outcome, wait};

const CONF: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
/// Interval between two pings.
const PING_EVERY: Duration = Duration::from_micros(500);

/// Returns milliseconds. The agent of the other node starts `together` with the first, or before it.
pub(crate) fn measure(program: &Path, dir: &Path, store: &str, together: bool) -> Outcome<f64> {
    let [a, b] = node::two()?;
    let etcd = (store == "etcd").then(|| Etcd::start(&b, &dir.join("etcd"))).transpose()?;
    let store = match &etcd {
        Some(etcd) => etcd.flags(),
        None => embedded(&dir.join("store.db")),
    };
    let flags = flags_of(&store, CONF);
    let mut running = match together {
        true => None,
        false => Some(Agent::start(program, &b, dir, &flags)?),
    };
    if let Some(agent) = &mut running {
        agent.wait_subnet()?;
    }
    let start = Instant::now();
    let mut agent = Agent::start(program, &a, dir, &flags)?;
    let mut other = match running {
        Some(other) => other,
        None => Agent::start(program, &b, dir, &flags)?,
    };
    first_answer(&a, &mut agent, &mut other)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Pings the tunnel of the other node until an answer arrives; sending fails as long as there is no route.
fn first_answer(from: &Node, agent: &mut Agent, to: &mut Agent) -> Outcome {
    let socket = from.netns.enter(|| ProbeSocket::echo(Family::V4, 0x7077))??;
    let mut buffer = [0; 256];
    wait::until("a ping reply", PING_EVERY, || {
        agent.check()?;
        to.check()?;
        if socket.receive(&mut buffer)?.is_some() {
            return Ok(Some(()));
        }
        if let Some(subnet) = to.subnet()? {
            let _ = socket.send(
                SocketAddr::new(tunnel(subnet).into(), 0),
                b"bench",
                ChecksumBy::Device,
            );
        }
        Ok(None)
    })
}
