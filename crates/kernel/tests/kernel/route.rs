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
    let found = shown("route show default");
    assert_eq!((&found["gateway"], &found["dev"]), (&json!("10.1.2.1"), &json!("a0")));
    assert_eq!((&found["prefsrc"], &found["type"]), (&json!("10.1.2.3"), &json!("unicast")));
    assert_eq!(found["metrics"][0], json!({"mtu": 1300, "advmss": 1260}));
    assert_eq!(shown("-6 route show default")["gateway"], "fd00::1");
    let found = shown("route show table 1000");
    assert_eq!((&found["dst"], &found["flags"]), (&json!("10.5.0.0/16"), &json!(["onlink"])));
    assert_eq!((&found["metric"], &found["protocol"]), (&json!(7), &json!("97")));
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
        let found = ip("route show 10.5.0.0/16");
        assert_eq!(found, "10.5.0.0/16 dev a0 scope link \n10.5.0.0/16 via 10.1.2.1 dev a0 \n");
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

        let found = list(RouteFilter { table: Some(1000), ..RouteFilter::default() });
        let expected = Route {
            table: 1000,
            priority: Some(7),
            onlink: true,
            protocol: 97,
            scope: Some(route::SCOPE_UNIVERSE),
            ..Route::new(net("10.5.0.0/16")).via(addr("192.0.2.1")).dev(a0)
        };
        assert_eq!(found, std::slice::from_ref(&expected));
        assert_eq!(list(RouteFilter { protocol: Some(97), ..RouteFilter::default() }), [expected]);
        assert_eq!(list(RouteFilter { table: Some(77), ..RouteFilter::default() }), []);

        let v4 = Some(Family::V4);
        let table = Some(route::TABLE_MAIN);
        let main = RouteFilter { family: v4, table, ..RouteFilter::default() };
        let found = list(main);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].dst, route::default_dst(Family::V4));
        assert_eq!((found[0].src, found[0].mtu), (Some(addr("10.1.2.3")), Some(1300)));
        assert_eq!(found[0].advmss, Some(1260));
        let via6 = found.iter().find(|route| route.dst == net("10.7.0.0/16")).unwrap();
        assert_eq!(via6.gateway, Some(addr("fd00::1")));
        let found = list(RouteFilter { oif: Some(a1), ..main });
        assert_eq!(found.iter().map(|route| route.dst).collect::<Vec<_>>(), [net("10.6.0.0/16")]);

        let v6 = list(RouteFilter { family: Some(Family::V6), table, oif: Some(a0), ..main });
        let found = v6.iter().find(|route| route.dst == net("fd01::/64")).unwrap();
        assert_eq!((found.gateway, found.priority), (Some(addr("fd00::1")), Some(5)));
    });
}

#[test]
fn lookup_returns_the_route_of_a_packet() {
    in_netns(|| {
        let nl = pair_with_addresses();
        ip("route add 10.5.0.0/16 via 10.1.2.1");
        let found = route::lookup(&nl, addr("10.5.6.7")).unwrap().unwrap();
        assert_eq!(found.gateway, Some(addr("10.1.2.1")));
        assert_eq!((found.oif, found.src), (Some(index_of(&nl, "a0")), Some(addr("10.1.2.3"))));
        assert_eq!(found.table, route::TABLE_MAIN);
        assert_eq!(route::lookup(&nl, addr("192.0.2.1")).unwrap(), None);
        assert_eq!(route::lookup(&nl, addr("2001:db8::1")).unwrap(), None);
        let found = route::lookup(&nl, addr("fd00::9")).unwrap().unwrap();
        assert_eq!(found.oif, Some(index_of(&nl, "a0")));
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
        let found = route::lookup_each(&nl, &dsts).unwrap();
        assert_eq!(found.len(), dsts.len());
        for (dst, found) in dsts.iter().zip(&found) {
            assert_eq!(*found, route::lookup(&nl, *dst), "{dst}");
        }
        let is_near = |found: &kernel::Result<Option<Route>>| {
            let route = found.as_ref().unwrap().as_ref();
            route.is_some_and(|route| route.gateway.is_none() && route.oif == Some(index))
        };
        assert_eq!(found.iter().filter(|found| is_near(found)).count(), 250);
        assert_eq!(found[250].as_ref().unwrap().as_ref().unwrap().gateway, Some(addr("10.1.2.1")));
        assert_eq!(found[251], Ok(None));
    });
}
