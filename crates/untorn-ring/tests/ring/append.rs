//! Appends to a log in memory, dies at every step, and checks what is found.

use std::sync::atomic::AtomicU64;
use std::thread;

use untorn_ring::{
    Appender, Change, Entry, Geometry, HEADER, Kind, Left, MOST_PARTS, Outcome, SharedState, Step, Terms, Way, Write,
    append, left, pieces, place_seed,
};

const FILE: (u64, u64, u64) = (7, 11, 3);

fn terms() -> Terms {
    let geometry = Geometry::of(64, 1, 3 * 4096 + 8192 + 16 * 128).unwrap();
    assert_eq!(geometry.slots, 16);
    Terms { geometry, checksum_seed: 99, turns: 4, limit: 8 }
}

fn words(terms: Terms) -> Vec<AtomicU64> {
    (0..terms.words().unwrap()).map(|_| AtomicU64::new(0)).collect()
}

/// A ledger in which processes may write to a file.
fn opened(words: &[AtomicU64]) -> SharedState<'_> {
    let ledger = SharedState::of(words, terms());
    ledger.prepare(Way::Mapped, 4).unwrap();
    let found = SharedState::find(words).unwrap();
    assert_eq!(found.terms(), &terms());
    let (device, inode, uid) = FILE;
    found.take_turn(device, inode).unwrap().lock().unwrap().begin(device, inode, uid, true);
    found
}

/// A log, a file, and a program.
struct Bench {
    log: Vec<u8>,
    file: Vec<u8>,
    src: Vec<u8>,
    /// The bench does not know how much of the log is fenced. It knows the order of steps.
    steps: Vec<Step>,
    until: Option<Step>,
    readable: usize,
    takes: usize,
}

impl Bench {
    fn new() -> Self {
        let log = vec![0; terms().geometry.len().unwrap() as usize];
        Bench { log, file: vec![0; 1000], src: vec![], steps: vec![], until: None, readable: 1000, takes: 1000 }
    }

    fn entry(&self, position: u64) -> Option<Entry> {
        let geometry = terms().geometry;
        let at = geometry.entry_at(position);
        let header: &[u8; HEADER as usize] = self.log[at as usize..][..HEADER as usize].try_into().unwrap();
        let entry = Entry::decode(header, geometry, at)?;
        let data = &self.log[(at + HEADER) as usize..][..entry.len as usize];
        let whole = Entry::is_whole(header, place_seed(terms().checksum_seed, at), data);
        Some(entry).filter(|entry| whole && entry.position == position)
    }

    fn write(&mut self, ledger: SharedState<'_>, offset: u64, src: &[u8]) -> Outcome {
        self.src = src.to_vec();
        let turn = ledger.turn_of(FILE.0, FILE.1).unwrap().lock().unwrap();
        let outcome = append(&turn, Write { offset, len: src.len(), at_end: false }, self);
        if outcome == Outcome::Dead {
            turn.break_it();
        }
        outcome
    }
}

impl Appender for Bench {
    fn fill(&mut self, at: u64, from: usize, len: usize) -> bool {
        if from + len > self.readable {
            return false;
        }
        self.log[at as usize..][..len].copy_from_slice(&self.src[from..from + len]);
        true
    }

    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R {
        look(&self.log[at as usize..][..len])
    }

    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]) {
        self.log[at as usize..][..header.len()].copy_from_slice(header);
    }

    fn flush(&mut self, _: u64, _: u64) {}

    fn fence(&mut self) -> bool {
        true
    }

    fn deliver(&mut self, first: u64, change: Change) -> isize {
        let write = match change {
            Change::Write(write) => write,
            Change::Length(_) if self.takes == 0 => return -27,
            Change::Length(len) => {
                self.file.resize(len as usize, 0);
                return 0;
            }
        };
        let mut at = write.offset as usize;
        let end = at + write.len.min(self.takes);
        for (from, len) in pieces(terms().geometry, first, write.len) {
            let len = len.min(end - at);
            let bytes = self.log[from as usize..][..len].to_vec();
            self.file[at..at + len].copy_from_slice(&bytes);
            at += len;
        }
        (at - write.offset as usize) as isize
    }

    fn reaches(&mut self, step: Step) -> bool {
        self.steps.push(step);
        self.until != Some(step)
    }
}

