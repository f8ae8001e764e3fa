//! Databases with checksums and parity.

use std::fs;

use crate::{lines, sql, stock, work};

/// In the process that serves the database, and in another one.
#[test]
fn a_flipped_bit_is_repaired_when_it_is_read() {
    for parameters in ["", "&engine=hybrid-log", "&snapshot=off"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let Some(mut flipped) = work(&[&"flipped", &path, &parameters]) else { return };
        let output = flipped.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{parameters}: {error}");
        assert_eq!(lines(&output), ["here 20", "there 20"], "{parameters}: {error}");
    }
}

#[test]
fn a_new_database_can_have_checksums_and_parity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let statements = ["CREATE TABLE t (a)", "INSERT INTO t VALUES (zeroblob(300000))", "PRAGMA untorn_info"];
    let Some(said) = sql(&path, "&redundancy=on", &statements) else { return };
    assert!(said[0].ends_with("redundancy=on"), "{said:?}");
    assert_eq!(stock(&path, "SELECT length(a) FROM t"), Ok("300000".to_owned()));
    let coverage = untorn::coverage(&path).unwrap().expect("it is protected");
    assert_eq!((coverage.uncovered, coverage.pages * 4096), (0, fs::metadata(&path).unwrap().len()));
    // It need not be said again, and the parameter changes nothing then.
    for parameters in ["", "&redundancy=on", "&redundancy=off"] {
        let said = sql(&path, parameters, &["INSERT INTO t VALUES (1)", "PRAGMA untorn_info"]).unwrap();
        assert!(said[0].ends_with("redundancy=on"), "{said:?}");
    }
    assert!(untorn::scrub(&path, None, &mut |_, _| true).unwrap().is_clean());
    let said = sql(&dir.path().join("other.db"), "", &["CREATE TABLE t (a)", "PRAGMA untorn_info"]).unwrap();
    assert!(said[0].ends_with("redundancy=off"), "{said:?}");
}

/// A database that others have open cannot get them, and one that nobody has changed can.
#[test]
fn an_open_database_gets_no_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(mut late) = work(&[&"late_redundancy", &path]) else { return };
    let output = late.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        lines(&output),
        ["database is locked", "database is locked", "redundancy=on", "redundancy=on"],
        "{error}"
    );
}
