//! Reads under the hybrid log that get no peace: writers overtake them, or they are longer than what a read can keep
//! in mind of its range. They get there all the same, need nothing that a commit holds, and see each write whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use crate::common::counting::{Counting, Halfway};
use crate::common::system::allocations;
use crate::common::{PAGE, ReadAt, Rng, Scratch, counted_pmem, create_on, limit, pmem, seed};
use untorn::options::LogPolicy;
use untorn::testing::storage::{Dax, Medium};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_testing::cases;

const MIB: usize = 1 << 20;
/// More blocks than a read keeps in mind, by one part of the file that nothing is ever written near.
const LONG: usize = 8 * MIB;
/// Where there is nothing in memory of the blocks.
const HOLE: usize = 4 * MIB;
/// Tries of a read before it locks.
const TRIES: u64 = 64;

fn options(policy: LogPolicy) -> Options {
    Options::new().engine(EngineKind::HybridLog).log_policy(policy).checkpoint_threads(0).max_len(1 << 28)
}

/// A file of which some blocks are in the log, one by one, some at home, and some that memory knows nothing of, with
/// its contents.
fn patchwork<M: Medium>(medium: M, options: &Options) -> (Scratch, AtomicFile, Vec<u8>) {
    let (dir, file) = create_on(medium, options, LONG as u64);
    let mut expected = vec![0; LONG];
    for block in (0..600).step_by(2) {
        let at = block * PAGE + 8 * (block % 500);
        let fill = [(block % 250) as u8 + 1; 100];
        file.write_at(&fill, at as u64).unwrap();
        expected[at..at + 100].copy_from_slice(&fill);
    }
    let far = LONG - 3 * PAGE;
    file.write_at(&[7; 9000], far as u64).unwrap();
    expected[far..far + 9000].fill(7);
    (dir, file, expected)
}

/// A commit that waits in its fence, holding every lane, until it is told to go on.
struct Parked {
    armed: Arc<AtomicBool>,
    at_fence: Receiver<()>,
    go_on: Sender<()>,
}

fn park_a_commit(medium: &Counting<Dax>) -> Parked {
    let armed = Arc::new(AtomicBool::new(false));
    let ((reached, at_fence), (go_on, told)) = (channel(), channel());
    let (reached, told, arm) = (Mutex::new(reached), Mutex::new(told), armed.clone());
    medium.watch(move |barrier, _| {
        if barrier == "hybrid-log.epoch.record" && arm.swap(false, Ordering::SeqCst) {
            reached.lock().unwrap().send(()).unwrap();
            told.lock().unwrap().recv().unwrap();
        }
    });
    Parked { armed, at_fence, go_on }
}

#[test]
fn a_long_read_waits_for_no_commit() {
    let _limit = limit(120, "a long read while a commit holds every lane");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let medium = counted_pmem();
        let (_dir, file, expected) = patchwork(medium.clone(), &options(policy));
        let parked = park_a_commit(&medium);
        parked.armed.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| file.sync().unwrap());
            parked.at_fence.recv().unwrap();
            let mut bytes = vec![0; LONG];
            let before = allocations();
            file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(allocations() - before, 0, "{policy}: a read allocates");
            assert!(bytes == expected, "{policy}");
            assert!(!commit.is_finished());
            parked.go_on.send(()).unwrap();
        });
        // And when the blocks have gone home, with nobody about.
        file.deploy(0, LONG as u64).unwrap();
        let mut bytes = vec![0; LONG];
        let cost = medium.cost(|| file.read_at(&mut bytes, 0).unwrap());
        assert!(bytes == expected && (cost.reads, cost.others) == (1, 0), "{policy}: {cost:?}");
    }
}

