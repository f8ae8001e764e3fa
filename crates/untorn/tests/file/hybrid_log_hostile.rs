//! Logs whose seals are right and whose contents are not: made by somebody who knows the format. No panic, no endless
//! loop, nothing outside the file, and no more work than the log is long.

use std::path::Path;

use super::forged::{Bench, seal_line};
use crate::common::counting::Counting;
use crate::common::{PAGE, Pair, pattern, pmem, put_word, read, run_alone, scratch, scratch_holding, word};
use untorn::options::LogPolicy;
use untorn::testing::storage::PageCache;
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_testing::test_name;

const LEN: usize = 5 * PAGE + 100;
const UNITS: usize = 8;
const RECORDS_AT: usize = 3 * PAGE;
const CHUNKS_AT: usize = 4 * PAGE;
const MOST: u64 = 1 << 61;

fn options(policy: LogPolicy) -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit).log_policy(policy);
    options
        .record_area(1, UNITS as u32)
        .log_size(256 << 10)
        .checkpoint_threads(0)
        .max_len(64 * PAGE as u64)
        .keep_sidecar(true)
}

fn open(path: &Path, policy: LogPolicy) -> Result<AtomicFile, Error> {
    match policy {
        LogPolicy::Undo => options(policy).open_on(pmem(), path),
        _ => options(policy).open_on(PageCache::new(), path),
    }
}

/// A line of the log, sealed for its place in the session of a sidecar.
fn seal(side: &mut [u8], at: usize, line: [u64; 7]) {
    for (n, word) in line.into_iter().enumerate() {
        put_word(side, at + 8 * n, word);
    }
    seal_line(side, at);
}

#[derive(Clone, Copy)]
struct Header {
    epoch: u64,
    block: u64,
    flags: u64,
    class: u64,
    offset: u64,
    len: u64,
    sum: u64,
    proves: u64,
}

impl Header {
    fn put(self, side: &mut [u8], index: usize) {
        let first = self.flags & 0xffff | (self.class & 0xff) << 16 | self.offset << 32;
        let line = [self.epoch, self.block, first, self.len & 0xffff_ffff, self.sum, 0, self.proves];
        seal(side, CHUNKS_AT + 64 * index, line);
    }
}

#[derive(Clone, Copy)]
struct Record {
    epoch: u64,
    flags: u64,
    len: u64,
    count: u64,
    sum: u64,
    proves: u64,
}

impl Record {
    fn put(self, side: &mut [u8], place: usize) {
        let line = [self.epoch, u64::MAX, self.flags, self.len, self.count, self.sum, self.proves];
        seal(side, RECORDS_AT + 64 * place, line);
    }
}

/// A pair as it is while open, with three epochs and an open one, and what the last one holds.
fn build(path: &Path, policy: LogPolicy) -> (Pair, Vec<u8>) {
    let mut model = pattern(LEN, 1);
    std::fs::write(path, &model).unwrap();
    let file = open(path, policy).unwrap();
    for n in 0..3 {
        let bytes = pattern(3000, 10 + n as u64);
        let at = n * 4000 + 7;
        file.write_at(&bytes, at as u64).unwrap();
        file.sync().unwrap();
        model[at..at + 3000].copy_from_slice(&bytes);
    }
    file.write_at(&[9; 50], 100).unwrap();
    let pair = Pair::of(path);
    drop(file);
    (pair, model)
}

fn bench(policy: LogPolicy) -> Bench {
    let open = Box::new(move |path: &Path| open(path, policy));
    Bench::new(policy.to_string(), options(policy), open, |path| build(path, policy).0)
}

const EXTREMES: [u64; 16] =
    [0, 1, 3, 4, 5, 7, 8, 63, 4096, (1 << 32) - 1, 1 << 40, (1 << 44) + 8, MOST - 1, 1 << 62, u64::MAX - 1, u64::MAX];

#[test]
fn forged_headers_and_records() {
    run_alone(test_name!(), 240, "forged headers and records", || {
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            let mut bench = bench(policy);
            for value in EXTREMES {
                for flags in [0, 1, 2, 3, 6, 7] {
                    let sound = Header { epoch: 4, block: 2, flags, class: 0, offset: 0, len: 64, sum: 0, proves: 3 };
                    let forged = [
                        ("epoch", Header { epoch: value, ..sound }),
                        ("block", Header { block: value, ..sound }),
                        ("class", Header { class: value, block: 0, ..sound }),
                        ("offset", Header { offset: value, ..sound }),
                        ("length", Header { len: value, ..sound }),
                        ("proof", Header { proves: value, ..sound }),
                        ("proof and epoch", Header { proves: value, epoch: value.wrapping_add(1), ..sound }),
                    ];
                    for (what, header) in forged {
                        for index in [0, 4, UNITS - 1] {
                            bench.check(&format!("{what} {value:#x}, flags {flags}, unit {index}"), |side| {
                                header.put(side, index);
                                // An epoch that everything is believed of.
                                let place = (header.epoch % 64) as usize;
                                let record =
                                    Record { epoch: header.epoch, flags: 0, len: 9000, count: 0, sum: 0, proves: 3 };
                                record.put(side, place);
                            });
                        }
                    }
                }
                let sound = Record { epoch: 4, flags: 0, len: LEN as u64, count: 0, sum: 0, proves: 3 };
                let forged = [
                    ("epoch", Record { epoch: value, ..sound }),
                    ("length", Record { len: value, ..sound }),
                    ("count", Record { count: value, flags: 1, ..sound }),
                    ("sum", Record { sum: value, flags: 1, ..sound }),
                    ("proof", Record { proves: value, ..sound }),
                    ("proof and epoch", Record { proves: value, epoch: value.wrapping_add(1), ..sound }),
                    ("flags", Record { flags: value, ..sound }),
                ];
                for (what, record) in forged {
                    bench.check(&format!("record {what} {value:#x}"), |side| {
                        record.put(side, (record.epoch % 64) as usize);
                    });
                }
            }
            bench.conclude();
        }
    });
}

