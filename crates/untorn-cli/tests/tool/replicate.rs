//! `replicate`, `replicas`, `restore` and `doctor` with the URL of a replica.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use untorn_testing::needs;

use crate::common::{UNTORN, untorn, untorn_with};

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

/// A file with a commit log, and the URL of its replica.
fn ledger(dir: &Path) -> (String, String) {
    let (file, url) = (at(dir, "ledger"), format!("file://{}", at(dir, "bucket")));
    untorn(&["create", &file, "--len", "64K", "--commit-log", "1M"]).expect(0);
    (file, url)
}

fn write(file: &str, text: &str) {
    untorn_with(&["write", file, "--offset", "100"], text.as_bytes()).expect(0);
}

#[test]
fn a_file_is_shipped_and_restored_at_any_commit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let again = at(dir, "again");
    untorn(&["replicas", &url]).expect(74).names("no replica");
    write(&file, "first");
    let made = untorn(&["replicate", &file, &url, "--once", "--json"]).expect(0).json();
    assert_eq!((&made["epoch"], &made["snapshots"], &made["commit"]), (&1.into(), &1.into(), &1.into()), "{made}");
    write(&file, "later");
    let text = untorn(&["replicate", &file, &url, "--once"]).expect(0).text();
    assert!(text.contains("commit 2 in epoch 2") && text.contains("0 snapshots and 1 commit"), "{text}");
    let made = untorn(&["restore", &url, &again, "--json"]).expect(0).json();
    assert_eq!((&made["commit"], &made["latest"], &made["len"]), (&2.into(), &true.into(), &65536.into()), "{made}");
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&file).unwrap());
    untorn(&["restore", &url, &again]).expect(74).names("--force replaces it");
    untorn(&["restore", &url, &again, "--at", "1", "--force"]).expect(0);
    assert_eq!(&std::fs::read(&again).unwrap()[100..105], b"first");
    untorn(&["restore", &url, &again, "--at", "1999-01-01 00:00:00", "--force"]).expect(74).names("nothing so old");
    untorn(&["restore", &url, &again, "--at", "soon"]).expect(64);
    let found = untorn(&["replicas", &url, "--json"]).expect(0).json();
    assert_eq!((&found["epoch"], &found["commit"]), (&2.into(), &2.into()), "{found}");
    let text = untorn(&["replicas", &url]).expect(0).text();
    assert!(text.contains("snapshot of commit 1"), "{text}");
}

#[test]
fn a_database_is_exported_as_ltx_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let out = at(dir, "out");
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    untorn(&["restore", &url, &out, "--ltx"]).expect(64).names("not an SQLite database");
    assert!(!Path::new(&out).exists());
    let header = [b"SQLite format 3\0".as_slice(), &4096_u16.to_be_bytes()].concat();
    untorn_with(&["write", &file, "--offset", "0"], &header).expect(0);
    // The replica has a state that is no database; a new one begins with the database.
    let url = format!("{url}2");
    untorn(&["replicate", &file, &url, "--once", "--consumer", "second"]).expect(0);
    write(&file, "later");
    untorn(&["replicate", &file, &url, "--once", "--consumer", "second"]).expect(0);
    let made = untorn(&["restore", &url, &out, "--ltx", "--json"]).expect(0).json();
    assert_eq!((&made["files"], &made["first"], &made["last"]), (&2.into(), &1.into(), &2.into()), "{made}");
    assert!(Path::new(&out).join("ltx/9/0000000000000001-0000000000000001.ltx").is_file());
    untorn(&["restore", &url, &out, "--ltx"]).expect(74).names("File exists");
    untorn(&["restore", &url, &out, "--ltx", "--at", "1"]).expect(64);
    untorn(&["restore", &file, &out, "--ltx"]).expect(64).names("URL of a replica");
}

#[test]
fn wrong_requests_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    let [other, plain, again] = ["other", "plain", "again"].map(|name| at(dir, name));
    untorn(&["create", &other, "--len", "64K", "--commit-log", "1M"]).expect(0);
    untorn(&["replicate", &other, &url, "--once"]).expect(1).names("restore the replica");
    untorn(&["create", &plain, "--len", "64K"]).expect(0);
    untorn(&["replicate", &plain, &url, "--once"]).expect(1).names("commits --start");
    untorn(&["replicate", &file, "s4://bucket/x", "--once"]).expect(64).names("file:///DIRECTORY");
    untorn(&["replicate", &file, "bucket", "--once"]).expect(64).names("no URL");
    untorn(&["restore", &file, &again, "--at", "1"]).expect(64).names("URL of a replica");
    assert_eq!(untorn(&["doctor", &url, "--json"]).expect(0).json()["conditions"], true);
    let object = std::fs::read_dir(dir.join("bucket/o/0000000000000001")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&object, b"not an object of a replica").unwrap();
    untorn(&["restore", &url, &again]).expect(2).names("is damaged");
    assert!(!Path::new(&again).exists());
}

#[test]
fn a_running_replication_ships_what_others_commit() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let mut command = Command::new(UNTORN);
    let command = command.args(["replicate", &file, &url, "--interval", "10", "--json"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("\"replicating\""), "{first}");
    for text in ["alpha", "bravo", "gamma"] {
        write(&file, text);
    }
    assert!(Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap().success());
    let last: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&last["state"], &last["commit"]), (&"replicated".into(), &3.into()), "{last}");
    running.wait().unwrap();
    let again = at(dir, "again");
    untorn(&["restore", &url, &again]).expect(0);
    assert_eq!(&std::fs::read(&again).unwrap()[100..105], b"gamma");
}
