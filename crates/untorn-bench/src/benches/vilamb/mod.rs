//! The experiments of the Vilamb paper (§4): a workload on a mapping without redundancy, with redundancy that follows
//! behind its stores, and with redundancy that each store updates.
//!
//! Contenders, by what they stand for in the paper:
//!
//! | here | paper |
//! |---|---|
//! | `no-redundancy`: a mapping of a file that nobody watches | No-Redundancy |
//! | `untorn-Ns`: the same, protected, with a period of N seconds | Vilamb with that period |
//! | `untorn-at-once`: each store is announced and covered before the next | Pangolin (synchronous) |
//!
//! A pass runs at the end of a slice, in the first thread of the workload, as the paper pins Vilamb to the program's
//! core. Its time counts as the slice's. The period counts running time of that thread, not the time of the others'
//! turns. A slice with a pass is rare, so rates and ratios are means over all slices, not medians.

mod fig1;
mod fig4;
mod fig5;
mod fig6;
mod fig7;
mod fig8;
mod fig9;
mod maps;
mod mttdl;

pub(super) use self::fig1::BENCHMARK as FIG1;
pub(super) use self::fig4::BENCHMARK as FIG4;
pub(super) use self::fig5::BENCHMARK as FIG5;
pub(super) use self::fig6::BENCHMARK as FIG6;
pub(super) use self::fig7::BENCHMARK as FIG7;
pub(super) use self::fig8::BENCHMARK as FIG8;
pub(super) use self::fig9::BENCHMARK as FIG9;
pub(super) use self::mttdl::BENCHMARK as MTTDL;

use std::sync::Arc;
use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, Protected};
use untorn::testing::storage::{Access, Dax, DaxFile, Medium, MediumFile, MediumKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Args;
use crate::compare::{self, Contender, Point, Setting, Slice, Store, Worker};
use crate::error::{Error, Result};
use crate::report::Row;

const PAGE: u64 = 4096;

/// The options of those that compare throughput.
const OPTIONS: &[&str] = &["threads", "period", "system", "len", "seconds", "ops", "seed"];

/// How the figures differ from the paper's.
const NOTE: &str = "untorn-Ns is redundancy with a period of N seconds (Vilamb), untorn-at-once covers each store \
                    before the next (for Pangolin, which updates checksums and parity in each transaction). A pass \
                    runs in the workload's first thread; rates are means over all slices, with the passes. The paper \
                    has a dual-socket Xeon with 64 GB of DRAM as persistent memory and a kernel module for dirty \
                    bits, untorn has a mapping of a file of this directory, userfaultfd and PAGEMAP_SCAN";

/// How stores are covered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Covering {
    Never,
    /// Every so many seconds.
    Every(f64),
    AtOnce,
}

/// The memory of a workload.
#[derive(Clone, Copy)]
struct Memory<'a> {
    file: &'a DaxFile,
    /// Hears of each store before it is made.
    announces: Option<&'a Protected>,
}

impl Memory<'_> {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.file.read(at, bytes)?)
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let Some(protected) = self.announces else { return Ok(self.file.store(at, bytes)?) };
        let stores = protected.announce(at..at + bytes.len() as u64)?;
        self.file.store(at, bytes)?;
        drop(stores);
        Ok(())
    }

    fn store_word(&self, at: u64, word: u64) -> Result<()> {
        self.store(at, &word.to_le_bytes())
    }
}

/// The operation of a thread at a place.
type Operation<'a> = Box<dyn FnMut(u64) -> Result<()> + Send + 'a>;

/// A workload.
trait Load: Send + Sync {
    /// Fills the memory, which every contender does before it is protected.
    fn prepare(&self, _memory: Memory<'_>, _setting: &Setting) -> Result<()> {
        Ok(())
    }

    fn operation<'a>(&'a self, memory: Memory<'a>, thread: usize, setting: &'a Setting) -> Result<Operation<'a>>;
}

/// One way to cover the stores of a workload.
struct Covered {
    covering: Covering,
    load: Arc<dyn Load>,
}

impl Contender for Covered {
    fn name(&self) -> String {
        match self.covering {
            Covering::Never => "no-redundancy".to_owned(),
            Covering::Every(seconds) => format!("untorn-{seconds}s"),
            Covering::AtOnce => "untorn-at-once".to_owned(),
        }
    }

    fn durability(&self) -> String {
        match self.covering {
            Covering::Never => "none: plain stores, no checksums".to_owned(),
            Covering::Every(seconds) => format!("durable and covered {seconds} seconds later, by a pass"),
            Covering::AtOnce => "each store on return, and covered".to_owned(),
        }
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let tracks = matches!(self.covering, Covering::Every(_));
        (tracks && setting.kind == MediumKind::PersistentMemory).then(|| {
            "untorn cannot find the stores to a mapping of persistent memory; use a --dir on a disk or tmpfs".into()
        })
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let memory = mapped(setting, self.load.as_ref())?;
        let path = setting.dir.join("data");
        let protected = match self.covering {
            Covering::Never => None,
            Covering::Every(_) => {
                Some(ProtectOptions::new().on_demand().mapping(memory.address(), setting.len() as usize)?)
            }
            Covering::AtOnce => Some(ProtectOptions::new().period(Duration::ZERO).open(&path)?),
        };
        if let Some(protected) = &protected {
            protected.sync()?;
        }
        let (covering, load, setting) = (self.covering, Arc::clone(&self.load), setting.clone());
        Ok(Box::new(Mapped { protected, memory, covering, load, setting }))
    }
}

