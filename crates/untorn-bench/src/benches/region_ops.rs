//! `region-ops`: operations on regions, compared with the same operations on files of the same file system, as in Fig.
//! 4 of the Region System paper.

use std::time::Instant;

use untorn::region::{Region, RegionMap, RegionStore, StoreOptions};
use untorn::testing::storage::{Access, Barrier, Medium, MediumFile};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use crate::error::Result;
use crate::raw::Target;
use crate::report::{RegionRow, Row};
use crate::rig::Rig;
use crate::stats::{median, pairwise};

const PAGE: u64 = 4096;
const PAGES: [u64; 2] = [1, 64];

const FILE: Barrier = Barrier::new("bench.region-ops.file");
const NAME: Barrier = Barrier::new("bench.region-ops.name");

/// The timed steps, in the order in which a region or file goes through them. Each ends durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A new region; a new file, with an fsync of it and of its directory.
    Create,
    /// Allocating consecutive pages; `fallocate` and fsync.
    Allocate,
    /// Opening it and loading from each page; the same plus fsync, because a program cannot know that it is
    /// unnecessary.
    Map,
    /// A commit of a byte stored to each page, and closing it; fsync and closing it.
    Unmap,
    /// Freeing every second page, one by one; as many holes and fsync.
    FreeAlternate,
    /// Freeing all pages; one hole and fsync.
    Free,
    /// unlink and an fsync of the directory.
    Delete,
}

impl Step {
    const ALL: [Step; 7] =
        [Step::Create, Step::Allocate, Step::Map, Step::Unmap, Step::FreeAlternate, Step::Free, Step::Delete];

    fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Allocate => "allocate",
            Step::Map => "map",
            Step::Unmap => "unmap",
            Step::FreeAlternate => "free-alternate",
            Step::Free => "free",
            Step::Delete => "delete",
        }
    }
}

/// Regions of a store.
struct Regions {
    store: RegionStore,
    pages: u64,
    region: Option<Region>,
    map: Option<RegionMap>,
}

impl Regions {
    fn region(&mut self, name: &str) -> Result<&Region> {
        if self.region.is_none() {
            self.region = Some(self.store.open_region(name)?);
        }
        Ok(self.region.as_ref().expect("it was opened just now"))
    }

    /// Prepares a step, and times it in nanoseconds.
    fn step(&mut self, step: Step, name: &str) -> Result<f64> {
        let pages = self.pages;
        match step {
            Step::Map => {
                fill(self.region(name)?, (0..pages).map(|page| (page, 1)))?;
                self.region = None;
            }
            Step::Unmap => {
                let map = self.map.as_mut().expect("it was mapped in the step before");
                (0..pages).try_for_each(|page| map.page_mut(page).map(|bytes| bytes[0] = 2))?;
            }
            Step::FreeAlternate => drop(self.region(name)?),
            Step::Free => {
                let region = self.region(name)?;
                (1..pages).step_by(2).try_for_each(|page| region.alloc_at(page, 1))?;
                fill(region, (1..pages).step_by(2).map(|page| (page, 3)))?;
            }
            Step::Delete => self.region = None,
            Step::Create | Step::Allocate => {}
        }
        let start = Instant::now();
        match step {
            Step::Create => self.region = Some(self.store.create_region(name)?),
            Step::Allocate => {
                let region = self.region(name)?;
                region.alloc_pages(pages)?;
                region.pmsync()?;
            }
            Step::Map => {
                let map = self.store.open_region(name)?.map()?;
                let bytes = map.bytes(0, (pages * PAGE) as usize)?;
                bytes.chunks_exact(PAGE as usize).for_each(|page| _ = std::hint::black_box(page[0]));
                self.map = Some(map);
            }
            Step::Unmap => {
                let mut map = self.map.take().expect("it was mapped in the step before");
                map.pmsync()?;
            }
            Step::FreeAlternate | Step::Free => {
                let every = if step == Step::Free { 1 } else { 2 };
                let region = self.region(name)?;
                (every - 1..pages).step_by(every as usize).try_for_each(|page| region.free_page(page))?;
                region.pmsync()?;
            }
            Step::Delete => self.store.delete_region(name)?,
        }
        Ok(start.elapsed().as_secs_f64() * 1e9)
    }
}

fn fill(region: &Region, pages: impl Iterator<Item = (u64, u8)>) -> Result<()> {
    for (page, byte) in pages {
        region.write_page(page, &[byte; PAGE as usize])?;
    }
    region.pmsync()?;
    Ok(())
}

/// Files of a directory.
struct Files<'a, T: Target> {
    rig: &'a Rig<'a, T>,
    medium: T::Medium,
    pages: u64,
    file: Option<<T::Medium as Medium>::File>,
}

