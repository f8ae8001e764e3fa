//! Sidecars whose checksums are right and whose contents are not: made by somebody who knows the format, or by a later
//! version. No panic, no endless loop, nothing outside the file; what a later version marks as unknown is refused.

use std::path::Path;

use super::forged::{Bench, SEQ, UUID, retired, seal_line, seal_superblock};
use crate::common::golden::RETIREMENTS;
use crate::common::{PAGE, Pair, ReadAt, pattern, run_alone, scratch};
use twox_hash::XxHash3_64;
use untorn::options::Layout;
use untorn::{Durability, Error, Options};
use untorn_testing::test_name;

const LEN: usize = 5 * PAGE + 100;
const LANES: usize = 2;
const SLOTS: usize = 8;
const LANES_AT: usize = 3 * PAGE;
const CHUNKS: usize = 4 * PAGE;

/// Offsets within a superblock.
const VERSION: usize = 8;
const COMPAT: usize = 16;

fn options(layout: Layout, durability: Durability) -> Options {
    let options = Options::new().layout(layout).durability(durability).keep_sidecar(true);
    options.record_area(LANES as u32, SLOTS as u32).max_len(64 * PAGE as u64)
}

fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Puts a number into both superblocks, whose checksums are right again.
fn put_in_superblocks(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    for copy in 0..2 {
        put(bytes, copy * PAGE + at, value, width);
        seal_superblock(bytes, copy);
    }
}

/// The same with both retirement lines.
fn put_in_retirements(bytes: &mut [u8], field: usize, value: u64) {
    let seed = XxHash3_64::oneshot(&bytes[UUID]);
    for at in RETIREMENTS {
        put(bytes, at + field, value, 8);
        let check = XxHash3_64::oneshot_with_seed(seed, &bytes[at..at + 56]);
        put(bytes, at + 56, check, 8);
    }
}

/// A record of one line, sealed for a slot.
struct Forged {
    slot: usize,
    seq: u64,
    certain: bool,
    count: u64,
    page: u64,
    bitmap: u64,
    mask: u64,
    len: u64,
}

impl Forged {
    fn put(&self, bytes: &mut [u8]) {
        let at = LANES_AT + self.slot * 64;
        put(bytes, at, self.seq, 8);
        put(bytes, at + 8, u64::from(self.certain), 2);
        put(bytes, at + 10, 0, 2);
        put(bytes, at + 12, self.count, 4);
        put(bytes, at + 16, self.page, 8);
        put(bytes, at + 24, self.bitmap, 8);
        put(bytes, at + 32, self.mask, 8);
        put(bytes, at + 40, 0, 8);
        put(bytes, at + 48, self.len, 8);
        seal_line(bytes, at);
    }
}

/// A pair as it is while open, or closed cleanly, and the contents.
fn build(path: &Path, layout: Layout, durability: Durability, clean: bool) -> (Pair, Vec<u8>) {
    let mut model = pattern(LEN, 1);
    std::fs::write(path, &model).unwrap();
    let file = options(layout, durability).open(path).unwrap();
    for (n, at) in [0, 100, PAGE, 2 * PAGE - 64, LEN - 50].into_iter().enumerate() {
        let bytes = pattern(50, 10 + n as u64);
        file.write_at(&bytes, at as u64).unwrap();
        file.sync().unwrap();
        model[at..at + 50].copy_from_slice(&bytes);
    }
    if clean {
        file.close().unwrap();
        return (Pair::of(path), model);
    }
    let pair = Pair::of(path);
    file.close().unwrap();
    (pair, model)
}

fn bench(layout: Layout, clean: bool) -> Bench {
    let options = options(layout, Durability::PerWrite);
    let opens = options.clone();
    let name = format!("{layout}, clean: {clean}");
    Bench::new(name, options, Box::new(move |path| opens.open(path)), |path| {
        build(path, layout, Durability::PerWrite, clean).0
    })
}

const EXTREMES: [u64; 13] =
    [0, 1, 2, 63, 64, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 61, 1 << 62, u64::MAX - 1, u64::MAX];

fn on_every_state(go: impl Fn(&mut Bench)) {
    for layout in [Layout::Dense, Layout::Sparse] {
        for clean in [true, false] {
            let mut bench = bench(layout, clean);
            go(&mut bench);
            bench.conclude();
        }
    }
}

