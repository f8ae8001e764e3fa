//! `untorn commits` and `untorn watch`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Place, UNTORN, kill, untorn, untorn_with};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn commits_prints_each_commit_once_and_says_what_is_missing() {
    let place = Place::empty();
    untorn(&["create", place.name(), "--len", "64K", "--commit-log", "1M"]).expect(0);
    for (offset, text) in [("100", "one"), ("5000", "two"), ("100", "three")] {
        untorn_with(&["write", place.name(), "--offset", offset], text.as_bytes()).expect(0);
    }
    untorn(&["resize", place.name(), "--len", "50000"]).expect(0);
    let found = lines(&untorn(&["commits", place.name(), "--json", "--bytes"]).expect(0).text());
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[1]["changes"][0]["hex"], "74776f");
    assert_eq!((&found[2]["changes"][0]["offset"], &found[3]["len"]), (&100.into(), &50_000.into()));
    for pair in found.windows(2) {
        assert_eq!(pair[0]["commit"], pair[1]["previous"]);
        assert!(pair[0]["time"].as_f64().unwrap() > 1.7e9, "{pair:?}");
    }
    let from = found[1]["commit"].to_string();
    let text = untorn(&["commits", place.name(), "--from", &from]).expect(0).text();
    assert!(text.lines().count() == 2 && text.contains("100..105"), "{text}");
    // The number and its time outlive the close.
    let info = place.info();
    assert!(info["commit"].as_u64() >= found[3]["commit"].as_u64() && info["committed"].is_f64(), "{info}");
    let stopped = untorn(&["commits", place.name(), "--stop"]).expect(0).text();
    assert!(stopped.contains("gave its commit log up"), "{stopped}");
    untorn(&["commits", place.name()]).expect(1).names("no commit log");
    untorn(&["watch", place.name()]).expect(1);
    // Without a log numbers go on, and a new log begins after them.
    untorn_with(&["write", place.name(), "--offset", "0"], b"x").expect(0);
    untorn(&["commits", place.name(), "--start", "1M"]).expect(0);
    untorn_with(&["write", place.name(), "--offset", "9"], b"x").expect(0);
    untorn(&["commits", place.name(), "--from", &from]).expect(1).names("begins after commit");
    untorn(&["commits", place.name(), "--start", "0"]).expect(64);
    // All that there is, without --from; and no commit that was never made.
    let found = lines(&untorn(&["commits", place.name(), "--json"]).expect(0).text());
    assert_eq!(found.len(), 1, "{found:?}");
    let log = &place.info()["commit_log"];
    assert_eq!(
        (&log["first"], &log["last"], &log["limit"]),
        (&found[0]["commit"], &found[0]["commit"], &1048576.into())
    );
    untorn(&["commits", place.name(), "--from", "999999999999999999"]).expect(64).names("--follow waits");
    let text = untorn(&["info", place.name()]).expect(0).text();
    assert!(text.contains("commit log  commits "), "{text}");
}

#[test]
fn watch_prints_a_line_for_each_commit_of_another_process() {
    let place = Place::empty();
    untorn(&["create", place.name(), "--len", "64K", "--commit-log", "1M"]).expect(0);
    untorn_with(&["write", place.name(), "--offset", "1"], b"before").expect(0);
    let follow = ["commits", place.name(), "--follow", "--json"];
    for (arguments, first) in [(&["watch", place.name(), "--json"][..], 3), (&follow[..], 1)] {
        let file = untorn::AtomicFile::open(place.name()).unwrap();
        let mut child = Command::new(UNTORN).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
        // The watcher may be late: commits go on until it tells of one.
        let done = AtomicBool::new(false);
        let next = std::thread::scope(|scope| {
            scope.spawn(|| {
                for count in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_at(format!("{count:06}").as_bytes(), first * 1000).and_then(|()| file.sync()).unwrap();
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let next = told.next();
            done.store(true, Ordering::Relaxed);
            next
        });
        let commit: Value = serde_json::from_str(&next.unwrap().unwrap()).unwrap();
        assert!(commit["commit"].is_u64() && commit["changes"][0]["offset"].is_u64(), "{commit}");
        kill(&mut child);
        file.close().unwrap();
    }
}

#[test]
fn a_consumer_goes_on_where_it_acknowledged_and_blocks() {
    let place = Place::empty();
    untorn(&["create", place.name(), "--len", "64K"]).expect(0);
    let start = untorn(&["commits", place.name(), "--start", "64K", "--block", "0", "--json"]).expect(0).text();
    assert!(start.contains("\"block_seconds\":0.0"), "{start}");
    let write = |text: &str| untorn_with(&["write", place.name(), "--offset", "9"], text.as_bytes());
    let printed = || lines(&untorn(&["commits", place.name(), "--consumer", "one", "--json"]).expect(0).text()).len();
    assert_eq!(printed(), 0);
    write("a").expect(0);
    write("b").expect(0);
    assert_eq!(printed(), 2);
    write("c").expect(0);
    assert_eq!((printed(), printed()), (1, 0));
    // The log is full after some commits, and keeps what the consumer has not acknowledged.
    let long = "x".repeat(20_000);
    let refused = (0..20).map(|_| write(&long)).find(|run| run.code != 0).expect("no commit was refused");
    refused.expect(74).names("--forget one");
    let log = &place.info()["commit_log"];
    assert_eq!((&log["consumers"][0]["name"], &log["consumers"][0]["has_missed"]), (&"one".into(), &false.into()));
    assert!(log["consumers"][0]["lag"].as_u64() > Some(0) && log["block_seconds"] == 0.0, "{log}");
    let text = untorn(&["info", place.name()]).expect(0).text();
    assert!(text.contains("consumer one: acknowledged ") && text.contains("commits wait up to 0 s"), "{text}");
    assert!(printed() > 0);
    write(&long).expect(0);
    untorn(&["commits", place.name(), "--forget", "one"]).expect(0);
    untorn(&["commits", place.name(), "--forget", "one"]).expect(1);
    (0..9).for_each(|_| drop(write(&long).expect(0)));
    untorn(&["commits", place.name(), "--consumer", "a/b"]).expect(64).names("cannot be the name");
    untorn(&["commits", place.name(), "--block", "1"]).expect(64);
    untorn(&["commits", place.name(), "--forget", "one", "--follow"]).expect(64);
}
