//! The results of benchmarks of atomic files.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Cell, rate};

/// Copies into or out of a file, compared with raw ones. Rates are medians over slices. A ratio is the median of the
/// ratios of neighbouring slices, so it is not exactly the ratio of the rates.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CopyRow {
    /// The engine that served the file.
    pub engine: &'static str,
    /// "one-fence" or "two-fence".
    pub order: &'static str,
    /// Bytes per access.
    pub size: usize,
    /// Number of threads, each on its own pages.
    pub threads: usize,
    /// "random" or "sequential".
    pub pattern: &'static str,
    /// "write" or "commit".
    pub durability: &'static str,
    /// Writes per commit, with per-commit durability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_every: Option<u32>,
    /// For reads: "settled" or "reflected" pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// For reads: "gather" or "deploy".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_policy: Option<&'static str>,
    /// For the hybrid-log engine: "hybrid", "undo" or "redo".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_policy: Option<&'static str>,
    /// For mixed reads and writes: the percentage of reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_percent: Option<u32>,
    /// For hybrid logging: the ratio of its rate to the better of undo and redo, the median over rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_better: Option<f64>,
    /// Accesses per second, all threads together.
    pub ops_per_s: f64,
    /// The same for the raw arm.
    pub raw_ops_per_s: f64,
    /// The ratio of untorn to raw.
    pub ratio: f64,
    /// Lower quartile of the ratio.
    pub ratio_low: f64,
    /// Upper quartile of the ratio.
    pub ratio_high: f64,
    /// The ratio of untorn to raw in accesses per second of processor time, of all threads including background ones.
    pub cpu_ratio: f64,
    /// Accesses per second of raw copies without the locked instruction, if the raw arm has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare_ops_per_s: Option<f64>,
    /// The ratio of untorn to those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare_ratio: Option<f64>,
    /// Accesses per second of a model of the engine's protocol: for writes the same bytes and fences without other
    /// code, for reads a copy between two reads of the page's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ops_per_s: Option<f64>,
    /// The ratio of the model to raw: the protocol's limit on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ratio: Option<f64>,
    /// The ratio of untorn to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_model: Option<f64>,
    /// For several threads: the ratio of untorn's gain over one thread to raw's gain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_vs_raw: Option<f64>,
    /// The same, relative to the gain of raw copies without the locked instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_vs_bare: Option<f64>,
    /// For several threads: the ratio of untorn's change in accesses per second of processor time to raw's change.
    /// Unlike `scaling_vs_raw`, it does not credit one thread with the processors used by its background threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_scaling_vs_raw: Option<f64>,
    /// Fences per access; on a block medium, flush rounds.
    pub fences_per_op: f64,
    /// Cache lines written back per access; on a block medium, files flushed.
    pub flushes_per_op: f64,
    /// Bytes stored per access.
    pub bytes_per_op: f64,
    /// For writes: bytes stored per byte written by the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_user_byte: Option<f64>,
    /// For commits: fences per commit, including those of checkpoints in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fences_per_commit: Option<f64>,
    /// Fences per access, by barrier name.
    pub barriers_per_op: BTreeMap<&'static str, f64>,
    /// The number of pairs of slices in the ratio's median.
    pub pairs: usize,
}

impl CopyRow {
    /// Whether the two differ only in the number of threads.
    pub(crate) fn same_but_threads(&self, other: &CopyRow) -> bool {
        let key = |row: &CopyRow| {
            let how = (row.engine, row.order, row.durability, row.read_policy, row.log_policy);
            (how, row.size, row.pattern, row.commit_every, row.state, row.reads_percent)
        };
        key(self) == key(other)
    }

    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("engine", Some(self.engine.to_owned())),
            ("order", Some(self.order.to_owned())),
            ("pages", self.state.map(str::to_owned)),
            ("policy", self.read_policy.map(str::to_owned)),
            ("log", self.log_policy.map(str::to_owned)),
            ("reads %", self.reads_percent.map(|reads| reads.to_string())),
            ("pattern", Some(self.pattern.to_owned())),
            ("commit every", self.commit_every.map(|every| every.to_string())),
            ("size", Some(self.size.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("ops/s", Some(rate(self.ops_per_s))),
            ("raw ops/s", Some(rate(self.raw_ops_per_s))),
            ("ratio", Some(two(self.ratio))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
            ("bare ratio", self.bare_ratio.map(two)),
            ("model ratio", self.model_ratio.map(two)),
            ("of model", self.share_of_model.map(two)),
            ("cpu ratio", self.log_policy.map(|_| two(self.cpu_ratio))),
            ("scaling/raw", self.scaling_vs_raw.map(two)),
            ("scaling/bare", self.scaling_vs_bare.map(two)),
            ("cpu scaling", self.log_policy.and(self.cpu_scaling_vs_raw).map(two)),
            ("of better", self.share_of_better.map(two)),
            ("fences/op", Some(format!("{:.3}", self.fences_per_op))),
            ("flushes/op", Some(format!("{:.3}", self.flushes_per_op))),
            ("bytes/op", Some(format!("{:.1}", self.bytes_per_op))),
            ("bytes/byte", self.bytes_per_user_byte.map(two)),
            ("fences/commit", self.fences_per_commit.map(two)),
        ]
    }
}

/// Commits of many threads that each write and sync, compared with `pwrite` and `fdatasync` by each.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CommitRow {
    /// The engine that served the file.
    pub engine: &'static str,
    /// Bytes per write.
    pub size: usize,
    /// Number of threads that commit concurrently.
    pub threads: usize,
    /// "random" or "sequential".
    pub pattern: &'static str,
    /// Commits per second, all threads together.
    pub commits_per_s: f64,
    /// Rounds of `pwrite` and `fdatasync` per second, all threads together.
    pub raw_commits_per_s: f64,
    /// The ratio of untorn to raw.
    pub ratio: f64,
    /// Lower quartile of the ratio.
    pub ratio_low: f64,
    /// Upper quartile of the ratio.
    pub ratio_high: f64,
    /// Flush rounds per commit; below 1 if threads share them.
    pub flush_rounds_per_commit: f64,
    /// Files flushed per commit.
    pub flushes_per_commit: f64,
    /// Bytes stored per commit.
    pub bytes_per_commit: f64,
    /// The number of pairs of slices in the ratio's median.
    pub pairs: usize,
}

