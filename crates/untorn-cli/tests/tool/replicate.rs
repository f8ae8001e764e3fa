//! `replicate`, `replicas`, `restore` and `doctor` with the URL of a replica.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use untorn_testing::needs;

use crate::common::{UNTORN, untorn, untorn_with};

pub(crate) fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

/// A file with a commit log, and the URL of its replica.
pub(crate) fn ledger(dir: &Path) -> (String, String) {
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
    // Nothing is new, so no epoch begins.
    let text = untorn(&["replicate", &file, &url, "--once"]).expect(0).text();
    assert!(text.contains("commit 2 in epoch 2") && text.contains("0 snapshots and 0 commits"), "{text}");
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
fn a_snapshot_mends_a_replica_whose_store_lost_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    for text in ["one", "two", "three"] {
        write(&file, text);
        untorn(&["replicate", &file, &url, "--once"]).expect(0);
    }
    std::fs::remove_file(dir.join("bucket/o/0000000000000002/0000000000000001")).unwrap();
    untorn(&["restore", &url, &at(dir, "copy")]).expect(2).names("missing");
    let text = untorn(&["replicate", &file, &url, "--once", "--snapshot"]).expect(0).text();
    assert!(text.contains("1 snapshot and 0 commits"), "{text}");
    untorn(&["restore", &url, &at(dir, "copy")]).expect(0);
    untorn(&["replicate", &file, &format!("{url}?kye=x"), "--once"]).expect(64).names("unknown option");
}

#[test]
fn an_idle_replication_learns_that_it_lost_the_replica() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let mut idle = Command::new(UNTORN);
    let mut idle = idle.args(["replicate", &file, &url, "--confirm", "1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(idle.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("replicating"), "{told}");
    untorn(&["restore", &url, &at(dir, "copy")]).expect(0);
    untorn(&["commits", &at(dir, "copy"), "--start", "1M"]).expect(0);
    untorn(&["replicate", &at(dir, "copy"), &url, "--once"]).expect(0);
    assert_eq!(idle.wait().unwrap().code(), Some(1), "another writer took it over");
}

#[test]
fn a_store_that_is_gone_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    std::fs::remove_dir_all(dir.join("bucket")).unwrap();
    untorn(&["replicate", &file, &url, "--once"]).expect(74).names("--new");
    assert!(!dir.join("bucket").exists());
    untorn(&["replicate", &file, &url, "--once", "--new"]).expect(0);
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
}

/// Files with commit logs, and the URL that their replicas are below.
fn books(dir: &Path) -> ([String; 3], String) {
    let files = ["ledger", "journal", "index.db"].map(|name| at(dir, name));
    for file in &files {
        untorn(&["create", file, "--len", "64K", "--commit-log", "1M"]).expect(0);
        write(file, file);
    }
    (files, format!("file://{}", at(dir, "bucket")))
}

#[test]
fn several_files_are_shipped_and_one_that_fails_stops_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ([ledger, journal, index], url) = books(dir);
    let shipped = untorn(&["replicate", &ledger, &journal, &index, &url, "--once", "--json"]).expect(0);
    let lines = serde_json::Deserializer::from_slice(&shipped.out).into_iter::<serde_json::Value>();
    let lines: Vec<_> = lines.map(|line| line.unwrap()).collect();
    let urls: Vec<_> = lines.iter().map(|line| line["url"].as_str().unwrap().to_owned()).collect();
    assert_eq!(urls, ["ledger", "journal", "index.db"].map(|name| format!("{url}/{name}")));
    for (name, file) in [("ledger", &ledger), ("journal", &journal), ("index.db", &index)] {
        let again = at(dir, &format!("{name}.again"));
        untorn(&["restore", &format!("{url}/{name}"), &again]).expect(0);
        assert!(std::fs::read(&again).unwrap() == std::fs::read(file).unwrap(), "{name}");
    }
    std::fs::remove_dir_all(dir.join("bucket/journal")).unwrap();
    for file in [&ledger, &index] {
        write(file, "later");
    }
    let shipped = untorn(&["replicate", &ledger, &journal, &index, &url, "--once"]).expect(74);
    assert!(shipped.err.contains("1 of 3 files failed") && shipped.err.contains("journal"), "{}", shipped.err);
    let text = shipped.text();
    assert_eq!(text.matches("and 1 commit,").count(), 2, "{text}");
}

