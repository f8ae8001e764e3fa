//! What operations cost, counted and not timed: fences, flushes, bytes, allocations, system calls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::counting::{Counting, Counts};
use crate::common::system::allocations;
use crate::common::{PAGE, Rng, alone, counted_pmem, create_on, memory_dir, pattern, pmem, run_alone, seed};
use untorn::options::{Layout, Order, ReadPolicy};
use untorn::testing::storage::{Latched, Medium, MediumKind, PageCache};
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};
use untorn_testing::test_name;

const SLICE: u64 = 64;
const LINE: u64 = 64;
const LAYOUTS: [Layout; 2] = [Layout::Dense, Layout::Sparse];

fn options(layout: Layout, durability: Durability) -> Options {
    Options::new().engine(EngineKind::Reflection).layout(layout).durability(durability).max_len(1 << 30)
}

/// Writes every page to the sidecar, home, and to the sidecar again, so that both copies have their space, and begins
/// with empty lanes.
fn warm<M: Medium>(file: &AtomicFile, medium: &Counting<M>) {
    for round in 0..3 {
        for page in 0..file.len() / PAGE as u64 {
            file.write_at(&[round; PAGE], page * PAGE as u64).unwrap();
        }
        file.sync().unwrap();
    }
    // It begins with a cut.
    let reclaimed = medium.cost(|| file.reclaim().unwrap());
    assert!(reclaimed.fences >= 2, "no cut was made: {reclaimed:?}");
}

/// A write of these bytes and nothing else: no flush, no wait, no change of names or lengths.
fn expect_write(cost: Counts, fences: u64, bytes: u64, what: &str) {
    let reads = cost.reads;
    assert_eq!(cost, Counts { fences, bytes, reads, ..Counts::default() }, "{what}");
}

fn slices(offset: u64, len: u64) -> u64 {
    (offset + len).div_ceil(SLICE) - offset / SLICE
}

#[test]
fn a_write_inside_a_page_is_its_slices_one_record_and_one_fence() {
    alone!(60, "writes inside a page");
    for (layout, order, fences) in
        LAYOUTS.into_iter().flat_map(|layout| [(layout, Order::OneFence, 1), (layout, Order::TwoFence, 2)])
    {
        let medium = counted_pmem();
        let options = options(layout, Durability::PerWrite).order(order);
        let (_dir, file) = create_on(medium.clone(), &options, 8 * PAGE as u64);
        warm(&file, &medium);
        for (n, (from, len)) in
            [(0, 64), (64, 256), (1024, 1024), (0, 4096), (5, 1), (60, 8), (100, 300), (4000, 96), (1, 4095)]
                .into_iter()
                .enumerate()
        {
            // The first goes to one copy, the second to the other.
            for round in 0..2 {
                let offset = n as u64 % 8 * PAGE as u64 + from;
                let bytes = pattern(len, round);
                let cost = medium.cost(|| file.write_at(&bytes, offset).unwrap());
                let what = format!("{layout} {order}: {len} bytes at {from}, round {round}");
                expect_write(cost, fences, SLICE * slices(from, len as u64) + LINE, &what);
                let aligned = from.is_multiple_of(SLICE) && (len as u64).is_multiple_of(SLICE);
                assert!(!aligned || cost.reads == 0, "{what}: an aligned write reads nothing: {cost:?}");
            }
        }
    }
}

#[test]
fn a_write_over_k_pages_is_one_fence_and_one_record() {
    alone!(60, "writes over pages");
    for (layout, order, fences) in
        LAYOUTS.into_iter().flat_map(|layout| [(layout, Order::OneFence, 1), (layout, Order::TwoFence, 2)])
    {
        let medium = counted_pmem();
        let options = options(layout, Durability::PerWrite).order(order);
        let (_dir, file) = create_on(medium.clone(), &options, 40 * PAGE as u64);
        warm(&file, &medium);
        for k in 2..=8_u64 {
            let record = LINE * (1 + (k - 1).div_ceil(2));
            let what = format!("{layout} {order}: {k} pages");
            // One range that begins and ends inside a page.
            let (from, len) = (PAGE as u64 - 100, (k - 2) * PAGE as u64 + 200);
            let bytes = pattern(len as usize, k);
            let cost = medium.cost(|| file.write_at(&bytes, from).unwrap());
            expect_write(cost, fences, SLICE * slices(from, len) + record, &what);
            // The same number of pages far from each other.
            let mut tx = file.transaction();
            for page in 0..k {
                tx.write_at(&bytes[..128], page * 5 * PAGE as u64).unwrap();
            }
            let cost = medium.cost(|| tx.commit().unwrap());
            expect_write(cost, fences, 2 * SLICE * k + record, &format!("{what} far apart"));
        }
    }
}

