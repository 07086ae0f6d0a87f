// SPDX-License-Identifier: Apache-2.0
//! A served status hub, and curl.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread::JoinHandle;

use agent::api::{self, Socket};
use agent::status::{
    LeaseStatus, NetworkStatus, PathStatus, PeerStatus, RouteMode, StatusHub, UnderlayStatus,
};
use agent::supervisor::Heartbeat;
use tokio::sync::oneshot;

pub const PORT: u16 = 8081;

/// A server on its own thread until it is dropped.
pub struct Served {
    pub hub: StatusHub,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves the port and the directory.
    pub fn start(run_dir: &Path) -> Served {
        let hub = StatusHub::new("a", "etcd");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (shown, run_dir) = (hub.clone(), run_dir.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = api::listen(IpAddr::from(Ipv4Addr::LOCALHOST), PORT).unwrap();
                let mut socket = Socket::create(&run_dir).unwrap();
                let heartbeat = Heartbeat::unsupervised();
                let serving = api::serve(Some(&listener), &mut socket, &shown, None, &heartbeat);
                ready.send(()).unwrap();
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Served { hub, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Status code, content type and body of an answer, as curl has them.
#[track_caller]
pub fn curl(args: &[&str]) -> (u16, String, String) {
    let format = "\n%{http_code} %{content_type}";
    let printed = testkit::run("curl", &[&["-sS", "-m", "30", "-w", format], args].concat());
    let (body, end) = printed.rsplit_once('\n').unwrap();
    let (code, kind) = end.split_once(' ').unwrap();
    (code.parse().unwrap(), kind.to_owned(), body.to_owned())
}

pub fn url(path: &str) -> String {
    format!("http://127.0.0.1:{PORT}{path}")
}

pub fn network() -> NetworkStatus {
    NetworkStatus {
        owner: "podwire".into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: LeaseStatus {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            public: vec!["192.0.2.1".parse().unwrap()],
        },
        underlay: UnderlayStatus {
            name: "eth0".into(),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            mtu: 1500,
        },
    }
}

pub fn peer(number: u16) -> PeerStatus {
    let [high, low] = number.to_be_bytes();
    PeerStatus {
        name: format!("node-{number}"),
        subnets: vec![format!("10.{}.{low}.0/24", 64 + high).parse().unwrap()],
        public: vec![IpAddr::from([192, 168, high, low])],
        backend: "vxlan".into(),
        route: if number.is_multiple_of(2) { RouteMode::Tunnel } else { RouteMode::Direct },
        path: PathStatus::default(),
    }
}
