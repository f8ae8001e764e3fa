//! The simulated medium against its own fault model: each rule is shown to produce both outcomes it allows, and not the
//! ones it forbids.

use std::collections::BTreeSet;
use std::path::Path;

use untorn::testing::storage::{Access, Barrier, LockKind, MarkState, Medium, MediumClass, MediumFile};
use untorn_sim::{CrashState, Fault, Rng, SimFile, SimMedium, Step, Verdict};

const B: Barrier = Barrier::new("test.barrier");
const OTHER: Barrier = Barrier::new("test.other");

fn pmem(bytes: &[u8]) -> (SimMedium, SimFile) {
    start(MediumClass::PersistentMemory, bytes)
}

fn block(bytes: &[u8]) -> (SimMedium, SimFile) {
    start(MediumClass::Block, bytes)
}

fn start(class: MediumClass, bytes: &[u8]) -> (SimMedium, SimFile) {
    let medium = SimMedium::new(class);
    medium.install("f", bytes);
    let file = medium.open(Path::new("f"), Access::ReadWrite, 1 << 20).unwrap();
    (medium, file)
}

/// The contents that file `f` may have after a crash, over all images.
fn outcomes(state: &CrashState) -> BTreeSet<Option<Vec<u8>>> {
    state.choices(1 << 16).expect("few enough to try all").map(|choice| state.image(&choice).boot().peek("f")).collect()
}

fn words(file: Vec<u8>) -> Vec<u8> {
    file.chunks(8).map(|word| word[0]).collect()
}

/// The first byte of each word of what `f` may hold.
fn word_outcomes(medium: &SimMedium) -> BTreeSet<Vec<u8>> {
    outcomes(&medium.crash_state()).into_iter().map(|file| words(file.unwrap())).collect()
}

fn set<const N: usize>(outcomes: [&[u8]; N]) -> BTreeSet<Vec<u8>> {
    outcomes.into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn any_subset_of_unfenced_streaming_words_survives() {
    let (medium, file) = pmem(&[1; 24]);
    file.write(0, &[2; 24]).unwrap();
    assert_eq!(word_outcomes(&medium).len(), 8);
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[2, 2, 2]]));
}

#[test]
fn a_word_does_not_tear_but_ragged_ends_do() {
    let (medium, file) = pmem(&[1; 16]);
    file.write(0, &[2; 10]).unwrap();
    let seen = outcomes(&medium.crash_state());
    assert_eq!(seen.len(), 8, "one word and two single bytes");
    assert!(seen.iter().flatten().all(|bytes| bytes[..8] == [1; 8] || bytes[..8] == [2; 8]));
}

#[test]
fn a_fence_drains_only_the_stores_of_its_own_thread() {
    let (medium, file) = pmem(&[1; 8]);
    file.write(0, &[2; 8]).unwrap();
    std::thread::scope(|scope| scope.spawn(|| medium.fence(B, &[&file]).unwrap()).join().unwrap());
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
}

#[test]
fn an_ordered_streaming_store_waits_for_any_threads_fence() {
    let (medium, file) = pmem(&[1; 8]);
    file.write(0, &[2; 8]).unwrap();
    medium.order();
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
    std::thread::scope(|scope| scope.spawn(|| medium.fence(B, &[&file]).unwrap()).join().unwrap());
    assert_eq!(word_outcomes(&medium), set([&[2]]));
}

#[test]
fn a_fence_covers_only_the_files_it_names() {
    let (medium, file) = pmem(&[1; 8]);
    file.write(0, &[2; 8]).unwrap();
    medium.fence(B, &[]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
}

#[test]
fn a_cached_line_survives_as_a_prefix_of_its_stores() {
    let (medium, file) = pmem(&[1; 24]);
    file.store(16, &[2; 8]).unwrap();
    file.store(0, &[3; 8]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1, 1, 1], &[1, 1, 2], &[3, 1, 2]]));
}

#[test]
fn lines_are_evicted_independently() {
    let (medium, file) = pmem(&[1; 72]);
    file.store(0, &[2; 8]).unwrap();
    file.store(64, &[3; 8]).unwrap();
    let seen: BTreeSet<(u8, u8)> = word_outcomes(&medium).into_iter().map(|words| (words[0], words[8])).collect();
    assert_eq!(seen, BTreeSet::from([(1, 1), (1, 3), (2, 1), (2, 3)]));
}

