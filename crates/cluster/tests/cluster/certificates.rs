// SPDX-License-Identifier: Apache-2.0
//! TLS and plain HTTP on a system without CA certificates. The TLS server is `openssl s_server`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use cluster::{Access, Cluster, Node};
use testkit::{Authority, Daemon, hide_system_certificates, in_netns, require, wait_for};
use text::ErrorChain;

use crate::server::{LONG, block_on, prefixes};

const NODE: &str = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;

const URL: &str = "https://127.0.0.1:6443";

/// A server with one node and a certificate that `ca.pem` of the authority verifies.
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
        let accepts = || std::net::TcpStream::connect("127.0.0.1:6443").is_ok();
        wait_for("the TLS server accepts connections", LONG, accepts);
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

/// Reads the node and returns its revision, or the error with its causes.
async fn revision(access: Access) -> Result<u64, String> {
    let read = async {
        let cluster = Cluster::open(&access).await?;
        cluster.get::<Node>("a", &prefixes()).await
    };
    match read.await {
        Ok(node) => Ok(node.unwrap().revision.0),
        Err(error) => Err(ErrorChain(&error).to_string()),
    }
}

#[test]
fn https_needs_no_system_certificates() {
    in_netns(|| {
        require!(Program("openssl"));
        let server = TlsServer::start();
        let stranger = Authority::new();
        hide_system_certificates();
        let ca = server.authority.file("ca.pem");
        block_on(async {
            // Nothing can verify this server, and the error says what to do.
            let error = revision(Access::Url(URL.to_owned())).await.unwrap_err();
            for text in [URL, "no CA certificates", "certificate-authority", "SSL_CERT_FILE"] {
                assert!(error.contains(text), "{error}");
            }
            assert_eq!(revision(server.pod(&ca)).await, Ok(7));
            let verified = format!("server: '{URL}', certificate-authority: {}", ca.display());
            assert_eq!(revision(server.kubeconfig(&verified)).await, Ok(7));
            let unverified = format!("server: '{URL}', insecure-skip-tls-verify: true");
            assert_eq!(revision(server.kubeconfig(&unverified)).await, Ok(7));
            // A server that another authority has signed is still refused.
            let error = revision(server.pod(&stranger.file("ca.pem"))).await.unwrap_err();
            assert!(error.contains("invalid peer certificate"), "{error}");
            fs::write(server.authority.file("empty"), "").unwrap();
            let error = revision(server.pod(&server.authority.file("empty"))).await.unwrap_err();
            assert!(error.contains("serviceaccount/ca.crt"), "{error}");
        });
    });
}

/// As through `kubectl proxy`.
#[test]
fn plain_http_needs_no_system_certificates() {
    in_netns(|| {
        hide_system_certificates();
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
        assert_eq!(block_on(revision(Access::Url(url))), Ok(7));
        server.join().unwrap();
    });
}