/// A checkpoint looks at no block. The first read that finds blocks at home says so, whether it kept them in mind or
/// locked them, and the next one goes past the log.
#[test]
fn the_first_read_of_many_blocks_marks_home_ones_clean() {
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        for (len, more) in [(200 * PAGE, false), (LONG, false), (LONG, true)] {
            let medium = counted_pmem();
            let (_dir, file, mut expected) = patchwork(medium.clone(), &options(policy));
            file.sync().unwrap();
            file.reclaim().unwrap();
            if more {
                // This one is not at home, and stays as it is.
                file.write_at(&[8; 50], 5 * PAGE as u64).unwrap();
                expected[5 * PAGE..5 * PAGE + 50].fill(8);
            }
            let mut bytes = vec![0; len];
            for round in 0..2 {
                bytes.fill(1);
                let cost = medium.cost(|| file.read_at(&mut bytes, 0).unwrap());
                let all = format!("{policy}, {len} bytes, read {round}, more: {more}: {cost:?}");
                assert!(bytes == expected[..len], "{all}");
                assert_eq!(cost.reads == 1, round == 1 && !more, "{all}");
            }
            // What is behind the one that is not.
            let behind = 6 * PAGE;
            let cost = medium.cost(|| file.read_at(&mut bytes[behind..], behind as u64).unwrap());
            assert!(bytes[behind..] == expected[behind..len] && cost.reads == 1, "{policy}, {len} bytes: {cost:?}");
        }
    }
}

/// The length changes while a read has its range locked. When it begins anew a commit has every lane, and somebody
/// who is to change the length again waits for them: the read waits for neither.
#[test]
fn a_read_that_begins_anew_waits_for_no_resize() {
    let _limit = limit(120, "a long read while a resize waits for a commit");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let medium = counted_pmem();
        let (_dir, file, expected) = patchwork(medium.clone(), &options(policy));
        let Parked { armed, at_fence, go_on } = park_a_commit(&medium);
        let (data, other, once) = (file.path().to_owned(), file.clone(), AtomicBool::new(false));
        let (who, threads): (OnceLock<ThreadId>, Arc<Mutex<Vec<_>>>) = Default::default();
        let (who, started, at_fence) = (Arc::new(who), threads.clone(), Mutex::new(at_fence));
        let (waits, waiting) = channel();
        let (waits, waiting) = (Mutex::new(waits), Mutex::new(waiting));
        medium.halve(move |halfway| match halfway {
            Halfway::Wait if who.get() == Some(&std::thread::current().id()) => {
                // Nobody may be there to hear it any more.
                let _ = waits.lock().unwrap().send(());
            }
            // The blocks of the second part have no slots, so this comes once all below are locked.
            Halfway::Read(path, at) if path == data && at == HOLE as u64 && !once.swap(true, Ordering::SeqCst) => {
                other.resize(LONG as u64 + 5000).unwrap();
                armed.store(true, Ordering::SeqCst);
                let commits = other.clone();
                let commit = std::thread::spawn(move || assert!(commits.sync().unwrap() > 0));
                at_fence.lock().unwrap().recv().unwrap();
                let (resizes, who) = (other.clone(), who.clone());
                let resize = std::thread::spawn(move || {
                    who.set(std::thread::current().id()).unwrap();
                    resizes.resize(LONG as u64 + 1000).unwrap();
                });
                waiting.lock().unwrap().recv().unwrap();
                started.lock().unwrap().extend([commit, resize]);
            }
            _ => {}
        });
        assert!(file.bytes_at(0, LONG) == expected, "{policy}");
        let threads = std::mem::take(&mut *threads.lock().unwrap());
        assert!(threads.len() == 2 && threads.iter().all(|thread| !thread.is_finished()), "{policy}");
        go_on.send(()).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(file.len(), LONG as u64 + 1000);
    }
}

/// What comes of letting a thread that does nothing but change the length go on.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It has changed it, and is in the middle of the next change.
    Begun,
    /// It waits.
    Waits,
}