/// Besides the record, a write costs its share of the next cut: at most 8 bytes of bitmap; the cut itself at most two
/// lines and two fences.
#[test]
fn upkeep_is_at_most_eight_bytes_a_write() {
    alone!(60, "upkeep");
    const WRITES: u64 = 5000;
    const PAGES: u64 = 64;
    let mut rng = Rng::new(seed("upkeep"));
    for (layout, slots) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 16), (layout, 512)]) {
        let medium = counted_pmem();
        let options = options(layout, Durability::PerWrite).record_area(4, slots);
        let (_dir, file) = create_on(medium.clone(), &options, PAGES * PAGE as u64);
        warm(&file, &medium);
        let cost = medium.cost(|| {
            for n in 0..WRITES {
                file.write_at(&[n as u8; SLICE as usize], rng.below(PAGES * PAGE as u64 / SLICE) * SLICE).unwrap();
            }
        });
        // One thread fills one lane, from empty; the write after the last free slot makes the cut.
        let cuts = (WRITES - 1) / u64::from(slots);
        let what = format!("{layout}, {slots} slots: {cost:?}");
        assert_eq!(cost.fences, WRITES + 2 * cuts, "{what}");
        let upkeep = cost.bytes - WRITES * (SLICE + LINE);
        assert!(upkeep <= 8 * WRITES + 2 * LINE * cuts, "{what}: {upkeep} bytes of upkeep");
        assert!(upkeep >= LINE * cuts, "{what}: {upkeep} bytes of upkeep are too few to hold {cuts} cuts");
        assert_eq!((cost.flushes, cost.syncs, cost.orders, cost.others), (0, 0, 0, 0), "{what}");
    }
}

/// Offsets of `n` writes over at most 1000 pages.
fn scattered(n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(|n| n * 37 % 1000 * PAGE as u64 + n % 64 * SLICE)
}

#[test]
fn an_epoch_commits_on_persistent_memory_with_two_fences() {
    alone!(120, "epochs on persistent memory");
    for layout in LAYOUTS {
        let medium = counted_pmem();
        // One lane holds the records of all four commits, so no cut is due, whichever lane the thread has.
        let options = options(layout, Durability::PerCommit).record_area(16, 2048);
        let (_dir, file) = create_on(medium.clone(), &options, 1000 * PAGE as u64);
        warm(&file, &medium);
        for writes in [1, 10, 1000, 5000] {
            let before = file.info().commit;
            let written =
                medium.cost(|| scattered(writes).for_each(|at| file.write_at(&[writes as u8; 64], at).unwrap()));
            assert_eq!((written.fences, written.syncs), (0, 0), "{layout}: a write commits nothing: {written:?}");
            let cost = medium.cost(|| file.sync().unwrap());
            let what = format!("{layout}, {writes} writes: {cost:?}");
            assert!((1..=2).contains(&cost.fences), "{what}");
            assert_eq!((cost.syncs, cost.orders, cost.others), (0, 0, 0), "{what}");
            assert_eq!(cost.flushes, 0, "{what}: nothing was stored through the cache");
            assert!(file.info().commit > before, "{what}");
            assert_eq!(medium.cost(|| file.sync().unwrap()), Counts::default(), "{layout}: nothing to commit");
        }
    }
}

/// An epoch over more pages than a lane has room for takes a file of its own and a cut; what that costs does not grow
/// with the epoch.
#[test]
fn a_very_large_epoch_costs_a_fixed_number_of_fences() {
    alone!(120, "large epochs");
    let medium = counted_pmem();
    let options = options(Layout::Dense, Durability::PerCommit).record_area(2, 16);
    let (_dir, file) = create_on(medium.clone(), &options, 2000 * PAGE as u64);
    warm(&file, &medium);
    let mut costs = [40, 400, 2000].map(|pages| {
        (0..pages).for_each(|page| file.write_at(&[7; 64], page * PAGE as u64).unwrap());
        let cost = medium.cost(|| file.sync().unwrap());
        (cost.fences, cost.syncs)
    });
    costs.sort_unstable();
    assert_eq!(costs[0], costs[2], "{costs:?}");
    assert!(costs[2].0 <= 5 && costs[2].1 <= 2, "{costs:?}");
}

#[test]
fn an_epoch_commits_on_a_block_medium_with_one_flush_round() {
    alone!(120, "epochs on a block medium");
    for layout in LAYOUTS {
        let medium = Counting::new(PageCache::new());
        // One lane holds the records of all four commits, so no cut is due, whichever lane the thread has.
        let options = options(layout, Durability::PerCommit).record_area(16, 2048);
        let (_dir, file) = create_on(medium.clone(), &options, 1000 * PAGE as u64);
        warm(&file, &medium);
        for writes in [1, 10, 1000, 5000] {
            let written =
                medium.cost(|| scattered(writes).for_each(|at| file.write_at(&[writes as u8; 64], at).unwrap()));
            assert_eq!((written.fences, written.syncs), (0, 0), "{layout}: a write commits nothing: {written:?}");
            let cost = medium.cost(|| file.sync().unwrap());
            let what = format!("{layout}, {writes} writes: {cost:?}");
            let lines = 1 + (writes.min(1000) - 1).div_ceil(2);
            let expected = Counts { fences: 1, bytes: LINE * lines, reads: cost.reads, ..Counts::default() };
            assert_eq!(cost, expected, "{what}");
        }
    }
}

