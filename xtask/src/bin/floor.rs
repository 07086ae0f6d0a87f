// SPDX-License-Identifier: Apache-2.0
//! The floor that `cargo xtask bench` compares with: the kernel changes of one bridge ADD and
//! nothing else, as a whole static process (`add`) and in a loop (`loop`). Also the bench's
//! hands in the kernel: it makes and removes namespaces.

use std::error::Error;
use std::fs::{OpenOptions, remove_file};
use std::io::{Read, Write, stdin, stdout};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::addr::{self, AddrOptions};
use kernel::link::{self, Kind, NewLink, Peer};
use kernel::route::{self, Route};
use kernel::{Family, IfIndex, IfName, Netlink, Netns};

/// The one of podwire-cni: with musl's own the floor would be higher than it need be.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// As long as the namespaces of a whole phase may take to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// As long as the answer of a real plugin.
const ANSWER: &[u8] = br#"{"cniVersion":"1.0.0","interfaces":[{"name":"floor0","mac":"02:00:00:00:00:01"},{"name":"veth00000000","mac":"02:00:00:00:00:02"},{"name":"eth0","mac":"02:00:00:00:00:03","sandbox":"/run/netns/floor-000"}],"ips":[{"interface":2,"address":"10.3.0.2/16","gateway":"10.3.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.3.0.1"}]}"#;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["add", bridge, netns, address, gateway, file] => {
            let pod = Pod { netns, address: address.parse()?, gateway: gateway.parse()? };
            add(bridge.parse()?, &pod, file)
        }
        ["del", file] => del(file),
        ["loop", bridge, address, gateway, namespaces @ ..] => {
            measure(bridge.parse()?, address.parse()?, gateway.parse()?, namespaces)
        }
        ["make-pods", prefix, count] => make_pods(prefix, count.parse()?),
        ["remove-pods", prefix, count] => remove_pods(prefix, count.parse()?),
        _ => Err("floor is started by `cargo xtask bench` only".into()),
    }
}

/// What one ADD is about.
struct Pod<'a> {
    netns: &'a str,
    address: IpNet,
    gateway: IpAddr,
}

/// A whole plugin process: standard input, one address file, the kernel, standard output.
fn add(bridge: u32, pod: &Pod<'_>, file: &str) -> Outcome {
    let mut conf = Vec::with_capacity(1024);
    stdin().read_to_end(&mut conf)?;
    let mut reserved = OpenOptions::new().write(true).create_new(true).open(file)?;
    reserved.write_all(b"floor\r\neth0")?;
    attach(&Netlink::open()?, IfIndex(bridge), pod)?;
    stdout().write_all(ANSWER)?;
    Ok(())
}

fn del(file: &str) -> Outcome {
    let mut conf = Vec::with_capacity(1024);
    stdin().read_to_end(&mut conf)?;
    let host = Netlink::open()?;
    let index = link::index_of(&host, host_end()?)?;
    link::remove_in_background(&host, index)?;
    remove_file(file)?;
    Ok(())
}

/// One pair born in its places, then address, state and route in one visit to the namespace.
fn attach(host: &Netlink, bridge: IfIndex, pod: &Pod<'_>) -> Outcome {
    let eth0: IfName = "eth0".parse()?;
    let netns = Netns::open(pod.netns)?;
    let peer = Peer { name: eth0, mac: None, mtu: None, netns: Some(netns.as_fd()) };
    let mut pair = NewLink::new(host_end()?, Kind::Veth(peer));
    pair.up = true;
    pair.master = Some(bridge);
    host.apply([link::create(&pair)])?;
    let inside = netns.netlink()?;
    let index = link::index_of(&inside, eth0)?;
    let default = Route::new(route::default_dst(Family::V4)).via(pod.gateway).dev(index);
    inside.apply([
        addr::add(index, pod.address, AddrOptions::default()),
        link::set_up(index),
        route::create(&default),
    ])?;
    Ok(())
}

/// There is never more than one pair of the floor's at a time.
fn host_end() -> Outcome<IfName> {
    Ok("vethfloor".parse()?)
}

/// Prints the nanoseconds of each pod's kernel changes.
fn measure(bridge: u32, address: IpNet, gateway: IpAddr, namespaces: &[&str]) -> Outcome {
    let host = Netlink::open()?;
    for &netns in namespaces {
        let start = Instant::now();
        attach(&host, IfIndex(bridge), &Pod { netns, address, gateway })?;
        println!("{}", start.elapsed().as_nanos());
        host.apply([link::remove(host_end()?)])?;
    }
    Ok(())
}

fn make_pods(prefix: &str, count: usize) -> Outcome {
    for at in 0..count {
        Netns::create_named(format!("{prefix}{at}"))?;
    }
    Ok(())
}

/// Removes the namespaces and waits until the kernel is rid of them, which it does in order
/// and in the background, at the cost of whoever works then: a pair into the last one removed
/// tells when.
fn remove_pods(prefix: &str, count: usize) -> Outcome {
    let host = Netlink::open()?;
    let last = format!("{prefix}last");
    let tell: IfName = "tell0".parse()?;
    {
        let netns = Netns::create_named(&last)?;
        let peer = Peer { name: tell, mac: None, mtu: None, netns: Some(netns.as_fd()) };
        host.apply([link::create(&NewLink::new(tell, Kind::Veth(peer)))])?;
    }
    let index = link::index_of(&host, tell)?;
    let mut monitor = link::monitor()?;
    for at in 0..count {
        Netns::remove_named(format!("{prefix}{at}"))?;
    }
    Netns::remove_named(&last)?;
    let deadline = Instant::now() + PATIENCE;
    if link::wait_until(&host, &mut monitor, index, deadline, |link| link.is_none())? {
        return Ok(());
    }
    Err("the kernel does not get rid of namespaces".into())
}