/// Somebody does nothing but change the length, and whenever a read looks whether it may keep the length from
/// changing, the next change is under way. Once the read has waited for its turn it is the next one.
#[test]
fn a_read_waits_for_one_change_of_the_length_and_no_more() {
    let _limit = limit(120, "a long read while somebody does nothing but resize");
    const MOST_TURNS: u64 = 3;
    let medium = counted_pmem();
    let (_dir, file, expected) = patchwork(medium.clone(), &options(LogPolicy::Redo).durability(Durability::PerWrite));
    let (data, reader) = (file.path().to_owned(), std::thread::current().id());
    let over = Arc::new(AtomicBool::new(false));
    let ((tells, turns), (go, going)) = (channel(), channel());
    let (tells, going) = (Mutex::new(tells), Mutex::new(going));
    let (waits, stop) = (tells.lock().unwrap().clone(), over.clone());
    // A change stays where its record is about to be durable, and nobody else can begin one.
    medium.watch(move |barrier, _| {
        if barrier == "hybrid-log.epoch.record" && !stop.load(Ordering::SeqCst) {
            tells.lock().unwrap().send(Turn::Begun).unwrap();
            going.lock().unwrap().recv().unwrap();
        }
    });
    let (go, turns, waits) = (Mutex::new(go), Mutex::new(turns), Mutex::new(waits));
    let (passes, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count_pass, count_turn, stop) = (passes.clone(), taken.clone(), over.clone());
    let (begun, waited, queued) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    medium.halve(move |halfway| {
        if std::thread::current().id() != reader {
            if halfway == Halfway::Wait {
                // Nobody may be there to hear it any more.
                let _ = waits.lock().unwrap().send(Turn::Waits);
            }
            return;
        }
        let next_turn = || {
            go.lock().unwrap().send(()).unwrap();
            turns.lock().unwrap().recv().unwrap()
        };
        match halfway {
            Halfway::Read(path, at) if path == data => {
                waited.store(false, Ordering::SeqCst);
                if at != HOLE as u64 {
                    return;
                }
                count_pass.fetch_add(1, Ordering::SeqCst);
                if !begun.swap(true, Ordering::SeqCst) {
                    assert_eq!(turns.lock().unwrap().recv().unwrap(), Turn::Begun);
                }
                if !queued.load(Ordering::SeqCst) {
                    assert_eq!(next_turn(), Turn::Begun);
                }
            }
            // The second one without a read in between: it waits for its turn.
            Halfway::Wait if waited.swap(true, Ordering::SeqCst) && !stop.load(Ordering::SeqCst) => {
                let first = !queued.swap(true, Ordering::SeqCst);
                if (first || count_turn.load(Ordering::SeqCst) > 0)
                    && next_turn() == Turn::Begun
                    && count_turn.fetch_add(1, Ordering::SeqCst) + 1 == MOST_TURNS
                {
                    stop.store(true, Ordering::SeqCst);
                    go.lock().unwrap().send(()).unwrap();
                }
            }
            _ => {}
        }
    });
    std::thread::scope(|scope| {
        let (file, over) = (&file, &over);
        scope.spawn(move || {
            let mut len = LONG as u64;
            while !over.load(Ordering::SeqCst) {
                len += PAGE as u64;
                file.resize(len).unwrap();
            }
        });
        let bytes = file.bytes_at(0, LONG);
        over.store(true, Ordering::SeqCst);
        assert!(bytes == expected);
    });
    assert!(passes.load(Ordering::SeqCst) > TRIES, "it was believed too early");
    assert_eq!(
        taken.load(Ordering::SeqCst),
        0,
        "changes of the length that were begun after the read waited for its turn"
    );
}

/// A writer that stays in the middle of a write to one block, and has it locked, until it is told to go on.
struct Midway {
    armed: Arc<AtomicBool>,
    inside: Receiver<()>,
    go_on: Sender<()>,
}

/// What lets a writer go on, and what tells that it is through.
type Ends = Mutex<(Sender<()>, Receiver<()>)>;

/// Calls `waits` whenever somebody waits.
fn stop_midway(
    medium: &Counting<Dax>,
    file: &AtomicFile,
    at: usize,
    waits: impl Fn() + Send + Sync + 'static,
) -> Midway {
    let armed = Arc::new(AtomicBool::new(false));
    let ((reached, inside), (go_on, told)) = (channel(), channel());
    let (reached, told) = (Mutex::new(reached), Mutex::new(told));
    let (data, arm) = (file.path().to_owned(), armed.clone());
    medium.halve(move |halfway| match halfway {
        Halfway::Wait => waits(),
        Halfway::Write(path, from) if path == data && from == at as u64 && arm.swap(false, Ordering::SeqCst) => {
            reached.lock().unwrap().send(()).unwrap();
            told.lock().unwrap().recv().unwrap();
        }
        _ => {}
    });
    Midway { armed, inside, go_on }
}