#[test]
fn forged_superblocks() {
    run_alone(test_name!(), 120, "forged superblocks", || {
        on_every_state(|bench| {
            // Offset and width of every field but magic, identity and UUID.
            let words = [(16, 8), (24, 8), (32, 8), (SEQ, 8), (112, 8), (120, 8), (128, 8), (136, 8)];
            let small = [(8, 4), (12, 4), (96, 4), (100, 4), (104, 4), (108, 1), (109, 1), (110, 1), (111, 1)];
            for (at, width) in words.into_iter().chain(small) {
                let values = if width == 1 { (0..8).chain([255]).collect() } else { EXTREMES.to_vec() };
                for value in values {
                    bench.check(&format!("superblock field at {at}: {value:#x}"), |bytes| {
                        put_in_superblocks(bytes, at, value, width)
                    });
                }
            }
        });
    });
}

#[test]
fn forged_retirement_lines() {
    run_alone(test_name!(), 120, "forged retirement lines", || {
        on_every_state(|bench| {
            for (at, field) in [(0, "sequence"), (8, "cut"), (16, "length"), (24, "session")] {
                for value in EXTREMES {
                    bench
                        .check(&format!("retirement {field} {value:#x}"), |bytes| put_in_retirements(bytes, at, value));
                }
            }
        });
    });
}

#[test]
fn forged_records() {
    run_alone(test_name!(), 120, "forged records", || {
        on_every_state(|bench| {
            let next = retired(&bench.pair.side.bytes).0 + 100;
            let sound = |certain| Forged {
                slot: 3,
                seq: next,
                certain,
                count: 1,
                page: 1,
                bitmap: 1,
                mask: 1,
                len: LEN as u64,
            };
            for certain in [true, false] {
                for value in EXTREMES {
                    let mut forge = |what: &str, record: Forged| {
                        bench
                            .check(&format!("record {what} {value:#x}, certain: {certain}"), |bytes| record.put(bytes));
                    };
                    forge("page", Forged { page: value, ..sound(certain) });
                    forge("page at home", Forged { page: value, bitmap: 0, ..sound(certain) });
                    forge("bitmap", Forged { bitmap: value, mask: u64::MAX, ..sound(certain) });
                    forge("mask", Forged { mask: value, ..sound(certain) });
                    forge("length", Forged { len: value, ..sound(certain) });
                    forge("bare length", Forged { len: value, count: 0, ..sound(certain) });
                    forge("number", Forged { seq: value, ..sound(certain) });
                    forge("count", Forged { count: value, ..sound(certain) });
                    // Proven by a later one, though it never was.
                    bench.check(&format!("proven page {value:#x}"), |bytes| {
                        Forged { page: value, ..sound(false) }.put(bytes);
                        Forged { slot: 4, seq: next + 1, ..sound(true) }.put(bytes);
                    });
                }
            }
        });
    });
}

#[test]
fn forged_slots() {
    run_alone(test_name!(), 60, "forged slots of the sparse form", || {
        for clean in [true, false] {
            let mut bench = bench(Layout::Sparse, clean);
            for slot in [0, 1, 200, 255] {
                for value in EXTREMES {
                    for bitmap in [0, 1, u64::MAX] {
                        bench.check(&format!("slot {slot} names page {value:#x} - 1, bitmap {bitmap:#x}"), |bytes| {
                            put(bytes, CHUNKS + slot * 16, value, 8);
                            put(bytes, CHUNKS + slot * 16 + 8, bitmap, 8);
                        });
                    }
                }
            }
            bench.conclude();
        }
    });
}

