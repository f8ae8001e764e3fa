//! The disks that a power cut may leave: the block part of the fault model, applied to a log.

use std::fmt;

use untorn_sim::Rng;

use super::SECTOR;
use super::log::{Entry, Log, Position, Request};

/// Sectors of a page, the unit in which file systems write.
const PAGE_SECTORS: u64 = 8;

/// The durable and the pending requests at an instant.
///
/// When a flush has ended, everything that the disk had completed before the flush began is durable. All other requests
/// that had begun by then are pending: any subset of a request's sectors may have reached the disk, in any order
/// relative to other requests. A sector is atomic (fault model, block devices 1 and 2).
#[derive(Debug)]
pub struct Cut<'a> {
    durable: Vec<&'a Request>,
    pending: Vec<&'a Request>,
}

/// A range of the disk to overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch<'a> {
    /// These bytes, from this offset on.
    Bytes(u64, &'a [u8]),
    /// Zeros from this offset on, so many bytes.
    Zeros(u64, u64),
}

/// The fate of the pending requests. Its text is a sentence without a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// None reached the disk.
    Lost,
    /// All did.
    Kept,
    /// The disk kept the order: some whole requests, and the first sectors of the next one.
    Prefix {
        /// Whole requests.
        requests: usize,
        /// Sectors of the request after them.
        sectors: u64,
    },
    /// Each request was kept whole or lost, at random.
    Requests {
        /// The probability of being kept.
        percent: u64,
    },
    /// Each sector of each request was kept or lost, at random.
    Sectors {
        /// The probability of being kept.
        percent: u64,
    },
    /// Requests were kept or lost at random, but one page of one request was torn.
    Torn {
        /// The number of the request among the pending ones.
        request: usize,
        /// The page of it.
        page: u64,
        /// The sector of the page where the tear is.
        sector: u64,
        /// Whether the new sectors are those before the tear, or those after it.
        head: bool,
    },
}

impl Log {
    /// The state of the disk at a power cut at this instant.
    pub fn cut(&self, at: Position) -> Cut<'_> {
        self.cut_without(0, at)
    }

    /// The same for a lying disk, which acknowledged its latest flush without executing it; for tests of the tests.
    pub fn cut_lying(&self, at: Position) -> Cut<'_> {
        self.cut_without(1, at)
    }

    /// The same for a disk that acknowledged the flushes since `since` without executing them.
    pub fn cut_lying_since(&self, since: Position, at: Position) -> Cut<'_> {
        let lies = |entry: &&Entry| {
            entry.request == Request::Flush && entry.begin >= since && entry.end.is_some_and(|end| end < at)
        };
        self.cut_without(self.before(at).iter().filter(lies).count(), at)
    }

    /// Ignores this many of the latest flushes.
    fn cut_without(&self, lies: usize, at: Position) -> Cut<'_> {
        let begun = self.before(at);
        let ended = |entry: &Entry, before: Position| entry.end.is_some_and(|end| end < before);
        // Among the ended flushes, the one that began last covers everything that the others cover.
        let mut flushes = begun.iter().rev().filter(|entry| entry.request == Request::Flush && ended(entry, at));
        let covered = flushes.nth(lies).map_or(0, |entry| entry.begin);
        let writes = begun.iter().filter(|entry| entry.request != Request::Flush);
        let (durable, pending) = writes.partition::<Vec<&Entry>, _>(|entry| ended(entry, covered));
        Cut { durable: requests(durable), pending: requests(pending) }
    }
}

fn requests(entries: Vec<&Entry>) -> Vec<&Request> {
    entries.into_iter().map(|entry| &entry.request).collect()
}

impl<'a> Cut<'a> {
    /// The number of pending requests, which may be lost.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Picks one of the disks that the power cut may leave. Returns what happened, and the patches to apply in order to
    /// the disk as it was at the beginning of the log.
    pub fn draw(&self, rng: &mut Rng) -> (ReplayOutcome, Vec<Patch<'a>>) {
        let fate = self.fate(rng);
        let mut patches: Vec<Patch<'a>> =
            self.durable.iter().filter_map(|request| slice(request, 0, u64::MAX)).collect();
        for (number, request) in self.pending.iter().enumerate() {
            let whole = match fate {
                ReplayOutcome::Requests { percent } => rng.below(100) < percent,
                ReplayOutcome::Torn { .. } => rng.one_in(2),
                _ => false,
            };
            let mut kept = |sector: u64| match fate {
                ReplayOutcome::Lost => false,
                ReplayOutcome::Kept => true,
                ReplayOutcome::Prefix { requests, sectors } => {
                    number < requests || (number == requests && sector < sectors)
                }
                ReplayOutcome::Requests { .. } => whole,
                ReplayOutcome::Sectors { percent } => rng.below(100) < percent,
                ReplayOutcome::Torn { request, page, sector: tear, head } if number == request => {
                    sector / PAGE_SECTORS < page
                        || (sector / PAGE_SECTORS == page && (sector % PAGE_SECTORS < tear) == head)
                }
                ReplayOutcome::Torn { .. } => whole,
            };
            runs(sectors(request), &mut kept, |from, to| patches.extend(slice(request, from, to)));
        }
        (fate, patches)
    }

