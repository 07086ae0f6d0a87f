// SPDX-License-Identifier: Apache-2.0
//! A network with a third-party DHCP server: a host with a bridge, connected to a namespace that
//! stands for the LAN.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Daemon, Ns, run, wait_for, wait_some};

use crate::call::Call;
use crate::conf::{network, with};
use crate::world::{Plugins, World};

/// Default socket of the daemon.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// Lease directory of the daemon in these tests.
pub const LEASES: &str = "/run/dhcp-leases";
const DNSMASQ_LEASES: &str = "/run/dnsmasq.leases";

/// Time limit for any single wait on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Lab {
    pub world: World,
    pub lan: Ns,
    pub plugins: Plugins,
}

impl Lab {
    /// Creates a host with `br0`, which is connected to the LAN, and unconnected pods.
    pub fn new(pods: usize) -> Lab {
        let plugins = Plugins::ours();
        let world = World::new(&plugins, pods);
        let lan = Ns::new("lan");
        lan.exec("sysctl", &["-q", "-w", "net.ipv6.conf.default.accept_dad=0"]);
        world.on_host("link add br0 type bridge");
        world.host.exec("sysctl", &["-q", "-w", "net.ipv6.conf.br0.accept_ra=0"]);
        world.on_host("link set br0 up");
        lan.connect("eth0", &world.host, "lan0");
        world.on_host("link set lan0 master br0");
        lan.ip(&["addr", "add", "10.5.0.1/24", "dev", "eth0"]);
        lan.ip(&["addr", "add", "fd05::1/64", "dev", "eth0", "nodad"]);
        Lab { world, lan, plugins }
    }

    /// Starts podwire's daemon with these flags and a short timeout.
    pub fn daemon(&self, flags: &[&str]) -> Daemon {
        daemon(&self.plugins, flags)
    }

    /// Starts dnsmasq with these options.
    pub fn dnsmasq(&self, options: &[&str]) -> Daemon {
        dnsmasq(&self.lan, options)
    }

    /// Starts Kea for this family (`4` or `6`) with one subnet.
    pub fn kea(&self, family: &str, pool: &str, more: &Value) -> Daemon {
        let (subnet, key) = match family {
            "4" => ("10.5.0.0/24", "Dhcp4"),
            _ => ("fd05::/64", "Dhcp6"),
        };
        let subnet =
            json!({"id": 1, "subnet": subnet, "interface": "eth0", "pools": [{"pool": pool}]});
        let config = json!({
            "interfaces-config": {"interfaces": ["eth0"]},
            "lease-database": {"type": "memfile", "name": kea_leases(family), "lfc-interval": 0},
            format!("subnet{family}"): [subnet],
            "loggers": [{"name": format!("kea-dhcp{family}"), "severity": "INFO",
                         "output_options": [{"output": "stderr"}]}],
        });
        let config = match family {
            "4" => config,
            _ => with(config, &json!({"server-id": {"type": "LL", "persist": false}})),
        };
        let file = format!("/run/kea{family}.json");
        fs::write(&file, json!({key: with(config, more)}).to_string())
            .expect("write a file in /run");
        // Kea uses only addresses that exist when it starts.
        let is_ready = || !self.lan.ip(&["addr"]).contains("tentative");
        wait_for("the LAN's addresses to leave tentative state", TIMEOUT, is_ready);
        let server = self.lan.start(
            "env",
            &[
                "KEA_PIDFILE_DIR=/run",
                "KEA_LOCKFILE_DIR=/run",
                &format!("kea-dhcp{family}"),
                "-c",
                &file,
            ],
        );
        wait_for_port(&self.lan, if family == "4" { ":67" } else { ":547" });
        server
    }

    /// A call of bridge with dhcp as IPAM plugin and these IPAM keys.
    pub fn call(&self, ipam: &Value, pod: usize) -> Call {
        self.world.call(&config(ipam), pod)
    }

    /// Global addresses of a pod's eth0.
    pub fn addresses(&self, pod: usize) -> Vec<String> {
        let links = self.world.pod(pod).ip_json(&["addr", "show", "scope", "global"]);
        let infos = links.as_array().into_iter().flatten();
        let infos = infos.filter(|link| link["ifname"] == "eth0");
        let infos = infos.flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
        let shown = |info: &Value| {
            format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"])
        };
        infos.filter(|info| info["local"].is_string()).map(shown).collect()
    }

