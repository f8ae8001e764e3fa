//! `backup` and `restore`: chains, what ends them early, and the kinds of files.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Place, UNTORN, at_a_terminal, untorn, untorn_with};

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn increments_are_restored_in_order_and_nothing_else_is() {
    let place = Place::created(1 << 20);
    let dir = place.dir.path();
    let [full, one, two, again] = ["full", "one", "two", "again"].map(|name| at(dir, name));
    untorn_with(&["write", place.name(), "--offset", "100"], b"first").expect(0);
    untorn(&["backup", place.name(), &full]).expect(0);
    untorn_with(&["write", place.name(), "--offset", "500000"], b"second").expect(0);
    let made = untorn(&["backup", place.name(), &one, "--base", &full, "--json"]).expect(0).json();
    assert_eq!((made["bytes"].as_u64(), made["since"].is_u64()), (Some(16 << 10), true), "{made}");
    untorn(&["resize", place.name(), "--len", "300000"]).expect(0);
    let manifest = format!("{one}.manifest");
    let text = untorn(&["backup", place.name(), &two, "--base", &manifest, "--verify"]).expect(0).text();
    assert!(text.contains("since") && text.contains("the rest as before"), "{text}");
    untorn(&["restore", &full, &two, &again]).expect(64).names("is another one");
    untorn(&["restore", &one, &again]).expect(64).names("name that one before it");
    assert!(!dir.join("again").exists());
    untorn(&["restore", &full, &one, &two, &again]).expect(0);
    let bytes = std::fs::read(&again).unwrap();
    assert_eq!(bytes, place.read());
    assert_eq!((bytes.len(), &bytes[100..105]), (300_000, &b"first"[..]));
    untorn(&["backup", place.name(), &two, "--base", &full, "--resume"]).expect(64);
    untorn(&["backup", place.name(), "-", "--base", &full]).expect(64).names("standard output");
    untorn(&["backup", place.name(), &at(dir, "three"), "--base", &at(dir, "none")]).expect(74).names("none.manifest");
    untorn(&["restore", &again]).expect(64);
}

#[test]
fn increments_by_the_commit_log_need_no_earlier_backup() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let [file, full, one, two, three, again] =
        ["ledger", "full", "one", "two", "three", "again"].map(|name| at(dir, name));
    let write = |text: &str| untorn_with(&["write", &file, "--offset", "500000"], text.as_bytes()).expect(0);
    untorn(&["create", &file, "--len", "1M"]).expect(0);
    let refused = untorn(&["backup", &file, &one, "--since", "0"]).expect(1);
    refused.names("--base makes an increment").names(&format!("`untorn commits {file} --start SIZE`"));
    untorn(&["commits", &file, "--start", "16M"]).expect(0);
    write("first");
    let commit = |json: serde_json::Value| json["commit"].as_u64().unwrap().to_string();
    let first = commit(untorn(&["backup", &file, &full, "--json"]).expect(0).json());
    write("second");
    let made =
        untorn(&["backup", &file, &one, "--since", &first, "--json", "--verify", "--rate", "1G"]).expect(0).json();
    assert_eq!((made["bytes"].as_u64(), made["since"].to_string()), (Some(16 << 10), first.clone()), "{made}");
    write("third");
    let text = untorn(&["backup", &file, &two, "--since", &commit(made)]).expect(0).text();
    assert!(text.contains(" since ") && text.contains("the rest as before"), "{text}");
    write("fourth");
    // The full backup and its increments may be elsewhere.
    untorn(&["backup", &file, &three, "--base", &two]).expect(64).names("made by --since");
    let bases = [&full, &one, &two].map(|base| format!("--base={base}.manifest"));
    untorn(&["backup", &file, &three, &bases[0], &bases[1], &bases[2]]).expect(0);
    untorn(&["restore", &full, &two, &again]).expect(64).names("the changes in between are missing");
    untorn(&["restore", &full, &one, &two, &three, &again]).expect(0);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&file).unwrap());
    let number = |file: &str| untorn(&["info", file, "--json"]).expect(0).json()["commit"].as_u64().unwrap();
    assert_eq!(number(&again), number(&file));
    // Wrong uses.
    let last = number(&file).to_string();
    untorn(&["backup", &file, &at(dir, "x"), "--since", "9999"]).expect(64).names("not made yet");
    untorn(&["backup", &file, "-", "--since", &last]).expect(64).names("standard output");
    untorn(&["backup", &file, &at(dir, "x"), "--since", &last, "--resume"]).expect(64);
    untorn(&["backup", &file, &at(dir, "x"), "--since", &last, "--base", &full]).expect(64);
    untorn(&["backup", &file, &at(dir, "x"), "--since", "monday"]).expect(64);
    untorn(&["commits", &file, "--stop"]).expect(0);
    untorn(&["backup", &file, &at(dir, "x"), "--since", &last]).expect(1).names("no commit log");
    assert!(!dir.join("x").exists());
}