#[test]
fn a_write_is_in_the_log_then_with_the_kernel_then_complete() {
    let words = words(terms());
    let (ledger, mut bench) = (opened(&words), Bench::new());
    let src: Vec<u8> = (0..150).collect();
    assert_eq!(bench.write(ledger, 10, &src), Outcome::Written { said: 150, end: 3 });
    assert_eq!(bench.steps, Step::ALL);
    assert_eq!(bench.file[10..160], src);
    let lens = (0..3).map(|position| {
        assert!(ledger.is_complete(position) && !ledger.is_void(position));
        let entry = bench.entry(position).unwrap();
        assert_eq!((entry.uid, entry.kind, entry.order), (FILE.2, Kind::Write, position));
        assert_eq!((entry.part, entry.parts, entry.value), (position as u32, 3, 10 + 64 * position));
        entry.len
    });
    assert_eq!(lens.collect::<Vec<_>>(), [64, 64, 22]);
    let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
    assert_eq!((turn.ended(), turn.take_counts(), turn.take_counts()), (3, [1, 150, 0], [0; 3]));
    assert!(ledger.turn_of(FILE.0, FILE.1 + 1).is_none());
}

#[test]
fn leftovers_of_a_death_at_each_step_are_told_apart() {
    for step in Step::ALL {
        // Alone, and when others were given positions meanwhile.
        for others in [0, 2] {
            let words = words(terms());
            let (ledger, mut bench) = (opened(&words), Bench::new());
            bench.write(ledger, 0, b"before");
            bench.until = Some(step);
            assert_eq!(bench.write(ledger, 20, &[5; 100]), Outcome::Dead);
            for _ in 0..others {
                ledger.place(1);
            }
            let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
            assert!(!turn.is_writable() && !turn.is_durable());
            let turn = turn.lock().unwrap();
            let found = left(&turn, FILE.2, |position| bench.entry(position));
            let write = Write { offset: 20, len: 100, at_end: false };
            let expected = match step {
                Step::Intended => Left::Nothing { ended: 1 },
                Step::Placed | Step::Filled => Left::Void { first: 1, parts: 2 },
                Step::Stored | Step::Durable | Step::Delivered => {
                    Left::Whole { first: 1, parts: 2, change: write.into() }
                }
                Step::Completed => Left::Nothing { ended: 3 },
            };
            assert_eq!(found, expected, "at {step:?} with {others} others");
            // The kernel has no bytes of void entries, and may have those of whole ones.
            assert!(step >= Step::Delivered || bench.file[20..120].iter().all(|byte| *byte == 0));
            let ended = match found {
                Left::Nothing { ended } => ended,
                Left::Void { first, parts } => {
                    ledger.leave_void(first, parts);
                    assert!((first..first + parts).all(|at| ledger.is_complete(at) && ledger.is_void(at)));
                    first + parts
                }
                Left::Short { .. } => panic!("the kernel took all of it"),
                Left::Whole { first, parts, .. } => {
                    ledger.complete_beside(first, parts);
                    first + parts
                }
            };
            turn.mend(ended);
            drop(turn);
            bench.until = None;
            let end = ledger.head() + 1;
            assert_eq!(bench.write(ledger, 20, b"after"), Outcome::Written { said: 5, end });
        }
    }
}

#[test]
fn a_set_length_is_logged_first_and_its_death_is_recognized() {
    for until in Step::ALL.map(Some).into_iter().chain([None]) {
        let words = words(terms());
        let (ledger, mut bench) = (opened(&words), Bench::new());
        bench.write(ledger, 0, b"before");
        bench.until = until;
        let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
        let locked = turn.lock().unwrap();
        let outcome = append(&locked, Change::Length(400), &mut bench);
        let Some(step) = until else {
            assert_eq!(outcome, Outcome::Written { said: 0, end: 2 });
            let entry = bench.entry(1).unwrap();
            assert_eq!((entry.kind, entry.value, entry.len, entry.parts), (Kind::SetLen, 400, 0, 1));
            assert_eq!((bench.file.len(), turn.take_counts()), (400, [1, 6, 0]));
            continue;
        };
        assert_eq!(outcome, Outcome::Dead);
        locked.break_it();
        let expected = match step {
            Step::Intended => Left::Nothing { ended: 1 },
            Step::Placed | Step::Filled => Left::Void { first: 1, parts: 1 },
            Step::Stored | Step::Durable | Step::Delivered => {
                Left::Whole { first: 1, parts: 1, change: Change::Length(400) }
            }
            Step::Completed => Left::Nothing { ended: 2 },
        };
        assert_eq!(left(&locked, FILE.2, |position| bench.entry(position)), expected, "at {step:?}");
        assert_eq!(bench.file.len(), if step < Step::Delivered { 1000 } else { 400 });
    }
}

