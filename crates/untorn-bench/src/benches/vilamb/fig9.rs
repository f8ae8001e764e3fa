//! `vilamb-fig9`: what it costs to find the pages that were stored to (§4.6).

use std::sync::Arc;
use std::time::Instant;

use untorn::redundancy::{Tracker, track};
use untorn::testing::storage::{DaxFile, MediumFile, MediumKind};

use super::fig7::Overwrites;
use super::{Benchmark, Job, Outcome, PAGE, Progress, Result, mapped};
use crate::args::Pattern;
use crate::benches::redundancy::UNWATCHED;
use crate::compare::Setting;
use crate::offsets::{Offsets, Region, mix};
use crate::report::{DirtyBitsRow, Row};
use crate::stats::median;

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig9",
    "Vilamb, figure 9: the cost of checking and clearing dirty bits, by file size and by pages per system call",
    &["len", "seconds", "seed"],
    run,
)
.of_len(1 << 30);

const NOTE: &str = "a kernel call for a range checks and clears in one step (PAGEMAP_SCAN), so the parts are \
                    differences. Call: one page; walk: all pages, none stored to; read: the written pages are \
                    reported; reset: they are protected again, with the TLB flushes. The paper has a kernel module \
                    with a bit vector, 1 to 16 GB, and random stores for a second; here as many random stores as the \
                    file has pages";

const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;

/// Mappings that are asked about one by one.
struct Watched {
    /// Each tracker before its mapping.
    parts: Vec<(Arc<dyn Tracker>, DaxFile)>,
    pages: u64,
}

impl Watched {
    /// `pages` pages in mappings of `batch` pages each.
    fn new(job: &Job<'_>, place: &std::path::Path, pages: u64, batch: u64) -> Result<Self> {
        let mut parts = Vec::new();
        for part in 0..pages.div_ceil(batch) {
            let dir = place.join(part.to_string());
            std::fs::create_dir_all(&dir).map_err(|source| crate::Error::io("create", &dir, source))?;
            let (kind, seed) = (job.detected.kind, job.args.seed());
            let (records, size, threads, pattern) = (batch, PAGE as usize, 1, Pattern::Random);
            let memory = mapped(&Setting { dir, kind, records, size, threads, pattern, seed }, &Overwrites)?;
            let tracker = track(memory.address(), (batch * PAGE) as usize)?;
            tracker.take()?;
            parts.push((tracker, memory));
        }
        Ok(Watched { parts, pages })
    }

    /// As many stores to random pages as there are pages.
    fn store(&self, seed: u64) -> Result<()> {
        let batch = self.pages / self.parts.len() as u64;
        let mut walk = Offsets::new(Pattern::Random, Region { base: 0, len: self.pages }, 1, mix(seed));
        for _ in 0..self.pages {
            let page = walk.next();
            self.parts[(page / batch) as usize].1.store(page % batch * PAGE, &[seed as u8; 64])?;
        }
        Ok(())
    }

    /// Seconds, and how many pages were found.
    fn time(&self, ask: impl Fn(&dyn Tracker) -> untorn::Result<Vec<std::ops::Range<u64>>>) -> Result<(f64, u64)> {
        let (mut found, began) = (0, Instant::now());
        for (tracker, _) in &self.parts {
            found += ask(tracker.as_ref())?.iter().map(|run| run.end - run.start).sum::<u64>();
        }
        Ok((began.elapsed().as_secs_f64(), found))
    }
}

fn row(job: &Job<'_>, place: &std::path::Path, pages: u64, batch: u64) -> Result<DirtyBitsRow> {
    let watched = Watched::new(job, place, pages, batch)?;
    let single = Watched::new(job, &place.join("single"), 1, 1)?;
    let (mut call, mut walk, mut read, mut take, mut dirty) = (vec![], vec![], vec![], vec![], 0);
    for round in 0..if job.args.quick { QUICK_ROUNDS } else { ROUNDS } {
        call.push(single.time(|tracker| tracker.look())?.0);
        walk.push(watched.time(|tracker| tracker.look())?.0);
        watched.store(job.args.seed() + round as u64)?;
        read.push(watched.time(|tracker| tracker.look())?.0);
        let (seconds, found) = watched.time(|tracker| tracker.take())?;
        take.push(seconds);
        dirty = found;
    }
    let calls = median(&call) * watched.parts.len() as f64;
    let (walk, read, take) = (median(&walk), median(&read), median(&take));
    Ok(DirtyBitsRow {
        file_len: pages * PAGE,
        batch_pages: batch,
        dirty_pages: dirty,
        call_ms: 1e3 * calls.min(walk),
        walk_ms: 1e3 * (walk - calls).max(0.0),
        read_ms: 1e3 * (read - walk).max(0.0),
        reset_ms: 1e3 * (take - read).max(0.0),
        total_ms: 1e3 * take,
    })
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if job.detected.kind == MediumKind::PersistentMemory {
        return Err(job.wrong_medium(UNWATCHED));
    }
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| crate::Error::io("create a directory in", &job.dir(), source))?;
    let pages = (job.file_len() / PAGE).next_power_of_two().max(16);
    // (a) file sizes, asked about as a whole. (b) the smallest of them, asked about in parts.
    let mut cases: Vec<(u64, u64)> = [16, 8, 4, 2, 1].map(|share| (pages / share, pages / share)).to_vec();
    cases.extend(
        [64, 128, 256, 512, 1024, 4096].map(|batch| (pages / 16, batch)).into_iter().filter(|(all, batch)| batch < all),
    );
    let mut rows = Vec::new();
    for (done, (pages, batch)) in cases.iter().copied().enumerate() {
        progress(done as u64, cases.len() as u64, &format!("{pages} pages, {batch} in a call"));
        let place = dir.path().join(done.to_string());
        rows.push(Row::DirtyBits(row(job, &place, pages, batch)?));
        std::fs::remove_dir_all(&place).map_err(|source| crate::Error::io("remove", &place, source))?;
    }
    progress(cases.len() as u64, cases.len() as u64, "done");
    Ok(Outcome { rows, notes: vec![NOTE.to_owned()] })
}
