// SPDX-License-Identifier: Apache-2.0
//! etcd with access control: TLS, client certificates, users.

use std::path::Path;

use store::etcd::{Credentials, Etcd, EtcdConf, Identity, Tls};
use store::{Error, Revision, Store, Watched};
use testkit::{Authority, hide_system_certificates, in_netns, require};
use tokio::time::timeout;

use crate::lab::{LONG, block_on, done, events};
use crate::server::{EtcdLab, Server, client};

/// Starts a server with TLS, which may require client certificates.
fn server(authority: &Authority, dir: &Path, requires_certificates: bool) -> Server {
    require!(Program("etcd"), Program("etcdctl"));
    authority.sign("server");
    let mut flags =
        [authority.flag("--cert-file", "server.pem"), authority.flag("--key-file", "server.key")]
            .concat();
    if requires_certificates {
        flags.extend(authority.flag("--trusted-ca-file", "ca.pem"));
        flags.push("--client-cert-auth".to_owned());
    }
    let mut server = Server::secure(dir, &flags);
    let ctl = [("--cacert", "ca.pem"), ("--cert", "server.pem"), ("--key", "server.key")];
    server.ctl_flags = ctl.iter().flat_map(|(flag, file)| authority.flag(flag, file)).collect();
    server.start();
    server.wait();
    server
}

fn tls(authority: &Authority, identity: Option<&str>) -> Tls {
    let identity = identity.map(|name| Identity {
        certificate: authority.file(&format!("{name}.pem")),
        key: authority.file(&format!("{name}.key")),
    });
    Tls { ca: authority.file("ca.pem"), identity }
}

fn secure(server: &Server, tls: Tls) -> Etcd {
    let endpoints = vec![server.endpoint()];
    Etcd::new(&EtcdConf { endpoints, tls: Some(tls), credentials: None }).unwrap()
}

async fn check_access(store: &Etcd, server: &Server) {
    let from = store.list("").await.unwrap().revision;
    let mut watch = store.watch("k", from);
    let first = done(store.create("k", b"secret", Some(LONG)).await);
    assert_eq!(events(&mut *watch, 1).await[0].revision(), first);
    assert_eq!(server.ctl(&["get", "k", "--print-value-only"]), "secret\n");
    done(store.refresh_ttl("k", first).await);
    done(store.delete("k", Some(first)).await);
}

#[test]
fn tls_verifies_the_server() {
    in_netns(|| {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = server(&authority, dir.path(), false);
        block_on(async {
            check_access(&secure(&server, tls(&authority, None)), &server).await;
            // The server closes plain connections, and the error has a hint.
            let plain = server.endpoint().replace("https:", "http:");
            let plain = EtcdConf { endpoints: vec![plain], ..EtcdConf::default() };
            let error = Etcd::new(&plain).unwrap().list("").await.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("if etcd uses TLS, use https"), "{cause}");
            // A server that another authority has signed is refused.
            let error = secure(&server, tls(&Authority::new(), None)).list("").await.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("invalid peer certificate"), "{cause}");
        });
    });
}

#[test]
fn tls_with_client_certificate_gives_access() {
    in_netns(|| {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = server(&authority, dir.path(), true);
        authority.sign("node");
        block_on(async {
            let store = secure(&server, tls(&authority, Some("node")));
            check_access(&store, &server).await;
            let without = secure(&server, tls(&authority, None));
            let error = without.list("").await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let missing = secure(&server, tls(&authority, Some("nobody")));
            let error = missing.list("").await.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("nobody.pem"), "{cause}");
        });
    });
}

/// Certificate files are replaced, and the next connection uses the new ones.
#[test]
fn renewed_certificates_are_used() {
    in_netns(|| {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        let mut server = server(&authority, dir.path(), true);
        block_on(async {
            let store = secure(&server, tls(&authority, Some("node")));
            assert!(store.list("").await.is_err(), "the certificate does not exist yet");
            authority.sign("node");
            check_access(&store, &server).await;
            server.kill();
            authority.sign("node");
            server.start();
            server.wait();
            check_access(&store, &server).await;
        });
    });
}

