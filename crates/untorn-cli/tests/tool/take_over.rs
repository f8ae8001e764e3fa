//! `take-over`: a program runs as the writer of a replica.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use untorn_testing::needs;

use crate::common::{Run, UNTORN, untorn};
use crate::replicate::{at, ledger};

/// A shell command that writes a text into a file.
fn writes(file: &str, text: &str) -> String {
    format!("printf {text} | '{UNTORN}' write '{file}' --offset 100")
}

#[test]
fn a_program_runs_as_the_writer_and_hands_over() {
    needs!("sh");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ((file, url), standby) = (ledger(dir), at(dir, "standby"));
    let take = |file: &str, script: &str| untorn(&["take-over", &url, file, "--plain", "--", "sh", "-c", script]);
    take(&at(dir, "none"), "true").expect(74).names("no replica");
    let made = take(&file, &format!("{}; exit 7", writes(&file, "alpha"))).expect(7);
    assert!(made.err.contains("in epoch 1") && made.err.contains("at commit 1"), "{}", made.err);
    assert_eq!(untorn(&["replicas", &url, "--json"]).expect(0).json()["released"], true);
    // Another machine: its file is restored first, and then goes on.
    let made = take(&standby, &writes(&standby, "bravo")).expect(0);
    assert!(made.err.contains("in epoch 2") && made.err.contains("at commit 2"), "{}", made.err);
    let made = take(&standby, &writes(&standby, "gamma")).expect(0);
    assert!(made.err.contains("in epoch 3") && made.err.contains("at commit 3"), "{}", made.err);
    // The first one lacks commits by now.
    take(&file, "true").expect(1).names("--force replaces the file");
    untorn(&["take-over", &url, &file, "--plain", "--force", "--", "true"]).expect(0);
    assert_eq!(&std::fs::read(&file).unwrap()[100..105], b"gamma");
    take(&file, "kill -9 $$").expect(137);
    untorn(&["take-over", &url, &file, "--", "no-such-program"]).expect(64).names("not found in PATH");
}

#[test]
fn a_standby_waits_until_the_owner_hands_over() {
    needs!("sh");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ((file, url), standby) = (ledger(dir), at(dir, "standby"));
    let go = at(dir, "go");
    let script =
        format!("{}; while ! test -e '{go}'; do sleep 0.02; done; {}", writes(&file, "alpha"), writes(&file, "bravo"));
    let owner = ["take-over", &url, &file, "--plain", "--interval", "5", "--", "sh", "-c", &script];
    let owner = Command::new(UNTORN).args(owner).stderr(Stdio::piped()).spawn().unwrap();
    let is_shipped = || untorn(&["replicas", &url, "--json"]).code == 0;
    while !is_shipped() || untorn(&["replicas", &url, "--json"]).json()["commit"] != 1 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let script = format!("cat '{standby}' > '{}'", at(dir, "seen"));
    let wait = ["take-over", &url, &standby, "--wait", "--plain", "--interval", "5", "--", "sh", "-c", &script];
    let mut wait = Command::new(UNTORN).args(wait).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(wait.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("waits until"), "{line}");
    assert!(wait.try_wait().unwrap().is_none());
    std::fs::write(&go, b"").unwrap();
    let ended = owner.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(wait.wait().unwrap().success(), "{:?}", lines.collect::<Vec<_>>());
    assert_eq!(&std::fs::read(at(dir, "seen")).unwrap()[100..105], b"bravo");
}

#[test]
fn a_program_that_lost_the_replica_is_ended() {
    needs!("sh", "kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ((file, url), other) = (ledger(dir), at(dir, "other"));
    let (pid, script) =
        (at(dir, "pid"), format!("echo $$ > '{}'; trap '' TERM; while :; do sleep 0.05; done", at(dir, "pid")));
    let owner = ["take-over", &url, &file, "--plain", "--confirm", "1", "--grace", "1", "--", "sh", "-c", &script];
    let owner = Command::new(UNTORN).args(owner).stderr(Stdio::piped()).spawn().unwrap();
    while std::fs::read_to_string(&pid).map_or(true, |text| !text.ends_with('\n')) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    untorn(&["take-over", &url, &other, "--plain", "--", "true"]).expect(0);
    let ended = owner.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && err.contains("this writer lost the replica"), "{}: {err}", ended.status);
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "the program goes on");
}

/// Nothing is lost by that: the program has not started.
#[cfg(feature = "s3")]
#[test]
fn a_signal_ends_a_take_over_whose_store_is_silent() {
    use std::os::unix::process::ExitStatusExt;
    needs!("kill");
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = ledger(dir.path());
    let store = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("s3://bucket/ledger?endpoint=http://{}&region=here", store.local_addr().unwrap());
    let mut taking = Command::new(UNTORN)
        .args(["take-over", &url, &file, "--plain", "--", "true"])
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .spawn()
        .unwrap();
    // Its first request has come, and gets no answer.
    let _request = store.accept().unwrap();
    crate::replicate::terminate(&taking);
    assert_eq!(taking.wait().unwrap().signal(), Some(15));
}