#[test]
fn flush_and_fence_promise_nothing_without_each_other() {
    let (medium, file) = pmem(&[1; 8]);
    file.store(0, &[2; 8]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
    file.flush(B, 0, 8);
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[2]]));
}

#[test]
fn a_line_is_durable_up_to_its_flush_and_not_beyond() {
    let (medium, file) = pmem(&[1; 16]);
    file.store(0, &[2; 8]).unwrap();
    file.flush(B, 0, 8);
    file.store(8, &[3; 8]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[2, 1], &[2, 3]]));
}

#[test]
fn the_later_of_two_stores_wins_whichever_was_fenced() {
    let (medium, file) = pmem(&[1; 8]);
    file.store(0, &[2; 8]).unwrap();
    file.write(0, &[3; 8]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    // The cached store was earlier: it may reach the medium at any time, but never after the fenced one.
    assert_eq!(word_outcomes(&medium), set([&[3]]));
    file.write(0, &[4; 8]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[3], &[4]]));
}

#[test]
fn a_store_without_space_is_a_fault_on_persistent_memory_only() {
    let medium = SimMedium::new(MediumClass::PersistentMemory);
    let file = medium.create(Path::new("f"), 8192, 8192).unwrap();
    file.allocate(0, 1).unwrap();
    file.write(4000, &[1; 96]).unwrap();
    assert_eq!(medium.faults(), []);
    file.store(4000, &[1; 97]).unwrap();
    assert_eq!(medium.faults(), [Fault::UnallocatedStore { path: "f".into(), offset: 4096 }]);

    let medium = SimMedium::new(MediumClass::Block);
    let file = medium.create(Path::new("f"), 8192, 8192).unwrap();
    file.write(0, &[1; 8192]).unwrap();
    assert_eq!(medium.faults(), []);
}

#[test]
fn punched_holes_and_lost_allocations_need_space_again() {
    let (medium, file) = pmem(&[1; 4096]);
    file.punch(0, 4096).unwrap();
    file.store(0, &[1]).unwrap();
    assert_eq!(medium.faults().len(), 1);

    let medium = SimMedium::new(MediumClass::PersistentMemory);
    let file = medium.create(Path::new("f"), 4096, 4096).unwrap();
    file.sync(B).unwrap();
    medium.sync_dir(B, Path::new("/")).unwrap();
    file.allocate(0, 4096).unwrap();
    let state = medium.crash_state();
    let faults: BTreeSet<usize> = state
        .choices(4)
        .unwrap()
        .map(|choice| {
            let after = state.image(&choice).boot();
            after.open(Path::new("f"), Access::ReadWrite, 0).unwrap().store(0, &[1]).unwrap();
            after.faults().len()
        })
        .collect();
    assert_eq!(faults, BTreeSet::from([0, 1]));
}

#[test]
fn any_subset_of_unflushed_sectors_survives() {
    let (medium, file) = block(&[1; 1536]);
    file.write(0, &[2; 1536]).unwrap();
    let seen: BTreeSet<[u8; 3]> = outcomes(&medium.crash_state())
        .into_iter()
        .flatten()
        .map(|bytes| {
            assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            [bytes[0], bytes[512], bytes[1024]]
        })
        .collect();
    assert_eq!(seen.len(), 8);
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([Some(vec![2; 1536])]));
}

#[test]
fn a_sector_survives_in_any_version_since_the_flush() {
    let (medium, file) = block(&[1; 16]);
    file.write(0, &[2; 8]).unwrap();
    file.store(8, &[3; 8]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1, 1], &[2, 1], &[2, 3]]));
}

