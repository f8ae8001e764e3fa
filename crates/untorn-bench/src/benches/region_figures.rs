//! `region-fig5`: libpmem's benchmark `pmem_flush` over regions and files, as in Fig. 5 of the Region System paper.
//!
//! An operation stores one byte to each of [`PAGES`] pages in a row and makes them durable, as a program of libpmem
//! does. The paper's three variants are the contenders: LIBPMEM-REGION, which is atomic, LIBPMEM and LIBPMEM-DAX.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use untorn::region::{RegionMap, RegionStore, SharedRegion, StoreOptions};
use untorn::testing::storage::{Barrier, Medium, MediumFile};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use crate::args::Pattern;
use crate::compare::{self, Contender, Point, Setting, Store, Worker, X};
use crate::counting::{Counters, Counting};
use crate::error::Result;
use crate::plot::Metric;
use crate::raw::Target;
use crate::rig::is_pmem;

const PAGE: u64 = 4096;

/// Pages that an operation stores to.
const PAGES: u64 = 8;

/// Lengths of the file or region, in MiB: the smallest and the largest of the paper, and one in between.
const LENGTHS: [u64; 3] = [12, 96, 786];

const THREADS: [usize; 3] = [1, 4, 16];

const FLUSH: Barrier = Barrier::new("bench.region-fig5.flush");

/// `region-fig5`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "region-fig5",
    "libpmem's pmem_flush over regions, by flushes of lines and by msync, as in Fig. 5 of the Region System paper",
    &["threads", "pattern", "system", "len", "seconds", "ops", "seed"],
    run,
)
.plotting(Metric::Ratio);

const NOTES: [&str; 2] = [
    "ratio: the rate compared with that of a region, which alone is atomic; the paper normalizes latencies to it: \
     msync within 2 % and a flush of lines within 30 % on the average",
    "the paper ran a kernel module on Linux 3.10 with Intel's emulator of persistent memory, where pmsync writes no \
     copy; here it is a library on this machine's kernel, and LIBPMEM-DAX is fsync of a file of this file system",
];

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let lengths = match job.args.file_len {
        Some(len) => vec![len],
        // Each system has one, and a store of regions is twice as long.
        None if job.args.quick => vec![LENGTHS[0] << 20],
        None => LENGTHS.map(|mib| mib << 20).to_vec(),
    };
    let mut points = Vec::new();
    for pattern in job.args.choose(&job.args.patterns, &[Pattern::Random]) {
        for threads in job.args.choose(&job.args.threads, &THREADS) {
            for &len in &lengths {
                points.push(Point {
                    workload: format!("one byte in each of {PAGES} pages, {pattern}, threads: {threads}"),
                    x: X::number("length", " MiB", len as f64 / f64::from(1 << 20)),
                    records: len / (PAGES * PAGE),
                    size: (PAGES * PAGE) as usize,
                    threads,
                    pattern,
                });
            }
        }
    }
    let contenders: [Box<dyn Contender>; 4] =
        [Box::new(Own), Box::new(Shared), Box::new(Flushed { lines: true }), Box::new(Flushed { lines: false })];
    let mut outcome = compare::run(job, &contenders, &points, progress)?;
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Where an operation stores.
fn offsets(place: u64) -> impl Iterator<Item = u64> {
    (0..PAGES).map(move |page| (place * PAGES + page) * PAGE)
}

/// A mapped region of this process.
struct Own;

struct OwnStore {
    store: RegionStore,
    /// Threads take turns: a commit needs the map alone.
    map: Mutex<RegionMap>,
}

impl Own {
    fn make<M: Medium + 'static>(medium: M, setting: &Setting) -> Result<Box<dyn Store>> {
        let store = StoreOptions::new().create_on(medium, setting.dir.join("store"))?;
        let mut map = store.create_region("flushed")?.map()?;
        let len = setting.len();
        map.alloc_pages(len / PAGE)?;
        // Twice: an entry of a region has two pages of the store, used in turn.
        for byte in [1, 2] {
            map.bytes_mut(0, len as usize)?.fill(byte);
            map.pmsync()?;
        }
        Ok(Box::new(OwnStore { store, map: Mutex::new(map) }))
    }
}