    fn fate(&self, rng: &mut Rng) -> ReplayOutcome {
        let Some(last) = self.pending.len().checked_sub(1) else { return ReplayOutcome::Kept };
        let any = |rng: &mut Rng| rng.below(last as u64 + 1) as usize;
        let percent = [10, 50, 90][rng.below(3) as usize];
        match rng.below(12) {
            0 => ReplayOutcome::Lost,
            1 => ReplayOutcome::Kept,
            2..4 => {
                let requests = any(rng);
                ReplayOutcome::Prefix { requests, sectors: rng.below(sectors(self.pending[requests])) }
            }
            4..7 => ReplayOutcome::Requests { percent },
            7..10 => ReplayOutcome::Sectors { percent },
            _ => {
                let request = any(rng);
                let pages = sectors(self.pending[request]).div_ceil(PAGE_SECTORS);
                let (page, sector) = (rng.below(pages), 1 + rng.below(PAGE_SECTORS - 1));
                ReplayOutcome::Torn { request, page, sector, head: rng.one_in(2) }
            }
        }
    }
}

/// The number of sectors that a request covers, at least one.
fn sectors(request: &Request) -> u64 {
    match request {
        Request::Write { bytes, .. } => (bytes.len() as u64).div_ceil(SECTOR).max(1),
        Request::Zero { len, .. } => len.div_ceil(SECTOR).max(1),
        Request::Flush => 1,
    }
}

/// Sectors `from` up to and without `to` of a request, as far as it goes.
fn slice(request: &Request, from: u64, to: u64) -> Option<Patch<'_>> {
    let within = |len: u64| (from.saturating_mul(SECTOR).min(len), to.saturating_mul(SECTOR).min(len));
    match request {
        Request::Write { offset, bytes } => {
            let (start, end) = within(bytes.len() as u64);
            Some(Patch::Bytes(offset + start, &bytes[start as usize..end as usize]))
        }
        Request::Zero { offset, len } => {
            let (start, end) = within(*len);
            Some(Patch::Zeros(offset + start, end - start))
        }
        Request::Flush => None,
    }
}

/// Calls `each` with every longest run `from..to` of numbers below `count` that are `kept`.
fn runs(count: u64, kept: &mut impl FnMut(u64) -> bool, mut each: impl FnMut(u64, u64)) {
    let mut start = None;
    for number in 0..count {
        match (kept(number), start) {
            (true, None) => start = Some(number),
            (false, Some(from)) => {
                each(from, number);
                start = None;
            }
            _ => {}
        }
    }
    if let Some(from) = start {
        each(from, count);
    }
}