#[test]
fn a_copy_may_be_caught_half_way_into_a_sector() {
    let (medium, file) = block(&[1; 512]);
    file.write(0, &[2; 512]).unwrap();
    let state = medium.crash_state();
    let mut rng = Rng::new(7);
    let cut = |bytes: Vec<u8>| bytes.iter().position(|byte| *byte == 1).unwrap_or(512);
    let cuts: BTreeSet<usize> =
        (0..2000).map(|_| cut(state.image(&state.sample(&mut rng)).boot().peek("f").unwrap())).collect();
    assert!(cuts.contains(&0) && cuts.contains(&512) && cuts.len() > 10, "{cuts:?}");
    assert!(cuts.iter().all(|cut| cut % 8 == 0));
}

#[test]
fn a_block_flush_covers_all_threads_but_no_metadata() {
    let (medium, file) = block(&[1; 512]);
    std::thread::scope(|scope| scope.spawn(|| file.write(0, &[2; 512]).unwrap()).join().unwrap());
    file.set_len(1024).unwrap();
    file.write(512, &[3; 512]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    let long = [[2; 512], [3; 512]].concat();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([Some(vec![2; 512]), Some(long.clone())]));
    file.sync(B).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([Some(long)]));
}

#[test]
fn bytes_beyond_a_lost_growth_do_not_come_back() {
    let (medium, file) = block(&[1; 8]);
    file.set_len(16).unwrap();
    file.write(8, &[2; 8]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    let state = medium.crash_state();
    let after = state.image(&state.nothing()).boot();
    let file = after.open(Path::new("f"), Access::ReadWrite, 16).unwrap();
    assert_eq!(file.len(), 8);
    file.set_len(16).unwrap();
    assert_eq!(words(after.peek("f").unwrap()), [1, 0]);
}

#[test]
fn a_shrink_and_a_growth_are_lost_or_kept_each_for_itself() {
    let (medium, file) = block(&[1; 16]);
    file.set_len(8).unwrap();
    file.set_len(16).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1], &[1, 0], &[1, 1]]));
}

#[test]
fn a_fenced_store_outlives_a_pending_hole_made_before_it() {
    for class in [MediumClass::PersistentMemory, MediumClass::Block] {
        let (medium, file) = start(class, &[1; 4096]);
        file.punch(0, 4096).unwrap();
        file.allocate(0, 4096).unwrap();
        file.write(0, &[2; 512]).unwrap();
        medium.fence(B, &[&file]).unwrap();
        let seen: BTreeSet<(u8, u8)> =
            outcomes(&medium.crash_state()).into_iter().flatten().map(|bytes| (bytes[0], bytes[512])).collect();
        assert_eq!(seen, BTreeSet::from([(2, 0), (2, 1)]));
        file.sync(B).unwrap();
        let seen = outcomes(&medium.crash_state());
        assert!(seen.len() == 1 && seen.iter().flatten().all(|bytes| (bytes[0], bytes[512]) == (2, 0)));
    }
}

#[test]
fn a_mark_is_lost_or_kept_until_the_file_is_synced() {
    let (medium, file) = block(&[1; 8]);
    file.set_mark(Some([7; 16])).unwrap();
    let marks = |medium: &SimMedium| -> Vec<MarkState> {
        let state = medium.crash_state();
        let mark = |after: SimMedium| after.open(Path::new("f"), Access::Read, 0).unwrap().mark().unwrap();
        state.choices(8).unwrap().map(|choice| mark(state.image(&choice).boot())).collect()
    };
    assert_eq!(marks(&medium), [MarkState::Absent, MarkState::Present([7; 16])]);
    medium.fence(B, &[&file]).unwrap();
    assert_eq!(marks(&medium).len(), 2);
    file.sync(B).unwrap();
    assert_eq!(marks(&medium), [MarkState::Present([7; 16])]);
}

#[test]
fn a_creation_needs_both_the_file_and_the_directory_synced() {
    let medium = SimMedium::new(MediumClass::Block);
    let file = medium.create(Path::new("f"), 8, 8).unwrap();
    file.write(0, &[1; 8]).unwrap();
    file.sync(B).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([None, Some(vec![1; 8])]));
    medium.sync_dir(B, Path::new("/")).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([Some(vec![1; 8])]));
}

#[test]
fn a_named_file_that_was_never_synced_may_be_empty() {
    let medium = SimMedium::new(MediumClass::Block);
    let _file = medium.create(Path::new("f"), 8, 8).unwrap();
    medium.sync_dir(B, Path::new("/")).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([Some(vec![]), Some(vec![0; 8])]));
}

