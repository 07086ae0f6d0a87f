// SPDX-License-Identifier: Apache-2.0
//! Every difference from the Go plugins that is meant to be, with its reason. A difference that is
//! not here fails the comparison; so does an entry that no case needs any more.

use super::case::Case;

/// One fact that the two sets of plugins do not share.
#[derive(Debug)]
pub struct Difference<'a> {
    pub case: &'a Case,
    /// `ADD`, `CHECK` or `DEL`.
    pub verb: &'a str,
    /// What our answer's code should be.
    pub code: Option<u32>,
    pub fact: &'a str,
    pub go: Option<&'a str>,
    pub ours: Option<&'a str>,
    /// Our ADD has failed, in this step or before.
    pub failed: bool,
}

/// A kind of difference, and why it is right.
#[derive(Debug)]
pub struct Intended {
    pub reason: &'static str,
    /// The groups of cases that need it.
    pub groups: &'static [&'static str],
    pub fits: fn(&Difference) -> bool,
}

/// The groups with cases in which both refuse.
const REFUSING: &[&str] = &[
    "bandwidth",
    "refused",
    "host-local",
    "loopback",
    "portmap",
    "ptp",
    "static",
    "tuning",
    "sbr",
    "vrf refused",
    "macvlan",
    "ipvlan refused",
    "vlan refused",
    "dummy refused",
];

