//! Damaged sidecars: every byte flipped, cut at every length. Opening gives an error or the right contents; never a
//! panic, never other bytes.

use std::path::Path;

use crate::common::{Failures, Image, PAGE, Pair, Rng, attempt, limit, pattern, pmem, scratch, seed, sidecar_of};
use untorn::options::Layout;
use untorn::report::State;
use untorn::{AtomicFile, Durability, Options};
use untorn_testing::cases;

/// Three pages and a bit, so that the last page and the last slice are cut.
const LEN: usize = 3 * PAGE + 100;
const LANES: usize = 2;
const SLOTS: usize = 8;
/// Where the chunks begin: two superblocks, the retirement lines, the records.
const CHUNKS: usize = 3 * PAGE + (LANES * SLOTS * 64_usize).next_multiple_of(PAGE);

/// What the format names is tried byte by byte; of the rest one in several, for nothing much differs between
/// neighbours.
const STRIDE: usize = if cfg!(debug_assertions) { 61 } else { 23 };

fn options(layout: Layout, durability: Durability) -> Options {
    Options::new()
        .layout(layout)
        .durability(durability)
        .record_area(LANES as u32, SLOTS as u32)
        .max_len(64 * PAGE as u64)
        .keep_sidecar(true)
}

const KINDS: [(Layout, Durability); 4] = [
    (Layout::Dense, Durability::PerWrite),
    (Layout::Dense, Durability::PerCommit),
    (Layout::Sparse, Durability::PerWrite),
    (Layout::Sparse, Durability::PerCommit),
];

/// A file some of whose slices stand in the sidecar, some at home, and its contents. More records were written than a
/// lane holds, so the rings have been round.
fn build(path: &Path, layout: Layout, durability: Durability) -> (AtomicFile, Vec<u8>) {
    let mut model = pattern(LEN, 1);
    std::fs::write(path, &model).unwrap();
    let file = options(layout, durability).open(path).unwrap();
    let mut write = |offset: usize, len: usize, seed: u64| {
        let bytes = pattern(len, seed);
        file.write_at(&bytes, offset as u64).unwrap();
        file.sync().unwrap();
        model[offset..offset + len].copy_from_slice(&bytes);
    };
    for round in 0..12 {
        write(64 * round as usize, 64, 100 + round);
    }
    write(0, 64, 2); // Back home, over the copy in the data file.
    write(5, 30, 3);
    write(PAGE + 100, 300, 4);
    write(2 * PAGE - 10, 20, 5); // Two pages in one commit.
    write(LEN - 70, 70, 6); // To the very end.
    (file, model)
}

/// What became of an attempt to open a damaged file: refused, or open with the right contents and good for more.
fn judge(path: &Path, options: &Options, model: &[u8], recover_first: bool) -> Result<(), String> {
    let report = attempt(|| untorn::inspect(path))?;
    if recover_first && attempt(|| untorn::recover(path, options))?.is_err() {
        return Ok(());
    }
    let file = match attempt(|| options.open(path))? {
        Ok(file) => file,
        Err(error) => {
            let error = error.to_string();
            if !error.contains(path.parent().unwrap().to_str().unwrap()) {
                return Err(format!("the error names no file: {error}"));
            }
            return match report {
                Ok(report) if report.state == State::Clean && report.engine.is_some() => {
                    Err(format!("inspect calls it clean, open refuses it: {error}"))
                }
                _ => Ok(()),
            };
        }
    };
    if let Ok(report) = &report
        && matches!(report.state, State::Refused | State::Corrupt)
        && !recover_first
    {
        return Err(format!("opened, though inspect calls it {:?}: {:?}", report.state, report.findings));
    }
    attempt(|| -> Result<(), String> {
        if file.len() != model.len() as u64 {
            return Err(format!("opened with {} bytes instead of {}", file.len(), model.len()));
        }
        let mut bytes = vec![0xee; model.len()];
        file.read_at(&mut bytes, 0).map_err(|error| format!("opened, but cannot be read: {error}"))?;
        if bytes != model {
            let at = bytes.iter().zip(model).position(|(a, b)| a != b);
            return Err(format!("opened with a wrong byte {at:?}"));
        }
        // What was accepted must also work.
        let more = pattern(PAGE, 7);
        file.write_at(&more, 1000).map_err(|error| format!("opened, but cannot be written: {error}"))?;
        file.sync().map_err(|error| format!("opened, but cannot commit: {error}"))?;
        file.read_at(&mut bytes, 0).map_err(|error| format!("written, but cannot be read: {error}"))?;
        let mut after = model.to_vec();
        after[1000..1000 + PAGE].copy_from_slice(&more);
        if bytes == after { Ok(()) } else { Err("wrong bytes after a write".to_owned()) }
    })?
}