#[test]
fn files_whose_replicas_would_be_one_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ([ledger, journal, _], url) = books(dir);
    std::fs::create_dir(dir.join("other")).unwrap();
    let other = at(dir, "other/ledger");
    untorn(&["create", &other, "--len", "64K", "--commit-log", "1M"]).expect(0);
    untorn(&["replicate", &ledger, &journal, &other, &url, "--once"]).expect(64).names("by itself");
    untorn(&["replicate", &ledger, &journal, "nats://127.0.0.1:1/STREAM/a", "--once"]).expect(64).names("of its own");
    assert!(!dir.join("bucket").exists());
}

#[test]
fn running_replications_of_several_files_do_not_stop_each_other() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ([ledger, journal, _], url) = books(dir);
    let (mut running, mut next) = replicating(&[&ledger, &journal], &url, &OFTEN);
    assert_eq!(next()["path"], journal);
    // Another writer owns the journal from here on, and the running one notices at its next commit.
    let other = at(dir, "other");
    untorn(&["take-over", &format!("{url}/journal"), &other, "--plain", "--", "true"]).expect(0);
    write(&journal, "bravo");
    write(&ledger, "gamma");
    let mut errors = BufReader::new(running.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let line = errors.next().unwrap();
    assert!(line.contains("this writer lost the replica"), "{line}");
    write(&ledger, "delta");
    terminate(&running);
    let last = next();
    assert_eq!((&last["state"], &last["path"], &last["commit"]), (&"replicated".into(), &ledger.into(), &3.into()));
    assert_eq!(running.wait().unwrap().code(), Some(1));
    let line = errors.next().unwrap();
    assert!(line.contains("1 of 2 files failed"), "{line}");
}

#[test]
fn a_sync_waits_for_the_store_if_asked_to() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let (running, mut next) = replicating(&[&file], &url, &["--sync", "replicated", "--interval", "60000"]);
    for (text, commit) in [("alpha", 1), ("bravo", 2)] {
        write(&file, text);
        // Not at some later time: the command that wrote has ended.
        assert_eq!(untorn(&["replicas", &url, "--json"]).expect(0).json()["commit"], commit);
    }
    terminate(&running);
    let last = next();
    assert_eq!((&last["sync"], &last["commit"]), (&"replicated".into(), &2.into()), "{last}");
    running.wait_with_output().unwrap();
    assert_eq!(untorn(&["info", &file, "--json"]).expect(0).json()["commit_log"]["awaits_consumers"], true);
    // Without a replication a sync waits; with a limit it says what it waited for, and the commit stays.
    untorn(&["commits", &file, "--start", "1M", "--await-consumers", "--block", "0"]).expect(0);
    let late = untorn_with(&["write", &file, "--offset", "100"], b"gamma").expect(74);
    assert!(late.err.contains("commit 3 is durable here") && late.err.contains("\"replica\""), "{}", late.err);
    let shipped = untorn(&["replicate", &file, &url, "--once", "--sync", "local"]).expect(0).text();
    assert!(shipped.contains("commit 3 in") && shipped.contains("a sync of the file is local"), "{shipped}");
    write(&file, "delta");
}

#[test]
fn a_commit_is_restored_by_any_form_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    for text in ["alpha", "bravo", "gamma"] {
        write(&file, text);
        untorn(&["replicate", &file, &url, "--once"]).expect(0);
    }
    let printed = untorn(&["commits", &file, "--json"]).expect(0).text();
    let printed: Vec<serde_json::Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let restored = |time: &str| {
        untorn(&["restore", &url, &at(dir, "again"), "--force", "--json", "--at", time]).expect(0).json()["commit"]
            .clone()
    };
    assert_eq!(printed.len(), 3);
    for commit in &printed {
        assert_eq!(restored(&format!("@{}", commit["time"])), commit["commit"], "{commit}");
    }
    // The text form has whole seconds.
    let text = untorn(&["commits", &file]).expect(0).text();
    let words: Vec<&str> = text.lines().last().unwrap().split(' ').collect();
    assert_eq!(restored(&words[1..3].join(" ")), 3, "{text}");
}

