//! Who wakes the threads that checkpoint, what they do when they cannot, and what becomes of those who wait for
//! something that fails.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::common::counting::{Counting, Halfway};
use crate::common::{
    PAGE, ReadAt, counted_pmem, create_on, killed, limit, memory_dir, pattern, pmem, read, sidecar_of, wait_until,
};
use untorn::options::{LogPolicy, Order};
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, Result};

/// Units of a chunk of the log.
const UNITS: u64 = 16;

fn options() -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo);
    options.durability(Durability::PerCommit).record_area(1, UNITS as u32).checkpoint_threads(1)
}

fn write(file: &AtomicFile, block: u64, fill: u8) -> Result<()> {
    file.write_at(&[fill; PAGE], block * PAGE as u64)
}

fn is_checkpointer() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("untorn-pool"))
}

/// After the last write of a program its reads see to it that what they find in the log goes home.
#[test]
fn a_read_of_the_log_has_it_brought_home() {
    let _limit = limit(60, "reads that wake checkpoints");
    let (_dir, file) = create_on(pmem(), &options(), 1 << 20);
    // Nothing of it is durable before the sync, and nobody is woken by that.
    (0..8 * UNITS).for_each(|block| write(&file, block, 3).unwrap());
    file.sync().unwrap();
    let mut bytes = [0; 100];
    while file.info().reflected_pages > 0 {
        file.read_at(&mut bytes, 50).unwrap();
        assert_eq!(bytes, [3; 100]);
        thread::yield_now();
    }
}

/// A data file that takes no more bytes: the threads that checkpoint try once, writers go on while the log has room
/// and then are told, and when there is space again all goes on, in the background too.
#[test]
fn a_checkpoint_that_fails_is_not_tried_again_by_every_write() {
    let _limit = limit(120, "checkpoints that fail");
    // On a disk an epoch's record takes a unit, so that it stands behind the epoch's headers.
    checkpoints_that_fail(PageCache::new(), 2);
    checkpoints_that_fail(pmem(), 1);
}

