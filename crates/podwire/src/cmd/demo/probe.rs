// SPDX-License-Identifier: Apache-2.0
//! Connectivity tests: echoes between all pairs of pods, and a page fetched over both address
//! families.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::http;
use super::icmp::Pinger;
use super::lab::Pod;
use super::show;
use crate::output;
use crate::signals::StopSignal;

/// Maximum wait for one reply.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Echoes per pair. The first one may wait for neighbour discovery, so the fastest counts.
const ECHOES: u16 = 3;
/// With more pods than this, one reply per pair is enough.
const MANY: usize = 16;
/// Interval between echoes in [`ping_until`].
const PACE: Duration = Duration::from_millis(2);
const PORT: u16 = 80;

/// An answered echo between two pods, given by their indexes.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) address: IpAddr,
    pub(crate) time: Duration,
}

/// A fetched page.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) url: String,
    pub(crate) page: String,
    pub(crate) time: Duration,
}

impl Fetched {
    pub(crate) fn describe(&self, client: &str) -> String {
        let (url, took) = (&self.url, output::duration(self.time));
        format!("{client} fetched {url} in {took}: {:?}", self.page)
    }
}

/// Summary of the durations of DEL.
pub(crate) fn detached(times: &[Duration]) -> String {
    let median = show::median(times.iter().copied());
    format!("{} pods, median {}", times.len(), output::duration(median))
}

/// Pings every address of every pod from every other pod.
pub(crate) fn ping_all(pods: &[&Pod], stop: &StopSignal) -> Result<Vec<Echo>> {
    ping_where(pods, |_, _| true, stop)
}

/// Pings the pairs of pods that `is_selected` accepts, given by the indexes of sender and receiver.
pub(crate) fn ping_where(
    pods: &[&Pod],
    is_selected: impl Fn(usize, usize) -> bool,
    stop: &StopSignal,
) -> Result<Vec<Echo>> {
    let mut echoes = Vec::new();
    let enough = if pods.len() > MANY { 1 } else { ECHOES };
    for (from, one) in pods.iter().enumerate() {
        let others = pods.iter().enumerate().filter(|(to, _)| *to != from);
        for (to, other) in others.filter(|(to, _)| is_selected(from, *to)) {
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
    // A new socket for each echo: a socket keeps its first source address, which may be tentative.
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
    best.ok_or_else(|| failure.unwrap_or_else(|| anyhow!("no echo sent")))
}

/// Sends echoes from this thread's namespace until one is answered, and returns its round-trip time.
pub(crate) fn ping_until(
    address: IpAddr,
    deadline: Instant,
    stop: &StopSignal,
) -> Result<Duration> {
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

/// Fetches a page from one pod in another pod, over each address of the server.
pub(crate) fn fetch_page(client: &Pod, server: &Pod, stop: &StopSignal) -> Result<Vec<Fetched>> {
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
            .with_context(|| format!("fetch a page from {} in {}", server.name, client.name))?;
        ensure!(page == greeting, "the page is {page:?} instead of {greeting:?}");
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
        let served = server.join().map_err(|_| anyhow!("the server thread panicked"))?;
        // If both fail, the error of the client is the useful one.
        let fetched = fetched?;
        served?;
        Ok(fetched)
    })
}