#[test]
fn a_state_beyond_the_end_of_a_replica_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    write(&file, "alpha");
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    let restore = |commit| untorn(&["restore", &url, &at(dir, "again"), "--force", "--at", commit]).expect(0);
    let restored = restore("7").names("ends at commit 1, so that was restored instead of commit 7");
    assert!(restored.text().contains("at commit 1"), "{}", restored.text());
    assert_eq!(restore("1").err, "");
}

#[test]
fn a_refused_replication_leaves_the_sync_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ([ledger, journal, _], url) = books(dir);
    let awaits =
        |file: &str| untorn(&["info", file, "--json"]).expect(0).json()["commit_log"]["awaits_consumers"] == true;
    std::fs::write(dir.join("taken"), "").unwrap();
    let taken = format!("file://{}/bucket", at(dir, "taken"));
    for options in [&["--once"][..], &[]] {
        let refused = [&["replicate", &ledger, &taken, "--sync", "replicated"], options].concat();
        untorn(&refused).expect(74).names("Not a directory");
        assert!(!awaits(&ledger), "{options:?}");
    }
    // Another file has that name in the store. The ledger itself is not refused, and is not replicated either.
    untorn(&["replicate", &ledger, &format!("{url}/journal"), "--once"]).expect(0);
    let both = ["replicate", &ledger, &journal, &url, "--sync", "replicated"];
    untorn(&both).expect(1).names("restore the replica");
    assert!(!awaits(&ledger) && !awaits(&journal));
    // These writes would wait for ever.
    write(&ledger, "later");
    write(&journal, "later");
    untorn(&["commits", &journal, "--start", "1M", "--await-consumers"]).expect(0);
    untorn(&["replicate", &journal, &format!("{url}/journal"), "--once", "--sync", "local"]).expect(1);
    assert!(awaits(&journal));
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
    untorn(&["replicate", &plain, &url, "--once"]).expect(1).names(&format!("`untorn commits {plain} --start SIZE`"));
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

/// Has a replication ship what there is after 10 ms.
const OFTEN: [&str; 2] = ["--interval", "10"];

/// A running `untorn replicate` with these options, and the lines that it prints after the first.
fn replicating(files: &[&str], url: &str, options: &[&str]) -> (Child, impl FnMut() -> serde_json::Value + use<>) {
    let mut command = Command::new(UNTORN);
    let command = command.arg("replicate").args(files).args([url, "--json"]).args(options);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = move || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["state"], "replicating");
    (running, next)
}

pub(crate) fn terminate(running: &Child) {
    assert!(Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_ends_a_replication_as_its_help_says() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let (file, url) = ledger(dir.path());
    let (mut running, mut next) = replicating(&[&file], &url, &OFTEN);
    terminate(&running);
    assert_eq!(next()["state"], "replicated");
    assert_eq!(running.wait().unwrap().signal(), Some(15));
    let help = untorn(&["replicate", "--help"]).expect(0).prose();
    assert!(help.contains("0 everything was shipped, with --once"), "{help}");
    assert!(help.contains("ends by that signal: a shell reports 143 for SIGTERM"), "{help}");
}

#[test]
fn a_signal_ends_a_replication_without_its_store() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let (running, _) = replicating(&[&file], &url, &OFTEN);
    std::fs::rename(at(dir, "bucket"), at(dir, "away")).unwrap();
    write(&file, "alpha");
    terminate(&running);
    let ended = running.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(74) && err.contains("the rest is shipped when"), "{}: {err}", ended.status);
    std::fs::rename(at(dir, "away"), at(dir, "bucket")).unwrap();
    assert_eq!(untorn(&["replicate", &file, &url, "--once", "--json"]).expect(0).json()["commit"], 1);
}

