//! Write caches: what they cost, what they refuse, what they make of damaged logs and of a process that is killed.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::counting::{Counting, Counts};
use crate::common::shelf::{Book, Setup, Shelf, attach, contents, pmem, small};
use crate::common::system::{allocations, largest_allocation};
use crate::common::{memory_dir, scratch};
use untorn::write_cache::CacheOptions;
use untorn::write_cache::Kernel;
use untorn::{Durability, Error};
use untorn_testing::{again, sibling};

/// The kernel writes back all files of a batch at once. For a file alone that would be one more system call.
#[test]
fn the_flushes_of_a_batch_begin_before_the_first_is_waited_for() {
    let paths = ["/slow/a", "/slow/b", "/slow/c"];
    let (setup, cache, books) = Setup::create(small(64), paths);
    let files = paths.map(|path| setup.attach(&cache, path));
    files.iter().for_each(|file| file.write_at(b"bytes", 0).unwrap());
    cache.drain().unwrap();
    let stamps = |of: fn(&Book) -> &AtomicUsize| books.each_ref().map(|book| of(book).load(Ordering::SeqCst));
    let (begun, flushed) = (stamps(|book| &book.begun), stamps(|book| &book.flushed));
    assert!(begun.iter().all(|begun| *begun > 0 && flushed.iter().all(|flushed| begun < flushed)), "{begun:?}");
    files[1].write_at(b"alone", 0).unwrap();
    cache.drain().unwrap();
    assert_eq!(stamps(|book| &book.begun), begun);
    assert!(stamps(|book| &book.flushed)[1] > flushed[1]);
}

/// The log knows thousands of files, and a rename looks for two of them.
#[test]
fn a_rename_copies_no_list_of_all_files() {
    let many: Vec<String> = (0..3000).map(|number| format!("/many/{number}")).collect();
    let (setup, cache, _) = Setup::create(small(64), ["/slow/a", "/slow/b"]);
    let all: Vec<_> = (100..)
        .zip(&many)
        .map(|(inode, path)| {
            setup.shelf.put(path, inode);
            setup.attach(&cache, path)
        })
        .collect();
    let [a, b] = ["/slow/a", "/slow/b"].map(|path| setup.attach(&cache, path));
    a.write_at(b"bytes", 0).unwrap();
    b.write_at(b"over", 0).unwrap();
    let largest = largest_allocation(|| {
        assert!(a.begin_rename(Path::new("/slow/b")).unwrap());
        a.end_rename(false).unwrap();
    });
    assert!(largest < 8 * all.len(), "{largest} bytes at once for {} files", all.len());
}

#[test]
fn a_write_is_its_bytes_a_header_for_each_entry_and_one_fence() {
    let medium = Counting::new(pmem());
    let options = CacheOptions::new().size(4 << 20).max_files(4).background(false);
    let (setup, cache, _) = Setup::create_on(medium.clone(), options, ["/slow/a"]);
    assert_eq!(cache.info().unwrap().durability, Durability::PerWrite);
    let file = setup.attach(&cache, "/slow/a");
    // The first write of a file says in the table what its number means.
    file.write_at(&[1; 16384], 0).unwrap();
    for (len, entries) in [(1, 1), (100, 1), (4096, 1), (4097, 2), (16384, 4)] {
        let cost = medium.cost(|| file.write_at(&vec![2; len], 0).unwrap());
        let bytes = len as u64 + 64 * entries;
        assert_eq!(cost, Counts { fences: 1, bytes, ..Counts::default() }, "{len} bytes");
    }
    let mut dst = [0; 16384];
    let cost = medium.cost(|| assert_eq!(file.read_at(&mut dst, 0).unwrap(), 16384));
    assert_eq!(Counts { reads: 0, ..cost }, Counts::default(), "a read stores");
    // A sync has nothing to do.
    assert_eq!(medium.cost(|| file.sync().unwrap()), Counts::default());
}

