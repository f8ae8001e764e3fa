//! Databases that a connection may not write to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::{lines, sql, stock, work};

/// What a reader without write permission finds: it runs as another user, since root may write to everything.
fn read(path: &Path, parameters: &str, text: &str) -> Option<Vec<String>> {
    let output = work(&[&"sql_as", &"65534", &path, &parameters, &text])?.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(lines(&output))
}

fn may_read_only(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
}

const COUNT: &str = "SELECT count(*) FROM t";

#[test]
fn a_plain_database_is_read_without_write_permission() {
    untorn_testing::needs!("root");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(_) = sql(&path, "", &["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]) else { return };
    may_read_only(&path);
    let before = fs::read(&path).unwrap();
    for parameters in ["", "&mode=ro", "&immutable=1"] {
        assert_eq!(read(&path, parameters, COUNT).unwrap(), ["1"], "{parameters}");
        let said = read(&path, parameters, "INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(said, ["error: attempt to write a readonly database"], "{parameters}");
    }
    assert_eq!(read(&path, "", "PRAGMA untorn_info").unwrap(), ["read-only plain file"]);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "app.db" || name == ".untorn"), "{left:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_database_without_write_permission_may_be_missing() {
    untorn_testing::needs!("root");
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = work(&[&"sql_as", &"65534", &dir.path().join("none.db"), &"", &COUNT]);
    let Some(output) = output.map(|mut work| work.output().unwrap()) else { return };
    assert!(String::from_utf8_lossy(&output.stderr).contains("unable to open database file"));
}

/// What a stock SQLite commits is read at once, and no transaction that it has not committed.
#[test]
fn readers_beside_a_stock_writer_are_as_stock_ones() {
    untorn_testing::needs!("root");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(mut hot) = work(&[&"hot", &path]) else { return };
    assert!(!hot.status().unwrap().success());
    may_read_only(&path);
    fs::set_permissions(dir.path().join("app.db-journal"), fs::Permissions::from_mode(0o644)).unwrap();
    // Its pages are those of a transaction that was not committed.
    let said = read(&path, "", COUNT).unwrap();
    assert!(said[0].starts_with("error: "), "{said:?}");
    assert_eq!(stock(&path, COUNT), Ok("500".to_owned()), "root rolls it back");
    assert_eq!(read(&path, "", COUNT).unwrap(), ["500"]);
    assert_eq!(stock(&path, "INSERT INTO t VALUES (1) RETURNING 7"), Ok("7".to_owned()));
}

/// The last commit may be in the sidecar alone.
#[test]
fn a_database_that_is_open_or_crashed_is_read_as_committed() {
    untorn_testing::needs!("root");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let Some(_) = sql(&path, "", &["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]) else { return };
    may_read_only(&path);
    // Root's processes serve snapshots to root alone, so the reader beside them is root without the permission.
    let said = work(&[&"beside", &path]).unwrap().output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(lines(&said), ["2 2", "3 3", "immutable refused"], "{error}");
}

/// A transaction of a process that does not serve may be too large to pass on: it is refused whole, and the next goes
/// on.
#[test]
fn a_transaction_too_large_to_pass_on_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut large) = work(&[&"large", &dir.path().join("app.db")]) else { return };
    let output = large.stdout(Stdio::piped()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines(&output), ["error: database or disk is full", "0", "1"], "{error}");
}