pub const INTENDED: &[Intended] = &[
    Intended {
        reason: "Go wraps nearly every error as 999; ours has the specification's code",
        groups: REFUSING,
        fits: |d| {
            d.fact == "answer/error/code" && d.code.is_some_and(|c| d.ours == Some(&c.to_string()))
        },
    },
    Intended {
        reason: "the specification's error object holds cniVersion, Go's does not",
        groups: REFUSING,
        fits: |d| d.fact == "answer/error/cniVersion" && d.go == Some("null"),
    },
    Intended {
        reason: "an index beside the address files spares ADD and DEL the reading of each",
        groups: &["bridge", "versions", "host-local", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.contains("disk/.podwire") && d.go.is_none(),
    },
    Intended {
        reason: "the host end is in its network's group, by which GC finds it without namespace",
        groups: &["bandwidth", "bridge", "versions", "ptp"],
        fits: |d| d.fact.starts_with("host/") && is_new_group(d),
    },
    Intended {
        reason: "the group of an interface in the container tells DEL whose it is",
        groups: &["macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.starts_with("pod") && is_new_group(d),
    },
    Intended {
        reason: "one queue in each direction: a veth has no use for one per processor",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| d.fact.ends_with("_queues") && d.ours == Some("1"),
    },
    Intended {
        reason: "Go's library makes the host end with a queue length of 0; ours has the kernel's",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| d.fact.ends_with("/txqlen") && (d.go, d.ours) == (None, Some("1000")),
    },
    Intended {
        reason: "nobody else may hold the gateway's address, so it does not wait for detection",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| {
            let ends = ["nodad", "tentative", "accept_dad"].iter().any(|end| d.fact.ends_with(end));
            let is_route = d.fact.contains("route local ") && d.go.is_none();
            let is_gateways = [" fd00:", "/accept_dad"].iter().any(|part| d.fact.contains(part));
            d.fact.starts_with("host/") && is_gateways && (ends || is_route)
        },
    },
    Intended {
        reason: "frames of a bridge's port never reach the host's own IPv6, so it needs no switch",
        groups: &["bridge", "versions"],
        fits: |d| {
            d.fact.starts_with("host/sysctl ipv6/conf/<veth") && d.fact.ends_with("/accept_ra")
        },
    },
    Intended {
        reason: "a failing ADD leaves nothing; Go leaves bridge, veth, address or counters",
        groups: &[
            "refused",
            "host-local",
            "ptp",
            "tuning",
            "sbr",
            "macvlan",
            "ipvlan failing",
            "vlan failing",
        ],
        fits: |d| d.failed && !d.fact.starts_with("answer/"),
    },
    Intended {
        reason: "DEL needs neither valid ranges nor arguments, so it cleans up what it can",
        groups: &["refused", "host-local", "portmap", "tuning", "sbr", "vrf refused"],
        fits: |d| d.verb == "DEL" && d.fact == "answer/exit" && d.ours == Some("success"),
    },
    Intended {
        reason: "CHECK and DEL create no directory where there is none",
        groups: &["host-local"],
        fits: |d| d.verb != "ADD" && d.fact.starts_with("disk/net") && d.ours.is_none(),
    },
    Intended {
        reason: "loopback's result has the shape of its version; Go prints the newest as any",
        groups: &["loopback"],
        fits: |d| d.case.name.starts_with("up in 0.") && d.fact.starts_with("answer/result/"),
    },
    Intended {
        reason: "GATEWAY in CNI_ARGS holds for all addresses; Go passes over those of the \
                 configuration, which it has not read yet",
        groups: &["static"],
        fits: |d| d.case.name == "CNI_ARGS adds" && d.fact == "answer/result/ips/0/gateway",
    },
    Intended {
        reason: "ptp gives the address without the kernel's route instead of deleting the route",
        groups: &["ptp"],
        fits: |d| d.fact.ends_with("/noprefixroute"),
    },
    Intended {
        reason: "IPv6 detection is switched off where we give IPv6 addresses, and nowhere else: \
                 by Go in every bridge, and in no other network",
        groups: &["bridge", "refused", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.starts_with("pod") && d.fact.ends_with("/accept_dad"),
    },
    Intended {
        reason: "mtu and advmss of a route are in the specification; Go passes over them",
        groups: &["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.contains("unicast 203.0.114.0/24") && d.ours.is_some_and(has_metrics),
    },
    Intended {
        reason: "a route in another table is looked for there; Go's CHECK fails for it",
        groups: &["bridge", "ptp", "macvlan", "ipvlan", "vlan"],
        fits: |d| {
            d.case.name.starts_with("routes") && d.verb == "CHECK" && d.ours == Some("success")
        },
    },
    Intended {
        reason: "an address without a network round it has no route of the kernel's to delete",
        groups: &["ptp"],
        fits: |d| d.case.name == "static with a single address" && d.ours == Some("success"),
    },
    Intended {
        reason: "CHECK looks at the host's route to the container; Go's does not",
        groups: &["ptp"],
        fits: |d| d.case.name == "CHECK without the host's route" && d.ours == Some("failure"),
    },
    Intended {
        reason: "the gateway of a VLAN goes with the last container; Go's stays for ever",
        groups: &["gateway of a vlan"],
        fits: |d| {
            let is_of_gateway = ["br0.100", "<veth0>"].iter().any(|name| d.fact.contains(name));
            let is_carrier = d.fact.starts_with("host/br0/") || d.fact.contains(" dev br0 ");
            d.verb == "DEL" && (is_carrier || is_of_gateway && d.ours.is_none())
        },
    },
    Intended {
        reason: "a bridge that is there comes to filter VLANs; by Go it stays open",
        groups: &["ports of vlans"],
        fits: |d| d.fact.ends_with("/vlan_filtering") && (d.go, d.ours) == (Some("0"), Some("1")),
    },
    Intended {
        reason: "a VLAN that is native and in the trunk is native; Go's port loses it as such",
        groups: &["ports of vlans"],
        fits: |d| d.case.name == "native VLAN within the trunk" && d.fact.contains("<veth1>/vlan "),
    },
    Intended {
        reason: "a default route without gateway is enough for isDefaultGateway; Go adds a second \
                 and fails",
        groups: &["bridge"],
        fits: |d| d.case.name == "default gateway and a default route" && d.ours == Some("success"),
    },
    Intended {
        reason: "a route of scope link needs no gateway; Go gives it one, which the kernel refuses",
        groups: &["bridge"],
        fits: |d| d.case.name == "route with a scope beside a gateway" && d.ours == Some("success"),
    },
    Intended {
        reason: "a network without IPAM can be CHECKed; Go asks an IPAM plugin without a name",
        groups: &["bridge"],
        fits: |d| {
            d.verb == "CHECK"
                && d.case.config["type"] == "bridge"
                && d.case.config["ipam"]["type"].is_null()
                && d.ours == Some("success")
        },
    },
    Intended {
        reason: "the bridge keeps its hardware address from the start, so that the containers' \
                 neighbour entries stay true; Go's changes with its ports until it has an address",
        groups: &["bridge"],
        fits: |d| d.fact.ends_with("0/address") && d.go == Some("\"00:00:00:00:00:00\""),
    },
    Intended {
        reason: "one kind of tap, with the header that virtual machines use and without the one they \
                 do not; Go's differ by which ids are given",
        groups: &["tap"],
        fits: |d| d.fact.ends_with("info_data/vnet_hdr") || d.fact.ends_with("info_data/pi"),
    },
    Intended {
        reason: "a tap has the hardware address that is asked for; Go's has not where owner and group \
                 are given",
        groups: &["tap"],
        fits: |d| {
            d.case.name == "mac with owner and group" && d.ours == Some("\"02:00:00:00:00:21\"")
        },
    },
    Intended {
        reason: "nobody is at the tap's other end, so an IPv6 address does not wait for detection",
        groups: &["tap"],
        fits: |d| {
            let is_about = ["/nodad", "/tentative"].iter().any(|end| d.fact.ends_with(end));
            d.case.config["type"] == "tap"
                && d.fact.contains(" fd00:")
                && (is_about || d.fact.contains("route local "))
        },
    },
    Intended {
        reason: "a name that is taken is an error; Go leaves a second tap under a random name",
        groups: &["tap"],
        fits: |d| d.case.config["type"] == "tap" && d.verb == "ADD" && d.ours == Some("failure"),
    },
    Intended {
        reason: "an ifb's alias tells whose it is, and that the Go plugin has not made it",
        groups: &["bandwidth"],
        fits: |d| d.fact.ends_with("/ifalias") && d.go.is_none(),
    },
    Intended {
        reason: "an ifb carries no traffic of its own: its MTU is too small for IPv6, so it has none",
        groups: &["bandwidth"],
        fits: |d| {
            let is_mtu = d.fact.ends_with("/mtu") && d.ours == Some("1279");
            let is_ipv6 = d.fact.contains("ipv6/conf/bwp") && d.ours.is_none();
            d.fact.contains("/bwp") && (is_mtu || is_ipv6)
        },
    },
    Intended {
        reason: "a filter that redirects needs no class; Go names one that is not there",
        groups: &["bandwidth"],
        fits: |d| {
            d.fact.starts_with("host/tc ") && d.go.is_some_and(|go| go.contains("*flowid 1:1"))
        },
    },
    Intended {
        reason: "packets are redirected once; Go's second action is never reached",
        groups: &["bandwidth"],
        fits: |d| d.go.is_some_and(|go| go.starts_with("action order 2: mirred")),
    },
    Intended {
        reason: "the result tells the MTU that tuning has set, for CHECK of the plugin before it",
        groups: &["tuning"],
        fits: |d| {
            d.fact.starts_with("answer/result/interfaces/")
                && d.fact.ends_with("/mtu")
                && d.go.is_none_or(|go| go == "null")
        },
    },
    Intended {
        reason: "tuning's backup names its network, so that GC knows whose it is, and its namespace, so that \
                 it is not taken for another container's",
        groups: &["tuning"],
        fits: |d| d.fact.ends_with("_eth0.json") && without_owner(d.ours).as_deref() == d.go,
    },
    Intended {
        reason: "a directory that its owner cannot enter helps nobody",
        groups: &["tuning"],
        fits: |d| d.fact == "disk/tuning" && d.ours == Some("700 directory"),
    },
    Intended {
        reason: "a backup of an interface that is gone is of no use; Go keeps it for ever",
        groups: &["tuning"],
        fits: |d| d.verb == "DEL" && d.fact.ends_with("_eth0.json") && d.ours.is_none(),
    },
    Intended {
        reason: "CHECK looks at what tuning has set; Go's fails where somebody else captures",
        groups: &["tuning"],
        fits: |d| d.case.name == "CHECK of a capture" && d.ours == Some("success"),
    },
    Intended {
        reason: "the kernel prints several numbers with tabs between; Go's CHECK wants them spaces",
        groups: &["tuning"],
        fits: |d| d.case.name == "two numbers" && d.verb == "CHECK" && d.ours == Some("success"),
    },
    Intended {
        reason: "args.cni may name sysctls where the configuration names none; Go panics",
        groups: &["tuning"],
        fits: |d| d.case.name == "sysctl by args.cni alone" && d.ours == Some("success"),
    },
    Intended {
        reason: "a table holds routes of its address's family; Go copies IPv6 routes to IPv4's",
        groups: &["sbr"],
        fits: |d| {
            let copied = ["unicast fd00:1::/64", "unicast 198.51.100.0/24"];
            d.fact.contains("/route 10") && copied.iter().any(|part| d.fact.contains(part))
        },
    },
    Intended {
        reason: "routes of a family that has no address stay; Go takes them away",
        groups: &["sbr"],
        fits: |d| d.fact.contains("/route main unicast ") && d.go.is_none() && is_ipv6(d.fact),
    },
    Intended {
        reason: "DEL knows the addresses by the result too, and so their rules without interface",
        groups: &["sbr"],
        fits: |d| d.case.name == "DEL without interface" && d.fact.contains("/rule "),
    },
    Intended {
        reason: "CHECK looks for rules and routes; Go's does nothing",
        groups: &["sbr"],
        fits: |d| d.verb == "CHECK" && d.ours == Some("failure"),
    },
    Intended {
        reason: "routes straight out of the link go into the VRF's table too, so that gateways \
                 behind them are found; Go loses them",
        groups: &["vrf"],
        fits: |d| d.fact.contains("unicast 198.51.100.0/24") && d.go.is_none(),
    },
    Intended {
        reason: "IPv6 neighbours are told of a container that has IPv6 addresses, and by Go of any",
        groups: &["macvlan", "ipvlan"],
        fits: |d| d.fact.starts_with("pod") && d.fact.ends_with("/ndisc_notify") && is_ipv4(d),
    },
    Intended {
        reason: "name servers of the IPAM plugin are kept where the configuration has none",
        groups: &["macvlan", "ipvlan", "vlan"],
        fits: |d| d.case.name == "dns of IPAM" && d.fact.starts_with("answer/result/dns/"),
    },
    Intended {
        reason: "vlan tells the neighbours of a container, and tap those of IPv6 too; Go's do not",
        groups: &["tap", "vlan"],
        fits: |d| {
            ["tap", "vlan"].iter().any(|kind| d.case.config["type"] == **kind)
                && d.fact.starts_with("pod")
                && d.fact.ends_with("_notify")
        },
    },
    Intended {
        reason: "CHECK of an ipvlan needs no master in the configuration; Go's looks for one named \"\"",
        groups: &["ipvlan"],
        fits: |d| {
            d.case.config["type"] == "ipvlan"
                && d.case.config["master"].is_null()
                && d.verb == "CHECK"
                && d.ours == Some("success")
        },
    },
    Intended {
        reason: "the master of an ipvlan drops what is longer than its MTU, so it is an error",
        groups: &["ipvlan failing"],
        fits: |d| d.case.name == "mtu above the master's" && d.ours == Some("failure"),
    },
    Intended {
        reason: "dns of the configuration is in the result of every plugin; Go's dummy has its own",
        groups: &["dummy"],
        fits: |d| {
            d.case.config["type"] == "dummy"
                && ["dns", "empty dns"].contains(&d.case.name.as_str())
                && d.fact.starts_with("answer/result/dns")
        },
    },
];

fn is_ipv6(fact: &str) -> bool {
    fact.contains("fd00:") || fact.contains("via fd00") || fact.contains(" ::/0")
}

fn without_owner(file: Option<&str>) -> Option<String> {
    const NETWORK: &str = ",\\n \\\"network\\\": \\\"net\\\",\\n \\\"netns\\\": \\\"";
    let (before, after) = file?.split_once(NETWORK)?;
    let after = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
    Some(format!("{before}{}", after.strip_prefix("\\\"")?))
}

fn is_new_group(d: &Difference) -> bool {
    d.fact.ends_with("/group") && d.go == Some("\"default\"")
}

fn is_ipv4(d: &Difference) -> bool {
    !d.case.config.to_string().contains("fd00:")
}

fn has_metrics(route: &str) -> bool {
    route.contains("\"mtu\":1280") && route.contains("\"advmss\":1200")
}
