//! What the hybrid log refuses, and that it says why: undo where it cannot work, epochs that do not fit, handles
//! after a failed flush, in a forked child, and over pages that are gone.

use crate::common::system::{first_untold, in_forked_child};
use crate::common::{
    PAGE, ReadAt, alone, counted_pmem, create_on, hybrid_log, killed, limit, pattern, pmem, read, scratch,
    scratch_holding, sidecar_of, truncate,
};
use untorn::options::LogPolicy;
use untorn::testing::ENGINES;
use untorn::testing::storage::PageCache;
use untorn::{AtomicFile, Error, Options, Result};

const MIB: usize = 1 << 20;

#[test]
fn undo_is_refused_on_a_block_medium_and_nothing_is_made() {
    let path = scratch_holding([1; 100]);
    let error = hybrid_log(LogPolicy::Undo).open_on(PageCache::new(), &path).unwrap_err();
    let Error::Invalid { what, .. } = &error else { panic!("{error}") };
    assert!(what.contains("persistent memory") && what.contains("redo"), "{what}");
    assert_eq!(crate::common::names(path.dir()), ["data"]);
}

#[test]
fn another_engine_is_refused_until_the_file_is_settled() {
    let path = scratch("data");
    let pairs = ENGINES.into_iter().flat_map(|first| ENGINES.map(|second| (first, second)));
    for (first, second) in pairs.filter(|(first, second)| first != second) {
        std::fs::write(&path, pattern(5000, 1)).unwrap();
        let file = Options::new().engine(first).open_on(pmem(), &path).unwrap();
        file.write_at(&[7; 100], 50).unwrap();
        file.sync().unwrap();
        let mut expected = pattern(5000, 1);
        expected[50..150].fill(7);
        // As a process leaves it that was killed: only its own engine can recover it.
        killed(file);
        let error = Options::new().engine(second).open_on(pmem(), &path).unwrap_err();
        assert!(error.to_string().contains(first.as_str()), "{error}");
        let file = Options::new().engine(first).open_on(pmem(), &path).unwrap();
        assert!(read(&file) == expected);
        file.settle().unwrap();
        let file = Options::new().engine(second).open_on(pmem(), &path).unwrap();
        assert!(read(&file) == expected);
        file.settle().unwrap();
    }
}

/// An epoch that the log has no room for: the write that does not fit writes nothing, and the file serves on.
#[test]
fn a_write_that_does_not_fit_writes_nothing() {
    let _limit = limit(120, "a full log");
    for (pmem_too, policy) in [(true, LogPolicy::Redo), (true, LogPolicy::Undo), (false, LogPolicy::Redo)] {
        let path = scratch("data");
        let options = hybrid_log(policy).record_area(1, 16).log_size(256 << 10);
        let open = || if pmem_too { options.open_on(pmem(), &path) } else { options.open_on(PageCache::new(), &path) };
        std::fs::write(&path, vec![0; MIB]).unwrap();
        let file = open().unwrap();
        let mut expected = vec![0; MIB];
        // At once, and little by little.
        let error = file.write_at(&vec![1; MIB], 0).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(read(&file) == expected, "{policy}: a refused write left something");
        let mut fitted = 0;
        let error = loop {
            match file.write_at(&[2; PAGE], (fitted * PAGE) as u64) {
                Ok(()) => expected[fitted * PAGE..][..PAGE].fill(2),
                Err(error) => break error,
            }
            fitted += 1;
        };
        let Error::Invalid { what, .. } = &error else { panic!("{error}") };
        assert!(what.contains("commit more often"), "{what}");
        assert!((48..=64).contains(&fitted), "{fitted} blocks");
        assert!(read(&file) == expected, "{policy}: a refused write left something");
        // Once committed there is room again.
        for n in 3..10 {
            file.sync().unwrap();
            (0..40).for_each(|block| file.write_at(&[n; 100], block * PAGE as u64).unwrap());
            (0..40).for_each(|block| expected[block * PAGE..][..100].fill(n));
        }
        file.sync().unwrap();
        drop(file);
        assert!(read(&open().unwrap()) == expected, "{policy}");
    }
}