/// A signal ends a backup in order, and says what is left.
#[test]
fn an_interrupted_backup_leaves_nothing_or_goes_on() {
    let place = Place::plain(&vec![7; 8 << 20]);
    let dest = at(place.dir.path(), "backup");
    for (flags, left, said) in
        [(&[][..], false, "nothing is kept"), (&["--resume"][..], true, "the same command goes on")]
    {
        let mut command = Command::new(UNTORN);
        command.args(["backup", place.name(), &dest, "--rate", "2M"]).args(flags);
        let child = at_a_terminal(&command).stderr(Stdio::piped()).spawn().unwrap();
        let staged = place.dir.path().join(".backup.manifest.untorn-new");
        let since = Instant::now();
        // It handles signals before it makes the first file.
        while !staged.exists() && since.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(300));
        let kill = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(2), "{err}");
        assert!(err.contains("interrupted") && err.contains(said), "{err}");
        assert!(!Path::new(&dest).exists() && !staged.exists());
        assert_eq!(place.dir.path().join(".backup.untorn-new").exists(), left);
    }
    let made = untorn(&["backup", place.name(), &dest, "--resume", "--json"]).expect(0).json();
    assert!(made["written"].as_u64().unwrap() < 8 << 20, "{made}");
    assert_eq!(std::fs::read(&dest).unwrap(), place.bytes());
    assert!(!place.dir.path().join(".backup.untorn-new").exists());
}

/// Stores of regions, files with redundancy and shared maps: a consistent copy, or a refusal that says the way out.
#[test]
fn every_kind_of_file_is_backed_up_or_refused_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // A store of regions that nobody has open.
    let [store, dest, again] = ["data.store", "store.backup", "again.store"].map(|name| at(dir, name));
    untorn(&["region", "create", &store, "ledger", "--pages", "2"]).expect(0);
    untorn(&["backup", &store, &dest, "--verify"]).expect(0);
    untorn(&["restore", &dest, &again]).expect(0);
    for store in [&store, &again] {
        let text = untorn(&["region", "list", store]).expect(0).text();
        assert!(text.contains("ledger  2 pages, commit 1"), "{text}");
    }
    let open = untorn::region::RegionStore::open(&store).unwrap();
    untorn(&["backup", &store, &dest, "--force"]).expect(74).names("which locks the file itself");
    drop(open);
    // A file with redundancy, while it is open and after.
    let [table, dest, again] = ["table", "table.backup", "table.again"].map(|name| at(dir, name));
    untorn(&["create", &table, "--len", "64K"]).expect(0);
    untorn_with(&["write", &table, "--offset", "5000"], b"covered").expect(0);
    untorn(&["protect", &table]).expect(0);
    untorn(&["backup", &table, &dest, "--verify"]).expect(0);
    let open = untorn::Options::new().redundancy(untorn::redundancy::ProtectOptions::new()).open(&table).unwrap();
    open.write_at(b"more", 9000).unwrap();
    open.sync().unwrap();
    untorn(&["backup", &table, &dest, "--verify", "--force"]).expect(0);
    untorn(&["restore", &dest, &again]).expect(0);
    let bytes = std::fs::read(&again).unwrap();
    assert_eq!((&bytes[5000..5007], &bytes[9000..9004]), (&b"covered"[..], &b"more"[..]));
    open.close().unwrap();
    // A backup of a plain file that nobody has open is that of a plain file.
    let plain = at(dir, "plain");
    std::fs::write(&plain, "as it is").unwrap();
    untorn(&["backup", &plain, "-"]).expect(0);
    untorn(&["backup", dir.to_str().unwrap(), &at(dir, "x")]).expect(64).names("directory");
}

/// The program that has a file open tells its figures; a closed file shows them itself.
#[test]
fn stats_show_a_file_in_use_and_a_closed_one() {
    let place = Place::created(1 << 20);
    let stats = || untorn(&["stats", place.name(), "--json"]).expect(0).json();
    let closed = stats();
    assert_eq!((&closed["state"], &closed["figures"]["len"]), (&"clean".into(), &(1 << 20).into()), "{closed}");
    // This engine keeps pages in the sidecar until they are deployed.
    let file = untorn::Options::new().engine(untorn::EngineKind::Reflection).open(place.name()).unwrap();
    file.write_at(&[7; 20_000], 0).unwrap();
    file.sync().unwrap();
    let snapshot = file.snapshot().unwrap();
    file.write_at(&[8; 4096], 0).unwrap();
    let open = stats();
    assert_eq!(open["state"], "in-use", "{open}");
    let figure = |name: &str| open["figures"][name].as_u64().unwrap();
    assert!(figure("lag_pages") >= 4 && figure("sidecar_bytes") >= figure("used_bytes"), "{open}");
    assert_eq!((figure("snapshots"), figure("snapshot_bytes")), (1, 4096), "{open}");
    let text = untorn(&["stats", place.name()]).expect(0).text();
    assert!(text.contains("in use by") && text.contains("1 snapshot, 4096 bytes (4 KiB) kept for them"), "{text}");
    let scraped = untorn(&["stats", place.name(), "--prometheus"]).expect(0).text();
    assert!(scraped.contains(&format!("untorn_snapshots{{file=\"{}\"}} 1\n", place.name())), "{scraped}");
    drop(snapshot);
    file.close().unwrap();
    untorn(&["stats", place.name(), "--prometheus", "--json"]).expect(64);
    untorn(&["stats", "/nonexistent"]).expect(74).names("/nonexistent");
}