#[test]
fn a_program_does_not_outlive_its_take_over() {
    needs!("sh", "kill");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (file, url) = ledger(dir);
    let (pid, script) = (at(dir, "pid"), format!("echo $$ > '{}'; while :; do sleep 0.05; done", at(dir, "pid")));
    let owner = ["take-over", &url, &file, "--plain", "--", "sh", "-c", &script];
    let mut owner = Command::new(UNTORN).args(owner).stderr(Stdio::null()).spawn().unwrap();
    while std::fs::read_to_string(&pid).map_or(true, |text| !text.ends_with('\n')) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    let process = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
    let runs = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
    let since = std::time::Instant::now();
    while runs() {
        assert!(since.elapsed() < std::time::Duration::from_secs(20), "the program goes on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Skips the test unless a program can have a mount of its own.
macro_rules! needs_private_mounts {
    () => {
        let found = untorn_mount::attach::probe(&untorn_mount::attach::Stage::of(UNTORN, ["mount-stage"]));
        if let Some(private) = found.iter().find(|found| found.name == "private" && !found.works) {
            untorn_testing::skip!("no private mounts here: {}", private.why);
        }
    };
}

/// The program calls fsync, and looks into the store then.
#[test]
fn a_program_that_syncs_has_its_data_in_the_store() {
    needs!("dd", "od");
    needs_private_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let (files, dir) = (tempfile::tempdir().unwrap(), dir.path());
    let (file, url, seen) = (at(files.path(), "ledger"), format!("file://{}", at(dir, "bucket")), at(dir, "seen"));
    untorn(&["create", &file, "--len", "64K", "--commit-log", "1M"]).expect(0);
    let script = format!(
        "for word in alpha bravo; do printf $word | dd of='{file}' bs=5 count=1 seek=20 conv=notrunc,fsync \
         status=none && '{UNTORN}' restore '{url}' '{seen}' --force > /dev/null && od -An -c -j100 -N5 '{seen}'; done"
    );
    let take = ["take-over", &url, &file, "--sync", "replicated", "--interval", "60000", "--", "sh", "-c", &script];
    let made = untorn(&take).expect(0);
    assert_eq!(made.prose(), "a l p h a b r a v o", "{}", made.err);
}

/// Asserts that a take-over that could not start its program left the replica to its owner.
fn expect_untaken(refused: &Run, url: &str, why: &str) {
    let err = &refused.err;
    assert!(refused.code == 74 && err.contains(why), "{}: {err}", refused.code);
    assert!(err.contains("nothing was taken over; --plain") && !err.contains("--log"), "{err}");
    let found = untorn(&["replicas", url, "--json"]).expect(0).json();
    assert_eq!((&found["epoch"], &found["released"]), (&1.into(), &false.into()), "{found}");
}

#[test]
fn without_a_mount_a_replica_stays_with_its_owner() {
    needs!("root", "unshare", "mount");
    needs_private_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ((file, url), standby) = (ledger(dir), at(dir, "standby"));
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    // Without the device, as in a container.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-ec"]);
    command.args(["mount -t tmpfs none /dev; exec \"$@\"", "sh", UNTORN, "take-over", &url, &standby, "--"]);
    let output = command.args(["touch", &at(dir, "ran")]).output().unwrap();
    expect_untaken(&Run::of(output, &["take-over"]), &url, "its files cannot be mounted");
    assert!(!dir.join("ran").exists() && !dir.join("standby").exists());
}

#[test]
fn with_its_log_in_use_a_replica_stays_with_its_owner() {
    needs!("sh");
    needs_private_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let (files, dir) = (tempfile::tempdir().unwrap(), dir.path());
    let ((file, url), standby) = (ledger(dir), at(files.path(), "standby"));
    untorn(&["replicate", &file, &url, "--once"]).expect(0);
    let mut other = Command::new(UNTORN);
    let other =
        other.args(["run", "--match", &at(files.path(), "**"), "--", "sh", "-c", "echo ready; read line || true"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(BufReader::new(other.stdout.take().unwrap()).lines().next().unwrap().unwrap(), "ready");
    let taken = ["take-over", &url, &standby, "--", "true"];
    expect_untaken(&untorn(&taken), &url, &format!("mount.log is in use by process {} (untorn)", other.id()));
    assert!(!Path::new(&standby).exists());
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    untorn(&taken).expect(0);
    // The trial leaves no directory for a log.
    let empty = tempfile::tempdir().unwrap();
    untorn(&["take-over", &format!("{url}2"), &at(empty.path(), "file"), "--", "true"]).expect(74).names("no replica");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn an_unmodified_program_runs_as_the_writer() {
    needs!("dd");
    needs_private_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let (files, dir) = (tempfile::tempdir().unwrap(), dir.path());
    let (file, again, url) = (at(files.path(), "ledger"), at(dir, "again"), format!("file://{}", at(dir, "bucket")));
    untorn(&["create", &file, "--len", "64K", "--commit-log", "1M"]).expect(0);
    let script = format!("printf delta | dd of='{file}' bs=5 count=1 seek=20 conv=notrunc,fsync status=none; exit 3");
    let made = untorn(&["take-over", &url, &file, "--", "sh", "-c", &script]).expect(3);
    assert!(made.err.contains("handed") && !made.err.contains("was not handed"), "{}", made.err);
    untorn(&["restore", &url, &again]).expect(0);
    assert_eq!(&std::fs::read(&again).unwrap()[100..105], b"delta");
    // It was a commit of the file, and not the snapshot of the end.
    let found = untorn(&["replicas", &url, "--json"]).expect(0).json();
    assert_eq!((found["commit"].as_u64() > Some(0), &found["snapshots"][0]["commit"]), (true, &0.into()), "{found}");
}
