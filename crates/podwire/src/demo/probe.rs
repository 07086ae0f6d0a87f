// SPDX-License-Identifier: Apache-2.0
//! Proof that the pods talk: echoes between all pairs, and a page fetched over both families.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::http;
use super::icmp::Pinger;
use super::lab::Pod;
use crate::interrupt::Stop;

const TIMEOUT: Duration = Duration::from_secs(1);
/// The first answer may wait for neighbours to be found; the best of these is told.
const ECHOES: u16 = 3;
const PORT: u16 = 80;

/// An answered echo between two pods, by their place in the list.
#[derive(Debug)]
pub struct Echo {
    pub from: usize,
    pub to: usize,
    pub address: IpAddr,
    pub time: Duration,
}

/// A page that came over.
#[derive(Debug)]
pub struct Fetched {
    pub url: String,
    pub page: String,
    pub time: Duration,
}

/// Pings every address of every other pod from this one.
pub fn ping_others(pods: &[Pod], from: usize, stop: &Stop) -> Result<Vec<Echo>> {
    let mut echoes = Vec::new();
    for (to, other) in pods.iter().enumerate().filter(|(to, _)| *to != from) {
        stop.check()?;
        for address in other.ips() {
            let time = pods[from].netns.enter(|| ping(address))?;
            let time =
                time.with_context(|| format!("ping {} from {}", other.name, pods[from].name))?;
            echoes.push(Echo { from, to, address, time });
        }
    }
    Ok(echoes)
}

fn ping(address: IpAddr) -> Result<Duration> {
    // A socket keeps the source address that it found first, and that may have been a tentative one.
    let once = |sequence| Pinger::open(address)?.ping(sequence, TIMEOUT);
    let answers: Vec<Result<Duration>> = (1..=ECHOES).map(once).collect();
    let best = answers.iter().flatten().min().copied();
    let failure = || answers.into_iter().find_map(Result::err);
    best.ok_or_else(|| failure().unwrap_or_else(|| anyhow!("no echo was sent")))
}

/// Fetches a page of one pod from another, over each of the server's addresses.
pub fn fetch_page(client: &Pod, server: &Pod, stop: &Stop) -> Result<Vec<Fetched>> {
    let anywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    let listener = server
        .netns
        .enter(|| TcpListener::bind(anywhere))?
        .with_context(|| format!("listen on port {PORT} of {}", server.name))?;
    let greeting = format!("hello from {}", server.name);
    let mut fetched = Vec::new();
    for address in server.ips() {
        stop.check()?;
        let from = SocketAddr::new(address, PORT);
        let (page, time) = fetch_once(&listener, &greeting, client, from)
            .with_context(|| format!("fetch a page of {} from {}", server.name, client.name))?;
        ensure!(page == greeting, "the page is {page:?} and not {greeting:?}");
        fetched.push(Fetched { url: url(address), page, time });
    }
    Ok(fetched)
}

fn url(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("http://{address}/"),
        IpAddr::V6(address) => format!("http://[{address}]/"),
    }
}

fn fetch_once(
    listener: &TcpListener,
    greeting: &str,
    client: &Pod,
    from: SocketAddr,
) -> Result<(String, Duration)> {
    thread::scope(|scope| {
        let server = scope.spawn(|| http::serve_once(listener, greeting));
        let fetched = client.netns.enter(|| http::fetch(from))?;
        let served = server.join().map_err(|_| anyhow!("the server broke"))?;
        // Where both failed, the client's view is the one that tells.
        let fetched = fetched?;
        served?;
        Ok(fetched)
    })
}