#[test]
fn overwrites_and_reads_allocate_nothing() {
    let options = CacheOptions::new().size(4 << 20).max_files(4).background(false);
    let (setup, cache, _) = Setup::create(options, ["/slow/a"]);
    let file = setup.attach(&cache, "/slow/a");
    file.write_at(&[1; 16384], 0).unwrap();
    let src = [3; 4096];
    let before = allocations();
    (0..50).for_each(|_| file.write_at(&src, 4096).unwrap());
    assert_eq!(allocations() - before, 0, "a write to a page with entries allocates");
    let mut dst = [0; 16384];
    let before = allocations();
    assert_eq!(file.read_at(&mut dst, 0).unwrap(), 16384);
    assert_eq!(allocations() - before, 0, "a read allocates");
}

#[test]
fn per_commit_writes_cost_no_fence_and_a_sync_costs_one() {
    let medium = Counting::new(pmem());
    let options = CacheOptions::new().size(4 << 20).max_files(4).background(false).durability(Durability::PerCommit);
    let (setup, cache, _) = Setup::create_on(medium.clone(), options, ["/slow/a"]);
    let file = setup.attach(&cache, "/slow/a");
    file.write_at(&[1; 100], 0).unwrap();
    let cost = medium.cost(|| (0..10).for_each(|n| file.write_at(&[2; 100], n * 100).unwrap()));
    assert_eq!((cost.fences, cost.syncs), (0, 0));
    assert_eq!(medium.cost(|| file.sync().unwrap()), Counts { fences: 1, ..Counts::default() });
}

#[test]
fn a_write_that_is_larger_than_the_log_is_served() {
    let (setup, cache, _) = Setup::create(small(16), ["/slow/a"]);
    let file = setup.attach(&cache, "/slow/a");
    file.write_at(b"before", 0).unwrap();
    let large: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    file.write_at(&large, 3).unwrap();
    assert_eq!(file.append(&large).unwrap(), 100_003);
    assert_eq!(contents(&file), [b"bef", &large[..], &large[..]].concat());
    assert_eq!(setup.get("/slow/a"), contents(&file));
    file.write_at(b"after", 0).unwrap();
    assert_eq!(&contents(&file)[..5], b"after");
}

/// The operations of the log that is taken apart, and what any choice of them makes of the two files.
const GOLDEN: &str = "tests/golden/write-cache-open.log";

fn write_golden(log: &Path) {
    let shelf = Arc::new(Shelf::default());
    shelf.put("/slow/a", 1);
    shelf.put("/slow/b", 2);
    let cache = small(16).create_on(pmem(), shelf.clone(), log).unwrap();
    let (a, b) = (attach(&cache, &shelf, "/slow/a"), attach(&cache, &shelf, "/slow/b"));
    // Once round the log first, so that there is a tail and what is before it.
    for n in 0..20 {
        a.write_at(&[100 + n; 64], 0).unwrap();
    }
    cache.drain().unwrap();
    a.write_at(&[1; 150], 20).unwrap();
    b.write_at(&[2; 30], 5).unwrap();
    a.set_len(100).unwrap();
    b.append(&[3; 10]).unwrap();
    a.write_at(&[4; 8], 90).unwrap();
}

/// What the files of the golden log may hold if all its operations arrived, or only some.
fn golden_states() -> Vec<[Vec<u8>; 2]> {
    let write = |file: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let state = |chosen: u32| {
        let [mut a, mut b] = golden_before();
        for n in (0..5).filter(|n| chosen & 1 << n != 0) {
            match n {
                0 => write(&mut a, 20, &[1; 150]),
                1 => write(&mut b, 5, &[2; 30]),
                2 => a.resize(100, 0),
                3 => write(&mut b, 35, &[3; 10]),
                _ => write(&mut a, 90, &[4; 8]),
            }
        }
        [a, b]
    };
    (0..32).rev().map(state).collect()
}

fn golden_before() -> [Vec<u8>; 2] {
    [vec![119; 64], Vec::new()]
}

fn golden_shelf() -> Arc<Shelf> {
    let shelf = Arc::new(Shelf::default());
    for (n, bytes) in (1..).zip(golden_before()) {
        *shelf.put(if n == 1 { "/slow/a" } else { "/slow/b" }, n).bytes.lock().unwrap() = bytes;
    }
    shelf
}

