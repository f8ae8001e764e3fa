//! What a map knows of its pages, looked at from inside.

use std::fs::File;

use super::*;

/// Pages that seem to be stored to and were not, as those that were only read on persistent memory.
#[test]
fn pages_that_were_only_read_are_compared_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let page = page_size();
    let len = 20 * page + 100;
    let mut map = Options::new().dirty_tracking(DirtyTracking::PageTable).create_map(&path, len as u64).unwrap();
    map.suspects_reads = true;
    map.fill(1);
    let first = map.commit().unwrap();
    // What is in the log, and not at home yet.
    map[3 * page] = 2;
    assert_eq!(map.commit().unwrap(), first + 1);
    // The same bytes: the pages are the process's own, and hold what the last commit has.
    let same = map.to_vec();
    map.copy_from_slice(&same);
    let seen = |map: &AtomicMap| {
        let (seen, all) = map.tracking.take_stored(slice::from_ref(&(0..map.zeros_from)), &Runs::new());
        all.map(|()| seen.bytes() as usize / page).unwrap()
    };
    assert_eq!(seen(&map), 21);
    map[7 * page] = 3;
    let stored = map.uncommitted().unwrap();
    assert!(stored.len() == 1 && stored[0] == (7 * page as u64..8 * page as u64), "{stored:?}");
    // The one that was stored to, and the last one, of which the file has a part.
    assert_eq!(seen(&map), 2, "the others are to be compared again");
    assert_eq!(map.commit().unwrap(), first + 2);
    assert_eq!(map.commit().unwrap(), first + 2, "there was nothing to commit");
    let mut expected = same;
    expected[7 * page] = 3;
    assert!(*map == expected[..]);
    map.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
}

/// What was cut off and not committed comes back, whatever became of its pages meanwhile.
#[test]
fn pages_that_were_only_read_are_rolled_back_with_the_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let page = page_size();
    let mut map = Options::new().dirty_tracking(DirtyTracking::PageTable).create_map(&path, 8 * page as u64).unwrap();
    map.suspects_reads = true;
    map.fill(1);
    map.commit().unwrap();
    let same = map.to_vec();
    map.copy_from_slice(&same);
    map.resize(3 * page as u64 + 7).unwrap();
    map.uncommitted().unwrap();
    map.resize(6 * page as u64).unwrap();
    assert!(map[..3 * page + 7].iter().all(|byte| *byte == 1) && map[3 * page + 7..].iter().all(|byte| *byte == 0));
    map.rollback().unwrap();
    assert!(*map == same[..]);
    map[5 * page] = 9;
    map.commit().unwrap();
    map.close().unwrap();
    let found = std::fs::read(&path).unwrap();
    assert!(found[5 * page] == 9 && found.iter().filter(|byte| **byte != 1).count() == 1);
}

#[test]
fn reads_from_a_descriptor_count_as_stores() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let source = dir.path().join("source");
    std::fs::write(&source, [7; 5000]).unwrap();
    let source = std::fs::File::open(source).unwrap();
    for method in [DirtyTracking::Auto, DirtyTracking::PageTable] {
        let mut map = Options::new().dirty_tracking(method).create_map(&path, 3 * page_size() as u64).unwrap();
        rustix::fs::seek(&source, rustix::fs::SeekFrom::Start(0)).unwrap();
        let beyond = map.len() - 100;
        assert!(matches!(map.read_from(&source, 101, beyond), Err(Error::OutOfRange { .. })));
        let read = [(10, 4000), (4010, 4000), (5010, 4000)].map(|(at, len)| map.read_from(&source, at, len).unwrap());
        assert_eq!(read, [4000, 1000, 0]);
        let first = map.commit().unwrap();
        // Also into pages that are committed.
        rustix::fs::seek(&source, rustix::fs::SeekFrom::Start(0)).unwrap();
        assert_eq!(map.read_from(&source, 0, 10).unwrap(), 10);
        assert_eq!(map.commit().unwrap(), first + 1, "what was read went unnoticed");
        map.close().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert!(found[..5010].iter().all(|byte| *byte == 7) && found[5010..].iter().all(|byte| *byte == 0));
        std::fs::remove_file(&path).unwrap();
    }
}

