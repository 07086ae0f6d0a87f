// SPDX-License-Identifier: Apache-2.0
//! Proof that the pods talk: echoes between all pairs, and a page fetched over both families.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::http;
use super::icmp::Pinger;
use super::lab::Pod;
use super::show;
use crate::interrupt::Stop;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(1);
/// The first answer may wait for neighbours to be found; the best of these is told.
const ECHOES: u16 = 3;
/// Between so many pods one answer each is enough.
const MANY: usize = 16;
/// Between echoes of which the first answer counts.
const PACE: Duration = Duration::from_millis(2);
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

impl Fetched {
    /// For people.
    pub fn told(&self, client: &str) -> String {
        let (url, took) = (&self.url, output::duration(self.time));
        format!("{client} fetched {url} in {took}: {:?}", self.page)
    }
}

/// The times that detaching took, for people.
pub fn detached(times: &[Duration]) -> String {
    let median = show::median(times.iter().copied());
    format!("{} pods, median {}", times.len(), output::duration(median))
}

/// Pings every address of every pod from every other.
pub fn ping_all(pods: &[&Pod], stop: &Stop) -> Result<Vec<Echo>> {
    ping_where(pods, |_, _| true, stop)
}

/// The same for those pairs that are wanted, by the places of the one that asks and of the other.
pub fn ping_where(
    pods: &[&Pod],
    is_wanted: impl Fn(usize, usize) -> bool,
    stop: &Stop,
) -> Result<Vec<Echo>> {
    let mut echoes = Vec::new();
    let enough = if pods.len() > MANY { 1 } else { ECHOES };
    for (from, one) in pods.iter().enumerate() {
        let others = pods.iter().enumerate().filter(|(to, _)| *to != from);
        for (to, other) in others.filter(|(to, _)| is_wanted(from, *to)) {
            stop.check()?;
            for address in other.ips() {
                let time = one.netns.enter(|| ping(address, enough))?;
                let time =
                    time.with_context(|| format!("ping {} from {}", other.name, one.name))?;
                echoes.push(Echo { from, to, address, time });
            }
        }
    }
    Ok(echoes)
}

fn ping(address: IpAddr, enough: u16) -> Result<Duration> {
    // A socket keeps the source address that it found first, and that may have been a tentative one.
    let once = |sequence| Pinger::open(address)?.ping(sequence, TIMEOUT);
    let (mut best, mut answers, mut failure) = (None, 0, None);
    for sequence in 1..=ECHOES {
        match once(sequence) {
            Ok(time) => {
                best = Some(best.map_or(time, |best: Duration| best.min(time)));
                answers += 1;
            }
            Err(error) => failure = failure.or(Some(error)),
        }
        if answers == enough {
            break;
        }
    }
    best.ok_or_else(|| failure.unwrap_or_else(|| anyhow!("no echo was sent")))
}

/// Sends echoes, one after the other, until one is answered; the time of the last one. Called
/// inside the namespace.
pub fn ping_until(address: IpAddr, deadline: Instant, stop: &Stop) -> Result<Duration> {
    let mut sequence = 0;
    loop {
        stop.check()?;
        sequence = if sequence == u16::MAX { 1 } else { sequence + 1 };
        match Pinger::open(address)?.ping(sequence, PACE) {
            Ok(time) => return Ok(time),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => {}
        }
    }
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