fn golden_found(shelf: &Shelf) -> [Vec<u8>; 2] {
    [shelf.get("/slow/a").unwrap(), shelf.get("/slow/b").unwrap()]
}

/// The golden log, kept without the zeros at its end.
fn golden() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UNTORN_BLESS").is_some() {
        let dir = memory_dir();
        write_golden(&dir.path().join("log"));
        let mut bytes = std::fs::read(dir.path().join("log")).unwrap();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1);
        std::fs::write(&path, bytes).unwrap();
    }
    let mut bytes = std::fs::read(path).unwrap();
    bytes.resize(3 * 4096 + 4 * 8192 + 16 * 128, 0);
    bytes
}

#[test]
fn logs_of_the_first_version_are_replayed() {
    let dir = memory_dir();
    let log = dir.path().join("log");
    std::fs::write(&log, golden()).unwrap();
    let shelf = golden_shelf();
    let cache = small(16).open_on(pmem(), shelf.clone(), &log).unwrap();
    let replay = cache.replayed();
    assert_eq!((replay.operations, replay.incomplete, replay.files.len()), (5, 0, 2));
    assert_eq!(golden_found(&shelf), golden_states()[0]);
    drop(cache);
    // Once.
    assert_eq!(small(16).open_on(pmem(), shelf, &log).unwrap().replayed().operations, 0);
}