#[test]
fn a_rename_is_atomic_even_without_the_creation_before_it() {
    let (medium, _old) = block(&[1; 8]);
    let new = medium.create(Path::new("new"), 8, 8).unwrap();
    new.write(0, &[2; 8]).unwrap();
    new.sync(B).unwrap();
    medium.rename(Path::new("new"), Path::new("f")).unwrap();
    let state = medium.crash_state();
    let seen: BTreeSet<(Vec<u8>, Option<Vec<u8>>)> = state
        .choices(8)
        .unwrap()
        .map(|choice| {
            let after = state.image(&choice).boot();
            (after.peek("f").unwrap(), after.peek("new"))
        })
        .collect();
    let (one, two) = (vec![1; 8], vec![2; 8]);
    assert_eq!(seen, BTreeSet::from([(one.clone(), None), (one, Some(two.clone())), (two, None)]));
    medium.sync_dir(B, Path::new("/")).unwrap();
    assert_eq!(words(medium.crash_state().image(&medium.crash_state().nothing()).boot().peek("f").unwrap()), [2]);
}

/// As in a journal, a later change cannot be there without the rename, but may be lost when the rename is kept.
#[test]
fn a_rename_is_kept_if_a_later_change_of_its_names_is() {
    let found = |later: fn(&SimMedium)| {
        let (medium, _old) = block(&[1; 8]);
        let new = medium.create(Path::new("new"), 8, 8).unwrap();
        new.write(0, &[2; 8]).unwrap();
        new.sync(B).unwrap();
        medium.sync_dir(B, Path::new("/")).unwrap();
        medium.rename(Path::new("new"), Path::new("f")).unwrap();
        later(&medium);
        let state = medium.crash_state();
        let of = |bytes: Option<Vec<u8>>| bytes.map(|bytes| bytes.first().copied());
        let leaves = |choice| {
            let after = state.image(&choice).boot();
            (of(after.peek("f")), of(after.peek("new")))
        };
        state.choices(16).unwrap().map(leaves).collect::<BTreeSet<_>>()
    };
    let (one, two) = (Some(Some(1)), Some(Some(2)));
    let removed = found(|medium| medium.unlink(Path::new("f")).unwrap());
    assert_eq!(removed, BTreeSet::from([(one, two), (two, None), (None, None)]));
    let made = found(|medium| drop(medium.create(Path::new("new"), 0, 0).unwrap()));
    assert_eq!(made, BTreeSet::from([(one, two), (two, None), (two, Some(None))]));
    let onwards = found(|medium| medium.rename(Path::new("f"), Path::new("third")).unwrap());
    assert_eq!(onwards, BTreeSet::from([(one, two), (two, None), (None, None)]));
    let elsewhere = found(|medium| drop(medium.create(Path::new("third"), 0, 0).unwrap()));
    assert_eq!(elsewhere, BTreeSet::from([(one, two), (two, None)]));
}

/// A file that was renamed from one directory to another is where it was until both are synced.
#[test]
fn a_rename_to_another_directory_takes_the_sync_of_both() {
    for first in ["/", "/d"] {
        let (medium, _file) = block(&[1; 8]);
        medium.create_dir(Path::new("d")).unwrap();
        medium.sync_dir(B, Path::new("/")).unwrap();
        medium.rename(Path::new("f"), Path::new("d/f")).unwrap();
        medium.sync_dir(B, Path::new(first)).unwrap();
        let lost = medium.crash_state().image(&medium.crash_state().nothing()).boot();
        assert_eq!((lost.peek("f"), lost.peek("d/f")), (Some(vec![1; 8]), None));
        medium.sync_dir(B, Path::new(if first == "/" { "/d" } else { "/" })).unwrap();
        let kept = medium.crash_state().image(&medium.crash_state().nothing()).boot();
        assert_eq!((kept.peek("f"), kept.peek("d/f")), (None, Some(vec![1; 8])));
    }
}

