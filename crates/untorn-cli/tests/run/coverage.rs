//! How much of what usual commands write goes through the log: all of it, whichever way they write.
//!
//! The server counts the bytes of each WRITE that it brought to the log. They cover the files that a command leaves if
//! there are at least as many of them as the files have in the end, and no file was left to the file system.

use std::fs;
use std::path::Path;

use serde_json::json;
use untorn_testing::needs;

use crate::running::{MODES, Place, needs_mounts};

/// Bytes of the files of a directory and of all below it, those in holes left out where `count` leaves them out.
fn bytes_of(directory: &Path, count: fn(&Path) -> u64) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let lengths = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => bytes_of(&entry.path(), count),
        kind if kind.is_file() => count(&entry.path()),
        _ => 0,
    });
    lengths.sum()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Bytes that something wrote for certain: the linker skips what is to be zero.
fn without_zeros(path: &Path) -> u64 {
    fs::read(path).unwrap().iter().filter(|&&byte| byte != 0).count() as u64
}

/// Runs a script in the directory `d`, which the run serves. Beside it are `big`, with lines, and `tree`, with files.
#[track_caller]
fn covers(script: &str) {
    covers_all(script, length);
}

#[track_caller]
fn covers_all(script: &str, count: fn(&Path) -> u64) {
    for mode in MODES {
        let place = Place::new();
        fs::create_dir(place.file("d")).unwrap();
        let numbers: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        fs::write(place.file("big"), &numbers).unwrap();
        fs::create_dir_all(place.file("tree/below")).unwrap();
        for number in 0..8 {
            fs::write(place.file("tree/below").join(number.to_string()), &numbers[..number * 1000]).unwrap();
        }
        let script = format!("cd d; {script}");
        let (_, report) = place.reported(mode, &["--match", "d/**"], &["sh", "-ec", &script]);
        let left = bytes_of(&place.file("d"), count);
        assert!(left > 0, "{mode}: {script}");
        assert!(report["bytes"].as_u64().unwrap() >= left, "{mode}: {script}: {left} bytes are left, {report}");
        assert_eq!(report["plain"], json!([]), "{mode}: {script}");
    }
}

const COPIES: [&str; 8] = [
    "cp ../big big",
    "cp -a ../tree tree; cp -a tree again",
    "dd if=../big of=big bs=64k status=none",
    "dd if=../big of=big bs=4096 oflag=append,dsync conv=notrunc status=none",
    "cat ../big > big",
    "tar -C .. -cf - big tree | tar xf -",
    "gzip -c < ../big > big.gz; cp ../big y; gzip y",
    "sort -o big ../big",
];

#[test]
fn all_bytes_of_copies_and_redirections_are_covered() {
    needs_mounts!();
    COPIES.iter().for_each(|script| covers(script));
}

/// `sed` writes another file, and renames it over the first.
#[test]
fn all_bytes_of_a_file_edited_in_place_are_covered() {
    needs_mounts!();
    covers("cp ../big x; sed -i s/1/x/ x");
}

const INSERTS: &str = "for i in $(seq 20); do echo \"insert into a values($i, hex(randomblob(99)));\"; done";

#[test]
fn all_bytes_of_sqlite_are_covered_in_each_journal_mode() {
    needs_mounts!("sqlite3");
    for journal in ["DELETE", "WAL"] {
        covers(&format!(
            "(echo 'pragma journal_mode={journal}; create table a(x, y);'; {INSERTS}) | sqlite3 d.db > /dev/null"
        ));
    }
}

#[test]
fn all_bytes_of_two_sqlite_at_once_are_covered() {
    needs_mounts!("sqlite3");
    let one = format!("(echo '.timeout 60000'; {INSERTS}) | sqlite3 d.db");
    covers(&format!("sqlite3 d.db 'create table a(x, y)'; {one} & {one}; wait $!"));
}

#[test]
fn all_bytes_of_rocksdb_are_covered() {
    needs_mounts!("db_bench");
    covers("db_bench --benchmarks=fillsync --num=50 --db=db > /dev/null 2>&1");
}

#[test]
fn all_bytes_of_git_are_covered() {
    needs_mounts!("git");
    covers(
        "git init -q r; cd r; cp ../../big .; cp -r ../../tree .; git add .; \
         git -c user.name=a -c user.email=a@b commit -qm one; git gc -q; git clone -q --no-hardlinks . ../clone",
    );
}

#[test]
fn all_bytes_of_a_compiler_are_covered() {
    needs_mounts!("cc");
    covers_all("printf 'int main(void) { return 0; }\\n' > p.c; cc -c p.c; cc -o p p.o", without_zeros);
}

#[test]
fn all_bytes_of_python_and_node_are_covered() {
    needs_mounts!("python3");
    covers("python3 -c \"open('x', 'wb').write(b'x' * 100000)\"");
    needs!("node");
    covers("node -e \"require('fs').writeFileSync('x', 'y'.repeat(100000))\"");
}

#[test]
fn all_bytes_of_java_are_covered() {
    needs_mounts!("java", "javac");
    covers(
        "printf '%s' 'public class A { public static void main(String[] a) throws Exception { \
         java.nio.file.Files.write(java.nio.file.Path.of(\"x\"), new byte[100000]); } }' > A.java; java A.java",
    );
}
