//! LTX files of a replica, read back by a reader of their format, and by Litestream where it is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use untorn::AtomicFile;
use untorn_replicate::{Error, export_ltx};

use crate::{Place, bytes_of, place};

const SIZE: usize = 512;

/// A file with the header of an SQLite database and these pages.
fn write_page(file: &AtomicFile, number: usize, with: u8) {
    let mut page = vec![with; SIZE];
    if number == 0 {
        page[..16].copy_from_slice(b"SQLite format 3\0");
        page[16..18].copy_from_slice(&(SIZE as u16).to_be_bytes());
    }
    file.write_at(&page, (number * SIZE) as u64).unwrap();
}

/// The files of a level, by name.
fn files(directory: &Path, level: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(directory.join("ltx").join(level)).unwrap();
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Applies a file, and returns its last transaction and its two checksums of the database.
fn apply(path: &Path, database: &mut Vec<u8>) -> (u64, [u64; 2]) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..4], b"LTX1");
    let (size, pages) = (be(&bytes[8..12]) as usize, be(&bytes[12..16]) as usize);
    let (first, last, before) = (be(&bytes[16..24]), be(&bytes[24..32]), be(&bytes[40..48]));
    let name = path.file_stem().unwrap().to_str().unwrap();
    assert_eq!(name, format!("{first:016x}-{last:016x}"));
    database.resize(pages * size, 0);
    let (mut at, mut earlier) = (100, 0);
    while be(&bytes[at..at + 6]) != 0 {
        let (number, packed) = (be(&bytes[at..at + 4]) as usize, be(&bytes[at + 6..at + 10]) as usize);
        assert!(earlier < number && number <= pages && bytes[at + 4..at + 6] == [0, 1]);
        let page = lz4_flex::block::decompress(&bytes[at + 10..at + 10 + packed], size).unwrap();
        database[(number - 1) * size..number * size].copy_from_slice(&page);
        (at, earlier) = (at + 10 + packed, number);
    }
    (last, [before, be(&bytes[bytes.len() - 16..bytes.len() - 8])])
}

#[test]
fn each_commit_is_an_ltx_file() {
    let place = place!();
    let file = place.create("app.db");
    file.resize(4 * SIZE as u64).unwrap();
    (0..4).for_each(|number| write_page(&file, number, 1));
    let mut history = BTreeMap::from([(file.sync().unwrap(), bytes_of(&file))]);
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    for (with, len) in [(2, 4), (3, 7), (4, 7), (5, 2), (6, 9), (7, 9)] {
        // A change of the length with a commit of its own.
        if file.len() != len * SIZE as u64 {
            file.resize(len * SIZE as u64).unwrap();
            history.insert(file.sync().unwrap(), bytes_of(&file));
        }
        write_page(&file, 0, with);
        write_page(&file, (usize::from(with) * 5) % len as usize, with);
        file.write_at(&[with; 3], SIZE as u64 + 100).unwrap();
        history.insert(file.sync().unwrap(), bytes_of(&file));
        if with % 2 == 0 {
            replica.sync_replicated().unwrap();
        }
    }
    replica.sync_replicated().unwrap();
    let out = place.path("out");
    let report = export_ltx(&place.url, &out, &mut |_| Ok(())).unwrap();
    let (snapshots, commits) = (files(&out, "9"), files(&out, "0"));
    assert_eq!((snapshots.len(), commits.len()), (1, history.len() - 1));
    assert_eq!(report.files, history.len() as u64);
    assert_eq!(Some((&report.last, &bytes_of(&file))), history.last_key_value());
    let mut database = Vec::new();
    let mut end = None;
    for path in snapshots.iter().chain(&commits) {
        let (last, [before, after]) = apply(path, &mut database);
        assert!(history[&last] == database, "{}", path.display());
        assert_eq!(before, end.unwrap_or(0), "{}", path.display());
        end = Some(after);
    }
    let again = export_ltx(&place.url, &out, &mut |_| Ok(()));
    assert!(matches!(&again, Err(Error::Io { path, .. }) if *path == out), "{again:?}");

    let restored = place.path("restored.db");
    let litestream = Command::new("litestream")
        .args(["restore", "-integrity-check", "none", "-o"])
        .arg(&restored)
        .arg(format!("file://{}", out.display()))
        .output();
    match litestream {
        Err(_) => untorn_testing::skip!("Litestream is not installed"),
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(std::fs::read(&restored).unwrap() == bytes_of(&file));
        }
    }
}

#[test]
fn only_databases_are_exported_as_ltx_files() {
    let place = place!();
    let file = place.create("ledger");
    file.write_at(b"a ledger", 0).unwrap();
    file.sync().unwrap();
    let replica = place.attach(&file).unwrap();
    replica.sync_replicated().unwrap();
    let refused = export_ltx(&place.url, &place.path("out"), &mut |_| Ok(()));
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("not an SQLite database")), "{refused:?}");
    let none = format!("file://{}/none", place.dir.path().display());
    assert!(matches!(export_ltx(&none, &place.path("none-out"), &mut |_| Ok(())), Err(Error::NotFound { .. })));
}
