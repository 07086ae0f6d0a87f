// SPDX-License-Identifier: Apache-2.0
//! All intended differences from the Go plugins, each with its reason. The comparison fails for a
//! difference that is not listed here, and for an entry that no case uses.

use super::case::Case;

/// A fact for which the two sets of plugins differ.
#[derive(Debug)]
pub struct Difference<'a> {
    pub case: &'a Case,
    /// `ADD`, `CHECK` or `DEL`.
    pub verb: &'a str,
    /// Error code expected from podwire.
    pub code: Option<u32>,
    pub fact: &'a str,
    pub go: Option<&'a str>,
    pub ours: Option<&'a str>,
    /// True if podwire's ADD failed in this step or earlier.
    pub failed: bool,
}

/// A kind of difference, and the reason for it.
#[derive(Debug)]
pub struct Intended {
    pub reason: &'static str,
    /// Groups of cases with this difference.
    pub groups: &'static [&'static str],
    pub fits: fn(&Difference) -> bool,
}

/// Groups with cases that both sets of plugins reject.
const REJECTING: &[&str] = &[
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
        reason: "Go returns 999 for nearly every error; podwire returns the specification's code",
        groups: REJECTING,
        fits: |d| {
            d.fact == "answer/error/code" && d.code.is_some_and(|c| d.ours == Some(&c.to_string()))
        },
    },
    Intended {
        reason: "the specification requires cniVersion in errors; Go omits it",
        groups: REJECTING,
        fits: |d| d.fact == "answer/error/cniVersion" && d.go == Some("null"),
    },
    Intended {
        reason: "an index file spares ADD and DEL from reading every address file",
        groups: &["bridge", "versions", "host-local", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.contains("disk/.podwire") && d.go.is_none(),
    },
    Intended {
        reason: "the host veth is in its network's link group, so that GC finds it without the namespace",
        groups: &["bandwidth", "bridge", "versions", "ptp"],
        fits: |d| d.fact.starts_with("host/") && is_new_group(d),
    },
    Intended {
        reason: "the link group of a container interface tells DEL which attachment owns it",
        groups: &["macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.starts_with("pod") && is_new_group(d),
    },
    Intended {
        reason: "one queue per direction: a veth does not need one per CPU",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| d.fact.ends_with("_queues") && d.ours == Some("1"),
    },
    Intended {
        reason: "Go creates the host veth with a queue length of 0; podwire keeps the kernel's default",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| d.fact.ends_with("/txqlen") && (d.go, d.ours) == (None, Some("1000")),
    },
    Intended {
        reason: "no other host may use the gateway's address, so duplicate address detection is off",
        groups: &["bridge", "versions", "ptp"],
        fits: |d| {
            let ends = ["nodad", "tentative", "accept_dad"].iter().any(|end| d.fact.ends_with(end));
            let is_route = d.fact.contains("route local ") && d.go.is_none();
            let is_gateways = [" fd00:", "/accept_dad"].iter().any(|part| d.fact.contains(part));
            d.fact.starts_with("host/") && is_gateways && (ends || is_route)
        },
    },
    Intended {
        reason: "frames on a bridge port never reach the host's IPv6 stack, so accept_ra needs no change",
        groups: &["bridge", "versions"],
        fits: |d| {
            d.fact.starts_with("host/sysctl ipv6/conf/<veth") && d.fact.ends_with("/accept_ra")
        },
    },
    Intended {
        reason: "a failed ADD leaves nothing; Go leaves a bridge, veth, address or counters",
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
        reason: "CHECK and DEL do not create a missing directory",
        groups: &["host-local"],
        fits: |d| d.verb != "ADD" && d.fact.starts_with("disk/net") && d.ours.is_none(),
    },
    Intended {
        reason: "loopback's result has the format of its version; Go always prints the newest format",
        groups: &["loopback"],
        fits: |d| d.case.name.starts_with("up in 0.") && d.fact.starts_with("answer/result/"),
    },
    Intended {
        reason: "GATEWAY in CNI_ARGS applies to all addresses; Go ignores those of the \
                 configuration, which it has not read yet",
        groups: &["static"],
        fits: |d| d.case.name == "CNI_ARGS adds" && d.fact == "answer/result/ips/0/gateway",
    },
    Intended {
        reason: "ptp adds the address with noprefixroute instead of deleting the kernel's route",
        groups: &["ptp"],
        fits: |d| d.fact.ends_with("/noprefixroute"),
    },
    Intended {
        reason: "podwire disables duplicate address detection if it assigns IPv6 addresses; Go \
                 disables it with every bridge and with no other plugin",
        groups: &["bridge", "refused", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.starts_with("pod") && d.fact.ends_with("/accept_dad"),
    },
    Intended {
        reason: "mtu and advmss of a route are in the specification; Go ignores them",
        groups: &["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy"],
        fits: |d| d.fact.contains("unicast 203.0.114.0/24") && d.ours.is_some_and(has_metrics),
    },
    Intended {
        reason: "CHECK looks for a route in its own table; Go's CHECK fails for such a route",
        groups: &["bridge", "ptp", "macvlan", "ipvlan", "vlan"],
        fits: |d| {
            d.case.name.starts_with("routes") && d.verb == "CHECK" && d.ours == Some("success")
        },
    },
    Intended {
        reason: "a /32 address has no kernel route to delete; Go fails to delete it",
        groups: &["ptp"],
        fits: |d| d.case.name == "static with a single address" && d.ours == Some("success"),
    },
    Intended {
        reason: "CHECK verifies the host's route to the container; Go does not",
        groups: &["ptp"],
        fits: |d| d.case.name == "CHECK without the host's route" && d.ours == Some("failure"),
    },
    Intended {
        reason: "the gateway of a VLAN is removed with the last container; Go never removes it",
        groups: &["gateway of a vlan"],
        fits: |d| {
            let is_of_gateway = ["br0.100", "<veth0>"].iter().any(|name| d.fact.contains(name));
            let is_carrier = d.fact.starts_with("host/br0/") || d.fact.contains(" dev br0 ");
            d.verb == "DEL" && (is_carrier || is_of_gateway && d.ours.is_none())
        },
    },
    Intended {
        reason: "VLAN filtering is enabled on an existing bridge; Go leaves it disabled",
        groups: &["ports of vlans"],
        fits: |d| d.fact.ends_with("/vlan_filtering") && (d.go, d.ours) == (Some("0"), Some("1")),
    },
    Intended {
        reason: "a VLAN that is both native and in the trunk stays native; with Go it does not",
        groups: &["ports of vlans"],
        fits: |d| d.case.name == "native VLAN within the trunk" && d.fact.contains("<veth1>/vlan "),
    },
    Intended {
        reason: "a default route without a gateway satisfies isDefaultGateway; Go adds a second \
                 one and fails",
        groups: &["bridge"],
        fits: |d| d.case.name == "default gateway and a default route" && d.ours == Some("success"),
    },
    Intended {
        reason: "a route of scope link needs no gateway; Go adds one, which the kernel rejects",
        groups: &["bridge"],
        fits: |d| d.case.name == "route with a scope beside a gateway" && d.ours == Some("success"),
    },
    Intended {
        reason: "CHECK works without IPAM; Go calls an IPAM plugin with an empty name",
        groups: &["bridge"],
        fits: |d| {
            d.verb == "CHECK"
                && d.case.config["type"] == "bridge"
                && d.case.config["ipam"]["type"].is_null()
                && d.ours == Some("success")
        },
    },
    Intended {
        reason: "the bridge's MAC address is fixed from the start, so that neighbour entries in \
                 containers stay valid; with Go it changes with the ports until an address is set",
        groups: &["bridge"],
        fits: |d| d.fact.ends_with("0/address") && d.go == Some("\"00:00:00:00:00:00\""),
    },
    Intended {
        reason: "all taps have the vnet header, which virtual machines use, and no packet info \
                 header; with Go this depends on owner and group",
        groups: &["tap"],
        fits: |d| d.fact.ends_with("info_data/vnet_hdr") || d.fact.ends_with("info_data/pi"),
    },
    Intended {
        reason: "a tap has the configured MAC address; Go ignores it if owner and group are set",
        groups: &["tap"],
        fits: |d| {
            d.case.name == "mac with owner and group" && d.ours == Some("\"02:00:00:00:00:21\"")
        },
    },
    Intended {
        reason: "a new tap has no peer, so IPv6 duplicate address detection is off",
        groups: &["tap"],
        fits: |d| {
            let is_about = ["/nodad", "/tentative"].iter().any(|end| d.fact.ends_with(end));
            d.case.config["type"] == "tap"
                && d.fact.contains(" fd00:")
                && (is_about || d.fact.contains("route local "))
        },
    },
    Intended {
        reason: "a name that is in use is an error; Go leaves a second tap with a random name",
        groups: &["tap"],
        fits: |d| d.case.config["type"] == "tap" && d.verb == "ADD" && d.ours == Some("failure"),
    },
    Intended {
        reason: "an ifb's alias names its owner and marks the ifb as created by podwire",
        groups: &["bandwidth"],
        fits: |d| d.fact.ends_with("/ifalias") && d.go.is_none(),
    },
    Intended {
        reason: "an ifb sends no packets itself: an MTU below 1280 disables IPv6 on it",
        groups: &["bandwidth"],
        fits: |d| {
            let is_larger = d.go.is_some_and(|go| go.parse::<u32>().is_ok_and(|mtu| mtu > 1279));
            let is_mtu = d.fact.ends_with("/mtu") && d.ours == Some("1279") && is_larger;
            let is_ipv6 = d.fact.contains("ipv6/conf/bwp") && d.ours.is_none();
            d.fact.contains("/bwp") && (is_mtu || is_ipv6)
        },
    },
    Intended {
        reason: "a redirecting filter needs no class; Go names a class that does not exist",
        groups: &["bandwidth"],
        fits: |d| {
            d.fact.starts_with("host/tc ") && d.go.is_some_and(|go| go.contains("*flowid 1:1"))
        },
    },
    Intended {
        reason: "packets are redirected once; Go adds a second action that is never reached",
        groups: &["bandwidth"],
        fits: |d| d.go.is_some_and(|go| go.starts_with("action order 2: mirred")),
    },
    Intended {
        reason: "the result contains the MTU set by tuning, for CHECK of the previous plugin",
        groups: &["tuning"],
        fits: |d| {
            d.fact.starts_with("answer/result/interfaces/")
                && d.fact.ends_with("/mtu")
                && d.go.is_none_or(|go| go == "null")
        },
    },
    Intended {
        reason: "tuning's backup names its network, which GC needs, and its namespace, so that it is \
                 never restored into another container",
        groups: &["tuning"],
        fits: |d| d.fact.ends_with("_eth0.json") && without_owner(d.ours).as_deref() == d.go,
    },
    Intended {
        reason: "Go creates the directory without execute permission for its owner",
        groups: &["tuning"],
        fits: |d| d.fact == "disk/tuning" && d.ours == Some("700 directory"),
    },
    Intended {
        reason: "a backup of a deleted interface is useless; Go never removes it",
        groups: &["tuning"],
        fits: |d| d.verb == "DEL" && d.fact.ends_with("_eth0.json") && d.ours.is_none(),
    },
    Intended {
        reason: "CHECK verifies only what tuning set; Go fails if another program enables promiscuous mode",
        groups: &["tuning"],
        fits: |d| d.case.name == "CHECK of a capture" && d.ours == Some("success"),
    },
    Intended {
        reason: "the kernel separates numbers with tabs; Go's CHECK expects spaces",
        groups: &["tuning"],
        fits: |d| d.case.name == "two numbers" && d.verb == "CHECK" && d.ours == Some("success"),
    },
    Intended {
        reason: "args.cni may set sysctls if the configuration sets none; Go panics",
        groups: &["tuning"],
        fits: |d| d.case.name == "sysctl by args.cni alone" && d.ours == Some("success"),
    },
    Intended {
        reason: "a table holds only routes of its address's family; Go copies IPv6 routes too",
        groups: &["sbr"],
        fits: |d| {
            let copied = ["unicast fd00:1::/64", "unicast 198.51.100.0/24"];
            d.fact.contains("/route 10") && copied.iter().any(|part| d.fact.contains(part))
        },
    },
    Intended {
        reason: "routes of a family without an address stay; Go removes them",
        groups: &["sbr"],
        fits: |d| d.fact.contains("/route main unicast ") && d.go.is_none() && is_ipv6(d.fact),
    },
    Intended {
        reason: "DEL takes the addresses from the result if the interface is gone, and removes their rules",
        groups: &["sbr"],
        fits: |d| d.case.name == "DEL without interface" && d.fact.contains("/rule "),
    },
    Intended {
        reason: "CHECK verifies rules and routes; Go does nothing",
        groups: &["sbr"],
        fits: |d| d.verb == "CHECK" && d.ours == Some("failure"),
    },
    Intended {
        reason: "routes without a gateway move into the VRF's table too, so that gateways behind \
                 them are reachable; Go loses them",
        groups: &["vrf"],
        fits: |d| d.fact.contains("unicast 198.51.100.0/24") && d.go.is_none(),
    },
    Intended {
        reason: "ndisc_notify is set for containers with IPv6 addresses; Go sets it for all",
        groups: &["macvlan", "ipvlan"],
        fits: |d| d.fact.starts_with("pod") && d.fact.ends_with("/ndisc_notify") && is_ipv4(d),
    },
    Intended {
        reason: "the IPAM plugin's name servers are kept if the configuration has none",
        groups: &["macvlan", "ipvlan", "vlan"],
        fits: |d| d.case.name == "dns of IPAM" && d.fact.starts_with("answer/result/dns/"),
    },
    Intended {
        reason: "vlan sets arp_notify and ndisc_notify, tap ndisc_notify; Go does not",
        groups: &["tap", "vlan"],
        fits: |d| {
            ["tap", "vlan"].iter().any(|kind| d.case.config["type"] == **kind)
                && d.fact.starts_with("pod")
                && d.fact.ends_with("_notify")
        },
    },
    Intended {
        reason: "CHECK of an ipvlan needs no configured master; Go looks for one named \"\"",
        groups: &["ipvlan"],
        fits: |d| {
            d.case.config["type"] == "ipvlan"
                && d.case.config["master"].is_null()
                && d.verb == "CHECK"
                && d.ours == Some("success")
        },
    },
    Intended {
        reason: "the master of an ipvlan drops packets longer than its MTU, so this is an error",
        groups: &["ipvlan failing"],
        fits: |d| d.case.name == "mtu above the master's" && d.ours == Some("failure"),
    },
    Intended {
        reason: "every result contains the configured dns; Go's dummy returns the dns of IPAM",
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
