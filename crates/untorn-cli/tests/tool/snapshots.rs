//! `untorn info` names the processes that hold snapshots of a file in use.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Place, UNTORN, untorn};
use untorn::AtomicFile;

/// Waits until `info` tells of this many held snapshots.
fn until_held(place: &Place, count: usize) -> Value {
    let since = Instant::now();
    loop {
        let found = place.info()["snapshots"].clone();
        if found["held"].as_array().is_some_and(|held| held.len() == count) {
            return found;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{found}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn info_names_a_holder_in_another_process() {
    let place = Place::plain(&vec![7; 8 << 20]);
    let file = AtomicFile::open(place.name()).unwrap();
    file.write_at(b"first", 0).unwrap();
    let first = file.sync().unwrap();
    assert_eq!(until_held(&place, 0)["bytes"], 0);
    let dest = place.dir.path().join("backup");
    let mut command = Command::new(UNTORN);
    command.args(["backup", place.name()]).arg(&dest).args(["--rate", "100K"]);
    let mut holder = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until_held(&place, 1);
    // Two pages change after the snapshot: what they were is kept for it, and the second time nothing more.
    for fill in [1, 2] {
        file.write_at(&[fill; 8192], 4 << 20).unwrap();
        file.sync().unwrap();
    }
    let found = until_held(&place, 1);
    let held = &found["held"][0];
    assert_eq!((&held["process"], &held["program"]), (&holder.id().into(), &"untorn".into()), "{found}");
    assert_eq!((&held["commit"], &held["len"]), (&first.into(), &(8 << 20).into()), "{found}");
    assert_eq!((&held["bytes"], &found["bytes"]), (&8192.into(), &8192.into()), "{found}");
    let age = held["age_seconds"].as_f64().unwrap();
    assert!(age > 0.0 && age < 600.0, "{found}");
    let text = untorn(&["info", place.name()]).expect(0).text();
    let line = format!("process {} (untorn): commit {first}, for ", holder.id());
    assert!(text.contains("snapshots   1 held, keeping 8192 bytes (8 KiB)"), "{text}");
    assert!(text.lines().any(|said| said.contains(&line) && said.ends_with("keeping 8192 bytes (8 KiB)")), "{text}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(until_held(&place, 0)["bytes"], 0, "a killed holder is forgotten, and what was kept for it is freed");
    let text = untorn(&["info", place.name()]).expect(0).text();
    assert!(text.contains("snapshots   none held"), "{text}");
    file.close().unwrap();
}