fn as_user(server: &Server, user: &str, password: &str) -> Etcd {
    let credentials = Credentials { user: user.into(), password: password.into() };
    let endpoints = vec![server.endpoint()];
    Etcd::new(&EtcdConf { endpoints, tls: None, credentials: Some(credentials) }).unwrap()
}

/// Turns on authentication, with a user `node` that may read and write below `/n/`.
fn enable_users(server: &mut Server) {
    let commands = [
        "user add root:master",
        "user add node:secret",
        "role add nodes",
        "role grant-permission nodes --prefix=true readwrite /n/",
        "user grant-role node nodes",
        "auth enable",
    ];
    for command in commands {
        server.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    server.ctl_flags = vec!["--user".to_owned(), "root:master".to_owned()];
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: store::Result<T>, text: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains(text), "{cause}");
}

#[test]
fn users_have_only_their_permissions() {
    in_netns(|| {
        let mut lab = EtcdLab::start();
        enable_users(&mut lab.server);
        let server = &lab.server;
        block_on(async {
            let store = as_user(server, "node", "secret");
            let from = store.list("/n/").await.unwrap().revision;
            let mut watch = store.watch("/n/", from);
            let first = done(store.create("/n/a", b"x", Some(LONG)).await);
            assert_eq!(events(&mut *watch, 1).await[0].revision(), first);
            done(store.refresh_ttl("/n/a", first).await);

            assert_refused(store.list("/m/").await, "permission denied");
            assert_refused(store.create("/m/a", b"", None).await, "permission denied");
            let mut watch = store.watch("/m/", from);
            let denied = timeout(LONG, watch.next()).await.unwrap();
            assert_refused(denied, "permission denied");

            let wrong = as_user(server, "node", "guess");
            assert_refused(wrong.list("/n/").await, "invalid user ID or password");
            let nobody = client(&[server]);
            assert_refused(nobody.list("/n/").await, "user name is empty");
            assert_refused(nobody.create("/n/b", b"", None).await, "user name is empty");
        });
    });
}

/// A server keeps tokens in memory, for five minutes.
#[test]
fn lost_tokens_are_renewed() {
    in_netns(|| {
        let mut lab = EtcdLab::start();
        let server = &mut lab.server;
        block_on(async {
            // Authentication is turned on while the store is in use.
            let store = as_user(server, "node", "secret");
            let first = done(store.create("/n/a", b"1", None).await);
            let mut watch = store.watch("/n/", first);
            enable_users(server);
            let second = done(store.compare_and_swap("/n/a", b"2", first, None).await);
            let next = |watched: store::Result<Watched>| match watched {
                Ok(Watched::Changes { revision, .. }) => revision,
                Err(error) if error.can_retry() => Revision(0),
                other => panic!("{other:?}"),
            };
            while next(timeout(LONG, watch.next()).await.unwrap()) < second {}

            server.kill();
            server.start();
            server.wait();
            let third = done(store.compare_and_swap("/n/a", b"3", second, None).await);
            while next(timeout(LONG, watch.next()).await.unwrap()) < third {}

            // The token becomes invalid although the connection stays open.
            for command in
                ["user delete node", "user add node:secret", "user grant-role node nodes"]
            {
                server.ctl(&command.split(' ').collect::<Vec<_>>());
            }
            done(store.compare_and_swap("/n/a", b"4", third, None).await);
        });
    });
}

#[test]
fn user_is_ignored_without_authentication() {
    in_netns(|| {
        let lab = EtcdLab::start();
        block_on(async {
            let store = as_user(&lab.server, "node", "secret");
            timeout(LONG, check_access(&store, &lab.server)).await.unwrap();
        });
    });
}

/// As in an image that contains nothing but the program.
#[test]
fn tls_needs_no_system_certificates() {
    in_netns(|| {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = server(&authority, dir.path(), true);
        authority.sign("node");
        hide_system_certificates();
        let store = secure(&server, tls(&authority, Some("node")));
        block_on(check_access(&store, &server));
    });
}