/// Each write gives a block another entry. A read that has waited for one has the block then, and waits for no second
/// one.
#[test]
fn a_read_waits_for_one_writer_of_a_block_and_no_more() {
    let _limit = limit(120, "a long read that waits for a writer");
    let medium = counted_pmem();
    let (_dir, file, mut expected) = patchwork(medium.clone(), &options(LogPolicy::Undo));
    file.sync().unwrap();
    // More covers before it than a read keeps in mind, so only one that locks comes upon it.
    let at = 590 * PAGE;
    let reader = std::thread::current().id();
    let waits = Arc::new(AtomicU64::new(0));
    let (through, done) = channel();
    // What the first wait of the reader lets go on, and what it then waits for: all of the write.
    let first: Arc<OnceLock<Ends>> = Arc::default();
    let (count, at_first) = (waits.clone(), first.clone());
    let Midway { armed, inside, go_on } = stop_midway(&medium, &file, at, move || {
        if std::thread::current().id() == reader && count.fetch_add(1, Ordering::SeqCst) == 0 {
            let first = at_first.get().unwrap().lock().unwrap();
            first.0.send(()).unwrap();
            first.1.recv().unwrap();
        }
    });
    first.set(Mutex::new((go_on, done))).unwrap();
    std::thread::scope(|scope| {
        armed.store(true, Ordering::SeqCst);
        let file = &file;
        scope.spawn(move || {
            file.write_at(&[99; 100], at as u64).unwrap();
            through.send(()).unwrap();
        });
        inside.recv().unwrap();
        let bytes = file.bytes_at(0, LONG);
        expected[at..at + 100].fill(99);
        assert!(bytes == expected);
        assert_eq!(waits.load(Ordering::SeqCst), 1);
    });
}

/// A read that cannot go on for a failure of the medium does not wait for the blocks that it has not come to, and
/// lets go of the others.
#[test]
fn a_locked_read_that_fails_waits_for_nobody() {
    let _limit = limit(120, "a long read that fails");
    let medium = counted_pmem();
    let (_dir, file, _) = patchwork(medium.clone(), &options(LogPolicy::Undo));
    file.sync().unwrap();
    let at = 590 * PAGE;
    let Midway { armed, inside, go_on } = stop_midway(&medium, &file, at, || ());
    std::thread::scope(|scope| {
        armed.store(true, Ordering::SeqCst);
        let writer = scope.spawn(|| file.write_at(&[99; 100], at as u64).unwrap());
        inside.recv().unwrap();
        medium.refuse_reads_of(Some(file.path()));
        let failed = file.read_at(&mut vec![0; LONG], 0);
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        assert!(!writer.is_finished());
        medium.refuse_reads_of(None);
        go_on.send(()).unwrap();
    });
    // Nothing is left locked.
    file.write_at(&vec![5; LONG], 0).unwrap();
}

/// Writers overtake a read in each of its tries, and in the last one a commit takes every lane and does not let go.
#[test]
fn an_overtaken_read_waits_for_no_commit() {
    let _limit = limit(120, "an overtaken read while a commit holds every lane");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let medium = counted_pmem();
        let (_dir, file) = create_on(medium.clone(), &options(policy), 64 * PAGE as u64);
        file.write_at(&[1; 300], PAGE as u64 - 100).unwrap();
        let Parked { armed, at_fence, go_on } = park_a_commit(&medium);
        let reader: Arc<OnceLock<ThreadId>> = Arc::default();
        let (tries, busy) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
        let data = file.path().to_owned();
        let (writes, commits) = (file.clone(), file.clone());
        let (count, who, at_fence) = (tries.clone(), reader.clone(), Mutex::new(at_fence));
        medium.halve(move |halfway| {
            let mine = who.get() == Some(&std::thread::current().id());
            if halfway != Halfway::Read(&data, 0) || !mine || busy.swap(true, Ordering::SeqCst) {
                return;
            }
            // A read that has locks writes nothing: then this thread would wait for itself.
            let n = count.fetch_add(1, Ordering::SeqCst) + 1;
            if n <= TRIES {
                writes.write_at(&[n as u8 + 1; 300], PAGE as u64 - 100).unwrap();
            }
            if n == TRIES {
                armed.store(true, Ordering::SeqCst);
                let commits = commits.clone();
                std::thread::spawn(move || commits.sync());
                at_fence.lock().unwrap().recv().unwrap();
            }
            busy.store(false, Ordering::SeqCst);
        });
        let mut bytes = vec![0; 3 * PAGE];
        reader.set(std::thread::current().id()).unwrap();
        file.read_at(&mut bytes, 0).unwrap();
        assert!(tries.load(Ordering::SeqCst) > TRIES, "{policy}: it was believed after all");
        assert!(bytes[PAGE - 100..PAGE + 200].iter().all(|&byte| byte == TRIES as u8 + 1), "{policy}");
        assert!(bytes[..PAGE - 100].iter().chain(&bytes[PAGE + 200..]).all(|&byte| byte == 0), "{policy}");
        go_on.send(()).unwrap();
    }
}