#[test]
fn a_failed_flush_ends_all_promises() {
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let path = scratch_holding(pattern(5000, 1));
        let medium = counted_pmem();
        let file = hybrid_log(policy).open_on(medium.clone(), &path).unwrap();
        file.write_at(&[7; 100], 50).unwrap();
        medium.fail_fences_after(0);
        let error = file.sync().unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        medium.fail_fences_after(u64::MAX);
        let poisoned = |outcome: Result<()>| matches!(outcome, Err(Error::Poisoned { .. }));
        assert!(poisoned(file.sync().map(drop)) && poisoned(file.write_at(&[1], 0)) && poisoned(file.resize(1)));
        assert!(poisoned(file.deploy(0, 1)) && poisoned(file.reclaim().map(drop)));
        file.bytes_at(0, 10);
        drop(file);
        // Whether the epoch is in, recovery decides; it is whole in any case.
        let found = read(&hybrid_log(policy).open_on(pmem(), &path).unwrap());
        let mut after = pattern(5000, 1);
        after[50..150].fill(7);
        assert!(found == pattern(5000, 1) || found == after, "{policy}");
    }
}

/// A handle means nothing in a forked child; the parent's threads go on, and nobody hangs.
#[test]
fn a_forked_child_is_told_and_the_parents_threads_live() {
    alone!(60, "a forked child");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let options = hybrid_log(policy).record_area(1, 16).log_size(MIB as u64).checkpoint_threads(2);
        let (path, file) = create_on(pmem(), &options, 2 * MIB as u64);
        let fill = |file: &AtomicFile, fill: u8| {
            for block in 0..300 {
                file.write_at(&[fill; PAGE], block * PAGE as u64).unwrap();
                file.sync().unwrap();
            }
        };
        fill(&file, 1);
        let child = in_forked_child(|| {
            let outcomes = [
                file.read_at(&mut [0; 8], 0),
                file.read_at(&mut [0; 3 * PAGE], 0),
                file.write_at(&[9; 64], 0),
                file.sync().map(drop),
                file.resize(10),
                file.deploy(0, 64),
                file.reclaim().map(drop),
                file.clone().settle(),
                file.clone().close(),
            ];
            drop(file.info());
            first_untold(&outcomes, Some(&path))
        });
        assert_eq!(child.wait(), Some(0), "{policy}: the number of the call that did not say so");
        fill(&file, 2);
        file.close().unwrap();
        let file = options.open_on(pmem(), &path).unwrap();
        assert!(!file.info().recovery.was_needed, "{policy}");
        assert!(read(&file)[..300 * PAGE].iter().all(|&byte| byte == 2), "{policy}");
        // A child that drops the last handle it knows of, as its end does.
        let mut handle = Some(file);
        assert_eq!(in_forked_child(|| i32::from(handle.take().is_none())).wait(), Some(0));
        handle.take().unwrap().close().unwrap();
    }
}

/// Pages of the data file or of the log that somebody cut off: an error, a handle that promises nothing more, and a
/// file that is refused or whole.
#[test]
fn a_lost_page_is_an_error_and_poisons() {
    for in_log in [false, true] {
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            let path = scratch_holding(pattern(16 * PAGE, 1));
            let options = hybrid_log(policy).record_area(1, 16).checkpoint_threads(0);
            let file = options.open_on(pmem(), &path).unwrap();
            (0..16).for_each(|block| file.write_at(&[5; 64], block * PAGE as u64).unwrap());
            file.sync().unwrap();
            let what = format!("{policy}, log: {in_log}");
            let refused = if in_log {
                let log = sidecar_of(&path);
                truncate(&log, 3 * PAGE);
                let write = (0..16).find_map(|block| file.write_at(&[6; 64], block * PAGE as u64).err());
                write.or_else(|| file.sync().err())
            } else {
                truncate(&path, 8 * PAGE);
                let read = file.read_at(&mut [0; PAGE], 12 * PAGE as u64 + 100).err();
                read.or_else(|| file.deploy(0, 16 * PAGE as u64).err())
            };
            let error = refused.unwrap_or_else(|| panic!("{what}: nobody noticed"));
            assert!(error.to_string().contains("a mapped page of the file was lost"), "{what}: {error}");
            for refused in [file.write_at(&[1], 0), file.sync().map(drop), file.resize(1)] {
                assert!(matches!(refused, Err(Error::Poisoned { .. })), "{what}: {refused:?}");
            }
            drop(file);
            let error = options.open_on(pmem(), &path).unwrap_err();
            let told = matches!(error, Error::ModifiedExternally { .. } | Error::Corrupt { .. });
            assert!(told, "{what}: {error}");
        }
    }
}
