//! `vilamb-mttdl`: by how much redundancy lengthens the mean time to data loss, and the battery that covers what is
//! left when the power fails (§4.7, §4.8).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use untorn::redundancy::{
    Coverage, LITHIUM_ION_DOLLARS, ProtectOptions, Protected, ULTRACAPACITOR_DOLLARS, dollars, pass_joules,
};
use untorn::testing::storage::{DaxFile, MediumKind};

use super::fig4::{Requests, WORKLOADS};
use super::fig5::{Changes, Inserts};
use super::fig8::Lines;
use super::maps::Kind;
use super::{Benchmark, Job, Load, Memory, Outcome, PAGE, Progress, Result, mapped, mean, periods};
use crate::args::Pattern;
use crate::benches::redundancy::{RECORD, UNWATCHED};
use crate::compare::Setting;
use crate::offsets::{Offsets, Region, mix};
use crate::report::{MttdlRow, Row};

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-mttdl",
    "Vilamb, sections 4.7 and 4.8: the gain in mean time to data loss, and the energy to cover what is left",
    &["threads", "period", "len", "seconds", "seed"],
    run,
)
.of_len(1 << 30);

const PERIODS: [f64; 3] = [1.0, 5.0, 10.0];

const NOTE: &str = "vulnerable: mean number of stripes over two periods and more; gain: P / (V N), the paper's \
                    formula; mttdl/page mttf: 1 / (V N), and without: 1 / P, to be multiplied with the mean time \
                    until a page is damaged, for which the paper has no number; battery: 500 W for as long as \
                    covering takes after the last store, which is just before a pass, at the paper's $2.85 \
                    (ultracapacitor) and $0.02 (lithium-ion) for a kilojoule; the paper has 15 (YCSB-A) and 74 \
                    (YCSB-B) for Redis with 1 s, 21 and 13 (YCSB-B) with 5 s and 10 s, and 143 ms to cover YCSB-A \
                    after 1 s";

/// Samples of each period.
const LOOKS: u32 = 20;

/// A workload while it is protected.
struct Run<'a> {
    protected: &'a Protected,
    memory: &'a DaxFile,
    load: &'a dyn Load,
    setting: &'a Setting,
}

impl Run<'_> {
    fn thread(&self, thread: usize, stop: &AtomicBool) -> Result<()> {
        let memory = Memory { file: self.memory, announces: None };
        let mut operation = self.load.operation(memory, thread, self.setting)?;
        let len = self.setting.records / self.setting.threads as u64;
        let region = Region { base: thread as u64 * len, len };
        let mut walk = Offsets::new(self.setting.pattern, region, 1, mix(self.setting.seed) ^ thread as u64);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..16 {
                operation(walk.next())?;
            }
        }
        Ok(())
    }

    /// Samples what is uncovered while the workload runs, and stops it just before a pass, when most is uncovered.
    fn sample(&self, period: f64, seconds: f64) -> Result<Vec<Coverage>> {
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || self.thread(thread, stop));
            let threads: Vec<_> = (0..self.setting.threads).map(spawn).collect();
            let (mut looks, began) = (Vec::<Coverage>::new(), Instant::now());
            let mut since_pass = 0;
            let sampled = loop {
                std::thread::sleep(Duration::from_secs_f64(period / f64::from(LOOKS)));
                let coverage = match self.protected.coverage() {
                    Ok(coverage) => coverage,
                    Err(error) => break Err(error.into()),
                };
                let passed = looks.last().is_some_and(|last| coverage.uncovered < last.uncovered);
                since_pass = if passed { 0 } else { since_pass + 1 };
                looks.push(coverage);
                // Without a pass in so long a time there is none to wait for.
                let (time, late) = (began.elapsed().as_secs_f64(), seconds + 2.0 * period);
                if time >= seconds && since_pass >= LOOKS - 4 || time >= late {
                    break Ok(looks);
                }
            };
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            sampled
        })
    }
}

/// A workload's name, what it does, bytes of a record, and the order of places.
type Workload = (String, Box<dyn Load>, usize, Pattern);