/// A file of the setting's length in its directory, filled by the workload and mapped, with every page in memory.
fn mapped(setting: &Setting, load: &dyn Load) -> Result<DaxFile> {
    let path = setting.dir.join("data");
    let made = std::fs::File::create(&path).and_then(|file| file.set_len(setting.len()));
    made.map_err(|source| Error::io("make", &path, source))?;
    // On a disk too: it stores to a mapping as the program does.
    let memory = Dax::new(MediumKind::AssumedPmem).open(&path, Access::ReadWrite, setting.len())?;
    super::redundancy::touch(&memory, setting.len())?;
    load.prepare(Memory { file: &memory, announces: None }, setting)?;
    Ok(memory)
}

/// The store of a contender. The mapping must exist as long as it is protected, so it is the second field.
struct Mapped {
    protected: Option<Protected>,
    memory: DaxFile,
    covering: Covering,
    load: Arc<dyn Load>,
    setting: Setting,
}

impl Store for Mapped {
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>> {
        let announces = self.protected.as_ref().filter(|_| self.covering == Covering::AtOnce);
        let memory = Memory { file: &self.memory, announces };
        let operation = self.load.operation(memory, thread, &self.setting)?;
        Ok(match (self.covering, &self.protected) {
            (Covering::Every(seconds), Some(protected)) if thread == 0 => {
                let period = Duration::from_secs_f64(seconds);
                Box::new(Passing { operation, protected, period, clock: Duration::ZERO, due: period })
            }
            _ => Box::new(operation),
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        if let Some(protected) = self.protected {
            protected.close()?;
        }
        Ok(())
    }
}

/// A thread that covers what was stored to, when its running time says so.
struct Passing<'a> {
    operation: Operation<'a>,
    protected: &'a Protected,
    period: Duration,
    clock: Duration,
    due: Duration,
}

impl Worker for Passing<'_> {
    fn slice(&mut self, slice: Slice<'_>) -> Result<(u64, Duration)> {
        let (ops, mut time) = self.operation.slice(slice)?;
        if self.clock + time >= self.due {
            let began = Instant::now();
            self.protected.sync()?;
            time += began.elapsed();
            self.due = self.clock + time + self.period;
        }
        self.clock += time;
        Ok((ops, time))
    }
}

/// The periods of a run in seconds, of those in the paper.
fn periods(args: &Args, paper: &[f64]) -> Vec<f64> {
    match (&args.periods[..], args.quick) {
        ([], false) => paper.to_vec(),
        // So short that there are passes in the short time.
        ([], true) => vec![0.05, 0.2],
        (chosen, _) => chosen.to_vec(),
    }
}

/// Runs a workload at all points with all contenders, long enough for the periods.
fn compare_load(
    job: &Job<'_>,
    paper: &[f64],
    load: Arc<dyn Load>,
    points: &[Point],
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    let contender = |covering| Box::new(Covered { covering, load: Arc::clone(&load) }) as Box<dyn Contender>;
    compare_periods(job, paper, contender, points, progress)
}

/// Runs the contenders without redundancy, with each period and with a period of 0 at all points, long enough for the
/// periods.
fn compare_periods(
    job: &Job<'_>,
    paper: &[f64],
    contender: impl Fn(Covering) -> Box<dyn Contender>,
    points: &[Point],
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    let periods = periods(job.args, paper);
    let coverings = [Covering::Never].into_iter().chain(periods.iter().copied().map(Covering::Every));
    let contenders: Vec<Box<dyn Contender>> = coverings.chain([Covering::AtOnce]).map(contender).collect();
    // The seconds of a row are shared by all contenders, and each runs for two of its periods.
    let longest = periods.iter().copied().fold(0.0, f64::max);
    let seconds = job.args.seconds.unwrap_or(2.2 * longest) * contenders.len() as f64;
    let args = Args { seconds: Some(seconds), ..job.args.clone() };
    let mut outcome = compare::run(&Job { args: &args, ..*job }, &contenders, points, progress)?;
    take_means(&mut outcome.rows);
    Ok(outcome)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Puts means over all slices in the place of medians, which miss the few slices with a pass.
fn take_means(rows: &mut [Row]) {
    let of = |row: &Row| match row {
        Row::Comparison(row) => {
            Some((row.workload.clone(), row.x.clone(), row.system.clone(), mean(&row.slices_per_s)))
        }
        _ => None,
    };
    let all: Vec<_> = rows.iter().filter_map(of).collect();
    for row in rows {
        let Row::Comparison(row) = row else { continue };
        let here = || all.iter().filter(|(workload, x, ..)| *workload == row.workload && *x == row.x);
        let base = here().find(|(_, _, system, _)| *system == row.baseline).map_or(1.0, |found| found.3);
        let untorn = here().find(|(_, _, system, _)| system.starts_with("untorn")).map(|found| found.3);
        let rate = mean(&row.slices_per_s);
        (row.ops_per_s, row.ratio, row.ratio_to_untorn) = (rate, rate / base, untorn.map(|untorn| rate / untorn));
    }
}

/// The outcomes of several workloads as one.
fn together(outcomes: impl IntoIterator<Item = Result<Outcome>>, notes: &[&str]) -> Result<Outcome> {
    let mut all = Outcome { rows: Vec::new(), notes: notes.iter().map(|note| (*note).to_owned()).collect() };
    for outcome in outcomes {
        let Outcome { rows, notes } = outcome?;
        all.rows.extend(rows);
        all.notes.extend(notes);
    }
    all.notes.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests;