/// A commit of one block takes `units` of the log.
fn checkpoints_that_fail<M: Medium>(inner: M, units: u64) {
    let dir = memory_dir();
    let medium = Counting::new(inner);
    let path = dir.path().join("data");
    // Eight chunks.
    let options = options().log_size(8 * (UNITS + 1) * PAGE as u64);
    let file = options.create_on(medium.clone(), &path, 4096 * PAGE as u64).unwrap();
    let tried = Arc::new(AtomicU64::new(0));
    let count = tried.clone();
    medium.watch(move |what, _| {
        if what == "refused" && is_checkpointer() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    medium.refuse_writes_to(Some(&path));
    let mut block = 0;
    let refused = loop {
        let written = write(&file, block, block as u8).and_then(|()| file.sync());
        match written {
            Ok(_) => block += 1,
            Err(error) => break error,
        }
        // From four chunks on there is something to do on every medium.
        while units * block > 3 * UNITS && tried.load(Ordering::SeqCst) == 0 {
            let mut byte = [0];
            file.read_at(&mut byte, 0).unwrap();
            thread::yield_now();
        }
        assert_eq!(file.bytes_at((block / 2) * PAGE as u64, 10), [(block / 2) as u8; 10]);
    };
    assert!(matches!(refused, Error::Io { .. }), "{refused}");
    for _ in 0..30 {
        let again = write(&file, block, 0).map(drop).unwrap_err();
        assert!(matches!(again, Error::Io { .. }), "{again}");
        file.read_at(&mut [0; 10], (block - 1) * PAGE as u64).unwrap();
        thread::yield_now();
    }
    assert!(units * block >= 4 * UNITS, "the log had room for more than {block} blocks");
    assert_eq!(tried.load(Ordering::SeqCst), 1, "checkpoints tried in the background");

    medium.refuse_writes_to(None);
    let carried = Arc::new(AtomicBool::new(false));
    let (seen, data) = (carried.clone(), path.clone());
    medium.halve(move |halfway| {
        if matches!(halfway, Halfway::Write(file, _) if file == data) && is_checkpointer() {
            seen.store(true, Ordering::SeqCst);
        }
    });
    while !carried.load(Ordering::SeqCst) {
        write(&file, block % 4000, block as u8).unwrap();
        file.sync().unwrap();
        block += 1;
    }
    for found in block.saturating_sub(4000)..block {
        assert!(file.bytes_at(found % 4000 * PAGE as u64, PAGE) == [found as u8; PAGE], "block {found}");
    }
    file.close().unwrap();
}

/// On a full disk the log stays as long as it is: what is committed goes home and its room serves the next writes. An
/// epoch that does not fit is refused, and no more than that.
#[test]
fn a_log_that_gets_no_space_makes_room_by_checkpoints() {
    let _limit = limit(120, "a log that cannot grow");
    log_that_cannot_grow(PageCache::new());
    log_that_cannot_grow(pmem());
}

fn log_that_cannot_grow<M: Medium>(inner: M) {
    const BLOCKS: u64 = 4000;
    let dir = memory_dir();
    let medium = Counting::new(inner);
    let path = dir.path().join("data");
    let file = options().checkpoint_threads(0).create_on(medium.clone(), &path, BLOCKS * PAGE as u64).unwrap();
    write(&file, 0, 1).unwrap();
    file.sync().unwrap();
    let sidecar = sidecar_of(&path);
    let chunks = std::fs::metadata(&sidecar).unwrap().len() / (UNITS * PAGE as u64);
    medium.refuse_space_to(Some(&sidecar));
    for block in 1..8 * chunks * UNITS {
        write(&file, block, block as u8).and_then(|()| file.sync()).unwrap_or_else(|error| panic!("{block}: {error}"));
    }
    let refused = (0..BLOCKS).find_map(|block| write(&file, block, 9).err()).unwrap();
    assert!(matches!(refused, Error::Io { .. }) && refused.errno() == 28, "{refused}");
    // What fitted can be committed, and makes room again.
    for block in 0..2 * chunks * UNITS {
        file.sync().and_then(|_| write(&file, block, 7)).unwrap_or_else(|error| panic!("{block}: {error}"));
    }
    medium.refuse_space_to(None);
    (0..BLOCKS).for_each(|block| write(&file, block, block as u8 | 1).unwrap());
    file.sync().unwrap();
    for block in 0..BLOCKS {
        assert!(file.bytes_at(block * PAGE as u64, PAGE) == [block as u8 | 1; PAGE], "block {block}");
    }
    file.close().unwrap();
}

/// A write that is a commit by itself, and under undo stands in the file before its record does: if the record does
/// not get there, nobody sees it.
#[test]
fn a_write_whose_commit_fails_is_not_seen() {
    for (order, bytes) in
        [Order::OneFence, Order::TwoFence].into_iter().flat_map(|order| [100, PAGE, 3 * PAGE].map(|len| (order, len)))
    {
        let dir = memory_dir();
        let medium = counted_pmem();
        let path = dir.path().join("data");
        let options =
            options().log_policy(LogPolicy::Undo).durability(Durability::PerWrite).order(order).checkpoint_threads(0);
        let file = options.create_on(medium.clone(), &path, 8 * PAGE as u64).unwrap();
        (0..8).for_each(|block| write(&file, block, 1).unwrap());
        let (refusing, sidecar) = (medium.clone(), sidecar_of(&path));
        medium.watch(move |what, _| {
            // From here on it goes to the file, and then comes its record.
            if what == "hybrid-log.undo.entry" {
                refusing.refuse_writes_to(Some(&sidecar));
            }
        });
        let failed = file.write_at(&vec![2; bytes], 50);
        assert!(matches!(failed, Err(Error::Io { .. })), "{order}, {bytes} bytes: {failed:?}");
        assert!(matches!(file.sync(), Err(Error::Poisoned { .. })));
        let mut seen = [0; 8 * PAGE];
        file.read_at(&mut seen, 0).unwrap();
        assert!(seen == [1; 8 * PAGE], "{order}, {bytes} bytes: it is seen");
        drop(file);
        medium.refuse_writes_to(None);
        let file = options.open_on(medium.clone(), &path).unwrap();
        file.read_at(&mut seen, 0).unwrap();
        assert!(seen == [1; 8 * PAGE], "{order}, {bytes} bytes: recovered");
    }
}

/// Has whoever writes to the data file wait until a second thread does, among those that `counts` says yes of.
fn wait_for_two<M: Medium>(medium: &Counting<M>, data: &Path, counts: fn() -> bool) -> Arc<Mutex<HashSet<ThreadId>>> {
    let threads: Arc<Mutex<HashSet<ThreadId>>> = Arc::default();
    let (seen, data) = (threads.clone(), data.to_owned());
    medium.halve(move |halfway| {
        if matches!(halfway, Halfway::Write(file, _) if file == data) && counts() {
            seen.lock().unwrap().insert(thread::current().id());
            wait_until(|| seen.lock().unwrap().len() >= 2);
        }
    });
    threads
}

/// Two threads that checkpoint do it together: the first does not get on until the second has come.
#[test]
fn two_checkpointers_share_a_checkpoint() {
    let _limit = limit(60, "two threads that checkpoint");
    let dir = memory_dir();
    let medium = counted_pmem();
    let path = dir.path().join("data");
    let file = options().checkpoint_threads(2).create_on(medium.clone(), &path, 1 << 20).unwrap();
    let carriers = wait_for_two(&medium, &path, is_checkpointer);
    (0..8 * UNITS).for_each(|block| write(&file, block, 3).unwrap());
    file.sync().unwrap();
    while file.info().reflected_pages > 0 {
        file.read_at(&mut [0; 100], 50).unwrap();
        thread::yield_now();
    }
    assert_eq!(carriers.lock().unwrap().len(), 2);
    file.close().unwrap();
}

/// So do threads that recover, where there is much to recover and more than one processor to do it with.
#[test]
fn several_threads_recover_a_long_log() {
    let _limit = limit(60, "threads that recover");
    if thread::available_parallelism().is_ok_and(|threads| threads.get() < 2) {
        untorn_testing::skip!("recovery by several threads needs two processors");
    }
    const LEN: usize = 12 << 20;
    let medium = || pmem();
    let (path, file) = create_on(medium(), &options().checkpoint_threads(0), LEN as u64);
    let bytes = pattern(LEN, 5);
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    killed(file);
    let counting = Counting::new(medium());
    let threads = wait_for_two(&counting, &path, || true);
    let file = options().checkpoint_threads(0).open_on(counting.clone(), &path).unwrap();
    assert!(threads.lock().unwrap().len() >= 2 && file.info().recovery.replayed > 0);
    assert!(read(&file) == bytes);
}

/// Where it cannot be taken back either, nobody reads what was written to since, and a block that nobody touched is
/// read.
#[test]
fn a_failed_commit_is_not_seen_if_the_log_cannot_be_read() {
    let dir = memory_dir();
    let medium = counted_pmem();
    let path = dir.path().join("data");
    let options = options().log_policy(LogPolicy::Undo).durability(Durability::PerWrite).checkpoint_threads(0);
    let file = options.create_on(medium.clone(), &path, 8 * PAGE as u64).unwrap();
    (0..8).for_each(|block| write(&file, block, 1).unwrap());
    let mut seen = [0; 8 * PAGE];
    file.read_at(&mut seen, 0).unwrap();
    let (refusing, sidecar) = (medium.clone(), sidecar_of(&path));
    medium.watch(move |what, _| {
        if what == "hybrid-log.undo.entry" {
            refusing.refuse_writes_to(Some(&sidecar));
            refusing.refuse_reads_of(Some(&sidecar));
        }
    });
    let failed = file.write_at(&[2; 3 * PAGE], 50);
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    for (offset, len) in [(0, 8 * PAGE), (50, 10), (PAGE as u64, PAGE), (3 * PAGE as u64 + 40, 11)] {
        let read = file.read_at(&mut seen[..len], offset);
        assert!(matches!(read, Err(Error::Poisoned { .. })), "{offset}, {len}: {read:?}");
    }
    file.read_at(&mut seen[..PAGE], 6 * PAGE as u64).unwrap();
    assert!(seen[..PAGE] == [1; PAGE]);
    drop(file);
    medium.refuse_writes_to(None);
    medium.refuse_reads_of(None);
    let file = options.open_on(medium.clone(), &path).unwrap();
    file.read_at(&mut seen, 0).unwrap();
    assert!(seen == [1; 8 * PAGE]);
}

/// A thread that waits for a flush which fails gets no flush of its own, which might succeed with the pages lost.
#[test]
fn a_failed_flush_fails_every_thread_that_waits_for_it() {
    let _limit = limit(60, "a shared flush that fails");
    let medium = Counting::new(PageCache::new());
    let (_dir, file) = create_on(medium.clone(), &options(), 1 << 20);
    write(&file, 1, 1).unwrap();
    file.sync().unwrap();
    let flushes = flush_that_fails(&medium);
    thread::scope(|scope| {
        let syncs = [2, 3].map(|block| {
            let file = &file;
            scope.spawn(move || {
                // The log has room, so this waits for nobody.
                write(file, block, 2)?;
                file.sync()
            })
        });
        let mut outcomes = syncs.map(|sync| sync.join().unwrap().unwrap_err());
        outcomes.sort_by_key(|error| matches!(error, Error::Poisoned { .. }));
        assert!(matches!(outcomes, [Error::Io { .. }, Error::Poisoned { .. }]), "{outcomes:?}");
    });
    assert_eq!(flushes.load(Ordering::SeqCst), 1, "a flush that failed was made again");
}

/// A writer that waits for a commit which fails is told, and does not go on in an epoch that can never commit.
#[test]
fn a_failed_commit_fails_the_writers_that_wait_for_it() {
    let _limit = limit(60, "a commit that fails");
    for bytes in [8, 2 * PAGE] {
        let medium = counted_pmem();
        let (_dir, file) = create_on(medium.clone(), &options(), 1 << 20);
        for block in 0..4 {
            write(&file, block, 1).unwrap();
        }
        file.sync().unwrap();
        write(&file, 1, 2).unwrap();
        let flushes = flush_that_fails(&medium);
        thread::scope(|scope| {
            let commit = scope.spawn(|| file.sync());
            wait_until(|| flushes.load(Ordering::SeqCst) != 0);
            let written = file.write_at(&vec![9; bytes], 2 * PAGE as u64);
            assert!(matches!(written, Err(Error::Poisoned { .. })), "{bytes} bytes: {written:?}");
            assert!(matches!(commit.join().unwrap(), Err(Error::Io { .. })));
        });
        assert_eq!(file.bytes_at(2 * PAGE as u64, 8), [1; 8], "{bytes} bytes: written all the same");
    }
}

/// Lets the next flush of a record of an epoch fail, when somebody waits for it, and those after it succeed. Counts
/// them.
fn flush_that_fails<M: Medium>(medium: &Counting<M>) -> Arc<AtomicU64> {
    let flushes = Arc::new(AtomicU64::new(0));
    let waiting = Arc::new(AtomicBool::new(false));
    let (count, waits, soundness) = (flushes.clone(), waiting.clone(), medium.clone());
    medium.watch(move |what, _| {
        if what != "hybrid-log.epoch.record" {
            return;
        }
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return soundness.fail_fences_after(u64::MAX);
        }
        wait_until(|| waits.load(Ordering::SeqCst));
        soundness.fail_fences_after(0);
    });
    let begun = flushes.clone();
    medium.halve(move |halfway| {
        if halfway == Halfway::Wait && begun.load(Ordering::SeqCst) > 0 {
            waiting.store(true, Ordering::SeqCst);
        }
    });
    flushes
}

/// A checkpoint in the background that fails between the last sync and the end of its thread: whoever closes is told,
/// for what the file holds only recovery can tell.
#[test]
fn a_close_reports_a_failed_background_checkpoint() {
    let _limit = limit(60, "a checkpoint that fails while the file is closed");
    let dir = memory_dir();
    let medium = counted_pmem();
    let path = dir.path().join("data");
    let file = options().create_on(medium.clone(), &path, 1 << 20).unwrap();
    let (begun, closing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (has_begun, is_closing, refusing, sidecar) =
        (begun.clone(), closing.clone(), medium.clone(), sidecar_of(&path));
    medium.watch(move |what, _| match what {
        "hybrid-log.checkpoint.home" if is_checkpointer() => {
            has_begun.store(true, Ordering::SeqCst);
            wait_until(|| is_closing.load(Ordering::SeqCst));
        }
        // The sync within close: its record is stored, and now it is made durable.
        "hybrid-log.epoch.record" if has_begun.load(Ordering::SeqCst) => {
            refusing.refuse_writes_to(Some(&sidecar));
            is_closing.store(true, Ordering::SeqCst);
        }
        _ => {}
    });
    // Half of the last chunk stays free: a write that found no room would wait for the checkpoint that waits here.
    (0..8 * UNITS - UNITS / 2).for_each(|block| write(&file, block, 3).unwrap());
    file.sync().unwrap();
    while !begun.load(Ordering::SeqCst) {
        file.read_at(&mut [0; 100], 50).unwrap();
        thread::yield_now();
    }
    write(&file, 100, 4).unwrap();
    let closed = file.close();
    assert!(matches!(closed, Err(Error::Poisoned { .. })), "{closed:?}");
    medium.refuse_writes_to(None);
    let file = options().open_on(medium.clone(), &path).unwrap();
    assert!(read(&file)[100 * PAGE..101 * PAGE] == [4; PAGE], "close failed after its sync had not");
}

/// Somebody deploys a block while a write to it fails that cannot be taken back: nobody reads what it left there.
#[test]
fn a_write_that_failed_is_not_shown_by_a_deploy() {
    let _limit = limit(60, "a deploy beside a write that fails");
    let dir = memory_dir();
    let medium = counted_pmem();
    let path = dir.path().join("data");
    let options = options().log_policy(LogPolicy::Hybrid).durability(Durability::PerWrite).checkpoint_threads(0);
    let file = options.create_on(medium.clone(), &path, 8 * PAGE as u64).unwrap();
    // Writes alone, and redo is logged; reads, and it is undo, and what was written is at home.
    (0..8).for_each(|block| write(&file, block, 1).unwrap());
    (0..100).for_each(|_| file.read_at(&mut [0; 10], 0).unwrap());
    write(&file, 7, 1).unwrap();
    let waits = Arc::new(AtomicBool::new(false));
    let deployer: Arc<Mutex<Option<ThreadId>>> = Arc::default();
    let (deployers, has_waited) = (deployer.clone(), waits.clone());
    medium.halve(move |halfway| {
        if halfway == Halfway::Wait && *deployers.lock().unwrap() == Some(thread::current().id()) {
            has_waited.store(true, Ordering::SeqCst);
        }
    });
    let stored = Arc::new(AtomicBool::new(false));
    let (is_stored, refusing, sidecar) = (stored.clone(), medium.clone(), sidecar_of(&path));
    medium.watch(move |what, _| {
        if what == "hybrid-log.undo.entry" {
            refusing.refuse_writes_to(Some(&sidecar));
            refusing.refuse_reads_of(Some(&sidecar));
            is_stored.store(true, Ordering::SeqCst);
            wait_until(|| waits.load(Ordering::SeqCst));
        }
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let failed = write(&file, 3, 2);
            assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        });
        scope.spawn(|| {
            *deployer.lock().unwrap() = Some(thread::current().id());
            wait_until(|| stored.load(Ordering::SeqCst));
            let deployed = file.deploy(3 * PAGE as u64, PAGE as u64);
            assert!(matches!(deployed, Err(Error::Poisoned { .. })), "{deployed:?}");
        });
    });
    let mut seen = [0; 10];
    let read = file.read_at(&mut seen, 3 * PAGE as u64);
    assert!(matches!(read, Err(Error::Poisoned { .. })), "{read:?}: {seen:?}");
}
