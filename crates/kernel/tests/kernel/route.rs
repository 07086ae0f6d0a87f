// SPDX-License-Identifier: Apache-2.0
//! Routes.

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::Family;
use kernel::route::{self, Route, RouteFilter};
use serde_json::{Value, json};
use testkit::{Ns, in_netns};

use crate::{addr, index_of, ip, ip_json, net, pair_with_addresses};

fn shown(args: &str) -> Value {
    ip_json(&Ns::here(), args)
}

fn check_shown_routes() {
    let observed = shown("route show default");
    assert_eq!((&observed["gateway"], &observed["dev"]), (&json!("10.1.2.1"), &json!("a0")));
    assert_eq!((&observed["prefsrc"], &observed["type"]), (&json!("10.1.2.3"), &json!("unicast")));
    assert_eq!(observed["metrics"][0], json!({"mtu": 1300, "advmss": 1260}));
    assert_eq!(shown("-6 route show default")["gateway"], "fd00::1");
    let observed = shown("route show table 1000");
    assert_eq!((&observed["dst"], &observed["flags"]), (&json!("10.5.0.0/16"), &json!(["onlink"])));
    assert_eq!((&observed["metric"], &observed["protocol"]), (&json!(7), &json!("97")));
    assert_eq!(shown("route show 10.6.0.0/16")["scope"], "link");
    assert_eq!(
        shown("route show 10.7.0.0/16")["via"],
        json!({"family": "inet6", "host": "fd00::1"})
    );
    assert_eq!(shown("route show 10.8.0.0/16")["type"], "blackhole");
}

#[test]
fn routes_are_added_replaced_and_removed() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let a0 = index_of(&nl, "a0");
        let default = Route {
            src: Some(addr("10.1.2.3")),
            mtu: Some(1300),
            advmss: Some(1260),
            ..Route::new(route::default_dst(Family::V4)).via(addr("10.1.2.1")).dev(a0)
        };
        let six = Route::new(route::default_dst(Family::V6)).via(addr("fd00::1")).dev(a0);
        let table = Route {
            table: 1000,
            priority: Some(7),
            onlink: true,
            protocol: 97,
            ..Route::new(net("10.5.0.9/16")).via(addr("192.0.2.1")).dev(a0)
        };
        let link = Route::new(net("10.6.0.0/16")).dev(a0);
        let via6 = Route::new(net("10.7.0.0/16")).via(addr("fd00::1")).dev(a0);
        let hole = Route { kind: route::KIND_BLACKHOLE, ..Route::new(net("10.8.0.0/16")) };
        let all = [&default, &six, &table, &link, &via6, &hole];
        nl.apply(all.map(route::add)).unwrap();
        check_shown_routes();
        assert!(nl.apply([route::add(&default)]).unwrap_err().already_exists());
        nl.apply([route::replace(&default.clone().via(addr("10.1.2.2")))]).unwrap();
        assert_eq!(shown("route show default")["gateway"], "10.1.2.2");
        let foreign = Route { protocol: 98, ..link.clone() };
        assert!(nl.apply([route::remove(&foreign)]).unwrap_err().is_not_found());
        nl.apply(
            [&default.via(addr("10.1.2.2")), &six, &table, &link, &via6, &hole].map(route::remove),
        )
        .unwrap();
        assert_eq!(ip("route show"), "10.1.2.0/24 dev a0 proto kernel scope link src 10.1.2.3 \n");
        assert_eq!(ip("route show table all proto 97"), "");
    });
}

#[test]
fn second_route_is_created_before_the_first() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let a0 = index_of(&nl, "a0");
        let first = Route::new(net("10.5.0.0/16")).via(addr("10.1.2.1")).dev(a0);
        let second = Route { scope: Some(route::SCOPE_LINK), ..Route::new(first.dst).dev(a0) };
        nl.apply([route::create(&first), route::create(&second)]).unwrap();
        let observed = ip("route show 10.5.0.0/16");
        assert_eq!(observed, "10.5.0.0/16 dev a0 scope link \n10.5.0.0/16 via 10.1.2.1 dev a0 \n");
        assert!(nl.apply([route::create(&first)]).unwrap_err().already_exists());
    });
}