#[test]
fn an_outage_of_the_store_is_told_with_its_end() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let (mut running, mut next) = replicating(&[&file], &url, &OFTEN);
    let stderr = BufReader::new(running.stderr.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    // A line that never comes fails the test instead of keeping it.
    std::thread::spawn(move || stderr.lines().try_for_each(|line| sender.send(line.unwrap())));
    let mut errors = std::iter::from_fn(|| lines.recv_timeout(std::time::Duration::from_secs(60)).ok());
    std::fs::rename(at(dir, "bucket"), at(dir, "away")).unwrap();
    write(&file, "alpha");
    let line = errors.next().unwrap();
    assert!(line.contains("ledger: ") && line.ends_with("; trying again"), "{line}");
    std::fs::rename(at(dir, "away"), at(dir, "bucket")).unwrap();
    let line = errors.find(|line| !line.ends_with("; trying again")).unwrap();
    assert!(line.ends_with(&format!("ledger: replicating again; {url} has it up to commit 1")), "{line}");
    // The same for programs.
    let failing = next();
    assert!(failing["failure"].is_string() && failing["lag"]["commits"] == 1, "{failing}");
    assert!(failing["lag"]["bytes"].as_u64().unwrap() > 0, "{failing}");
    let again = std::iter::repeat_with(&mut next).find(|told| told["failure"].is_null()).unwrap();
    assert_eq!((&again["commit"], &again["lag"]["commits"]), (&1.into(), &0.into()), "{again}");
    terminate(&running);
    let last = next();
    assert_eq!((&last["commit"], &last["state"]), (&1.into(), &"replicated".into()), "{last}");
    running.wait().unwrap();
}

#[test]
fn a_replication_reports_how_far_it_is_behind() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let (mut running, mut next) = replicating(&[&file], &url, &[&OFTEN[..], &["--report", "1"]].concat());
    write(&file, "alpha");
    let told = std::iter::repeat_with(&mut next).find(|told| told["commit"] == 1).unwrap();
    assert_eq!((&told["state"], &told["lag"]["commits"]), (&"replicating".into(), &0.into()), "{told}");
    terminate(&running);
    running.wait().unwrap();
    // The file tells how far the replica is behind, too.
    write(&file, "beta");
    let stats = untorn(&["stats", &file, "--prometheus"]).expect(0).text();
    for (name, value) in [("acknowledged", "1"), ("lag_commits", "1")] {
        let line = format!("untorn_consumer_{name}{{file=\"{file}\",consumer=\"replica\"}} {value}\n");
        assert!(stats.contains(&line), "{stats}");
    }
    let stats = untorn(&["stats", &file, "--json"]).expect(0).json();
    assert!(stats["consumers"][0]["lag_bytes"].as_u64().unwrap() > 0, "{stats}");
    let text = untorn(&["stats", &file]).expect(0).text();
    assert!(text.contains("consumer   replica: 1 commit behind, at most "), "{text}");
}

#[test]
fn commits_wait_for_a_store_that_is_behind_or_go_on() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let text = vec![7; 60 << 10];
    let commit = || untorn_with(&["write", &file, "--offset", "0"], &text);
    untorn(&["replicate", &file, &url, "--once", "--when-behind", "wait"]).expect(64).names("--block SECONDS");
    untorn(&["commits", &file, "--stop"]).expect(0);
    untorn(&["commits", &file, "--start", "1M", "--block", "1"]).expect(0);
    for when in ["wait", "snapshot"] {
        let (running, mut next) = replicating(&[&file], &url, &[&OFTEN[..], &["--when-behind", when]].concat());
        std::fs::rename(at(dir, "bucket"), at(dir, "away")).unwrap();
        let refused = (0..40).map(|_| commit()).find(|made| made.code != 0);
        std::fs::rename(at(dir, "away"), at(dir, "bucket")).unwrap();
        match refused {
            Some(refused) => assert!(when == "wait" && refused.err.contains("replica"), "{when}: {}", refused.err),
            None => assert_eq!(when, "snapshot"),
        }
        // The store is there again, so everything is shipped at the end.
        terminate(&running);
        let last = std::iter::repeat_with(&mut next).find(|told| told["state"] == "replicated").unwrap();
        assert_eq!(last["state"], "replicated", "{when}: {last}");
        assert_eq!(last["snapshots"].as_u64() > Some(u64::from(when == "wait")), when == "snapshot", "{when}: {last}");
        running.wait_with_output().unwrap();
    }
    let again = at(dir, "again");
    untorn(&["restore", &url, &again]).expect(0);
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&file).unwrap());
}