/// Wherever a log is cut off it is refused, and the data file stays as it is.
#[test]
fn a_log_without_its_end_is_refused() {
    run_alone(test_name!(), 120, "logs cut off", || {
        let bench = bench(LogPolicy::Redo);
        let whole = bench.pair.side.bytes.len();
        for len in [whole - 1, whole - PAGE, CHUNKS_AT + 1, CHUNKS_AT, CHUNKS_AT - 1, RECORDS_AT, PAGE] {
            bench.pair.data.restore();
            bench.pair.side.restore_as(&bench.pair.side.bytes[..len]);
            let error = open(&bench.path, LogPolicy::Redo).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{len} bytes: {error}");
            assert!(std::fs::read(&bench.path).unwrap() == bench.pair.data.bytes, "{len} bytes: it was written to");
        }
    });
}

/// The file after each of the commits that [`build`] makes, the first of them the one that made it.
fn states() -> Vec<Vec<u8>> {
    let mut states = vec![pattern(LEN, 1)];
    for n in 0..3 {
        let mut next = states[n].clone();
        next[n * 4000 + 7..][..3000].copy_from_slice(&pattern(3000, 10 + n as u64));
        states.push(next);
    }
    states
}

/// A byte that changes in a sidecar left by a crash: the file is refused, or is what it was after one of its commits.
/// In the headers and the bytes of epochs that are known to have been durable, under redo, it is refused.
#[test]
fn a_byte_that_changes_makes_no_mixture() {
    run_alone(test_name!(), 240, "bytes that change after a crash", || {
        let states = states();
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            let bench = bench(policy);
            let side = &bench.pair.side.bytes;
            // Of two copies of what comes before the log the older one counts if the newer is damaged. It may say
            // that there is no log, and under undo some of the open epoch is in the file.
            let first_lines = if policy == LogPolicy::Redo { 0..RECORDS_AT } else { 0..0 };
            let chunks = (CHUNKS_AT..side.len()).step_by((UNITS + 1) * PAGE).take_while(|at| at + PAGE < side.len());
            // Of each entry its header and its bytes. What undo has of the open epoch goes for what did not arrive,
            // if it is damaged: then nothing was stored in its place.
            let entries = chunks.flat_map(|at| (0..UNITS).map(move |unit| (at + 64 * unit, at + PAGE * (1 + unit))));
            let entries: Vec<(usize, usize)> =
                entries.filter(|&(header, _)| (1..4).contains(&word(side, header))).collect();
            // On a disk some records stand among the headers, and have no bytes.
            let is_record = |header: usize| word(side, header + 8) == u64::MAX;
            assert_eq!(entries.iter().filter(|&&(header, _)| !is_record(header)).count(), 5, "{policy}");
            let kept = entries.iter().flat_map(|&(header, bytes)| {
                let end = if is_record(header) { bytes } else { bytes + PAGE };
                (header..header + 64).chain((bytes..end).step_by(61))
            });
            let (mut refused, mut seen) = (0, [0; 4]);
            for at in first_lines.step_by(29).chain((RECORDS_AT..RECORDS_AT + 5 * 64).step_by(3)).chain(kept) {
                let mut damaged = side.clone();
                damaged[at] ^= 1 << (at % 8);
                bench.pair.data.restore();
                bench.pair.side.restore_as(&damaged);
                match open(&bench.path, policy) {
                    Err(Error::Corrupt { .. }) => refused += 1,
                    // Its number is part of what proves that it is this file's.
                    Err(
                        Error::SidecarMismatch { .. } | Error::SidecarMissing { .. } | Error::ModifiedExternally { .. },
                    ) => {}
                    Err(error) => panic!("{policy}, byte {at}: {error}"),
                    Ok(file) => {
                        let found = read(&file);
                        let state = states.iter().position(|state| *state == found);
                        seen[state.unwrap_or_else(|| panic!("{policy}, byte {at}: a mixture"))] += 1;
                    }
                }
            }
            // Of most entries' bytes a page has 3000, in two covers mostly.
            let least = if policy == LogPolicy::Redo { 5 * 64 + 5 * 20 } else { 0 };
            assert!(refused > least && seen[3] > 100, "{policy}: {refused} refused, {seen:?}");
        }
    });
}

