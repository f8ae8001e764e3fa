//! `map-commit` and `region-flush`: plain stores into a map of a file or region and their commit, compared with plain
//! stores into a shared mapping and its flush. With one byte per page this is libpmem's benchmark `pmem_flush`, which
//! the Region System paper ported (Fig. 5).

use std::path::Path;
use std::time::{Duration, Instant};

use untorn::options::DirtyTracking;
use untorn::region::{RegionMap, RegionMapOptions, RegionStore, StoreOptions};
use untorn::testing::storage::{Barrier, Medium, MediumClass, MediumFile};
use untorn::{AtomicMap, Options};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases};
use crate::args::Pattern;
use crate::cpu::quiesce;
use crate::error::Result;
use crate::measure::Buffer;
use crate::offsets::{Offsets, Region};
use crate::raw::Target;
use crate::report::{MapCommitRow, Row};
use crate::rig::Rig;
use crate::stats::{median, pairwise, quantile};

const DIRTY: [u64; 4] = [1, 10, 100, 1000];
const PAGE: u64 = 4096;

const FLUSH: Barrier = Barrier::new("bench.map-commit.flush");

/// A file mapped and stored to without atomicity.
struct Plain<M: Medium> {
    medium: M,
    file: M::File,
}

impl<M: Medium> Plain<M> {
    fn store(&self, pages: &[u64], bytes: &[u8]) -> Result<()> {
        Ok(pages.iter().try_for_each(|&offset| self.file.store(offset, bytes))?)
    }

    /// Flushes as a program without untorn does: `msync(MS_SYNC)`, which the kernel treats as the `fsync` called here.
    /// On persistent memory it flushes every line of the pages, as libpmem's `pmem_flush` does, and fences once.
    fn flush(&self, pages: &[u64]) -> Result<()> {
        if self.medium.class() == MediumClass::Block {
            return Ok(self.file.sync(FLUSH)?);
        }
        pages.iter().for_each(|&offset| self.file.flush(FLUSH, offset, PAGE));
        Ok(self.medium.fence(FLUSH, &[&self.file])?)
    }
}

/// Memory to store to and commit.
pub(super) trait Mapped: Sized {
    /// Maps a new file of `len` bytes.
    fn create<M: Medium>(medium: M, path: &Path, len: u64, method: DirtyTracking) -> Result<Self>;
    fn method(&self) -> DirtyTracking;
    fn memory(&mut self) -> Result<&mut [u8]>;
    fn commit(&mut self) -> Result<()>;
    /// Closes it, and leaves only the file.
    fn close(self) -> Result<()>;
}

impl Mapped for AtomicMap {
    fn create<M: Medium>(_medium: M, path: &Path, len: u64, method: DirtyTracking) -> Result<Self> {
        Ok(Options::new().dirty_tracking(method).create_map(path, len)?)
    }

    fn method(&self) -> DirtyTracking {
        self.dirty_tracking()
    }

    fn memory(&mut self) -> Result<&mut [u8]> {
        Ok(self)
    }

    fn commit(&mut self) -> Result<()> {
        AtomicMap::commit(self)?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        Ok(self.settle()?)
    }
}

/// A region that fills its store.
pub(super) struct Whole {
    store: RegionStore,
    map: RegionMap,
    len: usize,
}

impl Mapped for Whole {
    fn create<M: Medium>(medium: M, path: &Path, len: u64, method: DirtyTracking) -> Result<Self> {
        let store = StoreOptions::new().create_on(medium, path)?;
        let region = store.create_region("whole")?;
        let mut map = RegionMapOptions::new().dirty_tracking(method).map(&region)?;
        map.alloc_pages(len / PAGE)?;
        Ok(Whole { store, map, len: (len / PAGE * PAGE) as usize })
    }

    fn method(&self) -> DirtyTracking {
        self.map.dirty_tracking()
    }

    fn memory(&mut self) -> Result<&mut [u8]> {
        Ok(self.map.bytes_mut(0, self.len)?)
    }

    fn commit(&mut self) -> Result<()> {
        self.map.pmsync()?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        drop(self.map);
        Ok(self.store.close()?)
    }
}

/// Both arms' files, and the next pages to store to.
struct Arms<'a, M: Medium, A: Mapped> {
    plain: &'a Plain<M>,
    map: A,
    len: u64,
    bytes: &'a [u8],
    pattern: Pattern,
    visited: u64,
}

/// Nanoseconds of the stores and of the flush or commit.
type Times = (f64, f64);

impl<M: Medium, A: Mapped> Arms<'_, M, A> {
    fn next(&mut self, dirty: u64) -> Vec<u64> {
        let region = Region { base: 0, len: self.len / PAGE * PAGE };
        let mut offsets = Offsets::each_page(self.pattern, region, self.bytes.len(), self.visited);
        self.visited += dirty;
        (0..dirty).map(|_| offsets.next()).collect()
    }

    fn run_plain(&self, pages: &[u64]) -> Result<Times> {
        let start = Instant::now();
        self.plain.store(pages, self.bytes)?;
        let stored = Instant::now();
        self.plain.flush(pages)?;
        Ok((nanoseconds(stored - start), nanoseconds(stored.elapsed())))
    }

    fn run_map(&mut self, pages: &[u64]) -> Result<Times> {
        let memory = self.map.memory()?;
        let start = Instant::now();
        for &offset in pages {
            memory[offset as usize..][..self.bytes.len()].copy_from_slice(self.bytes);
        }
        let stored = Instant::now();
        self.map.commit()?;
        Ok((nanoseconds(stored - start), nanoseconds(stored.elapsed())))
    }
}