fn workloads(len: u64) -> Vec<Workload> {
    let requests = |(name, reads): (&str, u64)| -> Workload {
        (name.to_owned(), Box::new(Requests::new(reads, len / RECORD)), RECORD as usize, Pattern::Random)
    };
    let inserts = |kind| -> Workload {
        let load = Changes::new(kind, Inserts::Only);
        (load.name(), Box::new(load), 64, Pattern::Random)
    };
    let lines = |name: &str, pattern| -> Workload {
        (format!("fio, {name} writes"), Box::new(Lines::new(true, None)), 64, pattern)
    };
    let mut all: Vec<Workload> = WORKLOADS.into_iter().filter(|(_, reads)| *reads < 100).map(requests).collect();
    all.extend(Kind::ALL.map(inserts));
    all.push(lines("random", Pattern::Random));
    all.push(lines("sequential", Pattern::Sequential));
    all
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if job.detected.kind == MediumKind::PersistentMemory {
        return Err(job.wrong_medium(UNWATCHED));
    }
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| crate::Error::io("create a directory in", &job.dir(), source))?;
    let len = job.file_len() / PAGE * PAGE;
    let (workloads, periods) = (workloads(len), periods(job.args, &PERIODS));
    let threads = job.args.choose(&job.args.threads, &[1]);
    let total = (workloads.len() * periods.len() * threads.len()) as u64;
    let mut rows = Vec::new();
    for (name, load, size, pattern) in &workloads {
        for &threads in &threads {
            for &period in &periods {
                progress(rows.len() as u64, total, &format!("{name}, {period} s"));
                let place = dir.path().join(rows.len().to_string());
                std::fs::create_dir_all(&place).map_err(|source| crate::Error::io("create", &place, source))?;
                let setting = Setting {
                    dir: place.clone(),
                    kind: job.detected.kind,
                    records: len / *size as u64,
                    size: *size,
                    threads,
                    pattern: *pattern,
                    seed: job.args.seed(),
                };
                let seconds = job.args.seconds.unwrap_or(0.0).max(2.0 * period);
                rows.push(Row::Mttdl(row(name, load.as_ref(), &setting, period, seconds)?));
                std::fs::remove_dir_all(&place).map_err(|source| crate::Error::io("remove", &place, source))?;
            }
        }
    }
    progress(total, total, "done");
    Ok(Outcome { rows, notes: vec![NOTE.to_owned()] })
}

fn row(workload: &str, load: &dyn Load, setting: &Setting, period: f64, seconds: f64) -> Result<MttdlRow> {
    let memory = mapped(setting, load)?;
    let options = ProtectOptions::new().period(Duration::from_secs_f64(period));
    let protected = options.mapping(memory.address(), setting.len() as usize)?;
    protected.sync()?;
    let looks = Run { protected: &protected, memory: &memory, load, setting }.sample(period, seconds)?;
    let began = Instant::now();
    protected.sync()?;
    let pass = began.elapsed();
    protected.close()?;
    let vulnerable = mean(&looks.iter().map(|look| look.vulnerable_stripes as f64).collect::<Vec<_>>());
    let uncovered = mean(&looks.iter().map(|look| look.uncovered as f64).collect::<Vec<_>>());
    let (pages, of_a_stripe) =
        looks.last().map_or((0, 1), |look| (look.pages + look.stripes, u64::from(look.stripe) + 1));
    let at_risk = vulnerable * of_a_stripe as f64;
    let joules = pass_joules(pass);
    Ok(MttdlRow {
        workload: workload.to_owned(),
        period_s: period,
        threads: setting.threads,
        file_len: setting.len(),
        pages,
        uncovered_pages: uncovered,
        vulnerable_stripes: vulnerable,
        mttdl_gain: (at_risk > 0.0).then(|| pages as f64 / at_risk),
        mttdl_per_page_mttf: (at_risk > 0.0).then(|| 1.0 / at_risk),
        mttdl_without_per_page_mttf: 1.0 / pages.max(1) as f64,
        full_coverage_s: pass.as_secs_f64(),
        joules,
        ultracapacitor_dollars: dollars(joules, ULTRACAPACITOR_DOLLARS),
        lithium_ion_dollars: dollars(joules, LITHIUM_ION_DOLLARS),
        looks: looks.len(),
    })
}