/// Every way of lending bytes for stores, each in a part of the map of its own.
#[test]
fn a_commit_finds_the_stores_of_every_way_of_lending() {
    type Way = fn(&mut AtomicMap, usize, u8);
    const STEP: usize = 5 << 20;
    let ways: [(&str, Way); 9] = [
        ("an index", |map, at, byte| map[at] = byte),
        ("a range", |map, at, byte| map[at..at + 1].fill(byte)),
        ("a range from", |map, at, byte| map[at..][0] = byte),
        ("an inclusive range", |map, at, byte| map[at..=at].fill(byte)),
        ("all of it", |map, at, byte| map.as_mut()[at] = byte),
        ("a method of slices", |map, at, byte| *map.get_mut(at).unwrap() = byte),
        ("a view", |map, at, byte| map.view_mut::<[u8; 3]>(at as u64 - 2).unwrap()[2] = byte),
        ("a slice of values", |map, at, byte| map.slice_of_mut::<u8>(at as u64 - 1, 2).unwrap()[1] = byte),
        ("a descriptor", |map, at, byte| {
            let source = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(source.path(), [byte]).unwrap();
            assert_eq!(map.read_from(&source, at as u64, 1).unwrap(), 1);
        }),
    ];
    for method in [DirtyTracking::Auto, DirtyTracking::PageTable] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let len = (ways.len() * STEP) as u64 + 9;
        let mut map = Options::new().dirty_tracking(method).create_map(&path, len).unwrap();
        // The byte at the end of a chunk, and of a page.
        let place = |nth: usize| nth * STEP + (2 << 20) - 1;
        for round in [1, 2, 3] {
            for (nth, (name, way)) in ways.iter().enumerate() {
                let before = map.commit().unwrap();
                way(&mut map, place(nth), round);
                assert_eq!(map.commit().unwrap(), before + 1, "{name}: the store was not found");
            }
        }
        // All at once, and back.
        ways.iter().enumerate().for_each(|(nth, (_, way))| way(&mut map, place(nth), 9));
        map.rollback().unwrap();
        assert!((0..ways.len()).all(|nth| map[place(nth)] == 3));
        // A pointer is good from commit to commit: a store through it is noted nowhere.
        map.as_mut_ptr();
        for byte in [4, 5] {
            let before = map.commit().unwrap();
            map[place(1)] = byte;
            map.lent.forget();
            assert_eq!(map.commit().unwrap(), before + 1);
        }
        map.close().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert!((0..ways.len()).all(|nth| found[place(nth)] == if nth == 1 { 5 } else { 3 }));
        assert_eq!(found.iter().filter(|byte| **byte != 0).count(), ways.len());
    }
}

/// However long the map, and however much of it is in memory.
#[test]
fn a_commit_looks_where_the_program_may_have_stored() {
    let dir = tempfile::tempdir().unwrap();
    for len in [1 << 20, 64 << 20, 1_u64 << 36] {
        let mut map = AtomicMap::create(dir.path().join(len.to_string()), len).unwrap();
        assert!(map[..(len as usize).min(64 << 20)].iter().all(|byte| *byte == 0));
        let looked =
            |map: &AtomicMap| map.lent.below(map.zeros_from).iter().map(|run| run.end - run.start).sum::<u64>();
        assert_eq!(looked(&map), 0, "nothing was stored, and there is nothing to look at");
        map.view_mut::<[u8; 8]>(len / 2).unwrap()[0] = 1;
        map[0] = 1;
        assert!(looked(&map) <= 4 << 20, "{} bytes of {len}", looked(&map));
        map.commit().unwrap();
        assert_eq!(looked(&map), 0);
    }
}

/// Where no userfaultfd is to be had, as in most containers, a commit of a long sparse map reads the words of the page
/// table that is there, and none of all the others.
#[test]
fn page_tables_are_read_where_there_are_pages() {
    /// Bytes that this thread has read so far.
    fn has_read() -> Option<u64> {
        let account = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        account.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
    }
    if has_read().is_none() {
        return untorn_testing::skipped!("this kernel does not count what a thread reads");
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, len, page) = (dir.path().join("file"), 1 << 36, page_size());
    File::create(&path).unwrap().set_len(len).unwrap();
    let mut map = Options::new().dirty_tracking(DirtyTracking::PageTable).map(&path).unwrap();
    if !map.tracking.can_scan() {
        return untorn_testing::skipped!("this kernel has no PAGEMAP_SCAN");
    }
    // Every commit looks at all of it.
    map.as_mut_ptr();
    let places: Vec<usize> = (0..20_usize).map(|n| n * (len as usize / 20) / page * page).collect();
    for round in 1..=3 {
        // Pages that are only loaded are the file's, and are passed over.
        assert!(map[..4 << 20].iter().skip(page).all(|byte| *byte == 0));
        places.iter().for_each(|place| map[*place] = round);
        let before = has_read();
        let stored = map.uncommitted().unwrap();
        let bytes = has_read().unwrap() - before.unwrap();
        assert!(bytes < 64 << 10, "{bytes} bytes of page tables were read for {} pages", places.len());
        let expected: Vec<_> = places.iter().map(|place| *place as u64..(*place + page) as u64).collect();
        assert_eq!(stored, expected);
        map.commit().unwrap();
    }
    map.rollback().unwrap();
    assert!(places.iter().all(|place| map[*place] == 3));
    map.close().unwrap();
}