/// A byte that changes anywhere in a sidecar whose file was closed does no harm, for the log has nothing then.
#[test]
fn a_byte_that_changes_after_a_close_does_no_harm() {
    run_alone(test_name!(), 240, "bytes that change after a close", || {
        let states = states();
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            let bench = bench(policy);
            bench.pair.restore();
            open(&bench.path, policy).unwrap().close().unwrap();
            let pair = Pair::of(&bench.path);
            let side = &pair.side.bytes;
            let mut opened = 0;
            for at in (0..CHUNKS_AT).step_by(23).chain((CHUNKS_AT..side.len()).step_by(509)) {
                let mut damaged = side.clone();
                damaged[at] ^= 1 << (at % 8);
                pair.data.restore();
                pair.side.restore_as(&damaged);
                match open(&bench.path, policy) {
                    Err(Error::Corrupt { .. } | Error::SidecarMismatch { .. } | Error::SidecarMissing { .. }) => {}
                    Err(error) => panic!("{policy}, byte {at}: {error}"),
                    Ok(file) => {
                        assert!(read(&file) == states[3], "{policy}, byte {at}");
                        opened += 1;
                    }
                }
            }
            assert!(opened > 300, "{policy}: {opened} opened");
        }
    });
}

/// Of an epoch that everything is known of, any bit may be missing: then it is not there, and the one before it is.
#[test]
fn a_bit_that_did_not_arrive_costs_its_epoch_and_no_other() {
    run_alone(test_name!(), 240, "flipped bits", || {
        let path = scratch("data");
        let before = pattern(LEN, 1);
        std::fs::write(&path, &before).unwrap();
        let file = open(&path, LogPolicy::Redo).unwrap();
        file.write_at(&[3; 300], 4000).unwrap();
        file.sync().unwrap();
        let pair = Pair::of(&path);
        drop(file);
        let mut after = before.clone();
        after[4000..4300].fill(3);
        let mut seen = [0, 0];
        let lines = [RECORDS_AT + 64, CHUNKS_AT, CHUNKS_AT + 64].into_iter().flat_map(|at| at..at + 64);
        let data = (CHUNKS_AT + PAGE..CHUNKS_AT + 3 * PAGE).step_by(37);
        for at in lines.chain(data) {
            let mut side = pair.side.bytes.clone();
            side[at] ^= 1 << (at % 8);
            pair.data.restore();
            pair.side.restore_as(&side);
            let file = open(&path, LogPolicy::Redo).unwrap_or_else(|error| panic!("byte {at}: {error}"));
            let bytes = read(&file);
            assert!(bytes == before || bytes == after, "byte {at}: neither before nor after");
            seen[usize::from(bytes == after)] += 1;
        }
        assert!(seen[0] > 100 && seen[1] > 10, "{seen:?}");
    });
}

/// Entries that overlap, each as large as it can be: the log is read once and not once for each.
#[test]
fn recovery_reads_no_byte_twice_whatever_is_forged() {
    run_alone(test_name!(), 240, "overlapping entries", || {
        const REAL: u64 = 512;
        let path = scratch_holding(vec![1; 4 << 20]);
        let options = options(LogPolicy::Redo).record_area(1, REAL as u32).log_size(32 << 20).max_len(8 << 20);
        let file = options.open_on(PageCache::new(), &path).unwrap();
        for block in 0..1024 {
            file.write_at(&[2; 4096], block * 4096).unwrap();
        }
        let pair = Pair::of(&path);
        drop(file);
        let mut side = pair.side.bytes.clone();
        let at = 3 * PAGE + REAL as usize * 64;
        let chunk = REAL as usize * (64 + PAGE);
        for first in (at..side.len()).step_by(chunk).take((side.len() - at) / chunk) {
            for index in 0..REAL {
                let class = (REAL - index).ilog2();
                let len = 4096 << class;
                let line = [1, 0, u64::from(class) << 16, len, 0, 0, 0];
                seal(&mut side, first + 64 * index as usize, line);
            }
        }
        seal(&mut side, RECORDS_AT + 64, [1, u64::MAX, 0, 4 << 20, 0, 0, 0]);
        pair.data.restore();
        pair.side.restore_as(&side);
        let medium = Counting::new(PageCache::new());
        let file = options.open_on(medium.clone(), &path).unwrap();
        let replayed = file.info().recovery.replayed;
        // A few times, for headers, sums and contents; once for each entry would be hundreds of times as much.
        let (read, most) = (medium.bytes_read(), 4 * (side.len() + (4 << 20)) as u64);
        assert!(read <= most, "{read} bytes were read of a log of {}", side.len());
        assert!(replayed as usize <= side.len() / PAGE, "{replayed} entries replayed");
    });
}