/// Eight threads, each waiting for its own commits, on a medium where a flush takes a millisecond.
fn flushes_of_eight(durability: Durability) -> (u64, u64) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 25;
    let medium = Counting::slow(PageCache::new(), Duration::from_millis(1));
    let options = options(Layout::Dense, durability);
    let (_dir, file) = create_on(medium.clone(), &options, THREADS * PAGE as u64);
    let start = std::sync::Barrier::new(THREADS as usize);
    let cost = medium.cost(|| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, start) = (&file, &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        file.write_at(&[round as u8; 64], thread * PAGE as u64).unwrap();
                        file.sync().unwrap();
                    }
                });
            }
        });
    });
    (cost.fences, THREADS * ROUNDS)
}

#[test]
fn threads_that_commit_at_once_share_flushes() {
    alone!(60, "commits of eight threads");
    for durability in [Durability::PerCommit, Durability::PerWrite] {
        // Which threads meet at a flush is up to the scheduler. It may keep all apart for a while, but not for ever.
        let shared = (0..50).any(|_| {
            let (fences, commits) = flushes_of_eight(durability);
            // Each thread waits for its own commits one after the other.
            assert!(
                fences >= commits / 8,
                "{durability}: {fences} flushes cannot cover {commits} commits of eight threads"
            );
            assert!(fences <= commits, "{durability}: {fences} flushes for {commits} commits");
            fences < commits
        });
        assert!(shared, "{durability}: no two commits ever shared a flush");
    }
}

const READS: [(u64, usize); 8] =
    [(0, 64), (64, 256), (100, 300), (0, 4096), (4090, 12), (1, 4095), (50, 3 * PAGE), (0, 16 * PAGE)];

/// Reads every range and compares.
fn read_all(file: &AtomicFile, buffer: &mut [u8], model: &[u8]) {
    for (offset, len) in READS {
        file.read_at(&mut buffer[..len], offset).unwrap();
        assert!(buffer[..len] == model[offset as usize..offset as usize + len], "{len} bytes at {offset}");
    }
}

/// A file of 16 pages that was written and deployed.
fn settled<M: Medium>(medium: M, path: &Path, layout: Layout, policy: ReadPolicy) -> (AtomicFile, Vec<u8>) {
    let model = pattern(16 * PAGE, 3);
    let options = options(layout, Durability::PerWrite).read_policy(policy);
    let file = options.create_on(medium, path, model.len() as u64).unwrap();
    file.write_at(&model, 0).unwrap();
    file.deploy(0, file.len()).unwrap();
    assert_eq!(file.info().reflected_slices, 0);
    (file, model)
}

fn reads_of_settled_pages_on<M: Medium>(medium: Counting<M>, layout: Layout, policy: ReadPolicy) {
    let dir = memory_dir();
    let (file, model) = settled(medium.clone(), &dir.path().join("data"), layout, policy);
    let mut buffer = vec![0; model.len()];
    let allocated = allocations();
    let cost = medium.cost(|| read_all(&file, &mut buffer, &model));
    assert_eq!(allocations() - allocated, 0, "{layout} {policy}: a read allocates");
    // One read for each page of each range, at most.
    let pages: u64 = READS.iter().map(|(at, len)| (at + *len as u64).div_ceil(4096) - at / 4096).sum();
    assert_eq!(cost, Counts { reads: cost.reads, ..Counts::default() }, "{layout} {policy}");
    assert!(cost.reads <= pages, "{layout} {policy}: {cost:?}");
    // The same counters notice what is not free.
    assert_ne!(medium.cost(|| file.write_at(&[9; 64], 0).unwrap()).fences, 0);
    let allocated = allocations();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_ne!(allocations(), allocated);
}

#[test]
fn a_read_of_settled_pages_costs_no_fence_and_no_allocation() {
    for layout in LAYOUTS {
        for policy in [ReadPolicy::Gather, ReadPolicy::Deploy] {
            reads_of_settled_pages_on(counted_pmem(), layout, policy);
            reads_of_settled_pages_on(Counting::new(PageCache::new()), layout, policy);
        }
    }
}