#[test]
fn a_refused_length_leaves_the_file_to_the_server() {
    let words = words(terms());
    let (ledger, mut bench) = (opened(&words), Bench::new());
    bench.takes = 0;
    let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
    let locked = turn.lock().unwrap();
    assert_eq!(append(&locked, Change::Length(400), &mut bench), Outcome::Written { said: -27, end: 1 });
    assert!(!turn.is_writable() && !ledger.is_complete(0));
    assert_eq!(left(&locked, FILE.2, |position| bench.entry(position)), Left::Short { first: 0, parts: 1 });
}

/// A repeated write must know whether the kernel appends by itself.
#[test]
fn an_interrupted_append_is_recognized_as_one() {
    let words = words(terms());
    let ledger = opened(&words);
    let mut bench = Bench { src: vec![5; 100], until: Some(Step::Delivered), ..Bench::new() };
    let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
    let locked = turn.lock().unwrap();
    let write = Write { offset: 20, len: 100, at_end: true };
    assert_eq!(append(&locked, write, &mut bench), Outcome::Dead);
    locked.break_it();
    let found = left(&locked, FILE.2, |position| bench.entry(position));
    assert_eq!(found, Left::Whole { first: 0, parts: 2, change: write.into() });
}

/// The kernel reports this to the next one that asks.
#[test]
fn a_thread_that_ends_with_a_turn_leaves_it_broken() {
    let words = words(terms());
    let ledger = opened(&words);
    let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
    // `join` waits for the end of the thread, and not only of its closure.
    thread::scope(|scope| scope.spawn(|| std::mem::forget(turn.lock().unwrap())).join().unwrap());
    assert!(turn.is_writable(), "nobody has looked yet");
    assert!(!turn.is_durable(), "a sync is not answered without looking");
    assert!(turn.try_lock().unwrap().is_broken());
    assert!(!turn.is_writable());
    let locked = turn.lock().unwrap();
    assert_eq!(left(&locked, FILE.2, |_| None), Left::Nothing { ended: 0 });
    locked.mend(0);
    assert!(turn.is_writable());
    assert!(thread::scope(|scope| scope.spawn(|| turn.try_lock().is_none()).join().unwrap()), "it is somebody's");
}

#[test]
fn the_end_of_the_server_is_known() {
    let words = words(terms());
    let ledger = opened(&words);
    assert!(!ledger.is_open());
    let serve = || {
        ledger.open().unwrap();
        assert!(ledger.is_open());
    };
    thread::scope(|scope| scope.spawn(serve).join().unwrap());
    assert!(!ledger.is_open());
    // Opened, and by a thread that is gone.
    assert!(ledger.open().is_err() && !ledger.is_open());
}

#[test]
fn processes_fill_only_their_share_of_the_log() {
    let words = words(terms());
    let (ledger, mut bench) = (opened(&words), Bench::new());
    for number in 0..8 {
        ledger.complete(ledger.place(1), 1);
        let end = ledger.head() + 1;
        assert_eq!(bench.write(ledger, number, b"x"), Outcome::Written { said: 1, end });
    }
    assert_eq!((ledger.head(), ledger.used_beside()), (16, 8));
    assert_eq!(bench.write(ledger, 0, b"x"), Outcome::Full);
    assert_eq!(ledger.head(), 16, "it was given what is not free");
    // One of every two freed entries was theirs.
    assert_eq!(ledger.free(6), 3);
    assert_eq!((ledger.tail(), ledger.used_beside()), (6, 5));
    assert_eq!(bench.write(ledger, 0, &[1; 65]), Outcome::Written { said: 65, end: 18 });
    assert_eq!(bench.write(ledger, 0, &[1; 65]), Outcome::Full);
    assert_eq!(bench.write(ledger, 0, b"x"), Outcome::Written { said: 1, end: 19 });
    // More than one operation may take is for the server.
    assert_eq!(bench.write(ledger, 0, &vec![1; 64 * MOST_PARTS as usize + 1]), Outcome::Full);
}

#[test]
fn unreadable_memory_voids_positions_and_writes_nothing() {
    let words = words(terms());
    let (ledger, mut bench) = (opened(&words), Bench::new());
    bench.readable = 64;
    assert_eq!(bench.write(ledger, 0, &[1; 100]), Outcome::Nothing);
    assert!((0..2).all(|position| ledger.is_complete(position) && ledger.is_void(position)));
    assert!(bench.file.iter().all(|byte| *byte == 0));
    assert!((0..2).all(|position| bench.entry(position).is_none()));
}