/// Numbers so high that a session could reach those nobody believes are refused; the highest that are not still serve.
#[test]
fn numbers_at_the_end_of_the_scale() {
    const MOST: u64 = 1 << 61;
    let is_damaged = |outcome: Result<untorn::AtomicFile, Error>| matches!(outcome, Err(Error::Corrupt { .. }));
    for number in [MOST - 1000, MOST, MOST + 1, 2 * MOST - 1, 2 * MOST, 2 * MOST + 1] {
        let path = scratch("data");
        let (pair, mut model) = build(&path, Layout::Dense, Durability::PerWrite, true);
        let options = options(Layout::Dense, Durability::PerWrite);
        for (at, what) in [(0, "sequence"), (8, "cut"), (24, "session")] {
            let mut bytes = pair.side.bytes.clone();
            put_in_retirements(&mut bytes, at, number);
            pair.data.restore();
            pair.side.restore_as(&bytes);
            assert_eq!(is_damaged(options.open(&path)), number > MOST, "{what} {number:#x}");
        }
        let mut bytes = pair.side.bytes.clone();
        put_in_superblocks(&mut bytes, SEQ, number, 8);
        pair.data.restore();
        pair.side.restore_as(&bytes);
        assert_eq!(is_damaged(options.open(&path)), number > MOST, "superblock {number:#x}");
        // A record in flight.
        let path = path.dir().join("crashed");
        let (pair, _) = build(&path, Layout::Dense, Durability::PerWrite, false);
        let mut bytes = pair.side.bytes.clone();
        let (slot, len) = (7, LEN as u64);
        Forged { slot, seq: number, certain: true, count: 0, page: 0, bitmap: 0, mask: 0, len }.put(&mut bytes);
        pair.side.restore_as(&bytes);
        // One beyond the scale is none; what follows one at its end would not be believed.
        assert_eq!(is_damaged(options.open(&path)), number > MOST && number <= 2 * MOST, "record {number:#x}");
        if number < MOST {
            // What is written from here on survives a crash.
            let file = options.open(&path).unwrap();
            file.write_at(&[7; 64], 0).unwrap();
            let crash = Pair::of(&path);
            file.close().unwrap();
            crash.restore();
            model[..64].fill(7);
            assert!(crate::common::read(&options.open(&path).unwrap())[..64] == model[..64]);
        }
    }
}

/// A later version, or a feature that must be known: refused as such, by every door, and nothing changed.
#[test]
fn the_future_is_refused_by_name() {
    for (at, width, value) in [(VERSION, 4, 2), (COMPAT + 8, 8, 1), (COMPAT + 16, 8, 1 << 63)] {
        let path = scratch("data");
        let (pair, _) = build(&path, Layout::Dense, Durability::PerWrite, true);
        let mut bytes = pair.side.bytes.clone();
        put_in_superblocks(&mut bytes, at, value, width);
        pair.side.restore_as(&bytes);
        for options in [Options::new(), Options::new().read_only(true), Options::new().adopt(true)] {
            let error = options.open(&path).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("newer version of untorn"), "{error}");
        }
        assert!(matches!(untorn::recover(&path, &Options::new()), Err(Error::Unsupported { .. })));
        let report = untorn::inspect(&path).unwrap();
        assert_eq!(report.state, untorn::report::State::Refused);
        assert!(report.findings[0].contains("newer version of untorn"), "{:?}", report.findings);
        assert!(std::fs::read(&pair.side.path).unwrap() == bytes, "the sidecar was touched");
        assert!(std::fs::read(&path).unwrap() == pair.data.bytes, "the data was touched");
    }
}

/// A feature that one may ignore is ignored.
#[test]
fn a_compatible_feature_is_no_obstacle() {
    let path = scratch("data");
    let (pair, model) = build(&path, Layout::Dense, Durability::PerWrite, true);
    let mut bytes = pair.side.bytes.clone();
    put_in_superblocks(&mut bytes, COMPAT, 1, 8);
    pair.side.restore_as(&bytes);
    let file = Options::new().open(&path).unwrap();
    assert!(file.bytes_at(0, LEN) == model);
}

/// The room a file may grow to is a wish of whoever opens it; a smaller one than last time is no damage.
#[test]
fn a_smaller_maximum_than_last_time_opens() {
    for layout in [Layout::Dense, Layout::Sparse] {
        let path = scratch("data");
        let large = options(layout, Durability::PerWrite);
        let file = large.create(&path, 60 * PAGE as u64).unwrap();
        file.write_at(&[1; 64], 50 * PAGE as u64).unwrap();
        file.write_at(&[2; 64], 0).unwrap();
        file.resize(PAGE as u64).unwrap();
        // Two crashes: the first open cuts the data file to its length, the second finds it so. Closing would give the
        // shrunk pages' places back.
        let pair = Pair::of(&path);
        file.close().unwrap();
        pair.restore();
        let file = large.open(&path).unwrap();
        let pair = Pair::of(&path);
        file.close().unwrap();
        pair.restore();
        let small = large.clone().max_len(2 * PAGE as u64);
        let file = small.open(&path).unwrap_or_else(|error| panic!("{layout}: {error}"));
        assert_eq!(file.bytes_at(0, 64), [2; 64]);
    }
}
