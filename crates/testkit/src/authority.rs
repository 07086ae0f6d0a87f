// SPDX-License-Identifier: Apache-2.0
//! A certificate authority of the tests, by openssl.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::command::run;
use crate::require;

/// A certificate authority, and what it has signed for 127.0.0.1 and [`Wire::HOST`](crate::Wire::HOST).
#[derive(Debug)]
pub struct Authority(TempDir);

const REQUEST: &str = "
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = test
[authority]
basicConstraints = critical, CA:TRUE
";

const SIGNED: &str = "
basicConstraints = CA:FALSE
subjectAltName = IP:127.0.0.1, IP:192.168.90.254
extendedKeyUsage = serverAuth, clientAuth
";

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config request.cnf";

impl Authority {
    /// With a key of its own.
    #[track_caller]
    pub fn new() -> Self {
        require!(Program("openssl"));
        let authority = Self(tempfile::tempdir().expect("there is room for temporary files"));
        authority.write("request.cnf", REQUEST);
        authority.write("signed.cnf", SIGNED);
        authority.openssl(&format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 2"));
        authority
    }

    /// Makes `<name>.key` and `<name>.pem`.
    #[track_caller]
    pub fn sign(&self, name: &str) {
        self.openssl(&format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2
             -extfile signed.cnf -out {name}.pem"
        ));
    }

    #[track_caller]
    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("a temporary file can be written");
    }

    #[track_caller]
    fn openssl(&self, words: &str) {
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        run("sh", &["-ec", &format!("cd {}; openssl {words} 2>&1", self.0.path().display())]);
    }

    /// Where such a file is; `ca.pem` is its own certificate.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A flag and the path of a file.
    pub fn flag(&self, flag: &str, file: &str) -> [String; 2] {
        [flag.to_owned(), self.file(file).display().to_string()]
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