/// A read that has locked its range, and then finds the file longer, or written to where nothing had been, reads it
/// again.
#[test]
fn a_locked_read_notices_what_its_locks_do_not_keep_still() {
    let _limit = limit(120, "a locked read and changes of length");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        for grows in [true, false] {
            let medium = counted_pmem();
            let (_dir, file, mut expected) = patchwork(medium.clone(), &options(policy));
            let data = file.path().to_owned();
            let (other, reads) = (file.clone(), Arc::new(AtomicU64::new(0)));
            let (count, changing) = (reads.clone(), AtomicBool::new(false));
            medium.halve(move |halfway| {
                // The blocks of the second part have no slots, so nobody who writes there waits for this thread's
                // locks.
                let Halfway::Read(path, at) = halfway else { return };
                if path != data || at != HOLE as u64 || changing.load(Ordering::SeqCst) {
                    return;
                }
                if count.fetch_add(1, Ordering::SeqCst) > 0 {
                    return;
                }
                changing.store(true, Ordering::SeqCst);
                if grows {
                    other.resize(LONG as u64 + 5000).unwrap();
                } else {
                    other.write_at(&[9; 40], HOLE as u64 + 10).unwrap();
                }
                changing.store(false, Ordering::SeqCst);
            });
            let bytes = file.bytes_at(0, LONG);
            if !grows {
                expected[HOLE + 10..HOLE + 50].fill(9);
            }
            assert!(bytes == expected, "{policy}, grows: {grows}");
            assert_eq!(reads.load(Ordering::SeqCst), 2, "{policy}, grows: {grows}: believed, or read once too often");
            // Nothing is left locked.
            file.write_at(&vec![5; LONG], 0).unwrap();
        }
    }
}

/// Threads that never stop writing, over short and over long ranges, and one that changes the length: readers of the
/// whole, or most of it, which is too long for any but a locked read, go on, and see each write whole.
#[test]
fn readers_in_a_storm_of_writers_see_each_write_whole() {
    let _limit = limit(300, "long reads in a storm of writers");
    let reads = cases(30, 80);
    let seed = seed("long reads in a storm");
    let ranges =
        [(16, 8), (PAGE - 24, 48), (3 * PAGE, PAGE), (600 * PAGE + 1000, 9 * PAGE + 504), (3 * MIB, 2 * MIB + 64)];
    for policy in [LogPolicy::Redo, LogPolicy::Undo, LogPolicy::Hybrid] {
        let options = options(policy).checkpoint_threads(2).log_size(64 << 20);
        // So that the locked way is the one taken.
        let (_dir, file, _) = patchwork(pmem(), &options);
        ranges.iter().for_each(|&(at, len)| file.write_at(&vec![0; len], at as u64).unwrap());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (file, over) = (&file, &over);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ thread);
                    while !over.load(Ordering::Relaxed) {
                        let (at, len) = ranges[rng.below(ranges.len() as u64) as usize];
                        file.write_at(&rng.next_u64().to_le_bytes().repeat(len / 8), at as u64).unwrap();
                        if rng.below(4) == 0 {
                            file.sync().unwrap();
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut longer = false;
                while !over.load(Ordering::Relaxed) {
                    longer = !longer;
                    file.resize((LONG + if longer { PAGE } else { 0 }) as u64).unwrap();
                    std::thread::yield_now();
                }
            });
            let (mut whole, mut rng) = (vec![0; LONG], Rng::new(seed ^ 3));
            for n in 0..reads {
                // Also from the middle of a cover, which may be coming apart by then: all of them are too long.
                let begin = match n % 4 {
                    0 => 0,
                    1 => (600 + rng.below(10) as usize) * PAGE,
                    _ => 3 * MIB + rng.below(512) as usize * PAGE,
                };
                let bytes = &mut whole[begin..];
                file.read_at(bytes, begin as u64).unwrap();
                for (at, len) in ranges.iter().filter(|(at, len)| begin < at + len) {
                    let (first, rest) = bytes[at.saturating_sub(begin)..at + len - begin].split_at(8);
                    let whole = rest.chunks(8).all(|word| word == first);
                    assert!(whole, "{policy}: read {n} from {begin} has half of a write at {at}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