#[test]
fn list_returns_routes_that_match_the_filter() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let (a0, a1) = (index_of(&nl, "a0"), index_of(&nl, "a1"));
        ip("route add default via 10.1.2.1 dev a0 src 10.1.2.3 mtu 1300 advmss 1260");
        ip("route add 10.5.0.0/16 via 192.0.2.1 dev a0 onlink table 1000 metric 7 proto 97");
        ip("route add 10.7.0.0/16 via inet6 fd00::1 dev a0");
        ip("route add 10.6.0.0/16 dev a1");
        ip("-6 route add fd01::/64 via fd00::1 dev a0 metric 5");
        let list = |filter| route::list(&nl, filter).unwrap();

        let observed = list(RouteFilter { table: Some(1000), ..RouteFilter::default() });
        let expected = Route {
            table: 1000,
            priority: Some(7),
            onlink: true,
            protocol: 97,
            scope: Some(route::SCOPE_UNIVERSE),
            ..Route::new(net("10.5.0.0/16")).via(addr("192.0.2.1")).dev(a0)
        };
        assert_eq!(observed, std::slice::from_ref(&expected));
        assert_eq!(list(RouteFilter { protocol: Some(97), ..RouteFilter::default() }), [expected]);
        assert_eq!(list(RouteFilter { table: Some(77), ..RouteFilter::default() }), []);

        let v4 = Some(Family::V4);
        let table = Some(route::TABLE_MAIN);
        let main = RouteFilter { family: v4, table, ..RouteFilter::default() };
        let observed = list(main);
        assert_eq!(observed.len(), 4);
        assert_eq!(observed[0].dst, route::default_dst(Family::V4));
        assert_eq!((observed[0].src, observed[0].mtu), (Some(addr("10.1.2.3")), Some(1300)));
        assert_eq!(observed[0].advmss, Some(1260));
        let via6 = observed.iter().find(|route| route.dst == net("10.7.0.0/16")).unwrap();
        assert_eq!(via6.gateway, Some(addr("fd00::1")));
        let observed = list(RouteFilter { oif: Some(a1), ..main });
        assert_eq!(
            observed.iter().map(|route| route.dst).collect::<Vec<_>>(),
            [net("10.6.0.0/16")]
        );

        let v6 = list(RouteFilter { family: Some(Family::V6), table, oif: Some(a0), ..main });
        let observed = v6.iter().find(|route| route.dst == net("fd01::/64")).unwrap();
        assert_eq!((observed.gateway, observed.priority), (Some(addr("fd00::1")), Some(5)));
    });
}

#[test]
fn lookup_returns_the_route_of_a_packet() {
    in_netns(|| {
        let nl = pair_with_addresses();
        ip("route add 10.5.0.0/16 via 10.1.2.1");
        let observed = route::lookup(&nl, addr("10.5.6.7")).unwrap().unwrap();
        assert_eq!(observed.gateway, Some(addr("10.1.2.1")));
        assert_eq!(
            (observed.oif, observed.src),
            (Some(index_of(&nl, "a0")), Some(addr("10.1.2.3")))
        );
        assert_eq!(observed.table, route::TABLE_MAIN);
        assert_eq!(route::lookup(&nl, addr("192.0.2.1")).unwrap(), None);
        assert_eq!(route::lookup(&nl, addr("2001:db8::1")).unwrap(), None);
        let observed = route::lookup(&nl, addr("fd00::9")).unwrap().unwrap();
        assert_eq!(observed.oif, Some(index_of(&nl, "a0")));
    });
}

#[test]
fn one_call_applies_thousands_of_routes() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let a0 = index_of(&nl, "a0");
        let routes: Vec<_> = (0..3000_u32)
            .map(|n| {
                let dst = IpAddr::from((0x0a80_0000 + n * 256).to_be_bytes());
                Route { priority: Some(n + 1), ..Route::new(IpNet::new(dst, 24).unwrap()).dev(a0) }
            })
            .collect();
        nl.apply(routes.iter().map(route::add)).unwrap();
        assert_eq!(ip("route show proto boot").lines().count(), 3000);
        // Every request fails, and every error is returned.
        let results = nl.apply_each(routes.iter().map(route::add));
        assert!(
            results.iter().all(|result| result.as_ref().is_err_and(kernel::Error::already_exists))
        );
        let filter = RouteFilter { oif: Some(a0), protocol: Some(3), ..RouteFilter::default() };
        assert_eq!(route::list(&nl, filter).unwrap().len(), 3000);
    });
}

#[test]
fn lookup_each_equals_single_lookups() {
    in_netns(|| {
        let nl = pair_with_addresses();
        ip("route add 10.9.0.0/16 via 10.1.2.1");
        let index = index_of(&nl, "a0");
        let near = (1..=250).map(|n| addr(&format!("10.1.2.{n}")));
        let others = ["10.9.1.1", "10.8.1.1", "fd00::7", "fd01::7"].map(addr);
        let dsts: Vec<IpAddr> = near.chain(others).collect();
        let observed = route::lookup_each(&nl, &dsts).unwrap();
        assert_eq!(observed.len(), dsts.len());
        for (dst, observed) in dsts.iter().zip(&observed) {
            assert_eq!(*observed, route::lookup(&nl, *dst), "{dst}");
        }
        let is_near = |observed: &kernel::Result<Option<Route>>| {
            let route = observed.as_ref().unwrap().as_ref();
            route.is_some_and(|route| route.gateway.is_none() && route.oif == Some(index))
        };
        assert_eq!(observed.iter().filter(|observed| is_near(observed)).count(), 250);
        assert_eq!(
            observed[250].as_ref().unwrap().as_ref().unwrap().gateway,
            Some(addr("10.1.2.1"))
        );
        assert_eq!(observed[251], Ok(None));
    });
}
