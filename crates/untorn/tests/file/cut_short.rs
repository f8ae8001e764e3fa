//! A data file that another program cuts short, and a caller who trusts the sidecar: what the sidecar holds comes back,
//! and what only the data file held is counted as lost.

use std::ops::Range;

use untorn::options::{Layout, LogPolicy, Order, Prefer};
use untorn::testing::storage::{Medium, PageCache};
use untorn::{Durability, EngineKind, Error, Options};
use untorn_testing::{SplitMix, cases, seed};

use crate::common::{PAGE, killed, pmem, read, scratch, truncate};

const LEN: usize = 6 * PAGE + 100;
const SLICE: usize = 64;
const SLICES: usize = LEN.div_ceil(SLICE);

/// A file as the last commit has it.
#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    /// For each slice, whether the sidecar has it.
    reflected: Vec<bool>,
}

impl Model {
    fn write(&mut self, range: Range<usize>, byte: u8) {
        self.bytes[range.clone()].fill(byte);
        slices(&range).for_each(|slice| self.reflected[slice] = !self.reflected[slice]);
    }

    /// The bytes that are left of a data file that is cut here, and how many are lost.
    fn left(&self, cut: usize) -> (Vec<u8>, u64) {
        let is_lost = |at: &usize| *at >= cut && !self.reflected[at / SLICE];
        let mut bytes = self.bytes.clone();
        (0..LEN).filter(is_lost).for_each(|at| bytes[at] = 0);
        (bytes, (0..LEN).filter(is_lost).count() as u64)
    }
}

fn slices(range: &Range<usize>) -> Range<usize> {
    range.start / SLICE..range.end.div_ceil(SLICE)
}

/// The bytes of a slice that the file has.
fn bytes_of(slice: usize) -> Range<usize> {
    slice * SLICE..((slice + 1) * SLICE).min(LEN)
}

/// What is left if the last write went to these bytes. Its record proves itself by a checksum over the bytes in both
/// files, so a cut that takes some of them takes the whole write.
fn expected(before: &Model, now: &Model, last: &Range<usize>, cut: usize, proven: bool) -> (Vec<u8>, u64) {
    let is_cut = |slice: usize| !now.reflected[slice] && bytes_of(slice).end > cut;
    if proven || !slices(last).any(is_cut) {
        return now.left(cut);
    }
    let (bytes, _) = before.left(cut);
    let is_of_last = |at: usize| slices(last).contains(&(at / SLICE));
    let is_lost = |at: &usize| is_of_last(*at) || *at >= cut && !before.reflected[at / SLICE];
    (bytes, (0..LEN).filter(is_lost).count() as u64)
}

fn go<M: Medium>(rng: &mut SplitMix, options: &Options, proven: bool, medium: impl Fn() -> M) {
    let path = scratch("data");
    let file = options.create_on(medium(), &path, LEN as u64).unwrap();
    let mut now = Model { bytes: vec![0; LEN], reflected: vec![false; SLICES] };
    let (mut before, mut last) = (now.clone(), 0..0);
    for byte in 1..=1 + rng.below(40) as u8 {
        let from = rng.below(LEN as u64) as usize;
        last = from..(from + 1 + rng.below(2 * PAGE as u64) as usize).min(LEN);
        file.write_at(&vec![byte; last.len()], from as u64).unwrap();
        before = now.clone();
        now.write(last.clone(), byte);
    }
    assert_eq!(file.info().reflected_slices, now.reflected.iter().filter(|is| **is).count() as u64, "the model");
    let is_closed = rng.below(4) == 0;
    if is_closed {
        file.close().unwrap();
    } else {
        killed(file);
    }
    let cut = if rng.below(8) == 0 { 0 } else { rng.below(LEN as u64) as usize };
    truncate(&path, cut);
    let what = format!("{options:?}, closed: {is_closed}, cut at {cut}, the last write to {last:?}");
    let refused = options.open_on(medium(), &path).map(drop);
    assert!(matches!(refused, Err(Error::ModifiedExternally { .. })), "{what}: {refused:?}");
    let (bytes, lost) = expected(&before, &now, &last, cut, proven || is_closed);
    let file = options.clone().prefer(Prefer::Sidecar).open_on(medium(), &path);
    let file = file.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = read(&file);
    let differs = (0..LEN).find(|at| found[*at] != bytes[*at]);
    assert_eq!(differs, None, "{what}: other bytes");
    assert_eq!(file.info().recovery.lost_bytes, lost, "{what}");
    file.close().unwrap();
    let again = options.open_on(medium(), &path).unwrap();
    assert!(read(&again) == bytes && again.info().recovery.lost_bytes == 0, "{what}: opened again");
}

#[test]
fn a_cut_file_gets_back_what_the_sidecar_holds() {
    let mut rng = SplitMix::new(seed("a_cut_file_gets_back_what_the_sidecar_holds"));
    for _ in 0..cases(10, 2000) {
        for layout in [Layout::Dense, Layout::Sparse] {
            for order in [Order::OneFence, Order::TwoFence] {
                let options = Options::new().layout(layout).order(order).record_area(2, 8).max_len(1 << 20);
                let options = options.durability(Durability::PerWrite).keep_sidecar(true);
                go(&mut rng, &options, order == Order::TwoFence, PageCache::new);
                go(&mut rng, &options, order == Order::TwoFence, pmem);
            }
        }
    }
}

#[test]
fn a_cut_file_gets_back_what_the_log_holds() {
    let mut rng = SplitMix::new(seed("a_cut_file_gets_back_what_the_log_holds"));
    for round in 0..cases(20, 2000) {
        let path = scratch("data");
        let options = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit);
        let options = options.log_policy(LogPolicy::Redo).checkpoint_threads(0).max_len(1 << 20);
        let file = options.create_on(PageCache::new(), &path, LEN as u64).unwrap();
        let mut bytes = vec![0; LEN];
        let mut in_log = vec![false; LEN];
        let count = 2 + rng.below(20);
        let home = rng.below(count);
        for n in 0..count {
            let from = rng.below(LEN as u64) as usize;
            let range = from..(from + 1 + rng.below(PAGE as u64) as usize).min(LEN);
            file.write_at(&vec![n as u8 + 1; range.len()], from as u64).unwrap();
            bytes[range.clone()].fill(n as u8 + 1);
            in_log[range].fill(true);
            file.sync().unwrap();
            if n == home {
                file.deploy(0, LEN as u64).unwrap();
                in_log.fill(false);
            }
        }
        killed(file);
        let cut = rng.below(LEN as u64) as usize;
        truncate(&path, cut);
        let file = options.prefer(Prefer::Sidecar).open_on(PageCache::new(), &path).unwrap();
        let found = read(&file);
        // What was deployed may still be in the log, too.
        let may_be_lost = |at: &usize| *at >= cut && !in_log[*at];
        let is_right = |at: &usize| found[*at] == bytes[*at] || may_be_lost(at) && found[*at] == 0;
        assert_eq!((0..LEN).find(|at| !is_right(at)), None, "round {round}, cut at {cut}: other bytes");
        let least = (0..LEN).filter(|at| found[*at] != bytes[*at]).count() as u64;
        let most = (0..LEN).filter(may_be_lost).count() as u64;
        let lost = file.info().recovery.lost_bytes;
        assert!((least..=most).contains(&lost), "round {round}, cut at {cut}: {least} <= {lost} <= {most}");
    }
}
