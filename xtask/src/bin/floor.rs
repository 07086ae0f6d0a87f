// SPDX-License-Identifier: Apache-2.0
//! The floor for `cargo xtask bench`: only the kernel changes of one bridge ADD, as a static process
//! (`add`) and in a loop (`loop`). The bench also uses it to create and remove namespaces.

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

/// The allocator of podwire-cni; musl's own is slower.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Maximum wait for the removal of all namespaces of a phase.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Output with the length of a real result.
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
        _ => Err("floor is run by `cargo xtask bench` only".into()),
    }
}

/// Parameters of one ADD.
struct Pod<'a> {
    netns: &'a str,
    address: IpNet,
    gateway: IpAddr,
}

/// ADD as a plugin process: reads standard input, writes one address file, changes the kernel, prints.
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

/// Creates the veth pair with both ends in place, then sets address, state and route in one batch.
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

/// Name of the host interface; the floor has only one pair at a time.
fn host_end() -> Outcome<IfName> {
    Ok("vethfloor".parse()?)
}

/// Prints the nanoseconds of the kernel changes per pod.
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

/// Removes the namespaces and waits until the kernel has destroyed them. The kernel does that in order
/// and in the background; the end of a veth pair in the last namespace shows when it is done.
fn remove_pods(prefix: &str, count: usize) -> Outcome {
    let host = Netlink::open()?;
    let last = format!("{prefix}last");
    let marker: IfName = "tell0".parse()?;
    {
        let netns = Netns::create_named(&last)?;
        let peer = Peer { name: marker, mac: None, mtu: None, netns: Some(netns.as_fd()) };
        host.apply([link::create(&NewLink::new(marker, Kind::Veth(peer)))])?;
    }
    let index = link::index_of(&host, marker)?;
    let mut monitor = link::monitor()?;
    for at in 0..count {
        Netns::remove_named(format!("{prefix}{at}"))?;
    }
    Netns::remove_named(&last)?;
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    if link::wait_until(&host, &mut monitor, index, deadline, |link| link.is_none())? {
        return Ok(());
    }
    Err("the kernel has not destroyed the namespaces in time".into())
}