impl CommitRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("engine", Some(self.engine.to_owned())),
            ("pattern", Some(self.pattern.to_owned())),
            ("size", Some(self.size.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("commits/s", Some(rate(self.commits_per_s))),
            ("raw commits/s", Some(rate(self.raw_commits_per_s))),
            ("ratio", Some(two(self.ratio))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
            ("flush rounds/commit", Some(two(self.flush_rounds_per_commit))),
            ("bytes/commit", Some(format!("{:.1}", self.bytes_per_commit))),
        ]
    }
}

/// The time of one commit by the number of written blocks, compared with a fence after the same number of raw copies.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CommitTimeRow {
    /// The engine that served the file.
    pub engine: &'static str,
    /// "one-fence" or "two-fence".
    pub order: &'static str,
    /// For the hybrid-log engine: "hybrid", "undo" or "redo".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_policy: Option<&'static str>,
    /// Bytes written into each block.
    pub size: usize,
    /// Blocks written since the previous commit, each once.
    pub dirty_blocks: u64,
    /// Nanoseconds of the commit, the median.
    pub commit_ns: f64,
    /// Their lower quartile.
    pub commit_ns_low: f64,
    /// Their upper quartile.
    pub commit_ns_high: f64,
    /// Nanoseconds of the fence after raw copies, the median.
    pub raw_ns: f64,
    /// The ratio of the commit's time to that after the fewest blocks of the run, the median over rounds.
    pub to_fewest: f64,
    /// Fences of the commit; on a block medium, flush rounds.
    pub fences_per_commit: f64,
    /// Cache lines written back by the commit; on a block medium, files flushed.
    pub flushes_per_commit: f64,
    /// Bytes stored by the commit.
    pub bytes_per_commit: f64,
    /// Commits timed.
    pub pairs: usize,
}

impl CommitTimeRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("engine", Some(self.engine.to_owned())),
            ("order", Some(self.order.to_owned())),
            ("log", self.log_policy.map(str::to_owned)),
            ("size", Some(self.size.to_string())),
            ("dirty blocks", Some(self.dirty_blocks.to_string())),
            ("commit ns", Some(format!("{:.0}", self.commit_ns))),
            ("quartiles", Some(format!("{:.0}-{:.0}", self.commit_ns_low, self.commit_ns_high))),
            ("raw fence ns", Some(format!("{:.0}", self.raw_ns))),
            ("ratio to fewest", Some(two(self.to_fewest))),
            ("fences/commit", Some(two(self.fences_per_commit))),
            ("flushes/commit", Some(two(self.flushes_per_commit))),
            ("bytes/commit", Some(format!("{:.1}", self.bytes_per_commit))),
        ]
    }
}

/// The processor time of an open but unused file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct IdleRow {
    /// The engine that served the file.
    pub engine: &'static str,
    /// For the hybrid-log engine: "hybrid", "undo" or "redo".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_policy: Option<&'static str>,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Bytes written and committed before.
    pub written: u64,
    /// Number of threads of the process.
    pub threads: usize,
    /// Seconds of idle time.
    pub seconds: f64,
    /// Processor time of all threads in that time, in seconds.
    pub cpu_seconds: f64,
    /// The ratio of processor time to elapsed time; 1 is a whole core.
    pub cpu_share: f64,
    /// Number of times that a thread went to sleep in that time: once per wakeup.
    pub wakeups: u64,
}

impl IdleRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("engine", Some(self.engine.to_owned())),
            ("log", self.log_policy.map(str::to_owned)),
            ("file MiB", Some((self.file_len >> 20).to_string())),
            ("written MiB", Some(format!("{:.1}", self.written as f64 / f64::from(1 << 20)))),
            ("threads", Some(self.threads.to_string())),
            ("seconds", Some(two(self.seconds))),
            ("cpu ms", Some(format!("{:.3}", self.cpu_seconds * 1e3))),
            ("cpu share", Some(format!("{:.4}%", self.cpu_share * 100.0))),
            ("wake-ups", Some(self.wakeups.to_string())),
        ]
    }
}
