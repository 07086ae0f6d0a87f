// SPDX-License-Identifier: Apache-2.0
//! The stores over TLS on a system without CA certificates, such as an image that has nothing but the
//! program. The TLS servers are `openssl s_server` and etcd.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use store::kubernetes::{Access, Kubernetes};
use store::{Error, Store};
use testkit::{Authority, Daemon, in_netns, require, run, wait_for};

use crate::api_server::conf;
use crate::etcd_secure;
use crate::lab::{LONG, block_on};

/// Directories in which rustls-native-certs looks for certificates, and the variables that name others.
const PLACES: &str = "
for dir in /etc/ssl /etc/pki /etc/openssl /etc/certs /usr/lib/ssl /usr/share/ca-certificates \\
    /usr/share/ssl /usr/local/ssl /usr/local/openssl /usr/local/share /usr/ssl /var/ssl /opt/etc/ssl \\
    \"$SSL_CERT_DIR\"; do
    test ! -d \"$dir\" || mount -t tmpfs tmpfs \"$dir\"
done
test ! -f \"$SSL_CERT_FILE\" || mount --bind /dev/null \"$SSL_CERT_FILE\"
";

const NODE: &str = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;

const URL: &str = "https://127.0.0.1:6443";

/// A server that knows one node, and that `ca.pem` of the authority can verify.
struct TlsServer {
    authority: Authority,
    _openssl: Daemon,
}

impl TlsServer {
    fn start() -> Self {
        let authority = Authority::new();
        authority.sign("server");
        let dir = authority.file("api/v1/nodes");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("a"), answer()).unwrap();
        let root = authority.file("");
        let script = format!(
            "cd {}; exec openssl s_server -quiet -accept 127.0.0.1:6443 -cert server.pem \
             -key server.key -HTTP",
            root.display()
        );
        let openssl = Daemon::start("sh", &["-ec", &script]);
        wait_for("the TLS server", LONG, || std::net::TcpStream::connect("127.0.0.1:6443").is_ok());
        Self { authority, _openssl: openssl }
    }

    fn pod(&self, ca: &Path) -> Access {
        let dir = self.authority.file("serviceaccount");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("token"), "t").unwrap();
        fs::copy(ca, dir.join("ca.crt")).unwrap();
        Access::Pod { url: URL.to_owned(), dir }
    }

    fn kubeconfig(&self, cluster: &str) -> Access {
        let file = self.authority.file("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n"
        );
        fs::write(&file, text).unwrap();
        Access::Kubeconfig { file, url: None }
    }
}

fn answer() -> String {
    let length = NODE.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{NODE}"
    )
}

async fn find(access: Access) -> store::Result<u64> {
    let store = Kubernetes::open(&conf(access)).await?;
    Ok(store.get("nodes/a").await?.unwrap().revision.0)
}

fn said(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[test]
fn kubernetes_needs_no_system_certificates() {
    in_netns(|| {
        require!(Program("openssl"));
        let server = TlsServer::start();
        let stranger = Authority::new();
        run("sh", &["-ec", PLACES]);
        let ca = server.authority.file("ca.pem");
        block_on(async {
            // Without any certificate there is nothing to verify this server with, and the error says what to do.
            let error = find(Access::Url(URL.to_owned())).await.unwrap_err();
            for word in [URL, "no CA certificates", "certificate-authority", "SSL_CERT_FILE"] {
                assert!(said(&error).contains(word), "{}", said(&error));
            }
            assert_eq!(find(server.pod(&ca)).await.unwrap(), 7);
            let by_file = format!("server: '{URL}', certificate-authority: {}", ca.display());
            assert_eq!(find(server.kubeconfig(&by_file)).await.unwrap(), 7);
            let unchecked = format!("server: '{URL}', insecure-skip-tls-verify: true");
            assert_eq!(find(server.kubeconfig(&unchecked)).await.unwrap(), 7);
            // A server that another authority has signed is still refused.
            let error = find(server.pod(&stranger.file("ca.pem"))).await.unwrap_err();
            assert!(said(&error).contains("invalid peer certificate"), "{}", said(&error));
            fs::write(server.authority.file("empty"), "").unwrap();
            let error = find(server.pod(&server.authority.file("empty"))).await.unwrap_err();
            assert!(said(&error).contains("serviceaccount/ca.crt"), "{}", said(&error));
        });
    });
}

/// As through `kubectl proxy`.
#[test]
fn plain_http_needs_no_system_certificates() {
    in_netns(|| {
        run("sh", &["-ec", PLACES]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer().as_bytes()).unwrap();
        });
        assert_eq!(block_on(find(Access::Url(url))).unwrap(), 7);
        server.join().unwrap();
    });
}

#[test]
fn etcd_needs_no_system_certificates() {
    in_netns(|| {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = etcd_secure::server(&authority, dir.path(), true);
        authority.sign("node");
        run("sh", &["-ec", PLACES]);
        let store = etcd_secure::secure(&server, etcd_secure::tls(&authority, Some("node")));
        block_on(etcd_secure::works(&store, &server));
    });
}