/// Gathering costs more reads, and nothing else; deploying is paid for once.
#[test]
fn reads_of_reflected_pages_fence_at_most_once_to_deploy() {
    for (layout, policy) in
        LAYOUTS.into_iter().flat_map(|layout| [(layout, ReadPolicy::Gather), (layout, ReadPolicy::Deploy)])
    {
        let dir = memory_dir();
        let medium = counted_pmem();
        let (file, mut model) = settled(medium.clone(), &dir.path().join("data"), layout, policy);
        for page in 0..16 {
            file.write_at(&[7; 100], page * PAGE as u64 + 30).unwrap();
            model[page as usize * PAGE + 30..][..100].fill(7);
        }
        let mut buffer = vec![0; model.len()];
        let first = medium.cost(|| read_all(&file, &mut buffer, &model));
        let deploys = policy == ReadPolicy::Deploy;
        assert_eq!(first.fences, if deploys { 16 } else { 0 }, "{layout} {policy}: {first:?}");
        assert_eq!(file.info().reflected_slices == 0, deploys, "{layout} {policy}");
        let second = medium.cost(|| read_all(&file, &mut buffer, &model));
        assert_eq!(second, Counts { reads: second.reads, ..Counts::default() }, "{layout} {policy}");
    }
}

const RUNNING: u32 = 0;
const NO_FILTER: u32 = 1;
const DONE: u32 = 2;

/// Runs `body` in a thread that the kernel kills at any system call but `read`, `write` and those that end it. Whether
/// it came to its end; `None` where the kernel has no such mode. The thread stays behind, for ending takes system calls
/// too.
fn without_system_calls(mut body: impl FnMut() + Send + 'static) -> Option<bool> {
    use rustix::thread::{SecureComputingMode, gettid, set_secure_computing_mode};
    let state = Arc::new(AtomicU32::new(RUNNING));
    let theirs = state.clone();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tell.send(gettid().as_raw_nonzero()).unwrap();
        drop(tell);
        if set_secure_computing_mode(SecureComputingMode::Strict).is_err() {
            return theirs.store(NO_FILTER, Ordering::Release);
        }
        body();
        theirs.store(DONE, Ordering::Release);
        // What `body` holds is never dropped.
        loop {
            std::hint::spin_loop();
        }
    });
    // A thread that was killed is no task of this process any more, and says nothing.
    let task = format!("/proc/self/task/{}", told.recv().unwrap());
    while state.load(Ordering::Acquire) == RUNNING && Path::new(&task).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    match state.load(Ordering::Acquire) {
        NO_FILTER => None,
        state => Some(state == DONE),
    }
}

#[test]
fn a_read_of_settled_pages_makes_no_system_call() {
    run_alone(test_name!(), 60, "reads without system calls", || {
        let Some(survived) = without_system_calls(std::thread::yield_now) else {
            untorn_testing::skip!("this kernel has no strict secure computing mode");
        };
        assert!(!survived, "a system call went by unnoticed");
        let memory = memory_dir();
        let disk = tempfile::tempdir().unwrap();
        for (n, layout) in LAYOUTS.into_iter().enumerate() {
            let name = n.to_string();
            let dax = Latched::new(pmem());
            let mut files = vec![settled(dax, &memory.path().join(&name), layout, ReadPolicy::Gather)];
            // The page cache of a tmpfs is read by system call, for a load from a hole could find no space there.
            if untorn::doctor(disk.path()).unwrap().medium == MediumKind::Block {
                let cache = Latched::new(PageCache::new());
                files.push(settled(cache, &disk.path().join(&name), layout, ReadPolicy::Deploy));
            } else {
                untorn_testing::skipped!("temporary files are not on a disk here");
            }
            for (file, model) in files {
                let mut buffer = vec![0; model.len()];
                let survived = without_system_calls(move || read_all(&file, &mut buffer, &model));
                assert_eq!(survived, Some(true), "{layout}: a read made a system call, or was wrong");
            }
        }
    });
}

/// Whatever a program does with typed views of a map, none of it asks for memory.
#[test]
fn a_typed_view_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = AtomicMap::create(dir.path().join("file"), 8 * PAGE as u64).unwrap();
    let before = allocations();
    for round in 0..100_u64 {
        *map.view_mut::<u64>(round * 8).unwrap() = round;
        map.slice_of_mut::<u32>(PAGE as u64, 4).unwrap()[3] = 7;
        assert_eq!(*map.view::<u64>(round * 8).unwrap(), round);
        assert_eq!(map.slice_of::<u32>(PAGE as u64, 4).unwrap()[3], 7);
    }
    assert_eq!(allocations() - before, 0);
    // An error names the file, and may well ask for memory.
    assert!(matches!(map.view_mut::<u64>(3), Err(Error::Invalid { .. })));
    assert!(matches!(map.slice_of_mut::<u64>(3, 2), Err(Error::Invalid { .. })));
    assert!(matches!(map.view_mut::<u64>(8 * PAGE as u64 - 4), Err(Error::OutOfRange { .. })));
}
