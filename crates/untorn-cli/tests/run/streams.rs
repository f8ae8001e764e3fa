//! The stream of commits of files that unmodified programs write.

use serde_json::Value;

use crate::common::untorn;
use crate::running::{Place, needs_mounts};

/// Three syncs, each after a write, of a file that is chosen, and of one that is not.
const PROGRAM: &str = "
for name in chosen other; do
    for number in 1 2 3; do
        printf $number$number$number | dd of=$name bs=3 seek=$number conv=notrunc,fsync status=none
    done
done";

#[test]
fn each_sync_of_a_chosen_file_is_in_its_stream() {
    needs_mounts!();
    let place = Place::new();
    place.run("atomic", &["--commit-log", "chosen"], &["sh", "-ec", PROGRAM]).expect(0);
    let chosen = place.file("chosen");
    let printed = untorn(&["commits", "--json", "--bytes", chosen.to_str().unwrap()]).expect(0);
    let commits: Vec<Value> = printed.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut file = Vec::new();
    let mut last = None;
    for commit in &commits {
        assert!(last.is_none_or(|last| commit["previous"] == last), "{commit}");
        last = Some(commit["commit"].clone());
        file.resize(commit["len"].as_u64().unwrap() as usize, 0);
        for range in commit["changes"].as_array().unwrap() {
            let offset = range["offset"].as_u64().unwrap() as usize;
            let digits = range["hex"].as_str().unwrap();
            for (nth, pair) in digits.as_bytes().chunks(2).enumerate() {
                file[offset + nth] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            }
        }
    }
    assert!(commits.len() >= 3, "{commits:?}");
    assert_eq!(file, b"\0\0\x00111222333");
    assert_eq!(std::fs::read(&chosen).unwrap(), file);
    let info = untorn(&["info", "--json", chosen.to_str().unwrap()]).expect(0);
    assert!(!info.json()["commit_log"].is_null(), "{}", info.text());
    let other = untorn(&["info", "--json", place.file("other").to_str().unwrap()]).expect(0);
    assert!(other.json()["commit_log"].is_null(), "{}", other.text());
}
