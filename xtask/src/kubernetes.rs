// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask kubernetes`: builds a Kubernetes API server and `kubectl` for the tests. Debian has no
//! package of the server, but its source; this builds it with Debian's Go and installs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cmd;
use crate::debian::{self, Suite};
use crate::workspace::Workspace;

/// The last Debian release whose source package contains more of Kubernetes than kubectl.
const SUITE: &str = "bookworm";

const SOURCE: &str = "kubernetes";

/// Metapackage that depends on the release's Go version.
const GO: &str = "golang-go";

const PROGRAMS: [&str; 2] = ["kube-apiserver", "kubectl"];

/// A library of Kubernetes that reads maps by a layout which Go changed in 1.18: a server with the old version crashes
/// when it encodes a custom resource. Debian's package has the new version.
const LIBRARY: (&str, &str) =
    ("golang-github-modern-go-reflect2-dev", "github.com/modern-go/reflect2");

/// File with the version, written after the build.
const VERSION: &str = "VERSION";

/// Import path of Kubernetes, under which Go finds the sources.
const IMPORT: &str = "k8s.io/kubernetes";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Build again even if the programs exist
    #[arg(long)]
    refresh: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let dir = place(&workspace.target_dir);
    if args.refresh || find(&workspace.target_dir).is_none() {
        build(&dir).context("build Kubernetes")?;
    }
    let version = fs::read_to_string(dir.join(VERSION))?;
    println!("Kubernetes {version} for tests: {}", dir.display());
    Ok(())
}

/// Directory of the programs; `None` if they are not built.
pub(crate) fn find(target_dir: &Path) -> Option<PathBuf> {
    Some(place(target_dir)).filter(|dir| dir.join(VERSION).is_file())
}

fn place(target_dir: &Path) -> PathBuf {
    target_dir.join("kubernetes/bin")
}

fn build(place: &Path) -> Result<()> {
    println!("this takes about ten minutes on two CPUs and needs 4 GB of disk space");
    let home = place.parent().context("get the parent directory")?;
    fs::create_dir_all(home).with_context(|| format!("create {}", home.display()))?;
    let work = tempfile::tempdir_in(home)?;
    let suite = Suite::open(SUITE, work.path(), true)?;
    let go = Go::fetch(&suite, work.path())?;
    let source = go.path.join("src").join(IMPORT);
    suite.source(SOURCE, &source)?;
    replace_library(&suite, &source, work.path())?;
    let version = upstream(&debian::version_of_source(&source)?)?;
    let built = work.path().join("built");
    fs::create_dir(&built)?;
    generate(&go, &source, &built)?;
    compile(&go, &source, &built, &version)?;
    let printed = cmd::read(cmd::command(built.join(PROGRAMS[0])).arg("--version"))?;
    ensure!(printed.contains(&version), "the API server prints the version {printed}");
    fs::write(built.join(VERSION), version)?;
    debian::move_to(&built, place)
}

fn replace_library(suite: &Suite, source: &Path, work: &Path) -> Result<()> {
    let (package, import) = LIBRARY;
    let unpacked = work.join("library");
    debian::unpack(&suite.download(package)?, &unpacked)?;
    let place = source.join("vendor").join(import);
    fs::remove_dir_all(&place).with_context(|| format!("remove {}", place.display()))?;
    let library = unpacked.join("usr/share/gocode/src").join(import);
    fs::rename(&library, &place).with_context(|| format!("move {}", library.display()))
}

/// Debian's Go compiler, unpacked.
struct Go {
    root: PathBuf,
    /// `GOPATH`, with the sources below `src`.
    path: PathBuf,
    cache: PathBuf,
}

impl Go {
    fn fetch(suite: &Suite, work: &Path) -> Result<Go> {
        let package = suite.resolve(GO)?;
        let library = package.replace("-go", "-src");
        let unpacked = work.join("go");
        for package in [&package, &library] {
            debian::unpack(&suite.download(package)?, &unpacked)?;
        }
        let root =
            unpacked.join("usr/lib").join(package.trim_end_matches("-go").replace("lang", ""));
        ensure!(
            root.join("bin/go").is_file(),
            "{package} has no {}",
            root.join("bin/go").display()
        );
        Ok(Go { root, path: work.join("gopath"), cache: work.join("cache") })
    }

    /// `go build` as Kubernetes needs it: all dependencies are in its directory `vendor`.
    fn build(&self, source: &Path, into: &Path) -> Command {
        let mut build = cmd::command(self.root.join("bin/go"));
        build.current_dir(source).arg("build").arg("-o").arg(into);
        self.with_env(&mut build);
        build
    }