impl Contender for Own {
    fn name(&self) -> String {
        "untorn-region".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by pmsync".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => Own::make(target.medium(), setting))
    }

    fn set_up_counted(&self, setting: &Setting) -> Result<Option<(Box<dyn Store>, Counters)>> {
        on_medium!(setting.kind, target => {
            let medium = Counting::new(target.medium());
            let counters = medium.counters();
            Ok(Some((Own::make(medium, setting)?, counters)))
        })
    }
}

impl Store for OwnStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut byte = 0_u8;
        Ok(Box::new(move |place: u64| -> Result<()> {
            byte = byte.wrapping_add(1);
            let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
            for offset in offsets(place) {
                map.page_mut(offset / PAGE)?[0] = byte;
            }
            map.pmsync()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.map);
        Ok(self.store.close()?)
    }
}

/// A region that processes can share; threads store while another one commits.
struct Shared;

struct SharedStore(SharedRegion);

impl Contender for Shared {
    fn name(&self) -> String {
        "untorn-shared-region".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, by pmsync; a part of one may be in the commit of another thread".to_owned()
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let probe = SharedRegion::open_or_create(setting.dir.join("probe"), "probe");
        probe.and_then(SharedRegion::close).err().map(|error| error.to_string())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let region = SharedRegion::open_or_create(setting.dir.join("store"), "flushed")?;
        region.alloc_pages(setting.len() / PAGE)?;
        for byte in [1, 2] {
            for page in 0..setting.len() / PAGE {
                region.write_at(&[byte; PAGE as usize], page * PAGE)?;
            }
            region.pmsync()?;
        }
        Ok(Box::new(SharedStore(region)))
    }
}

impl Store for SharedStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut number = 0_u64;
        Ok(Box::new(move |place: u64| -> Result<()> {
            number += 1;
            for offset in offsets(place) {
                self.0.words(offset, 1)?[0].store(number, Ordering::Relaxed);
            }
            self.0.pmsync()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.close()?)
    }
}

/// A mapped file, made durable without atomicity.
struct Flushed {
    /// By flushes of the pages' lines and a fence, or by the file system.
    lines: bool,
}

struct FlushedStore<M: Medium> {
    medium: M,
    file: M::File,
    lines: bool,
}

impl Flushed {
    fn make<M: Medium + 'static>(&self, medium: M, setting: &Setting) -> Result<Box<dyn Store>> {
        let len = setting.len();
        let file = medium.create(&setting.dir.join("file"), len, len)?;
        (0..len / PAGE).try_for_each(|page| file.write(page * PAGE, &[1; PAGE as usize]))?;
        file.sync(FLUSH)?;
        Ok(Box::new(FlushedStore { medium, file, lines: self.lines }))
    }
}

impl Contender for Flushed {
    fn name(&self) -> String {
        if self.lines { "libpmem" } else { "libpmem-dax" }.to_owned()
    }

    fn durability(&self) -> String {
        let how = if self.lines { "a flush of each line of the pages, and a fence" } else { "fsync" };
        format!("each operation on return, by {how}; a crash may tear it")
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let why = "a flush of lines makes bytes durable on persistent memory only";
        (self.lines && !is_pmem(setting.kind)).then(|| why.to_owned())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => self.make(target.medium(), setting))
    }
}

impl<M: Medium> Store for FlushedStore<M> {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut byte = 0_u8;
        Ok(Box::new(move |place: u64| -> Result<()> {
            byte = byte.wrapping_add(1);
            offsets(place).try_for_each(|offset| self.file.store(offset, &[byte]))?;
            if self.lines {
                offsets(place).for_each(|offset| self.file.flush(FLUSH, offset, PAGE));
                self.medium.fence(FLUSH, &[&self.file])?;
            } else {
                self.file.sync(FLUSH)?;
            }
            Ok(())
        }))
    }
}