/// `map-commit`.
pub(super) const OF_MAPS: Benchmark = Benchmark::new(
    "map-commit",
    "a commit of plain stores into a map, compared with msync or a cache-line flush of a mapping",
    TAKES,
    |job, progress| on_medium!(job.detected.kind, target => begin::<_, AtomicMap>(target, job, progress)),
)
.of_len(LEN);

/// `region-flush`.
pub(super) const OF_REGIONS: Benchmark = Benchmark::new(
    "region-flush",
    "the same with a region of a store: libpmem's pmem_flush benchmark, ported as in the paper",
    TAKES,
    |job, progress| on_medium!(job.detected.kind, target => begin::<_, Whole>(target, job, progress)),
)
.of_len(LEN);

const TAKES: &[&str] = &["size", "pattern", "dirty", "len", "seconds"];

/// The cost of a commit does not grow with the file, but the cost of detecting stores does.
const LEN: u64 = 64 << 20;

const NOTE: &str = "time ratio: the commit's time compared with that of msync(MS_SYNC), or on persistent memory of a \
                    flush of every cache line of the pages and a fence, after the same stores; pages/s: stores and \
                    commits back to back, including deferred writes to the file";

fn begin<T: Target, A: Mapped>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let cases = Case::all(job.args, &Cases { sizes: &[1, 4096], threads: &[1], patterns: &[Pattern::Random] });
    let rig = job.rig(target, &cases, 1, 0, progress)?;
    Ok(Outcome { rows: run::<T, A>(&rig, &cases, progress)?, notes: vec![NOTE.to_owned()] })
}

fn run<T: Target, A: Mapped>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let plain = Plain { medium: rig.target.medium(), file: rig.plain("plain")? };
    let found = A::create(rig.target.medium(), &rig.place("probe"), PAGE, DirtyTracking::Auto)?.method();
    let methods = match found {
        DirtyTracking::PageTable => vec![found],
        _ => vec![found, DirtyTracking::PageTable],
    };
    let fit: Vec<u64> = DIRTY.into_iter().filter(|&dirty| dirty <= rig.file_len / PAGE).collect();
    let dirty = rig.args.choose(&rig.args.dirty, &fit);
    let total = (methods.len() * cases.len() * dirty.len()) as u64;
    let mut rows = Vec::new();
    for &method in &methods {
        for case in cases {
            let path = rig.place("mapped");
            let map = A::create(rig.target.medium(), &path, rig.file_len, method)?;
            let mut buffer = Buffer::new(case.size);
            let mut arms = Arms {
                plain: &plain,
                map,
                bytes: buffer.bytes(),
                pattern: case.pattern,
                visited: 0,
                len: rig.file_len,
            };
            arms.map.memory()?.fill(0x5a);
            arms.map.commit()?;
            for &dirty in &dirty {
                progress(rows.len() as u64, total, &format!("{method}: {dirty} pages of {} bytes", case.size));
                rows.push(Row::MapCommit(time(rig, &mut arms, method, case, dirty)?));
            }
            arms.map.close()?;
            std::fs::remove_file(&path).map_err(|source| crate::Error::io("remove", &path, source))?;
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

fn time<T: Target, A: Mapped>(
    rig: &Rig<'_, T>,
    arms: &mut Arms<'_, T::Medium, A>,
    method: DirtyTracking,
    case: &Case,
    dirty: u64,
) -> Result<MapCommitRow> {
    let rounds = rig.timed(1, case.size, 2, false).rounds;
    let (mut ours, mut raw) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for round in 0..=rounds {
        let pages = arms.next(dirty);
        let plain_first = round % 2 == 0;
        let before = plain_first.then(|| arms.run_plain(&pages)).transpose()?;
        let map = arms.run_map(&pages)?;
        // The deferred writes of a commit must not disturb the next measurement.
        quiesce();
        let plain = before.map_or_else(|| arms.run_plain(&pages), Ok)?;
        // The first round of a row may be affected by the previous row.
        if round > 0 {
            ours.0.push(map.0 / dirty as f64);
            ours.1.push(map.1);
            raw.0.push(plain.0 / dirty as f64);
            raw.1.push(plain.1);
        }
    }
    // Back to back, including the deferred work of each commit.
    let walks: Vec<Vec<u64>> = (0..rounds).map(|_| arms.next(dirty)).collect();
    let start = Instant::now();
    walks.iter().try_for_each(|pages| arms.run_map(pages).map(drop))?;
    quiesce();
    let sustained = start.elapsed();
    let start = Instant::now();
    walks.iter().try_for_each(|pages| arms.run_plain(pages).map(drop))?;
    let raw_sustained = start.elapsed();
    let rate = |time: Duration| (dirty * rounds as u64) as f64 / time.as_secs_f64();
    let ratio = pairwise(&ours.1, &raw.1);
    Ok(MapCommitRow {
        tracking: method.as_str(),
        size: case.size,
        pattern: case.pattern.as_str(),
        dirty_pages: dirty,
        commit_ns: median(&ours.1),
        commit_ns_low: quantile(&ours.1, 0.25),
        commit_ns_high: quantile(&ours.1, 0.75),
        raw_ns: median(&raw.1),
        time_to_raw: ratio.median,
        store_ns: median(&ours.0),
        raw_store_ns: median(&raw.0),
        pages_per_s: rate(sustained),
        raw_pages_per_s: rate(raw_sustained),
        pairs: ours.1.len(),
    })
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
