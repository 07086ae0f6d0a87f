// SPDX-License-Identifier: Apache-2.0
//! A certificate authority of the tests, by openssl.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use testkit::{require, run};

/// A certificate authority, and what it has signed for 127.0.0.1.
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
subjectAltName = IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
";

impl Authority {
    pub fn new() -> Self {
        require!(Program("openssl"));
        let authority = Self(tempfile::tempdir().unwrap());
        fs::write(authority.file("request.cnf"), REQUEST).unwrap();
        fs::write(authority.file("signed.cnf"), SIGNED).unwrap();
        authority.openssl(&format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 2"));
        authority
    }

    pub fn sign(&self, name: &str) {
        self.openssl(&format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2
             -extfile signed.cnf -out {name}.pem"
        ));
    }

    fn openssl(&self, words: &str) {
        let dir = self.0.path().to_str().unwrap();
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        run("sh", &["-ec", &format!("cd {dir}; openssl {words} 2>&1")]);
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A flag and the path of a file.
    pub fn flag(&self, flag: &str, file: &str) -> [String; 2] {
        [flag.to_owned(), self.file(file).to_str().unwrap().to_owned()]
    }
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config request.cnf";