impl<T: Target> Files<'_, T> {
    fn file(&mut self, name: &str) -> Result<&<T::Medium as Medium>::File> {
        if self.file.is_none() {
            self.file = Some(self.medium.open(&self.rig.place(name), Access::ReadWrite, self.pages * PAGE)?);
        }
        Ok(self.file.as_ref().expect("it was opened just now"))
    }

    fn step(&mut self, step: Step, name: &str) -> Result<f64> {
        let pages = self.pages;
        match step {
            Step::Map => {
                let file = self.file(name)?;
                (0..pages).try_for_each(|page| file.write(page * PAGE, &[1; PAGE as usize]))?;
                file.sync(FILE)?;
                self.file = None;
            }
            Step::Unmap => {
                let file = self.file(name)?;
                (0..pages).try_for_each(|page| file.store(page * PAGE, &[2]))?;
                // On persistent memory the program has to do it.
                file.flush(FILE, 0, pages * PAGE);
            }
            Step::FreeAlternate => drop(self.file(name)?),
            Step::Free => {
                let file = self.file(name)?;
                file.allocate(0, pages * PAGE)?;
                (1..pages).step_by(2).try_for_each(|page| file.write(page * PAGE, &[3; PAGE as usize]))?;
                file.sync(FILE)?;
            }
            Step::Delete => self.file = None,
            Step::Create | Step::Allocate => {}
        }
        let path = self.rig.place(name);
        let start = Instant::now();
        match step {
            Step::Create => {
                let file = self.medium.create(&path, pages * PAGE, pages * PAGE)?;
                file.sync(FILE)?;
                self.medium.sync_dir(NAME, &self.rig.place(""))?;
                self.file = Some(file);
            }
            Step::Allocate => {
                let file = self.file(name)?;
                file.allocate(0, pages * PAGE)?;
                file.sync(FILE)?;
            }
            Step::Map => {
                let file = self.file(name)?;
                let mut byte = [0];
                (0..pages).try_for_each(|page| file.read(page * PAGE, &mut byte))?;
                file.sync(FILE)?;
            }
            Step::Unmap => {
                self.file(name)?.sync(FILE)?;
                self.file = None;
            }
            Step::FreeAlternate => {
                let file = self.file(name)?;
                (1..pages).step_by(2).try_for_each(|page| file.punch(page * PAGE, PAGE))?;
                file.sync(FILE)?;
            }
            Step::Free => {
                let file = self.file(name)?;
                file.punch(0, pages * PAGE)?;
                file.sync(FILE)?;
            }
            Step::Delete => {
                self.medium.unlink(&path)?;
                self.medium.sync_dir(NAME, &self.rig.place(""))?;
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e9)
    }
}

/// `region-ops`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "region-ops",
    "create, allocate, map, unmap, free and delete regions, compared with files synced by fsync",
    &["dirty", "seconds"],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
)
.of_len(64 << 20);

const NOTE: &str = "ratio: the file system's rate compared with untorn's; 1 or less if untorn is at least as fast. \
                    Each file step ends with fsync, and with fsync of the directory if a name changes; map opens the \
                    file and loads from each page";

/// `region-fig4`.
pub(super) const FIG4: Benchmark = Benchmark {
    name: "region-fig4",
    about: "the operations of Fig. 4 of the Region System paper: region-ops with the figure's conditions",
    run: |job, progress| {
        let mut outcome = on_medium!(job.detected.kind, target => begin(target, job, progress))?;
        outcome.notes.push(FIG4_NOTE.to_owned());
        Ok(outcome)
    },
    ..BENCHMARK
};

const FIG4_NOTE: &str = "the paper has latencies relative to ext4-DAX (ratio here, of rates: 1 or less is as fast), of \
                         a kernel module on Linux 3.10 with Intel's emulator of persistent memory. Here untorn is a \
                         library on this machine's kernel, the files are on this file system, and each step of a \
                         region is one atomic commit. The paper does not say how many pages a region has: --dirty \
                         sets it";

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let rig = job.rig(target, &[], 1, 0, progress)?;
    Ok(Outcome { rows: run(&rig, &job.machine().fs, progress)?, notes: vec![NOTE.to_owned()] })
}

fn run<T: Target>(rig: &Rig<'_, T>, system: &str, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let numbers = rig.args.choose(&rig.args.dirty, &PAGES);
    for (done, &pages) in (0..).zip(&numbers) {
        progress(done, numbers.len() as u64, &format!("regions and files of {pages} pages"));
        let place = rig.place(&format!("store-{pages}"));
        let store = StoreOptions::new().create_on(rig.target.medium(), &place)?;
        let mut ours = Regions { store, pages, region: None, map: None };
        let mut theirs = Files { rig, medium: rig.target.medium(), pages, file: None };
        let rounds = rig.timed(1, PAGE as usize, 2, false).rounds;
        // A single page has no second.
        let steps = Step::ALL.into_iter().filter(|step| pages > 1 || *step != Step::FreeAlternate);
        let mut times: Vec<(Step, Vec<f64>, Vec<f64>)> = steps.map(|step| (step, Vec::new(), Vec::new())).collect();
        for round in 0..=rounds {
            let name = format!("of-round-{round}");
            for (step, our_times, their_times) in &mut times {
                let first = (round % 2 == 0).then(|| theirs.step(*step, &name)).transpose()?;
                let our = ours.step(*step, &name)?;
                let their = first.map_or_else(|| theirs.step(*step, &name), Ok)?;
                // The first round finds nothing in any cache.
                if round > 0 {
                    our_times.push(our);
                    their_times.push(their);
                }
            }
        }
        for (step, our, their) in times {
            let ratio = pairwise(&our, &their);
            rows.push(Row::Region(RegionRow {
                workload: step.name(),
                system: system.to_owned(),
                pages,
                ops_per_s: 1e9 / median(&their),
                untorn_ops_per_s: 1e9 / median(&our),
                // The ratio of rates is the inverse ratio of times.
                ratio_to_untorn: ratio.median,
                ratio_low: ratio.low,
                ratio_high: ratio.high,
                pairs: our.len(),
            }));
        }
        ours.store.close()?;
    }
    progress(1, 1, "done");
    Ok(rows)
}
