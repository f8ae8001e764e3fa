//! One process: SQL, journal modes, stock SQLite on the same database.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::{lines, python, sql, stock, work};

#[test]
fn transactions_need_no_journal_and_leave_a_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let statements = [
        "CREATE TABLE t (a)",
        "INSERT INTO t VALUES ('one'), ('two')",
        "BEGIN",
        "DELETE FROM t",
        "ROLLBACK",
        "SELECT count(*) FROM t",
        "PRAGMA untorn_info",
        "PRAGMA integrity_check",
        "VACUUM",
        "SELECT * FROM t",
    ];
    let Some(said) = sql(&path, "", &statements) else { return };
    assert_eq!(said[0], "2");
    assert!(said[1].starts_with("engine=reflection durability=write commit="), "{said:?}");
    assert_eq!(said[2..], ["ok", "one", "two"]);
    assert_eq!(stock(&path, "SELECT count(*) FROM t"), Ok("2".to_owned()));
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192, "no longer than the database");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "app.db" || name == ".untorn"), "{left:?}");
}

#[test]
fn a_stock_sqlite_is_refused_until_the_database_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(_) = sql(&path, "", &["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]) else { return };
    // Killed, with commits that only the sidecar has.
    sql(&path, "", &["INSERT INTO t VALUES (2)", "--die"]);
    let refused = stock(&path, "SELECT count(*) FROM t").unwrap_err();
    assert!(refused.contains("OperationalError"), "{refused}");
    assert_eq!(sql(&path, "", &["SELECT count(*) FROM t"]).unwrap(), ["2"]);
    assert_eq!(stock(&path, "SELECT count(*) FROM t"), Ok("2".to_owned()));
}

#[test]
fn a_database_that_a_stock_sqlite_uses_is_refused() {
    let Some(python) = python() else { untorn_testing::skip!("no Python has a SQLite that loads extensions") };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); \
                   c.execute('CREATE TABLE t (a)'); c.execute('BEGIN IMMEDIATE'); print('begun', flush=True); input(); \
                   c.execute('INSERT INTO t VALUES (1)'); c.execute('COMMIT')";
    let mut user = std::process::Command::new(python);
    let user = user.args(["-c", program]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut user = user.spawn().unwrap();
    let mut begun = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(user.stdout.as_mut().unwrap()), &mut begun).unwrap();
    let output = work(&[&"sql", &path, &"", &"SELECT 1"]).unwrap().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("database is locked"), "{error}");
    // The other one goes on as if nothing had been.
    drop(user.stdin.take());
    assert!(!user.wait().unwrap().success(), "its input has ended");
    assert_eq!(stock(&path, "SELECT count(*) FROM t"), Ok("0".to_owned()));
}

#[test]
fn a_hot_journal_of_a_stock_sqlite_is_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(mut hot) = work(&[&"hot", &path]) else { return };
    assert!(!hot.status().unwrap().success());
    let journal = dir.path().join("app.db-journal");
    assert!(fs::metadata(&journal).unwrap().is_file());
    let counted = ["SELECT count(*), min(length(a)) FROM t", "PRAGMA integrity_check"];
    assert_eq!(sql(&path, "", &counted).unwrap(), ["500 900", "ok"]);
    assert!(!journal.exists());
    assert_eq!(stock(&path, "SELECT count(*), min(length(a)) FROM t"), Ok("500 900".to_owned()));
}

#[test]
fn a_hot_journal_without_syncs_is_rolled_back() {
    for vfs in ["unix", "untorn"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let Some(mut hot) = work(&[&"hot", &path, &"off", &vfs]) else { return };
        let output = hot.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_none() && error.is_empty(), "{vfs}: {error}");
        let counted = ["SELECT count(*), min(length(a)) FROM t", "PRAGMA integrity_check"];
        assert_eq!(sql(&path, "", &counted).unwrap(), ["500 900", "ok"], "{vfs}");
        assert!(!dir.path().join("app.db-journal").exists(), "{vfs}");
        assert_eq!(stock(&path, "SELECT count(*), min(length(a)) FROM t"), Ok("500 900".to_owned()), "{vfs}");
    }
}