#[test]
fn a_copy_follows_and_is_read_meanwhile() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ((file, url), copy) = (ledger(dir), at(dir, "copy"));
    untorn(&["follow", &url, &copy, "--once"]).expect(74).names("no replica");
    write(&file, "first");
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    let made = untorn(&["follow", &url, &copy, "--once"]).expect(0).text();
    assert!(made.contains("ended at commit 1 in epoch 1; applied 0 commits"), "{made}");
    let mut command = Command::new(UNTORN);
    let command = command.args(["follow", &url, &copy, "--interval", "5", "--json"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["state"], "following");
    for (text, commit) in [("alpha", 2), ("bravo", 3)] {
        write(&file, text);
        untorn(&["replicate", &file, &url, "--once"]).expect(0);
        let told = next();
        assert_eq!((&told["commit"], &told["behind"]["commits"]), (&commit.into(), &1.into()), "{told}");
        assert!(told["behind"]["bytes"].as_u64() > Some(0) && told["behind"]["seconds"].is_f64(), "{told}");
        let read = untorn(&["read", &copy, "--offset", "100", "--len", "5"]).expect(0).text();
        assert_eq!(read, text);
    }
    // Another writer is kept out meanwhile, and one that came in between is noticed.
    let busy = untorn_with(&["write", &copy, "--offset", "0"], b"x");
    assert_eq!(busy.code, 74, "{}", busy.err);
    assert!(Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap().success());
    let last = next();
    assert_eq!((&last["state"], &last["commit"], &last["commits"]), (&"ended".into(), &3.into(), &2.into()), "{last}");
    assert!(running.wait().unwrap().success());
    write(&copy, "other");
    untorn(&["follow", &url, &copy, "--once"]).expect(1).names("did not come from the replica");
}

#[test]
fn an_encrypted_replica_needs_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let [one, two, none, again] = ["one", "two", "none", "again"].map(|name| at(dir, name));
    std::fs::write(&one, [7; 32]).unwrap();
    std::fs::write(&two, "5e".repeat(32) + "\n").unwrap();
    for text in ["alpha", "bravo"] {
        write(&file, text);
        untorn(&["replicate", &file, &url, "--once", "--key", &one]).expect(0);
    }
    untorn(&["restore", &url, &again]).expect(74).names("give the key");
    untorn(&["restore", &url, &again, "--key", &two]).expect(74).names("the given key is");
    untorn(&["replicate", &file, &url, "--once"]).expect(74).names("give the key");
    untorn(&["doctor", &url, "--key", &none]).expect(74).names("read the key");
    untorn(&["doctor", &url, "--key", &file]).expect(64).names("is no key file");
    untorn(&["doctor", &url, "--key", &one]).expect(0);
    untorn(&["doctor", &file, "--key", &one]).expect(64).names("--key needs the URL");
    untorn(&["restore", &file, &again, "--key", &one]).expect(64).names("--key needs the URL");
    assert!(!Path::new(&again).exists());
    untorn(&["restore", &url, &again, "--key", &one]).expect(0);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&file).unwrap());
    assert_eq!(untorn(&["replicas", &url, "--key", &one, "--json"]).expect(0).json()["commit"], 2);
    let owner = std::fs::read(dir.join("bucket/owner")).unwrap();
    assert!(owner.starts_with(b"UNTORNEN") && !owner.windows(7).any(|part| part == b"replica"));
}

#[test]
fn requests_are_counted_and_idling_costs_none() {
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    write(&file, "first");
    let mut command = Command::new(UNTORN);
    let command = command.args(["replicate", &file, &url, "--interval", "5", "--json"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    let first = next()["requests"].clone();
    // Four of the probe, the record twice, the snapshot with its part, and the record with it.
    assert_eq!((&first["put"], &first["delete"], &first["list"]), (&9.into(), &1.into(), &0.into()), "{first}");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap().success());
    let last = next()["requests"].clone();
    running.wait().unwrap();
    // The end asks whether the replica is still its own.
    assert_eq!((&last["put"], last["get"].as_u64().unwrap()), (&first["put"], first["get"].as_u64().unwrap() + 1));
    let made = untorn(&["restore", &url, &at(dir, "again"), "--json"]).expect(0).json();
    assert_eq!((&made["requests"]["put"], &made["requests"]["list"]), (&0.into(), &0.into()), "{made}");
}
