//! The cases of benchmarks that copy into and out of a file, how their file is opened, and their rows.

use std::collections::BTreeMap;

use untorn::options::{LogPolicy, Order, ReadPolicy};
use untorn::{Durability, EngineKind, Options};

use crate::args::{Args, Pattern};
use crate::counting::Counters;
use crate::error::Result;
use crate::measure::{Arm, Plan, Series, run_once};
use crate::offsets::{Offsets, Region, mix};
use crate::raw::Target;
use crate::report::{CopyRow, Row};
use crate::rig::{self, Rig};
use crate::stats::{median, pairwise};

/// The name of the file of a benchmark that has one at a time.
pub(super) const FILE: &str = "atomic";

/// The raw arm on a block medium.
pub(super) const RAW_NOTE: &str = "the raw arm is pwrite and fdatasync, because the medium is not persistent memory";

const BARE_NOTE: &str = "ratio: compared with raw copies with one locked instruction each, the minimum of any scheme \
                         with a lock; bare ratio: compared with raw copies without it; both with a fence at each \
                         commit";

const MODEL_NOTE: &str = "model: for a write, a loop that stores the bytes of the engine's protocol and fences as \
                          often, without lookups, checksums and checkpoints, and with at most one locked instruction; \
                          for a read, a copy between two reads of a word; model ratio: the model compared with raw \
                          copies, the upper bound of ratio on this machine; of model: untorn compared with the model";

const LOG_NOTE: &str = "cpu ratio: accesses per processor time of all threads, including checkpoints after a slice; \
                        bytes/op and fences/op include a checkpoint of everything written in the counted window";

/// Explains the columns of these rows.
pub(super) fn notes(rows: &[Row]) -> Vec<String> {
    let copies = || rows.iter().filter_map(Row::as_copy);
    let notes = [
        (copies().any(|row| row.bare_ratio.is_some()), BARE_NOTE),
        (copies().any(|row| row.model_ratio.is_some()), MODEL_NOTE),
        (copies().any(|row| row.log_policy.is_some()), LOG_NOTE),
    ];
    notes.into_iter().filter(|(is_there, _)| *is_there).map(|(_, note)| note.to_owned()).collect()
}

pub(super) fn is_pmem<T: Target>(target: T) -> bool {
    rig::is_pmem(target.kind())
}

/// Whether an engine has threads that continue to work after its calls have returned.
pub(super) fn has_background(engine: EngineKind) -> bool {
    engine == EngineKind::HybridLog
}

/// One combination of a row's parameters, within one configuration of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) size: usize,
    pub(super) threads: usize,
    pub(super) pattern: Pattern,
}

/// The default values of a benchmark's cases.
pub(super) struct Cases {
    pub(super) sizes: &'static [usize],
    pub(super) threads: &'static [usize],
    pub(super) patterns: &'static [Pattern],
}

impl Cases {
    /// Those of copies into and out of a file.
    pub(super) const COPIES: Cases =
        Cases { sizes: &[64, 256, 1024, 4096], threads: &[1, 2], patterns: &[Pattern::Random, Pattern::Sequential] };
}

impl Case {
    /// Every combination of the chosen values.
    pub(super) fn all(args: &Args, own: &Cases) -> Vec<Case> {
        let mut cases = Vec::new();
        for pattern in args.choose(&args.patterns, own.patterns) {
            for size in args.choose(&args.sizes, own.sizes) {
                for threads in args.choose(&args.threads, own.threads) {
                    cases.push(Case { size, threads, pattern });
                }
            }
        }
        cases
    }

    /// A thread's walk in a round; the same for every arm.
    pub(super) fn walk(&self, args: &Args, file_len: u64, thread: usize, round: usize) -> Offsets {
        let region = Region::of_thread(file_len, thread, self.threads);
        let seed = mix(args.seed()) ^ mix((round * 1024 + thread) as u64);
        Offsets::new(self.pattern, region, self.size, seed)
    }

    pub(super) fn describe(&self, what: &str) -> String {
        format!(
            "{what}: {} B, {} thread{}, {}",
            self.size,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.pattern
        )
    }
}

/// How the file of a group of rows is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) engine: EngineKind,
    pub(super) order: Order,
    pub(super) durability: Durability,
    pub(super) read_policy: ReadPolicy,
    /// The policy of the hybrid-log engine.
    pub(super) log_policy: Option<LogPolicy>,
}

impl Setup {
    /// Every engine in every order and, if it has one, under every log policy. On a block medium the order of an atomic
    /// write makes no difference.
    pub(super) fn all<T: Target>(rig: &Rig<'_, T>, durability: Durability) -> Vec<Setup> {
        Self::all_of(rig, durability, &[EngineKind::Auto])
    }

    /// The same, with `engines` as the default.
    pub(super) fn all_of<T: Target>(rig: &Rig<'_, T>, durability: Durability, engines: &[EngineKind]) -> Vec<Setup> {
        let both = [Order::OneFence, Order::TwoFence];
        let orders = if is_pmem(rig.target) { &both[..] } else { &both[..1] };
        let mut setups = Vec::new();
        for engine in rig.args.choose(&rig.args.engines, engines) {
            let policies = match engine {
                EngineKind::HybridLog => {
                    rig.args.choose(&rig.args.log_policies, &[LogPolicy::Hybrid]).into_iter().map(Some).collect()
                }
                _ => vec![None],
            };
            for log_policy in policies {
                for order in rig.args.choose(&rig.args.orders, orders) {
                    setups.push(Setup { engine, order, durability, read_policy: ReadPolicy::Gather, log_policy });
                }
            }
        }
        setups
    }