/// Offsets whose every byte is tried: what the format names, and the reflected slices.
fn interesting(side: &Image, layout: Layout) -> Vec<usize> {
    let mut offsets: Vec<usize> = Vec::new();
    for copy in [0, PAGE] {
        offsets.extend(copy..copy + 160);
        offsets.extend(copy + 4080..copy + 4096);
    }
    for line in [2 * PAGE, 2 * PAGE + 512] {
        offsets.extend(line..line + 64);
    }
    offsets.extend((3 * PAGE..3 * PAGE + LANES * SLOTS * 64).step_by(if cfg!(debug_assertions) { 7 } else { 2 }));
    let entry = if layout == Layout::Dense { 8 } else { 16 };
    offsets.extend(CHUNKS..CHUNKS + 6 * entry);
    for page in 0..4 {
        let at = CHUNKS + PAGE + page * PAGE;
        // Two bytes of each reflected slice in a debug build, one in three in a release build.
        let step = if cfg!(debug_assertions) { 31 } else { 3 };
        let page = side.bytes.get(at..at + PAGE).into_iter().flatten().enumerate();
        offsets.extend(page.filter(|(_, byte)| **byte != 0).map(|(n, _)| at + n).step_by(step));
    }
    offsets.extend((0..CHUNKS + 6 * PAGE).step_by(STRIDE));
    offsets.retain(|&offset| offset < side.bytes.len());
    offsets.sort_unstable();
    offsets.dedup();
    offsets.into_iter().step_by(cases(3, 1)).collect()
}

/// Damages a sidecar in each of these ways: a byte, or its length. What `judge` says of it is a failure.
fn damage(pair: &Pair, flips: &[(usize, u8)], lengths: &[usize], judge: impl Fn(bool) -> Result<(), String>) {
    let mut failures = Failures::default();
    let mut bytes = pair.side.bytes.clone();
    let mut try_out = |n: usize, bytes: &[u8], what: String| {
        pair.data.restore();
        pair.side.restore_as(bytes);
        if let Err(why) = judge(n.is_multiple_of(3)) {
            failures.add(format!("{what}: {why}"));
        }
    };
    for (n, &(offset, mask)) in flips.iter().enumerate() {
        bytes[offset] ^= mask;
        try_out(n, &bytes, format!("byte {offset} ^ {mask:#04x}"));
        bytes[offset] ^= mask;
    }
    for (n, &len) in lengths.iter().enumerate() {
        try_out(n, &bytes[..len], format!("cut to {len} bytes"));
    }
    failures.conclude(flips.len() + lengths.len());
}

fn flip_every_byte(test: &str, layout: Layout, durability: Durability) {
    let mut rng = Rng::new(seed(test));
    let path = scratch("data");
    let (file, model) = build(&path, layout, durability);
    file.close().unwrap();
    let pair = Pair::of(&path);
    let options = options(layout, durability);
    judge(&path, &options, &model, false).expect("the sound pair opens");
    // One bit, or several.
    let mask = |n| if n % 2 == 0 { 1 << rng.below(8) } else { 1 + rng.below(255) as u8 };
    let flips: Vec<(usize, u8)> = interesting(&pair.side, layout).into_iter().zip((0..).map(mask)).collect();
    damage(&pair, &flips, &[], |recover_first| judge(&path, &options, &model, recover_first));
}

/// Lengths to cut at: near every border, and at a stride.
fn lengths(whole: usize) -> Vec<usize> {
    let borders = (0..CHUNKS + 8 * PAGE).step_by(512).chain((3 * PAGE..3 * PAGE + LANES * SLOTS * 64).step_by(64));
    let near = borders.flat_map(|at| [at.saturating_sub(1), at, at + 1]);
    let mut lengths: Vec<usize> =
        near.chain((0..whole).step_by(STRIDE * 257)).chain([whole - 1, whole - PAGE]).collect();
    lengths.retain(|&len| len < whole);
    lengths.sort_unstable();
    lengths.dedup();
    lengths.into_iter().step_by(cases(3, 1)).collect()
}

fn cut_at_every_length(layout: Layout, durability: Durability, settle_at_home: bool) {
    let path = scratch("data");
    let (file, model) = build(&path, layout, durability);
    if settle_at_home {
        // Nothing stands in the sidecar: a cut loses no byte, but leaves less room than the file needs.
        file.deploy(0, LEN as u64).unwrap();
    }
    file.close().unwrap();
    let pair = Pair::of(&path);
    let options = options(layout, durability);
    let lengths = lengths(pair.side.bytes.len());
    damage(&pair, &[], &lengths, |recover_first| judge(&path, &options, &model, recover_first));
}

/// The bytes of both files while they are open: what a killed process leaves.
fn crashed(path: &Path, layout: Layout, durability: Durability) -> Pair {
    let (file, _) = build(path, layout, durability);
    let pair = Pair::of(path);
    file.close().unwrap();
    pair
}