impl fmt::Display for ReplayOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayOutcome::Lost => write!(f, "lost every unflushed write"),
            ReplayOutcome::Kept => write!(f, "kept every write"),
            ReplayOutcome::Prefix { requests, sectors } => {
                write!(f, "kept the first {requests} unflushed writes and {sectors} sectors of the next")
            }
            ReplayOutcome::Requests { percent } => {
                write!(f, "kept each unflushed write with a probability of {percent} %")
            }
            ReplayOutcome::Sectors { percent } => {
                write!(f, "kept each unflushed sector with a probability of {percent} %")
            }
            ReplayOutcome::Torn { request, page, sector, head } => {
                let side = if *head { "before" } else { "from" };
                write!(f, "kept only the sectors {side} sector {sector} of page {page} of unflushed write {request}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn write(sector: u64, sectors: u64, value: u8) -> Request {
        let bytes = vec![value; (sectors * SECTOR) as usize].into_boxed_slice();
        Request::Write { offset: sector * SECTOR, bytes }
    }

    fn log(requests: &[Request]) -> Log {
        let mut log = Log::default();
        for request in requests {
            let number = log.begin(request.clone());
            log.end(number);
        }
        log
    }

    /// The first byte of each sector after a crash, each sector checked to be of one piece.
    fn disk(patches: &[Patch<'_>], sectors: u64) -> Vec<u8> {
        let mut disk = vec![0; (sectors * SECTOR) as usize];
        for patch in patches {
            match *patch {
                Patch::Bytes(offset, bytes) => disk[offset as usize..][..bytes.len()].copy_from_slice(bytes),
                Patch::Zeros(offset, len) => disk[offset as usize..][..len as usize].fill(0),
            }
        }
        let mut firsts = Vec::new();
        for sector in disk.chunks(SECTOR as usize) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            firsts.push(sector[0]);
        }
        firsts
    }

    fn draws(log: &Log, at: Position, sectors: u64) -> BTreeSet<Vec<u8>> {
        (0..3000).map(|seed| disk(&log.cut(at).draw(&mut Rng::new(seed)).1, sectors)).collect()
    }

    #[test]
    fn a_completed_flush_is_never_lost_and_later_writes_may_be() {
        let log = log(&[write(0, 1, 1), write(1, 1, 2), Request::Flush, write(0, 1, 3)]);
        let end = draws(&log, log.position(), 2);
        assert_eq!(end, BTreeSet::from([vec![1, 2], vec![3, 2]]));
        // The flush began and has not ended: it covers nothing yet.
        let during = draws(&log, 5, 2);
        assert_eq!(during, BTreeSet::from([vec![0, 0], vec![1, 0], vec![0, 2], vec![1, 2]]));
        assert_eq!(draws(&log, 0, 2), BTreeSet::from([vec![0, 0]]));
        assert_eq!(log.cut(6).pending(), 0);
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_was_still_under_way() {
        let mut log = Log::default();
        let slow = log.begin(write(0, 1, 1));
        let flush = log.begin(Request::Flush);
        log.end(slow);
        log.end(flush);
        assert!(draws(&log, log.position(), 1).contains(&vec![0]));
        let second = log.begin(Request::Flush);
        log.end(second);
        assert_eq!(draws(&log, log.position(), 1), BTreeSet::from([vec![1]]));
    }

    #[test]
    fn a_lying_disk_loses_what_its_latest_flush_covered_and_no_more() {
        let log = log(&[write(0, 1, 1), Request::Flush, write(1, 1, 2), Request::Flush]);
        let images = |cut: Cut<'_>| -> BTreeSet<Vec<u8>> {
            (0..100).map(|seed| disk(&cut.draw(&mut Rng::new(seed)).1, 2)).collect()
        };
        assert_eq!(images(log.cut(log.position())), BTreeSet::from([vec![1, 2]]));
        assert_eq!(images(log.cut_lying(log.position())), BTreeSet::from([vec![1, 0], vec![1, 2]]));
        assert_eq!(images(log.cut_lying_since(4, log.position())), BTreeSet::from([vec![1, 0], vec![1, 2]]));
        let all = BTreeSet::from([vec![0, 0], vec![0, 2], vec![1, 0], vec![1, 2]]);
        assert_eq!(images(log.cut_lying_since(0, log.position())), all);
        assert_eq!(images(log.cut_lying_since(log.position(), log.position())), BTreeSet::from([vec![1, 2]]));
    }

    #[test]
    fn either_of_two_pending_writes_may_win_in_each_sector() {
        let log = log(&[write(0, 2, 1), write(0, 2, 2)]);
        let mut all = BTreeSet::new();
        for first in 0..3 {
            for second in 0..3 {
                all.insert(vec![first, second]);
            }
        }
        assert_eq!(draws(&log, log.position(), 2), all);
    }

    #[test]
    fn a_page_tears_between_any_two_sectors_with_either_side_new() {
        let log = log(&[write(0, 16, 1)]);
        let images = draws(&log, log.position(), 16);
        for tear in 1..8 {
            for page in [0, 8] {
                let head: Vec<u8> = (0..16).map(|sector| u8::from(sector < page + tear)).collect();
                let tail: Vec<u8> = (0..16)
                    .map(|sector| u8::from(sector < page || (page + tear..page + 8).contains(&sector)))
                    .collect();
                assert!(images.contains(&head), "no tear before sector {tear} of the page at {page}");
                assert!(images.contains(&tail), "no tear from sector {tear} of the page at {page}");
            }
        }
    }

    #[test]
    fn a_discard_is_pending_like_a_write() {
        let log = log(&[write(0, 2, 7), Request::Flush, Request::Zero { offset: 0, len: 2 * SECTOR }]);
        let images = draws(&log, log.position(), 2);
        assert_eq!(images, BTreeSet::from([vec![7, 7], vec![0, 7], vec![7, 0], vec![0, 0]]));
    }

    #[test]
    fn an_image_follows_from_its_seed() {
        let log = log(&[write(0, 9, 1), write(3, 9, 2), write(5, 2, 3)]);
        let cut = log.cut(log.position());
        for seed in 0..100 {
            assert_eq!(cut.draw(&mut Rng::new(seed)), cut.draw(&mut Rng::new(seed)));
        }
    }
}
