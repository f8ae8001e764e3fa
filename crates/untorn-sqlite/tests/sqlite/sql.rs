//! One process: SQL, journal modes, stock SQLite on the same database.

use std::fs;
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
    assert!(said[1].starts_with("engine=hybrid-log durability=write commit="), "{said:?}");
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
fn a_checkpoint_without_a_sync_is_seen_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut work) = work(&[&"checkpoint", &dir.path().join("app.db")]) else { return };
    let output = work.output().unwrap();
    assert_eq!(lines(&output), ["2 2"], "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wrong_parameters_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    for parameters in ["&engine=journal", "&snapshot=maybe"] {
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
    let ways = ["", "&snapshot=off", "&engine=reflection"];
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
