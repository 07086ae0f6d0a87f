// SPDX-License-Identifier: Apache-2.0
//! Traffic control: `tc` verifies what the crate creates, and creates what it reads.

use kernel::link::{self, Kind, NewLink};
use kernel::tc::{self, Bucket, Filter, Handle, Match, ObservedBucket, Qdisc, Side, Verdict};
use kernel::{IfIndex, Netlink};
use serde_json::{Value, json};
use testkit::{in_netns, run};

use crate::{index_of, ip, name};

const MBIT: u64 = 125_000;
const SHAPED: Bucket = Bucket { rate: 20 * MBIT, burst: 32_768 };
const ONE: Handle = Handle::new(1, 0);
const TWO: Handle = Handle::new(2, 0);

fn shown(args: &str) -> Vec<Value> {
    let args: Vec<&str> = ["-j"].into_iter().chain(args.split_whitespace()).collect();
    let observed = testkit::json("tc", &args);
    observed.as_array().unwrap().clone()
}

fn run_tc(args: &str) {
    run("tc", &args.split_whitespace().collect::<Vec<_>>());
}

/// A veth pair and an ifb.
fn links() -> (Netlink, IfIndex, IfIndex) {
    ip("link add veth0 type veth peer name veth1");
    let nl = Netlink::open().unwrap();
    nl.apply([link::create(&NewLink::new(name("ifb7"), Kind::Ifb))]).unwrap();
    let (veth, ifb) = (index_of(&nl, "veth0"), index_of(&nl, "ifb7"));
    (nl, veth, ifb)
}

#[test]
fn tbf_is_added_replaced_and_removed() {
    in_netns(|| {
        let (nl, veth, _) = links();
        let tbf = |bucket| Qdisc::Tbf(bucket, 65_536);
        nl.apply([tc::add_qdisc(veth, Handle::ROOT, ONE, &tbf(SHAPED))]).unwrap();
        let observed = shown("qdisc show dev veth0");
        assert_eq!(observed.len(), 1, "{observed:?}");
        assert_eq!((&observed[0]["kind"], &observed[0]["handle"]), (&json!("tbf"), &json!("1:")));
        let options = &observed[0]["options"];
        assert_eq!(options["rate"], 2_500_000);
        // Computed in whole microseconds, so some bytes are lost.
        assert!(options["burst"].as_u64().unwrap().abs_diff(32_768) < 8, "{options}");
        let text = run("tc", &["qdisc", "show", "dev", "veth0"]);
        assert!(text.contains("lat 13.1ms"), "{text}");

        let again = nl.apply([tc::add_qdisc(veth, Handle::ROOT, ONE, &tbf(SHAPED))]);
        assert!(again.unwrap_err().already_exists());
        let fast = Bucket { rate: 100_000 * MBIT, burst: 2 << 30 };
        nl.apply([tc::replace_qdisc(veth, Handle::ROOT, ONE, &tbf(fast))]).unwrap();
        let options = &shown("qdisc show dev veth0")[0]["options"];
        assert_eq!(options["rate"], 12_500_000_000_u64, "a rate of more than 32 bits");

        // The time to fill the bucket exceeds the field for ticks; the kernel uses the burst in
        // bytes.
        let slow = Bucket { rate: MBIT, burst: 1 << 28 };
        nl.apply([tc::replace_qdisc(veth, Handle::ROOT, ONE, &tbf(slow))]).unwrap();
        let observed = tc::qdisc_at(&nl, veth, Handle::ROOT).unwrap().unwrap().bucket.unwrap();
        let nanos = u64::from(slow.burst) * 1_000_000_000 / slow.rate;
        let near = (nanos / 64).abs_diff(u64::from(observed.ticks) + 7 * (1 << 32));
        assert!(near < 1000, "{observed:?} is off by {near}");

        nl.apply([tc::remove_qdisc(veth, Handle::ROOT)]).unwrap();
        assert_eq!(shown("qdisc show dev veth0"), Vec::<Value>::new());
        assert!(nl.apply([tc::remove_qdisc(veth, Handle::ROOT)]).unwrap_err().is_not_found());
    });
}

/// One message replaces the discipline, whatever kind the existing one is.
#[test]
fn qdisc_replaces_one_of_another_kind() {
    in_netns(|| {
        let (nl, veth, _) = links();
        let tbf = tc::replace_qdisc(veth, Handle::ROOT, ONE, &Qdisc::Tbf(SHAPED, 65_536));
        let htb = tc::replace_qdisc(veth, Handle::ROOT, TWO, &Qdisc::Htb(1));
        for _ in 0..2 {
            for (request, kind) in [(&tbf, "tbf"), (&tbf, "tbf"), (&htb, "htb")] {
                nl.apply([request.clone()]).unwrap();
                let observed = shown("qdisc show dev veth0");
                assert_eq!((observed.len(), &observed[0]["kind"]), (1, &json!(kind)));
            }
        }
    });
}