#[test]
fn an_unlink_may_be_undone_and_a_lost_directory_takes_its_files() {
    let (medium, _file) = block(&[1; 8]);
    medium.unlink(Path::new("f")).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([None, Some(vec![1; 8])]));
    medium.sync_dir(B, Path::new("/")).unwrap();
    assert_eq!(outcomes(&medium.crash_state()), BTreeSet::from([None]));

    medium.create_dir(Path::new("d")).unwrap();
    let inner = medium.create(Path::new("d/f"), 8, 8).unwrap();
    inner.sync(B).unwrap();
    medium.sync_dir(B, Path::new("d")).unwrap();
    let state = medium.crash_state();
    let lost = state.image(&state.nothing()).boot();
    assert_eq!((lost.exists(Path::new("d")).unwrap(), lost.peek("d/f")), (false, None));
    let kept = state.image(&state.everything()).boot();
    assert_eq!(kept.peek("d/f"), Some(vec![0; 8]));
}

#[test]
fn a_muted_barrier_does_nothing_and_others_still_do() {
    let (medium, file) = pmem(&[1; 8]);
    medium.mutate(B);
    file.write(0, &[2; 8]).unwrap();
    medium.fence(B, &[&file]).unwrap();
    file.sync(B).unwrap();
    assert!(medium.crash_state().has_stale());
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
    assert_eq!(medium.reached(), [B]);
    medium.fence(OTHER, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[2]]));
}

#[test]
fn a_muted_flush_is_made_good_by_a_later_one_only() {
    let (medium, file) = pmem(&[1; 8]);
    medium.mutate(B);
    file.store(0, &[2; 8]).unwrap();
    file.flush(B, 0, 8);
    medium.fence(OTHER, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[1], &[2]]));
    file.flush(OTHER, 0, 8);
    medium.fence(OTHER, &[&file]).unwrap();
    assert_eq!(word_outcomes(&medium), set([&[2]]));
}

#[test]
fn a_muted_directory_sync_leaves_the_name_in_doubt() {
    let medium = SimMedium::new(MediumClass::Block);
    medium.mutate(B);
    medium.create(Path::new("f"), 0, 0).unwrap().sync(OTHER).unwrap();
    medium.sync_dir(B, Path::new("/")).unwrap();
    assert_eq!(outcomes(&medium.crash_state()).len(), 2);
}

#[test]
fn killed_processes_lose_no_page_cache_but_their_locks() {
    let (medium, file) = pmem(&[1; 16]);
    assert!(file.try_lock(LockKind::Exclusive).unwrap());
    let second = medium.open(Path::new("f"), Access::ReadWrite, 0).unwrap();
    assert!(!second.try_lock(LockKind::Exclusive).unwrap());
    file.write(0, &[2; 8]).unwrap();
    file.store(8, &[3; 8]).unwrap();

    let after = medium.crash_state().killed();
    assert_eq!(words(after.peek("f").unwrap()), [2, 3]);
    assert!(after.open(Path::new("f"), Access::ReadWrite, 0).unwrap().try_lock(LockKind::Exclusive).unwrap());
    // The streaming store left the processor with the process; the cached line is still in the cache.
    assert_eq!(word_outcomes(&after), set([&[2, 1], &[2, 3]]));

    drop(file);
    assert!(second.try_lock(LockKind::Exclusive).unwrap());
    let third = medium.open(Path::new("f"), Access::Read, 0).unwrap();
    assert!(!third.try_lock(LockKind::Shared).unwrap());
    assert!(second.try_lock(LockKind::Shared).unwrap() && third.try_lock(LockKind::Shared).unwrap());
    assert!(!second.try_lock(LockKind::Exclusive).unwrap());
}

#[test]
fn costs_are_counted() {
    let (medium, file) = pmem(&[1; 256]);
    file.write(0, &[2; 100]).unwrap();
    file.store(128, &[2; 8]).unwrap();
    file.flush(B, 60, 10);
    medium.fence(B, &[&file]).unwrap();
    file.sync(B).unwrap();
    medium.sync_dir(B, Path::new("/")).unwrap();
    let counters = medium.counters();
    assert_eq!((counters.fences, counters.flushes, counters.lines_flushed), (1, 1, 2));
    assert_eq!((counters.syncs, counters.dir_syncs, counters.bytes_written), (1, 1, 108));
}