/// SQLite's `.recover` may still find their rows.
#[test]
fn pages_behind_a_lost_header_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(_) = sql(&path, "", &["CREATE TABLE t (a)", "INSERT INTO t VALUES (zeroblob(9000) || 'x')"]) else {
        return;
    };
    let mut bytes = fs::read(&path).unwrap();
    bytes[..4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    let said = sql(&path, "", &["SELECT * FROM t", "CREATE TABLE u (a)"]).unwrap();
    assert_eq!(said, ["error: file is not a database", "error: file is not a database"]);
    assert!(fs::read(&path).unwrap() == bytes);
}

/// A journal in it would overwrite the database with the other user's pages.
#[test]
fn a_directory_planted_by_another_user_is_not_believed() {
    untorn_testing::needs!("root");
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("app.db"), dir.path().join("other.db"));
    let Some(_) = sql(&path, "", &["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]) else { return };
    let planted = dir.path().join("app.db-journal");
    // A hot journal of another database.
    let _ = work(&[&"hot", &other]).unwrap().status().unwrap();
    fs::create_dir(&planted).unwrap();
    fs::rename(dir.path().join("other.db-journal"), planted.join("journal")).unwrap();
    let before = fs::read(&path).unwrap();
    for (owner, mode) in [(65534, 0o755), (65534, 0o777), (0, 0o777), (0, 0o775)] {
        std::os::unix::fs::chown(&planted, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(mode)).unwrap();
        let output = work(&[&"sql", &path, &"", &"SELECT count(*) FROM t"]).unwrap().output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("unable to open database file"), "{owner}, {mode:o}: {error}");
        assert!(fs::read(&path).unwrap() == before && planted.join("journal").exists(), "{owner}, {mode:o}");
    }
    fs::remove_dir_all(&planted).unwrap();
    assert_eq!(sql(&path, "", &["SELECT a FROM t"]).unwrap(), ["1"]);
}

#[test]
fn backups_and_vacuums_copy_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut work) = work(&[&"copies", &dir.path().join("app.db"), &dir.path().join("other.db")]) else { return };
    let output = work.output().unwrap();
    assert_eq!(lines(&output), ["512 8192 65536 4096"], "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_checkpoint_without_a_sync_is_seen_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut work) = work(&[&"checkpoint", &dir.path().join("app.db")]) else { return };
    let output = work.output().unwrap();
    assert_eq!(lines(&output), ["2 2"], "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_lock_that_could_not_be_had_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut work) = work(&[&"pending", &dir.path().join("app.db")]) else { return };
    let output = work.output().unwrap();
    assert_eq!(lines(&output), ["database is locked", "1"], "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wrong_parameters_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    for parameters in ["&engine=journal", "&snapshot=maybe", "&durability=commit", "&redundancy=parity"] {
        let Some(mut work) = work(&[&"sql", &path, &parameters, &"SELECT 1"]) else { return };
        let output = work.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("unable to open database file"), "{error}");
        assert!(!path.exists(), "nothing is made");
    }
}

/// Random statements in three connections, beside a stock SQLite in memory.
#[test]
fn every_journal_mode_means_what_sqlite_says() {
    let count = untorn_testing::cases(150, 10_000).to_string();
    let ways = ["", "&snapshot=off", "&engine=hybrid-log"];
    let modes = ["delete", "truncate", "persist", "memory", "off", "wal"];
    for (number, mode) in modes.into_iter().enumerate() {
        for parameters in ways {
            let dir = tempfile::tempdir().unwrap();
            let (path, seed) = (dir.path().join("app.db"), number.to_string());
            let Some(mut work) = work(&[&"differential", &path, &mode, &count, &seed, &parameters]) else { return };
            let output = work.output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode}, {parameters}: {error}");
            assert!(lines(&output)[0].parse::<u64>().unwrap() >= 150);
        }
    }
}