    /// Gateway of a pod's default route.
    pub fn gateway(&self, pod: usize) -> Value {
        self.world.pod(pod).ip_json(&["route", "show", "default"])[0]["gateway"].clone()
    }
}

/// Creates a bridge in the test's namespace, connected to a LAN with dnsmasq, and starts podwire's
/// daemon.
pub fn network_here(bridge: &str) -> (Ns, [Daemon; 2]) {
    let (here, lan) = (Ns::here(), Ns::new("lan"));
    here.ip(&["link", "add", bridge, "type", "bridge"]);
    here.ip(&["link", "set", bridge, "up"]);
    lan.connect("eth0", &here, "lan0");
    here.ip(&["link", "set", "lan0", "master", bridge]);
    lan.ip(&["addr", "add", "10.5.0.1/24", "dev", "eth0"]);
    lan.ip(&["addr", "add", "fd05::1/64", "dev", "eth0", "nodad"]);
    let ranges = [
        "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h",
        "--dhcp-range=fd05::100,fd05::1ff,64,1h",
    ];
    let daemons = [dnsmasq(&lan, &ranges), daemon(&Plugins::ours(), &[])];
    (lan, daemons)
}

fn daemon(plugins: &Plugins, flags: &[&str]) -> Daemon {
    let program = plugins.directory().join("dhcp");
    let program = program.to_str().expect("path is UTF-8");
    let usual = ["daemon", "-leasedir", LEASES, "-resendtimeout", "20s"];
    let daemon = Daemon::start(program, &[&usual, flags].concat());
    wait_for_daemon();
    daemon
}

/// Waits until a daemon, podwire's or Go's, accepts connections. The socket file exists slightly
/// earlier.
pub fn wait_for_daemon() {
    wait_for("the daemon to listen", TIMEOUT, || UnixStream::connect(SOCKET).is_ok());
}

fn dnsmasq(lan: &Ns, options: &[&str]) -> Daemon {
    let leases = format!("--dhcp-leasefile={DNSMASQ_LEASES}");
    let usual = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--no-resolv",
        "--no-hosts",
        "--no-ping",
        "--user=root",
        "--pid-file=",
        "--log-facility=/run/dnsmasq.log",
        "--log-dhcp",
        "--interface=eth0",
        "--dhcp-authoritative",
        &leases,
    ];
    let server = lan.start("dnsmasq", &[&usual, options].concat());
    wait_for_port(lan, ":67");
    server
}

fn wait_for_port(lan: &Ns, port: &str) {
    wait_for("the server to listen", TIMEOUT, || {
        lan.exec("ss", &["-H", "-u", "-l", "-n", "-a"]).contains(port)
    });
}

pub fn config(ipam: &Value) -> Value {
    let ipam = with(json!({"type": "dhcp"}), ipam);
    network("bridge", &json!({"bridge": "br0", "ipam": ipam}))
}

/// dnsmasq's leases, one line each: expiry, MAC address, address, name, client id.
pub fn dnsmasq_leases() -> Vec<String> {
    let text = fs::read_to_string(DNSMASQ_LEASES).unwrap_or_default();
    text.lines().filter(|line| !line.starts_with("duid")).map(str::to_owned).collect()
}

/// Waits until dnsmasq has this many leases. dnsmasq processes a release asynchronously.
#[track_caller]
pub fn wait_for_dnsmasq_leases(count: usize) {
    let what = format!("dnsmasq to hold {count} leases");
    wait_for(&what, TIMEOUT, || dnsmasq_leases().len() == count);
}

fn kea_leases(family: &str) -> String {
    format!("/run/kea-leases{family}.csv")
}

/// Kea's lease journal, oldest entry first. A released lease has a lifetime of 0 seconds.
pub fn kea_journal(family: &str) -> Vec<String> {
    let text = fs::read_to_string(kea_leases(family)).unwrap_or_default();
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Names of the daemon's lease files.
pub fn lease_files() -> Vec<String> {
    let networks = fs::read_dir(LEASES).into_iter().flatten().flatten();
    let files = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten());
    files.flatten().map(|file| file.file_name().display().to_string()).collect()
}

/// Stops a daemon with SIGTERM and waits until it exits.
pub fn stop(daemon: &Daemon) {
    let id = daemon.id().to_string();
    run("kill", &["-TERM", &id]);
    let status = format!("/proc/{id}/stat");
    let has_exited =
        || fs::read_to_string(&status).map_or(Some(()), |text| text.contains(") Z").then_some(()));
    assert!(wait_some(TIMEOUT, has_exited).is_some(), "the daemon did not exit");
}
