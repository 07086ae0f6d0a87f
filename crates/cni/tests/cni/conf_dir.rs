// SPDX-License-Identifier: Apache-2.0
//! The configuration directory: order, names, invalid files, and the default network.

use std::fs;

use cni::runtime::conf_dir::{first_valid, load, scan};

use crate::lab::Lab;

fn conflist(name: &str, kind: &str) -> String {
    format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "{kind}"}}]}}"#)
}

fn single(name: &str, kind: &str) -> String {
    format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "type": "{kind}"}}"#)
}

/// Creates a lab with these files in `net.d`.
fn directory(files: &[(&str, String)]) -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.path("net.d")).unwrap();
    for (name, text) in files {
        fs::write(lab.path("net.d").join(name), text).unwrap();
    }
    lab
}

#[test]
fn scan_lists_all_files_with_conflists_first() {
    let lab = directory(&[
        ("50-c.json", single("c", "x")),
        ("40-b.conf", single("b", "x")),
        ("90-a.conflist", conflist("a", "x")),
        ("10-broken.conflist", "{".into()),
        ("README.md", "text".into()),
        ("60-old.conf.bak", single("d", "x")),
    ]);
    fs::create_dir(lab.path("net.d/00-folder.conflist")).unwrap();
    std::os::unix::fs::symlink("90-a.conflist", lab.path("net.d/95-link.conflist")).unwrap();
    let files = scan(&lab.path("net.d")).unwrap();
    let names: Vec<(String, Option<String>)> = files
        .into_iter()
        .map(|conf| {
            let name = conf.file.file_name().unwrap().to_string_lossy().into_owned();
            (name, conf.list.ok().map(|list| list.name))
        })
        .collect();
    let expected = [
        ("10-broken.conflist", None),
        ("90-a.conflist", Some("a")),
        ("95-link.conflist", Some("a")),
        ("40-b.conf", Some("b")),
        ("50-c.json", Some("c")),
    ];
    let expected = expected.map(|(file, name)| (file.to_owned(), name.map(str::to_owned)));
    assert_eq!(names, expected);
}

#[test]
fn load_finds_a_network_by_name() {
    let lab = directory(&[
        ("10-broken.conflist", "{\n\"name\": \"b\"".into()),
        ("20-b.conflist", conflist("b", "from-list")),
        ("05-b.conf", single("b", "from-single")),
        ("30-c.conf", single("c", "x")),
    ]);
    let dir = lab.path("net.d");
    let b = load(&dir, "b").unwrap();
    assert_eq!(b.plugins[0].kind, "from-list");
    assert_eq!(b.file, Some(dir.join("20-b.conflist")));
    assert_eq!(load(&dir, "c").unwrap().file, Some(dir.join("30-c.conf")));

    let error = load(&dir, "z").unwrap_err();
    let path = dir.display();
    assert_eq!(error.msg, format!("no net configuration with name \"z\" in {path}"));
    assert!(error.details.contains(&format!("{path}/10-broken.conflist:2:11: EOF")), "{error}");
}

#[test]
fn missing_directory_has_no_networks() {
    let lab = directory(&[]);
    for dir in ["net.d", "nowhere"] {
        let dir = lab.path(dir);
        assert!(scan(&dir).unwrap().is_empty());
        let expected = format!("no net configurations found in {}", dir.display());
        assert_eq!(load(&dir, "a").unwrap_err().msg, expected);
        assert_eq!(first_valid(&dir, &lab.runtime()).unwrap_err().msg, expected);
    }
}

#[test]
fn default_network_is_the_first_usable_one() {
    let lab = directory(&[
        ("10-broken.conflist", "{".into()),
        ("20-missing.conf", single("missing", "nowhere")),
        ("30-old.conflist", conflist("old", "supports-old")),
        ("40-good.json", single("good", "supports-new")),
        ("50-later.conflist", conflist("later", "supports-new")),
    ]);
    lab.plugin("supports-old", r#"echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}'"#);
    lab.plugin("supports-new", r#"echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'"#);
    let chosen = first_valid(&lab.path("net.d"), &lab.runtime()).unwrap();
    assert_eq!(chosen.list.name, "good");
    let reasons: Vec<&str> = chosen.ignored.iter().map(|(_, error)| &*error.msg).collect();
    assert!(reasons[0].contains("EOF"), "{reasons:?}");
    assert!(reasons[1].contains("failed to find plugin \"nowhere\""), "{reasons:?}");
    let old = "plugin supports-old does not support config version \"1.0.0\"";
    assert_eq!((reasons[2], reasons.len()), (old, 3));

    for later in ["40-good.json", "50-later.conflist"] {
        fs::remove_file(lab.path("net.d").join(later)).unwrap();
    }
    let error = first_valid(&lab.path("net.d"), &lab.runtime()).unwrap_err();
    assert!(error.msg.starts_with("no valid net configuration in "), "{error}");
    assert!(error.details.contains(old), "{error}");
}

/// A reader of a FIFO would wait for a writer.
#[test]
fn fifo_is_an_invalid_file() {
    let lab = directory(&[("20-a.conflist", conflist("a", "x"))]);
    testkit::run("mkfifo", &[lab.path("net.d/10-fifo.conflist").to_str().unwrap()]);
    let files = scan(&lab.path("net.d")).unwrap();
    let error = files[0].list.as_ref().unwrap_err();
    assert!(error.to_string().ends_with("it is a FIFO, expected a regular file"), "{error}");
    assert_eq!(files[1].list.as_ref().unwrap().name, "a");
    assert_eq!(load(&lab.path("net.d"), "a").unwrap().name, "a");
}