#[test]
fn a_hook_sees_the_state_before_each_call_and_may_refuse_it() {
    let (medium, file) = pmem(&[1; 8]);
    medium.set_hook(Box::new(|instant| {
        assert_eq!(instant.crash_state().pending(), 0, "nothing is pending before the first store");
        match instant.step {
            Step::Write => {
                Verdict::Refuse(untorn::Error::io("write to", instant.path, std::io::ErrorKind::StorageFull))
            }
            _ => Verdict::Allow,
        }
    }));
    assert!(file.write(0, &[2; 8]).is_err());
    medium.clear_hook();
    assert_eq!(words(medium.peek("f").unwrap()), [1]);
    file.write(0, &[2; 8]).unwrap();
    assert_eq!(words(medium.peek("f").unwrap()), [2]);
}

#[test]
fn a_write_may_fail_after_its_first_bytes() {
    let (medium, file) = block(&[1; 16]);
    medium.set_hook(Box::new(|instant| {
        let error = untorn::Error::io("write to", instant.path, std::io::ErrorKind::StorageFull);
        Verdict::WriteSome { bytes: 8, error }
    }));
    assert!(file.write(0, &[2; 16]).is_err());
    medium.clear_hook();
    assert_eq!(words(medium.peek("f").unwrap()), [2, 1]);
}

#[test]
fn images_of_equal_bytes_have_equal_digests() {
    let (medium, file) = block(&[1; 1024]);
    file.write(0, &[2; 512]).unwrap();
    file.write(0, &[1; 512]).unwrap();
    file.write(512, &[3; 512]).unwrap();
    let state = medium.crash_state();
    let images = state.combinations();
    let digests: BTreeSet<u64> = state.choices(100).unwrap().map(|choice| state.image(&choice).digest()).collect();
    assert_eq!((images, digests.len()), (6, 4));
}

#[test]
fn names_follow_the_rules_of_a_file_system() {
    let (medium, file) = block(&[1; 8]);
    let code = |result: untorn::Result<()>| result.unwrap_err().errno();
    assert_eq!(code(medium.create(Path::new("f"), 0, 0).map(drop)), 17);
    assert_eq!(code(medium.open(Path::new("g"), Access::Read, 0).map(drop)), 2);
    assert_eq!(code(medium.create(Path::new("d/g"), 0, 0).map(drop)), 2);
    assert_eq!(code(medium.unlink(Path::new("g"))), 2);
    medium.create_dir(Path::new("d")).unwrap();
    medium.create_dir(Path::new("/d")).unwrap();
    assert_eq!(code(medium.open(Path::new("d"), Access::Read, 0).map(drop)), 21);
    drop(medium.create(Path::new("d/g"), 0, 0).unwrap());
    medium.remove_dir_if_empty(Path::new("d")).unwrap();
    assert_eq!(medium.list(Path::new("d")).unwrap(), ["g"]);
    medium.unlink(Path::new("d/g")).unwrap();
    medium.remove_dir_if_empty(Path::new("d")).unwrap();
    assert!(!medium.exists(Path::new("d")).unwrap() && medium.exists(Path::new("/f")).unwrap());
    assert!(medium.list(Path::new("d")).unwrap().is_empty());
    assert_eq!(code(file.read(4, &mut [0; 5])), 14);
    assert_eq!(code(file.set_len(2 << 20)), 22);
    let reader = medium.open(Path::new("f"), Access::Read, 0).unwrap();
    assert_eq!(code(reader.write(0, &[1])), 30);
    medium.unlink(Path::new("f")).unwrap();
    let mut bytes = [0; 8];
    file.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8], "an open file outlives its name");
}

/// A file that was changed since the machine was started is not older than the start, whatever processes were killed.
#[test]
fn a_kill_does_not_start_the_machine_anew() {
    let medium = SimMedium::new(MediumClass::Block);
    drop(medium.create(Path::new("f"), 512, 512).unwrap());
    let state = medium.crash_state();
    let again = state.image(&state.everything()).boot();
    assert!(again.booted() > medium.booted());
    drop(again.create(Path::new("g"), 512, 512).unwrap());
    assert_eq!(again.crash_state().killed().booted(), again.booted());
}