    fn with_env(&self, command: &mut Command) {
        let bin = self.root.join("bin");
        let path = std::env::join_paths([&bin, Path::new("/usr/bin"), Path::new("/bin")]);
        command.env("PATH", path.unwrap_or_else(|_| bin.into_os_string()));
        command.env("GOROOT", &self.root).env("GOPATH", &self.path).env("GOCACHE", &self.cache);
        command.env("GO111MODULE", "off").env("GOPROXY", "off").env("CGO_ENABLED", "0");
        command.env("GOFLAGS", "");
    }
}

/// Generates the OpenAPI description of all types, which the server needs to start.
fn generate(go: &Go, source: &Path, built: &Path) -> Result<()> {
    let generator = built.with_file_name("openapi-gen");
    let mut build = go.build(source, &generator);
    cmd::run(build.arg("./vendor/k8s.io/kube-openapi/cmd/openapi-gen"))?;
    let packages = marked_packages(source)?;
    let mut generate = cmd::command(generator);
    go.with_env(&mut generate);
    generate.current_dir(source).args(["--input-dirs", &packages.join(",")]);
    generate.args(["--output-package", &format!("{IMPORT}/pkg/generated/openapi")]);
    generate.args(["--output-file-base", "zz_generated.openapi"]);
    generate.args(["--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"]);
    generate.arg("--output-base").arg(go.path.join("src"));
    generate.arg("--report-filename").arg(built.with_file_name("violations"));
    cmd::read(&mut generate).map(drop)
}

/// Packages with the marker for OpenAPI generation.
fn marked_packages(source: &Path) -> Result<Vec<String>> {
    let mut grep = cmd::command("grep");
    grep.args(["-RlF", "--include=*.go", "+k8s:openapi-gen=", "pkg", "vendor/k8s.io"]);
    let files = cmd::read(grep.current_dir(source))?;
    let packages = packages_of(&files);
    if packages.is_empty() {
        bail!("no package of {} has the marker +k8s:openapi-gen", source.display());
    }
    Ok(packages)
}

/// Unique directories of the files, without examples.
fn packages_of(files: &str) -> Vec<String> {
    let examples = ["vendor/k8s.io/code-generator/", "vendor/k8s.io/sample-apiserver/"];
    let relevant = files.lines().filter(|file| !examples.iter().any(|dir| file.starts_with(dir)));
    let dirs = relevant.filter_map(|file| file.rsplit_once('/').map(|(dir, _)| dir));
    let mut packages: Vec<_> = dirs.map(|dir| format!("{IMPORT}/{dir}")).collect();
    packages.sort();
    packages.dedup();
    packages
}

fn compile(go: &Go, source: &Path, built: &Path, version: &str) -> Result<()> {
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = vec!["-s".to_owned(), "-w".to_owned()];
    for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
        for package in ["component-base/version", "client-go/pkg/version"] {
            flags.push(format!("-X {IMPORT}/vendor/k8s.io/{package}.{name}={value}"));
        }
    }
    // The output is a directory, in which each program gets its own name.
    let mut build = go.build(source, &built.join(""));
    build.args(["-ldflags", &flags.join(" ")]);
    cmd::run(build.args(PROGRAMS.map(|program| format!("./cmd/{program}"))))
}

/// Upstream version: `1.20.5+really1.20.2-1.1+deb12u1` is 1.20.2, packaged under a higher number.
fn upstream(version: &str) -> Result<String> {
    let (upstream, _) = version.rsplit_once('-').unwrap_or((version, ""));
    let upstream = upstream.rsplit_once("really").map_or(upstream, |(_, really)| really);
    let number: String = upstream.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    ensure!(number.split('.').count() == 3, "{version} is not a version of Kubernetes");
    Ok(format!("v{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_version_is_extracted() {
        let check = |text: &str, expected: &str| assert_eq!(upstream(text).unwrap(), expected);
        check("1.20.5+really1.20.2-1.1+deb12u1", "v1.20.2");
        check("1.32.3+ds-2", "v1.32.3");
        assert!(upstream("1-2").is_err());
    }

    #[test]
    fn packages_are_unique() {
        let files = "vendor/k8s.io/api/core/v1/types.go\nvendor/k8s.io/api/core/v1/doc.go\n\
                     pkg/apis/x.go\nvendor/k8s.io/sample-apiserver/pkg/doc.go\n";
        let expected =
            ["k8s.io/kubernetes/pkg/apis", "k8s.io/kubernetes/vendor/k8s.io/api/core/v1"];
        assert_eq!(packages_of(files), expected);
    }
}