#[test]
fn a_partial_write_leaves_the_file_to_the_server() {
    for until in [None, Some(Step::Delivered), Some(Step::Completed)] {
        let words = words(terms());
        let (ledger, mut bench) = (opened(&words), Bench::new());
        bench.takes = 40;
        bench.until = until;
        let outcome = if until.is_some() { Outcome::Dead } else { Outcome::Written { said: 40, end: 2 } };
        assert_eq!(bench.write(ledger, 0, &[1; 100]), outcome);
        let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
        assert!(!turn.is_writable() && !turn.is_durable() && !ledger.is_complete(0));
        let locked = turn.lock().unwrap();
        let write = Write { offset: 0, len: 100, at_end: false };
        let expected = match until {
            // The kernel does not say how much it took.
            Some(Step::Delivered) => Left::Whole { first: 0, parts: 2, change: write.into() },
            _ => Left::Short { first: 0, parts: 2 },
        };
        assert_eq!(left(&locked, FILE.2, |position| bench.entry(position)), expected);
        ledger.complete_beside(0, 2);
        locked.mend(2);
        drop(locked);
        assert!(turn.is_writable());
        (bench.takes, bench.until) = (1000, None);
        assert_eq!(bench.write(ledger, 0, &[1; 100]), Outcome::Written { said: 100, end: 4 });
    }
}

/// A process that stores to memory at random may leave any words: no sum of them overflows, and none is an address.
#[test]
fn words_of_a_shared_state_are_not_trusted() {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        [0, 1, state >> 32, state, u64::MAX, u64::MAX << 16, state >> 60][(state >> 33) as usize % 7]
    };
    for _ in 0..2000 {
        let words = words(terms());
        let (ledger, mut bench) = (opened(&words), Bench::new());
        bench.until = Some(Step::Stored);
        assert_eq!(bench.write(ledger, 20, &[5; 100]), Outcome::Dead);
        let turn = ledger.turn_of(FILE.0, FILE.1).unwrap();
        let locked = turn.lock().unwrap();
        // The test changes words from the head on, except locks: these belong to the C library, and are the first
        // eight words of a turn.
        for (at, word) in words.iter().enumerate().skip(24) {
            let in_lock = (72..88).contains(&at) || (96..96 + 4 * 24).contains(&at) && (at - 96) % 24 < 8;
            if !in_lock && random() % 2 == 0 {
                word.store(random(), std::sync::atomic::Ordering::Relaxed);
            }
        }
        if let Left::Whole { first, parts, change } = left(&locked, FILE.2, |position| bench.entry(position)) {
            let Change::Write(Write { offset: 20, len: 100, .. }) = change else { panic!("{change:?}") };
            assert_eq!((first, parts), (0, 2));
        }
        let (_, _) = (ledger.used_beside(), ledger.ring().is_some());
        assert!(ledger.free(16) <= 16);
        ledger.place(1);
        bench.until = Some(Step::Placed);
        let _ = append(&locked, Write { offset: 0, len: 1, at_end: false }, &mut bench);
    }
}

#[test]
fn positions_are_given_once_whoever_takes_them() {
    let terms = Terms { limit: 1 << 20, ..terms() };
    let words = words(terms);
    let ledger = SharedState::of(&words, terms);
    ledger.prepare(Way::Mapped, 4).unwrap();
    for inode in 0..2 {
        ledger.take_turn(1, inode).unwrap().lock().unwrap().begin(1, inode, inode, true);
    }
    let process = |inode: u64| {
        let mut ends = Vec::new();
        for _ in 0..2000 {
            let mut bench = Bench { src: vec![1], ..Bench::new() };
            let turn = ledger.turn_of(1, inode).unwrap().lock().unwrap();
            match append(&turn, Write { offset: 0, len: 1, at_end: false }, &mut bench) {
                Outcome::Written { end, .. } => ends.push(end),
                other => panic!("{other:?}"),
            }
        }
        ends
    };
    let server = || (0..2000).map(|_| ledger.place(1) + 1).collect::<Vec<u64>>();
    let mut all: Vec<u64> = thread::scope(|scope| {
        let threads = [scope.spawn(|| process(0)), scope.spawn(|| process(1)), scope.spawn(server)];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (1..=6000).collect::<Vec<u64>>());
    assert_eq!(ledger.used_beside(), 4000);
}

#[test]
fn words_that_are_no_ledger_are_none() {
    let terms = terms();
    let words = words(terms);
    assert!(SharedState::find(&words).is_none());
    SharedState::of(&words, terms).prepare(Way::Mapped, 4).unwrap();
    assert!(SharedState::find(&words).is_some());
    assert!(SharedState::find(&words[..words.len() - 1]).is_none(), "too few");
    for odd in [0, 3, u64::MAX] {
        // The number of turns.
        let was = words[5].swap(odd, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(SharedState::find(&words).is_none(), odd != 0, "{odd}");
        words[5].store(was, std::sync::atomic::Ordering::Relaxed);
    }
}
