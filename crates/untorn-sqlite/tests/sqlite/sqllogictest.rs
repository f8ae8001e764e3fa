//! Scripts of SQL with their results, and scripts that must be convicted.

use std::fs;
use std::io;
use std::path::Path;

use untorn_testing::sqllogictest::{Engine, Report, run};

use crate::{library, python};

fn engine() -> Option<Engine> {
    let Some(python) = python() else {
        untorn_testing::skipped!("no Python has a SQLite that loads extensions");
        return None;
    };
    Some(Engine { python: python.to_owned(), library: Some(library()) })
}

/// Runs one script.
fn script(engine: &Engine, text: &str) -> Report {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.slt"), text).unwrap();
    run(engine, dir.path(), |_, _| ()).unwrap()
}

#[test]
fn every_script_has_its_results() {
    let Some(engine) = engine() else { return };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqlite/scripts");
    let report = run(&engine, &scripts, |_, _| ()).unwrap();
    assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
    assert!(report.scripts >= 5 && report.records >= 130, "{report:?}");
}

/// Each of these scripts has one mistake, on the line with the number.
#[test]
fn a_script_with_a_mistake_is_convicted() {
    let Some(engine) = engine() else { return };
    let mistakes = [
        ("query I\nSELECT 2\n----\n3\n", ":1: query result mismatch"),
        ("query I\nSELECT 2\n----\n2\n2\n", ":1: query result mismatch"),
        ("query I\nSELECT 2\n----\n2 \n", ":1: query result mismatch"),
        ("query II\nSELECT 2\n----\n2\n", ":1: query failed"),
        ("query I\nSELECT 2 UNION ALL SELECT 1\n----\n1\n2\n", ":1: query result mismatch"),
        ("\nquery I\nVALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)\n----\n9 values hashing to 0\n", ":2: query"),
        ("query error\nSELECT 1\n", ":1: query is expected to fail"),
        ("statement ok\nSELECT * FROM none\n", ":1: statement failed: no such table"),
        ("statement ok\nSELECT 1\n\nstatement error\nSELECT 1\n", ":4: statement is expected to fail"),
        ("statement error no such table\nSELECT none()\n", ":1: statement is expected to fail with error"),
        ("skipif mysql # remark\nstatement ok\nno SQL\n", ":2: statement failed"),
        ("onlyif mysql\nhalt\n\nstatement ok\nno SQL\n", ":4: statement failed"),
        ("statement fine\nSELECT 1\n", ":1: parse error"),
        ("statement ok\nSELECT 1\n\nsystem ok\nexit 0\n", ":4: a record of this kind is not run"),
    ];
    for (text, failure) in mistakes {
        let report = script(&engine, text);
        assert_eq!(report.failures.len(), 1, "{text:?}: {:?}", report.failures);
        assert!(report.failures[0].contains(failure), "{text:?}: {:?}", report.failures);
    }
    let right =
        "onlyif sqlite # remark\nquery I\nSELECT 2\n----\n2\n \nskipif mysql\nhalt\n\nstatement error\nno SQL\n";
    let report = script(&engine, right);
    assert!(report.failures.is_empty() && report.records == 1, "{report:?}");
}

/// The results are right, and the database is not.
#[test]
fn a_database_that_is_not_whole_is_convicted() {
    let Some(engine) = engine() else { return };
    let statements = [
        "CREATE TABLE t(a)",
        "INSERT INTO t VALUES (NULL)",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE t(a NOT NULL)'",
        "PRAGMA writable_schema = RESET",
    ];
    let damaged: String = statements.iter().map(|sql| format!("statement ok\n{sql}\n\n")).collect();
    let report = script(&engine, &damaged);
    let found = report.failures.iter().filter(|failure| failure.contains("integrity_check: NULL value in t.a"));
    assert!(found.count() == 2 && report.failures.len() == 2, "at the end and by a stock SQLite: {report:?}");
    let left = script(&engine, "statement ok\nATTACH 'a-journal' AS a; CREATE TABLE a.t(a)\n");
    assert!(left.failures.iter().any(|failure| failure.contains("a-journal is left")), "{left:?}");
}

/// Also where the script expects an error.
#[test]
fn a_connection_that_ends_early_is_convicted() {
    let Some(engine) = engine() else { return };
    let broken = Engine { library: Some("no such library".into()), ..engine };
    let report = script(&broken, "statement error\nno SQL\n");
    assert!(report.failures.iter().any(|failure| failure.contains("gives no answer")), "{report:?}");
}

#[test]
fn a_directory_without_scripts_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("below")).unwrap();
    fs::write(dir.path().join("below/readme.md"), "no script").unwrap();
    assert_eq!(run(&engine, dir.path(), |_, _| ()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    fs::write(dir.path().join("below/other.test"), "onlyif mysql\nstatement ok\nno SQL\n").unwrap();
    assert_eq!(run(&engine, dir.path(), |_, _| ()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(run(&engine, &dir.path().join("none"), |_, _| ()).is_err());
}
