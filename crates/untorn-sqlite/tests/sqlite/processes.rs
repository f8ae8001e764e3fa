//! Several processes, which are killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use untorn_testing::programs::succeed;

use crate::{lines, sql, work};

/// Nothing that was acknowledged is lost, no transaction is half there, and no reader sees a half one.
#[test]
fn killed_writers_and_readers_leave_every_transfer_whole() {
    let rounds = untorn_testing::cases(2, 1_000).to_string();
    for (writers, readers, parameters) in [("1", "1", ""), ("3", "2", ""), ("2", "0", "&snapshot=off")] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank.db");
        let Some(mut bank) = work(&[&"bank", &path, &rounds, &writers, &readers, &parameters]) else { return };
        let output = bank.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{writers} writers, {readers} readers, {parameters}: {error}");
        println!("{}", lines(&output)[0]);
    }
}

/// A statement reads every commit that was acknowledged before it began, whoever made it, and however long the
/// connection has had nothing to do.
#[test]
fn a_resting_connection_reads_what_others_commit() {
    let rounds = untorn_testing::cases(60, 5_000).to_string();
    for parameters in ["", "&engine=hybrid-log", "&snapshot=off"] {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut turns) = work(&[&"turns", &dir.path().join("app.db"), &rounds, &parameters]) else { return };
        let output = turns.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{parameters}: {error}");
        assert_eq!(lines(&output), [rounds.as_str()], "{parameters}");
    }
}

/// No statement is refused because another connection's commit was made and not yet counted when this one began.
#[test]
fn writers_in_threads_of_one_process_are_never_refused() {
    let rounds = untorn_testing::cases(300, 10_000);
    for engine in ["reflection", "hybrid-log"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, parameters) = (dir.path().join("app.db"), format!("&engine={engine}"));
        let Some(mut threads) = work(&[&"threads", &path, &"4", &rounds.to_string(), &parameters]) else { return };
        let output = threads.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(lines(&output), [(4 * rounds).to_string()], "{engine}");
    }
}

/// A forked child has its parent's locks, too: what it closes leaves them alone, and what the parent closes is closed.
#[test]
fn a_forked_child_leaves_the_database_to_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut inherited) = work(&[&"inherited", &dir.path().join("app.db")]) else { return };
    let output = inherited.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines(&output), ["a stock SQLite is refused", "2", "2"], "{error}");
}

/// The last one to close cuts the file to the length of the database, which must be the last length.
#[test]
fn a_commit_amid_the_close_of_another_process_is_kept() {
    untorn_testing::needs!("cc");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sqlite/programs/slow_close.c");
    succeed(Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(at("slow.so")).args([source, "-ldl"]));
    let path = at("app.db");
    let Some(mut closes) = work(&[&"sql", &path, &"", &"CREATE TABLE t (a)"]) else { return };
    fs::write(at("hold"), "").unwrap();
    let mut closes = closes.current_dir(dir.path()).env("LD_PRELOAD", at("slow.so")).spawn().unwrap();
    while !at("held").exists() {
        assert!(closes.try_wait().unwrap().is_none(), "it closes without the lock");
        std::thread::sleep(Duration::from_millis(5));
    }
    sql(&path, "", &["INSERT INTO t VALUES (zeroblob(50000))"]);
    fs::remove_file(at("hold")).unwrap();
    assert!(closes.wait().unwrap().success());
    assert_eq!(sql(&path, "", &["SELECT length(a) FROM t", "PRAGMA integrity_check"]).unwrap(), ["50000", "ok"]);
}

/// A journal in a file keeps two databases together, through SQLite's super-journal.
#[test]
fn attached_databases_with_a_journal_stay_together() {
    for round in 0..untorn_testing::cases(4, 200) {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one.db"), dir.path().join("other.db"));
        let Some(mut writer) = work(&[&"attached", &one, &other]) else { return };
        let mut writer = writer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        said.nth(round % 7).expect("the writer goes on");
        std::thread::sleep(Duration::from_micros(700 * round as u64 % 5_000));
        writer.kill().unwrap();
        let last: i64 = said.last().map_or(round as i64 % 7, |line| line.parse().unwrap());
        writer.wait().unwrap();
        let attach = format!("ATTACH 'file:{}?vfs=untorn' AS other", other.display());
        let counts = "SELECT (SELECT max(a) FROM main.t), (SELECT max(a) FROM other.t)";
        let found = sql(&one, "", &[&attach, counts]).unwrap();
        let [main, other] =
            found[0].split(' ').map(|number| number.parse::<i64>().expect(&found[0])).collect::<Vec<_>>()[..]
        else {
            panic!("{found:?}")
        };
        assert_eq!(main, other, "{found:?}");
        assert!(last <= main && main <= last + 1, "told {last}, found {main}");
    }
}