#[test]
fn htb_with_class_queue_and_filters_is_created() {
    in_netns(|| {
        let (nl, veth, _) = links();
        let (class, leaf) = (Handle::new(2, 1), Handle::new(0x10, 0));
        let prefix = |priority, side, text: &str| Filter {
            priority,
            packets: Match::Prefix(side, text.parse().unwrap()),
            verdict: Verdict::Class(TWO),
        };
        let filters = [
            prefix(1, Side::Source, "10.2.0.0/15"),
            prefix(1, Side::Source, "192.0.2.7/32"),
            prefix(2, Side::Destination, "fd00:1::/40"),
        ];
        let requests = [
            tc::replace_qdisc(veth, Handle::ROOT, TWO, &Qdisc::Htb(1)),
            tc::replace_class(veth, TWO, class, SHAPED),
            tc::replace_qdisc(veth, class, leaf, &Qdisc::Bfifo(4096)),
        ];
        nl.apply(requests.into_iter().chain(filters.map(|one| tc::add_filter(veth, TWO, &one))))
            .unwrap();
        let qdiscs = shown("qdisc show dev veth0");
        assert_eq!(qdiscs[0]["options"]["default"], "0x1");
        assert_eq!((&qdiscs[1]["kind"], &qdiscs[1]["parent"]), (&json!("bfifo"), &json!("2:1")));
        let classes = run("tc", &["class", "show", "dev", "veth0"]);
        assert!(classes.contains("rate 20Mbit ceil 20Mbit burst 32"), "{classes}");
        let text = run("tc", &["filter", "show", "dev", "veth0", "parent", "2:"]);
        for part in ["match 0a020000/fffe0000 at 12", "match c0000207/ffffffff at 12"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("match fd000001/ffffffff at 24"), "{text}");
        assert!(text.contains("match 00000000/ff000000 at 28"), "{text}");

        assert_eq!(tc::filters_of(&nl, veth, TWO).unwrap(), filters);
        let observed = tc::class_by_handle(&nl, veth, class).unwrap();
        assert_eq!(observed, Some(ObservedBucket { rate: SHAPED.rate, ticks: 204_796 }));
        let leaf = tc::qdisc_at(&nl, veth, class).unwrap().unwrap();
        assert_eq!((leaf.kind.as_str(), leaf.limit), ("bfifo", Some(4096)));
        nl.apply([tc::remove_filters(veth, TWO, 1, filters[0].packets.protocol())]).unwrap();
        assert_eq!(tc::filters_of(&nl, veth, TWO).unwrap(), filters[2..]);
        assert_eq!(tc::class_by_handle(&nl, veth, Handle::new(2, 9)).unwrap(), None);
    });
}

#[test]
fn incoming_packets_are_redirected() {
    in_netns(|| {
        let (nl, veth, ifb) = links();
        let redirect = Filter { priority: 3, packets: Match::All, verdict: Verdict::Redirect(ifb) };
        let parent = Handle::INGRESS_QDISC;
        nl.apply([
            tc::add_qdisc(veth, Handle::INGRESS, parent, &Qdisc::Ingress),
            tc::add_filter(veth, parent, &redirect),
        ])
        .unwrap();
        let text = run("tc", &["filter", "show", "dev", "veth0", "ingress"]);
        assert!(text.contains("protocol all pref 3 u32"), "{text}");
        assert!(text.contains("match 00000000/00000000 at 0"), "{text}");
        assert!(text.contains("mirred (Egress Redirect to device ifb7) stolen"), "{text}");
        assert_eq!(tc::filters_of(&nl, veth, parent).unwrap(), [redirect]);
        let ingress = tc::qdisc_at(&nl, veth, Handle::INGRESS).unwrap().unwrap();
        assert_eq!((ingress.kind.as_str(), ingress.handle), ("ingress", parent));
        nl.apply([tc::remove_qdisc(veth, Handle::INGRESS)]).unwrap();
        assert_eq!(tc::qdisc_at(&nl, veth, Handle::INGRESS).unwrap(), None);
        assert_eq!(tc::filters_of(&nl, veth, parent).unwrap(), []);
    });
}

#[test]
fn qdiscs_and_filters_of_tc_are_read() {
    in_netns(|| {
        let (nl, veth, ifb) = links();
        run_tc("qdisc add dev veth0 root handle 1: tbf rate 20mbit burst 32kb limit 65536");
        let observed = tc::qdisc_at(&nl, veth, Handle::ROOT).unwrap().unwrap();
        assert_eq!(
            (observed.kind.as_str(), observed.handle, observed.limit),
            ("tbf", ONE, Some(65_536))
        );
        let bucket = observed.bucket.unwrap();
        assert_eq!(bucket.rate, SHAPED.rate);
        assert!(bucket.ticks.abs_diff(204_796) < 16, "{bucket:?}");
        run_tc("qdisc add dev veth0 clsact");
        run_tc(
            "filter add dev veth0 ingress protocol ip prio 5 u32 match ip dst 10.9.0.0/16 flowid 1:1",
        );
        run_tc(
            "filter add dev veth0 ingress protocol all prio 6 u32 match u32 0 0 \
             action mirred egress redirect dev ifb7",
        );
        let packets = Match::Prefix(Side::Destination, "10.9.0.0/16".parse().unwrap());
        let pass = Filter { priority: 5, packets, verdict: Verdict::Class(Handle::new(1, 1)) };
        let redirect = Filter { priority: 6, packets: Match::All, verdict: Verdict::Redirect(ifb) };
        let observed = tc::filters_of(&nl, veth, Handle::CLSACT_INGRESS).unwrap();
        assert_eq!(observed, [pass, redirect]);
        let clsact = tc::qdisc_at(&nl, veth, Handle::INGRESS).unwrap().unwrap();
        assert_eq!(clsact.kind, "clsact");
    });
}
