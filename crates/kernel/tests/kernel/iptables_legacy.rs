// SPDX-License-Identifier: Apache-2.0
//! The older packet filter, configured with `iptables-legacy`.

use kernel::Family;
use kernel::iptables_legacy::{drops_forwarded, is_in_use, mentions};
use testkit::{in_netns, not_run_unless, run, try_run};

#[test]
fn forward_policy_is_read_without_creating_tables() {
    in_netns(|| {
        not_run_unless!(Program("iptables-legacy"));
        for (family, program) in [(Family::V4, "iptables-legacy"), (Family::V6, "ip6tables-legacy")]
        {
            assert!(!is_in_use(family, "filter") && !drops_forwarded(family).unwrap());
            if try_run(program, &["-S"]).is_err() {
                testkit::not_run(&testkit::test_name(), "the kernel has no iptables-legacy");
                return;
            }
            assert!(is_in_use(family, "filter") && !is_in_use(family, "nat"));
            assert!(!drops_forwarded(family).unwrap());
            run(program, &["-A", "FORWARD", "-i", "lo", "-j", "DROP"]);
            run(program, &["-P", "INPUT", "DROP"]);
            run(program, &["-N", "OTHER"]);
            assert!(!drops_forwarded(family).unwrap());
            assert!(mentions(family, "filter", "OTHER").unwrap());
            assert!(!mentions(family, "filter", "ANOTHER").unwrap());
            assert!(!mentions(family, "nat", "OTHER").unwrap() && !is_in_use(family, "nat"));
            run(program, &["-P", "FORWARD", "DROP"]);
            assert!(drops_forwarded(family).unwrap());
        }
    });
}