#[test]
fn a_byte_that_changed_is_noticed_wherever_it_is() {
    let dir = memory_dir();
    let log = dir.path().join("log");
    let (bytes, states) = (golden(), golden_states());
    let mut refused = 0;
    let mut partial = 0;
    for at in (0..bytes.len()).filter(|&at| bytes[at] != 0 || at % 64 == 0) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x5a;
        std::fs::write(&log, &bad).unwrap();
        let shelf = golden_shelf();
        match small(16).open_on(pmem(), shelf.clone(), &log) {
            Ok(cache) => {
                let found = golden_found(&shelf);
                assert!(states.contains(&found), "byte {at}: {found:?}");
                // What is not replayed is told of.
                let all = found == states[0];
                let but_the_last = found == states[0b10000];
                assert!(all || but_the_last || cache.replayed().incomplete > 0, "byte {at}: {:?}", cache.replayed());
                partial += u32::from(!all);
            }
            Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => {
                assert_eq!(golden_found(&shelf), golden_before());
                refused += 1;
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    // One byte spoils one copy of what there are two of; of an entry there is one.
    assert_eq!(refused, 0);
    assert!(partial > 100, "{partial}");
}

#[test]
fn a_log_cut_short_is_refused_at_every_length() {
    let dir = memory_dir();
    let log = dir.path().join("log");
    let bytes = golden();
    std::fs::write(&log, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&log).unwrap();
    let shelf = golden_shelf();
    for len in (0..bytes.len() as u64).rev().filter(|len| len % 5 == 0 || len % 512 < 4) {
        file.set_len(len).unwrap();
        let refused = small(16).open_on(pmem(), shelf.clone(), &log).map(drop);
        // Less than the first eight bytes don't tell that it was a log.
        let is_told = match len {
            0..8 => matches!(refused, Err(Error::Invalid { .. })),
            _ => matches!(refused, Err(Error::Corrupt { .. })),
        };
        assert!(is_told, "{len} bytes: {refused:?}");
    }
    assert_eq!(golden_found(&shelf), golden_before());
}

#[test]
fn a_log_has_one_owner_and_a_pool_has_one_for_each() {
    let dir = memory_dir();
    let options = CacheOptions::new().size(1 << 20).max_files(8);
    let first = options.open_in(dir.path()).unwrap();
    assert!(matches!(options.open(first.path()), Err(Error::InUse { .. })));
    assert!(matches!(untorn::write_cache::replay(first.path(), None), Err(Error::InUse { .. })));
    let second = options.open_in(dir.path()).unwrap();
    let third = options.open_in(dir.path()).unwrap();
    assert_eq!(untorn::write_cache::find_logs(dir.path()).unwrap().len(), 3);
    // The first number is free again, with what its owner left, and a later one is in use.
    let path = dir.path().join("data");
    std::fs::write(&path, b"old").unwrap();
    let plain = std::fs::File::open(&path).unwrap();
    second.attach(plain.as_fd(), &path).unwrap().write_at(b"new", 0).unwrap();
    second.sync().unwrap();
    let left = second.path().to_owned();
    drop(second);
    std::fs::remove_file(first.path()).unwrap();
    drop(first);
    let again = options.open_in(dir.path()).unwrap();
    assert_eq!(again.path(), left, "the one that nobody has, whatever its number");
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    drop(third);
}

#[test]
fn an_idle_cache_drains_by_itself_what_is_older_than_it_may_be() {
    let path = scratch("data");
    std::fs::write(&path, b"").unwrap();
    let plain = std::fs::File::open(&path).unwrap();
    let options = CacheOptions::new().size(1 << 20).max_files(8).max_age(Duration::from_millis(1));
    let cache = options.create(path.dir().join("log")).unwrap();
    let file = cache.attach(plain.as_fd(), &path).unwrap();
    for round in 0..3_u8 {
        file.write_at(&[round + 1; 10], 0).unwrap();
        // Less than a batch: without the age it would stay for ever, and this would never end.
        while cache.info().unwrap().used > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(std::fs::read(&path).unwrap(), [round + 1; 10]);
    }
}

/// The syncs of a device: how many have begun, and how many may end.
#[derive(Default)]
struct Syncs {
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Syncs {
    fn begin(&self) {
        let mut counts = self.counts.lock().unwrap();
        counts.0 += 1;
        let number = counts.0;
        self.changed.notify_all();
        drop(self.changed.wait_while(counts, |counts| counts.1 < number).unwrap());
    }

    fn let_end(&self, number: u64) {
        self.counts.lock().unwrap().1 = number;
        self.changed.notify_all();
    }

    fn begun(&self) -> u64 {
        self.counts.lock().unwrap().0
    }
}

/// Whether it comes; a minute is for machines with much else to do, and for what never comes.
fn comes(mut what: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !what() {
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The thread that drains goes on to the next batch at once. Whoever waits for room has it meanwhile.
#[test]
fn a_waiting_writer_gets_room_after_the_current_batch() {
    let syncs = Arc::new(Syncs::default());
    let gate = Arc::clone(&syncs);
    syncs.let_end(u64::MAX);
    let options = small(64).background(true).batch(1, 8);
    let (setup, cache, [book]) = Setup::create(options, ["/slow/a"]);
    *book.before_sync.lock().unwrap() = Some(Arc::new(move || gate.begin()));
    let file = setup.attach(&cache, "/slow/a");
    file.write_at(b"what makes it known to the log", 0).unwrap();
    cache.drain().unwrap();
    let before = syncs.begun();
    syncs.let_end(before);
    let (written, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counter, end, (tell, told)) = (Arc::clone(&written), Arc::clone(&ends), std::sync::mpsc::channel());
    let writer = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        while !end.load(Ordering::SeqCst) {
            file.write_at(b"one entry", 0).unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let thread = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    let sleeps = || {
        let status = std::fs::read_to_string(&thread).unwrap_or_default();
        status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    };
    // Whoever sleeps for a lock sometimes has it first, so once is not enough.
    let mut outcome = Ok(());
    for batch in before + 1..before + 30 {
        let full = comes(|| syncs.begun() == batch && sleeps());
        let so_far = written.load(Ordering::SeqCst);
        // This batch is through, and the next is under way.
        syncs.let_end(batch);
        let next = comes(|| syncs.begun() == batch + 1);
        if !full || !next {
            outcome = Err("the log was not full, or nobody drained it");
        } else if !comes(|| written.load(Ordering::SeqCst) > so_far) {
            outcome = Err("who waited for room waited for a second sync");
        }
        if outcome.is_err() {
            break;
        }
    }
    ends.store(true, Ordering::SeqCst);
    syncs.let_end(u64::MAX);
    writer.join().unwrap();
    assert_eq!(outcome, Ok(()));
}

const ROLE: &str = "UNTORN_TEST_CACHE_WRITER";

/// A process that writes until it is killed, and says on standard output which write has returned.
fn writer(dir: &Path) -> Child {
    again(sibling!("a_process_that_writes")).env(ROLE, dir).stdout(Stdio::piped()).spawn().unwrap()
}

const ROWS: u64 = 50;
const ROW: usize = 300;

/// Not a test of its own: what [`writer`] runs. Round *n* writes a row of *n*s to one file, appends to another, and
/// makes, writes and removes a third.
#[test]
fn a_process_that_writes() {
    let Some(dir) = std::env::var_os(ROLE) else { return };
    let dir = PathBuf::from(dir);
    let options = CacheOptions::new().size(256 << 10).entry_size(128).max_files(8).batch(8, 64);
    let cache = options.open_on(pmem(), Arc::new(Kernel), dir.join("log")).unwrap();
    let attach = |name: &str| {
        let path = dir.join(name);
        let plain = std::fs::File::options().create(true).append(true).open(&path).unwrap();
        cache.attach(plain.as_fd(), &path).unwrap()
    };
    let (table, journal) = (attach("table"), attach("journal"));
    let start = journal.len().unwrap() / 8;
    for round in start + 1.. {
        table.write_at(&[round as u8; ROW], round % ROWS * ROW as u64).unwrap();
        journal.append(&round.to_le_bytes()).unwrap();
        let path = dir.join("passing");
        let passing = attach("passing");
        passing.append(&[1; 500]).unwrap();
        passing.demote().unwrap();
        std::fs::remove_file(&path).unwrap();
        println!("\nround {round}");
    }
}

#[test]
fn a_killed_process_loses_no_write_that_returned() {
    let dir = memory_dir();
    let options = CacheOptions::new().size(256 << 10).entry_size(128).max_files(8);
    drop(options.create_on(pmem(), Arc::new(Kernel), dir.path().join("log")).unwrap());
    let mut acknowledged = 0;
    for kill in 0..8_usize {
        let mut child = writer(dir.path());
        let mut out = child.stdout.take().unwrap();
        let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
        // Killed after so much of its output, wherever it is then.
        while text.len() < 3000 + 977 * kill {
            let read = out.read(&mut buffer).unwrap();
            assert!(read > 0, "it ended by itself: {}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&buffer[..read]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        out.read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        // The last line may have been cut.
        let whole = &text[..text.rfind('\n').unwrap()];
        let last = whole.lines().rev().find_map(|line| line.strip_prefix("round ")?.parse::<u64>().ok());
        acknowledged = last.unwrap_or(acknowledged);
        let replayed = if kill % 2 == 0 {
            let looked = untorn::write_cache::inspect_log(dir.path().join("log")).unwrap();
            let replay = untorn::write_cache::replay(dir.path().join("log"), None).unwrap();
            assert_eq!(looked, replay, "what it says it will do is what it does");
            replay
        } else {
            options.open_on(pmem(), Arc::new(Kernel), dir.path().join("log")).unwrap().replayed().clone()
        };
        assert!(replayed.is_complete(), "{replayed:?}");
        let journal = std::fs::read(dir.path().join("journal")).unwrap();
        let rounds: Vec<u64> =
            journal.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(rounds, (1..=rounds.len() as u64).collect::<Vec<_>>());
        let done = rounds.len() as u64;
        assert!(done >= acknowledged, "{done} of {acknowledged} rounds are there");
        let table = std::fs::read(dir.path().join("table")).unwrap();
        for round in done.saturating_sub(ROWS - 2)..=done {
            let at = (round % ROWS) as usize * ROW;
            let row = &table[at..at + ROW];
            let newer = done + 1;
            let is = |round: u64| row.iter().all(|&byte| byte == round as u8);
            assert!(
                round == 0 || is(round) || newer % ROWS == round % ROWS && is(newer),
                "row of round {round}: {row:?}"
            );
        }
    }
    assert!(acknowledged > 0);
}