    pub(super) fn options(&self, args: &Args) -> Options {
        let options = Options::new().engine(self.engine).order(self.order).durability(self.durability);
        let options = options.read_policy(self.read_policy).log_policy(self.log_policy.unwrap_or_default());
        let options = args.log_size.map_or(options.clone(), |size| options.log_size(size));
        let options = args.redo_from.map_or(options.clone(), |percent| options.redo_threshold_percent(percent));
        args.checkpointers.map_or(options.clone(), |threads| options.checkpoint_threads(threads))
    }

    pub(super) fn describe(&self, engine: EngineKind) -> String {
        match self.log_policy {
            Some(policy) => format!("{engine}, {policy}, {}", self.order),
            None => format!("{engine}, {}", self.order),
        }
    }

    /// A row with the rates of the first arm against the second.
    pub(super) fn row(&self, engine: EngineKind, case: &Case, series: &[Series]) -> CopyRow {
        let (ours, raw) = (&series[0], &series[1]);
        let ratio = pairwise(&ours.per_s, &raw.per_s);
        CopyRow {
            engine: engine.as_str(),
            order: self.order.as_str(),
            size: case.size,
            threads: case.threads,
            pattern: case.pattern.as_str(),
            durability: self.durability.as_str(),
            commit_every: None,
            state: None,
            read_policy: None,
            log_policy: self.log_policy.map(LogPolicy::as_str),
            reads_percent: None,
            share_of_better: None,
            ops_per_s: median(&ours.per_s),
            raw_ops_per_s: median(&raw.per_s),
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            cpu_ratio: pairwise(&ours.per_cpu_s, &raw.per_cpu_s).median,
            bare_ops_per_s: None,
            bare_ratio: None,
            model_ops_per_s: None,
            model_ratio: None,
            share_of_model: None,
            scaling_vs_raw: None,
            scaling_vs_bare: None,
            cpu_scaling_vs_raw: None,
            fences_per_op: 0.0,
            flushes_per_op: 0.0,
            bytes_per_op: 0.0,
            bytes_per_user_byte: None,
            fences_per_commit: None,
            barriers_per_op: BTreeMap::new(),
            pairs: ours.per_s.len(),
        }
    }
}

impl CopyRow {
    /// Adds what a model of the protocol reaches beside these two.
    pub(super) fn compare_to_model(&mut self, ours: &Series, raw: &Series, model: &Series) {
        self.model_ops_per_s = Some(median(&model.per_s));
        self.model_ratio = Some(pairwise(&model.per_s, &raw.per_s).median);
        self.share_of_model = Some(pairwise(&ours.per_s, &model.per_s).median);
    }
}

/// Runs an arm once, and `finish`, and puts what both cost on the medium into the row.
pub(super) fn count(
    row: &mut CopyRow,
    plan: &Plan,
    counters: &Counters,
    arm: &Arm<'_>,
    walk: impl Fn(usize) -> Offsets + Sync,
    finish: impl Fn() -> Result<()>,
) -> Result<()> {
    // This window must not count the work that earlier windows left.
    finish()?;
    let (before, barriers) = (counters.counts(), counters.barriers());
    let ops = run_once(plan, arm, walk)? as f64;
    finish()?;
    let counts = counters.counts() - before;
    for (name, count) in counters.barriers() {
        let count = count - barriers.get(name).copied().unwrap_or(0);
        if count > 0 {
            row.barriers_per_op.insert(name, count as f64 / ops);
        }
    }
    row.fences_per_commit =
        row.commit_every.map(|every| (counts.fences + counts.syncs) as f64 / ops * f64::from(every));
    row.fences_per_op = (counts.fences + counts.syncs) as f64 / ops;
    row.flushes_per_op = counts.flushes as f64 / ops;
    row.bytes_per_op = counts.bytes as f64 / ops;
    Ok(())
}

/// Gives each row of several threads its scaling against raw's: the ratio of the ratios, because each ratio was
/// measured interleaved while the rates of two rows were seconds apart.
pub(super) fn add_scaling(rows: &mut [Row]) {
    let alone: Vec<CopyRow> = rows.iter().filter_map(Row::as_copy).filter(|row| row.threads == 1).cloned().collect();
    for row in rows.iter_mut().filter_map(Row::as_copy_mut).filter(|row| row.threads > 1) {
        let one = alone.iter().find(|one| one.same_but_threads(row));
        row.scaling_vs_raw = one.map(|one| row.ratio / one.ratio);
        row.cpu_scaling_vs_raw = one.map(|one| row.cpu_ratio / one.cpu_ratio);
        let bare = one.and_then(|one| one.bare_ratio);
        row.scaling_vs_bare = bare.zip(row.bare_ratio).map(|(one, many)| many / one);
    }
}