/// Opens what may be damaged beyond what can be told: anything but a panic, a hang or a file of another length.
fn survives(path: &Path, options: &Options, recover_first: bool) -> Result<(), String> {
    drop(attempt(|| untorn::inspect(path))?);
    if recover_first && attempt(|| untorn::recover(path, options))?.is_err() {
        return Ok(());
    }
    let Ok(file) = attempt(|| options.open(path))? else { return Ok(()) };
    attempt(|| -> Result<(), String> {
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(&mut bytes, 0).map_err(|error| format!("opened, but cannot be read: {error}"))?;
        // A write may find the damage; then it says so.
        let wrote = file.write_at(&[9; 200], 4000).and_then(|()| file.sync());
        if wrote.is_ok() {
            let mut back = [0; 200];
            file.read_at(&mut back, 4000).map_err(|error| format!("written, but cannot be read: {error}"))?;
            if back != [9; 200] {
                return Err("what was just written reads otherwise".to_owned());
            }
        }
        if file.len() == LEN as u64 { Ok(()) } else { Err(format!("opened with {} bytes", file.len())) }
    })?
}

fn damage_what_a_crash_left(test: &str, layout: Layout, durability: Durability) {
    let mut rng = Rng::new(seed(test));
    let path = scratch("data");
    let pair = crashed(&path, layout, durability);
    let options = options(layout, durability);
    pair.restore();
    survives(&path, &options, false).expect("the sound pair opens");
    let offsets = interesting(&pair.side, layout);
    let flips: Vec<(usize, u8)> = offsets.into_iter().map(|offset| (offset, 1 + rng.below(255) as u8)).collect();
    let lengths = lengths(pair.side.bytes.len());
    damage(&pair, &flips, &lengths, |recover_first| survives(&path, &options, recover_first));
}

macro_rules! on_every_kind {
    ($($name:ident: $kind:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn every_flipped_byte_is_an_error_or_harmless() {
                let _limit = limit(120, "flipped bytes");
                flip_every_byte(stringify!($name), KINDS[$kind].0, KINDS[$kind].1);
            }

            #[test]
            fn every_cut_is_an_error_or_harmless() {
                let _limit = limit(120, "cuts");
                cut_at_every_length(KINDS[$kind].0, KINDS[$kind].1, false);
            }

            #[test]
            fn a_cut_sidecar_that_held_nothing_is_an_error_or_harmless() {
                let _limit = limit(120, "cuts of a sidecar that held nothing");
                cut_at_every_length(KINDS[$kind].0, KINDS[$kind].1, true);
            }

            #[test]
            fn damage_to_what_a_crash_left_neither_panics_nor_hangs() {
                let _limit = limit(120, "damage after a crash");
                damage_what_a_crash_left(stringify!($name), KINDS[$kind].0, KINDS[$kind].1);
            }
        }
    )+};
}

on_every_kind! {
    dense_per_write: 0;
    dense_per_commit: 1;
    sparse_per_write: 2;
    sparse_per_commit: 3;
}

/// A sidecar that ends before the room its file needs cannot hold what its bitmaps told of, and after a crash no digest
/// tells: only its length does.
#[test]
fn a_cut_sidecar_after_a_crash_is_refused() {
    let mut failures = Failures::default();
    let mut cases = 0;
    for (layout, durability) in KINDS {
        let path = scratch("data");
        let pair = crashed(&path, layout, durability);
        pair.restore();
        let mut model = vec![0; LEN];
        options(layout, durability).open(&path).unwrap().read_at(&mut model, 0).unwrap();
        for len in [CHUNKS, CHUNKS + 8, CHUNKS + PAGE, CHUNKS + PAGE + 64, pair.side.bytes.len() - 1] {
            pair.data.restore();
            pair.side.restore_as(&pair.side.bytes[..len]);
            cases += 1;
            let Ok(file) = options(layout, durability).open(&path) else { continue };
            let mut bytes = vec![0; LEN];
            if file.read_at(&mut bytes, 0).is_ok() && bytes != model {
                let lost = bytes.iter().zip(&model).filter(|(a, b)| a != b).count();
                failures.add(format!(
                    "{layout} {durability}: cut to {len} bytes: opened, {lost} bytes are not the committed ones"
                ));
            }
        }
        assert!(sidecar_of(&path).exists());
    }
    failures.conclude(cases);
}

/// A bitmap of a page behind the end of the file is nobody's: the file can be made a plain one all the same.
#[test]
fn a_bitmap_behind_the_end_does_not_prevent_settling() {
    for (durability, page) in [(Durability::PerWrite, 4), (Durability::PerCommit, 63), (Durability::PerWrite, 511)] {
        let path = scratch("data");
        let (file, model) = build(&path, Layout::Dense, durability);
        let pair = Pair::of(&path);
        file.close().unwrap();
        let mut side = pair.side.bytes.clone();
        side[CHUNKS + page * 8..][..8].fill(0x55);
        pair.data.restore();
        pair.side.restore_as(&side);
        let medium = pmem();
        options(Layout::Dense, durability).open_on(medium, &path).unwrap().settle().unwrap();
        assert!(!sidecar_of(&path).exists(), "page {page}");
        assert!(std::fs::read(&path).unwrap() == model, "page {page}");
    }
}
