//! The results of a run: as JSON for programs, as a table for people, and as a plot.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;
use crate::plot::{self, Metric};

mod comparison;
mod redundancy;
mod vilamb;

pub use comparison::{ComparisonRow, Latency, PerOp, StepRow};
pub use redundancy::{KernelRow, PassRow, RedundancyRow, Vulnerable};
pub use vilamb::{DirtyBitsRow, MttdlRow};

/// The outcome of a benchmark.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The benchmark's name.
    pub bench: &'static str,
    /// Whether it was a quick run.
    pub quick: bool,
    /// The machine it ran on.
    pub machine: Machine,
    /// Notes that a reader of the numbers needs.
    pub notes: Vec<String>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// The quantity in the plot of comparisons.
    #[serde(skip)]
    pub(crate) metric: Metric,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Row {
    /// Copies into or out of a file.
    Copy(Box<CopyRow>),
    /// Commits by many threads.
    Commit(CommitRow),
    /// The time of one commit.
    CommitTime(CommitTimeRow),
    /// Plain stores and their commit.
    MapCommit(MapCommitRow),
    /// Operations on a region, and on a file.
    Region(RegionRow),
    /// An open but unused file.
    Idle(IdleRow),
    /// A workload with redundancy.
    Redundancy(Box<RedundancyRow>),
    /// A redundancy pass over an unmodified file.
    Pass(PassRow),
    /// Checksums and parity of pages.
    Kernel(KernelRow),
    /// The cost of finding the pages that were stored to.
    DirtyBits(DirtyBitsRow),
    /// The mean time to data loss of a workload.
    Mttdl(MttdlRow),
    /// Transactions of a database.
    Database(DatabaseRow),
    /// A system beside others.
    Comparison(Box<ComparisonRow>),
    /// A step that each system does once in a round.
    Step(StepRow),
}

/// A heading of the table, and the row's value under it.
type Cell = (&'static str, Option<String>);

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

/// Plain stores into a map and their commit, compared with plain stores into a shared mapping and its flush.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MapCommitRow {
    /// How stores are detected: "write-protect" or "page-table".
    pub tracking: &'static str,
    /// Bytes stored per page.
    pub size: usize,
    /// "random" or "sequential": which pages.
    pub pattern: &'static str,
    /// Pages stored to before each commit.
    pub dirty_pages: u64,
    /// Nanoseconds of the commit, the median.
    pub commit_ns: f64,
    /// Their lower quartile.
    pub commit_ns_low: f64,
    /// Their upper quartile.
    pub commit_ns_high: f64,
    /// Nanoseconds of the flush, the median.
    pub raw_ns: f64,
    /// The ratio of the commit's time to the flush's, the median over rounds.
    pub time_to_raw: f64,
    /// Nanoseconds of the stores to one page, the first after a commit, the median.
    pub store_ns: f64,
    /// The same for the shared mapping.
    pub raw_store_ns: f64,
    /// Pages stored to and committed per second, back to back, until everything is in the file.
    pub pages_per_s: f64,
    /// The same for the shared mapping.
    pub raw_pages_per_s: f64,
    /// Commits timed.
    pub pairs: usize,
}

/// An operation on a region, compared with the same operation on a file of the same file system.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RegionRow {
    /// The operation.
    pub workload: &'static str,
    /// The file system.
    pub system: String,
    /// Pages of the region and of the file.
    pub pages: u64,
    /// Operations per second of the file system, by the median time.
    pub ops_per_s: f64,
    /// Operations per second of untorn.
    pub untorn_ops_per_s: f64,
    /// The ratio of the file system's rate to untorn's, the median over rounds.
    pub ratio_to_untorn: f64,
    /// Its lower quartile.
    pub ratio_low: f64,
    /// Its upper quartile.
    pub ratio_high: f64,
    /// Number of rounds.
    pub pairs: usize,
}

/// Transactions of a workload on a system that keeps databases, compared with the same on untorn.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DatabaseRow {
    /// The workload.
    pub workload: &'static str,
    /// The system.
    pub system: &'static str,
    /// Bytes of a database's page.
    pub page_size: u32,
    /// Number of connections, each in a thread.
    pub threads: usize,
    /// Operations per second of all connections, the median.
    pub ops_per_s: f64,
    /// The ratio of this rate to untorn's, the median over rounds.
    pub ratio_to_untorn: f64,
    /// Its lower quartile.
    pub ratio_low: f64,
    /// Its upper quartile.
    pub ratio_high: f64,
    /// Microseconds that half of all operations took at most.
    pub p50_us: f64,
    /// The same for 99 % of them.
    pub p99_us: f64,
    /// For 99.9 %.
    pub p99_9_us: f64,
    /// For 99.999 %.
    pub p99_999_us: f64,
    /// Microseconds of the longest one.
    pub longest_us: f64,
    /// Bytes that an operation had the system write to the medium, as the kernel counts them for the process.
    pub written_per_op: f64,
    /// Processor time of an operation in microseconds, of all threads.
    pub cpu_us_per_op: f64,
    /// Operations in the latencies.
    pub ops: u64,
    /// Number of rounds.
    pub pairs: usize,
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

impl From<CopyRow> for Row {
    fn from(row: CopyRow) -> Self {
        Row::Copy(Box::new(row))
    }
}

impl Row {
    pub(crate) fn as_copy(&self) -> Option<&CopyRow> {
        match self {
            Row::Copy(row) => Some(row.as_ref()),
            _ => None,
        }
    }

    pub(crate) fn as_copy_mut(&mut self) -> Option<&mut CopyRow> {
        match self {
            Row::Copy(row) => Some(row.as_mut()),
            _ => None,
        }
    }

    /// The cells of the table with their headings; a heading without a value in any row is omitted.
    fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        match self {
            Row::Copy(row) => vec![
                ("engine", Some(row.engine.to_owned())),
                ("order", Some(row.order.to_owned())),
                ("pages", row.state.map(str::to_owned)),
                ("policy", row.read_policy.map(str::to_owned)),
                ("log", row.log_policy.map(str::to_owned)),
                ("reads %", row.reads_percent.map(|reads| reads.to_string())),
                ("pattern", Some(row.pattern.to_owned())),
                ("commit every", row.commit_every.map(|every| every.to_string())),
                ("size", Some(row.size.to_string())),
                ("threads", Some(row.threads.to_string())),
                ("ops/s", Some(rate(row.ops_per_s))),
                ("raw ops/s", Some(rate(row.raw_ops_per_s))),
                ("ratio", Some(two(row.ratio))),
                ("quartiles", Some(format!("{:.2}-{:.2}", row.ratio_low, row.ratio_high))),
                ("bare ratio", row.bare_ratio.map(two)),
                ("model ratio", row.model_ratio.map(two)),
                ("of model", row.share_of_model.map(two)),
                ("cpu ratio", row.log_policy.map(|_| two(row.cpu_ratio))),
                ("scaling/raw", row.scaling_vs_raw.map(two)),
                ("scaling/bare", row.scaling_vs_bare.map(two)),
                ("cpu scaling", row.log_policy.and(row.cpu_scaling_vs_raw).map(two)),
                ("of better", row.share_of_better.map(two)),
                ("fences/op", Some(format!("{:.3}", row.fences_per_op))),
                ("flushes/op", Some(format!("{:.3}", row.flushes_per_op))),
                ("bytes/op", Some(format!("{:.1}", row.bytes_per_op))),
                ("bytes/byte", row.bytes_per_user_byte.map(two)),
                ("fences/commit", row.fences_per_commit.map(two)),
            ],
            Row::Redundancy(row) => row.cells(),
            Row::Pass(row) => row.cells(),
            Row::DirtyBits(row) => row.cells(),
            Row::Mttdl(row) => row.cells(),
            Row::Comparison(row) => row.cells(),
            Row::Step(row) => row.cells(),
            Row::Kernel(row) => row.cells(),
            Row::CommitTime(row) => vec![
                ("engine", Some(row.engine.to_owned())),
                ("order", Some(row.order.to_owned())),
                ("log", row.log_policy.map(str::to_owned)),
                ("size", Some(row.size.to_string())),
                ("dirty blocks", Some(row.dirty_blocks.to_string())),
                ("commit ns", Some(format!("{:.0}", row.commit_ns))),
                ("quartiles", Some(format!("{:.0}-{:.0}", row.commit_ns_low, row.commit_ns_high))),
                ("raw fence ns", Some(format!("{:.0}", row.raw_ns))),
                ("ratio to fewest", Some(two(row.to_fewest))),
                ("fences/commit", Some(two(row.fences_per_commit))),
                ("flushes/commit", Some(two(row.flushes_per_commit))),
                ("bytes/commit", Some(format!("{:.1}", row.bytes_per_commit))),
            ],
            Row::MapCommit(row) => vec![
                ("tracking", Some(row.tracking.to_owned())),
                ("pattern", Some(row.pattern.to_owned())),
                ("size", Some(row.size.to_string())),
                ("dirty pages", Some(row.dirty_pages.to_string())),
                ("commit us", Some(format!("{:.1}", row.commit_ns / 1e3))),
                ("quartiles", Some(format!("{:.1}-{:.1}", row.commit_ns_low / 1e3, row.commit_ns_high / 1e3))),
                ("raw us", Some(format!("{:.1}", row.raw_ns / 1e3))),
                ("time ratio", Some(two(row.time_to_raw))),
                ("store ns", Some(format!("{:.0}", row.store_ns))),
                ("raw store ns", Some(format!("{:.0}", row.raw_store_ns))),
                ("pages/s", Some(rate(row.pages_per_s))),
                ("raw pages/s", Some(rate(row.raw_pages_per_s))),
            ],
            Row::Region(row) => vec![
                ("workload", Some(row.workload.to_owned())),
                ("pages", Some(row.pages.to_string())),
                ("untorn us", Some(format!("{:.1}", 1e6 / row.untorn_ops_per_s))),
                ("file system us", Some(format!("{:.1}", 1e6 / row.ops_per_s))),
                ("ratio", Some(two(row.ratio_to_untorn))),
                ("quartiles", Some(format!("{:.2}-{:.2}", row.ratio_low, row.ratio_high))),
            ],
            Row::Database(row) => vec![
                ("workload", Some(row.workload.to_owned())),
                ("page", Some(row.page_size.to_string())),
                ("threads", Some(row.threads.to_string())),
                ("system", Some(row.system.to_owned())),
                ("ops/s", Some(rate(row.ops_per_s))),
                ("to untorn", Some(two(row.ratio_to_untorn))),
                ("quartiles", Some(format!("{:.2}-{:.2}", row.ratio_low, row.ratio_high))),
                ("p50 us", Some(format!("{:.1}", row.p50_us))),
                ("p99 us", Some(format!("{:.1}", row.p99_us))),
                ("p99.9 us", Some(format!("{:.0}", row.p99_9_us))),
                ("longest us", Some(format!("{:.0}", row.longest_us))),
                ("bytes/op", Some(format!("{:.0}", row.written_per_op))),
                ("cpu us/op", Some(format!("{:.1}", row.cpu_us_per_op))),
            ],
            Row::Idle(row) => vec![
                ("engine", Some(row.engine.to_owned())),
                ("log", row.log_policy.map(str::to_owned)),
                ("file MiB", Some((row.file_len >> 20).to_string())),
                ("written MiB", Some(format!("{:.1}", row.written as f64 / f64::from(1 << 20)))),
                ("threads", Some(row.threads.to_string())),
                ("seconds", Some(two(row.seconds))),
                ("cpu ms", Some(format!("{:.3}", row.cpu_seconds * 1e3))),
                ("cpu share", Some(format!("{:.4}%", row.cpu_share * 100.0))),
                ("wake-ups", Some(row.wakeups.to_string())),
            ],
            Row::Commit(row) => vec![
                ("engine", Some(row.engine.to_owned())),
                ("pattern", Some(row.pattern.to_owned())),
                ("size", Some(row.size.to_string())),
                ("threads", Some(row.threads.to_string())),
                ("commits/s", Some(rate(row.commits_per_s))),
                ("raw commits/s", Some(rate(row.raw_commits_per_s))),
                ("ratio", Some(two(row.ratio))),
                ("quartiles", Some(format!("{:.2}-{:.2}", row.ratio_low, row.ratio_high))),
                ("flush rounds/commit", Some(two(row.flush_rounds_per_commit))),
                ("bytes/commit", Some(format!("{:.1}", row.bytes_per_commit))),
            ],
        }
    }
}

/// A rate with three significant digits.
fn rate(per_s: f64) -> String {
    match per_s {
        1e6.. => format!("{:.2}M", per_s / 1e6),
        1e3.. => format!("{:.1}k", per_s / 1e3),
        _ => format!("{per_s:.0}"),
    }
}

impl Report {
    /// One object: `bench`, `quick`, `machine`, `notes`, `rows`.
    pub fn to_json(&self) -> Value {
        // Plain structs with string keys always convert.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// A table for a terminal, with the machine above it and the notes below.
    pub fn to_table(&self) -> String {
        let Machine { cpu, cores, kernel, flush, simd, medium, dir, fs, .. } = &self.machine;
        let mut text =
            format!("{}: {cpu}, {cores} cores, {flush}, {simd}, Linux {kernel}\n{dir}: {fs}, {medium}\n\n", self.bench);
        let lines = self.lines();
        let Some(columns) = lines.first().map(Vec::len) else { return text };
        let widths: Vec<usize> =
            (0..columns).map(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0)).collect();
        for line in &lines {
            // Align text left and numbers right.
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .zip(&lines[1])
                .map(|((cell, &width), sample)| match sample.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}"));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    /// The headings of the table, and a line for each row. There are no headings without rows.
    fn lines(&self) -> Vec<Vec<String>> {
        let rows: Vec<_> = self.rows.iter().map(Row::cells).collect();
        let Some(columns) = rows.first().map(Vec::len) else { return Vec::new() };
        let shown: Vec<usize> = (0..columns).filter(|&at| rows.iter().any(|row| row[at].1.is_some())).collect();
        let mut lines: Vec<Vec<String>> = vec![shown.iter().map(|&at| rows[0][at].0.to_owned()).collect()];
        for row in &rows {
            lines.push(shown.iter().map(|&at| row[at].1.clone().unwrap_or_else(|| "-".to_owned())).collect());
        }
        lines
    }

    /// The same as a page in Markdown, with the plot in the file `NAME.svg` beside it.
    pub fn to_markdown(&self) -> String {
        let machine = &self.machine;
        let mut page = format!("# {}\n\n", self.bench);
        page.push_str(&format!(
            "{}, {} cores, {} MiB of memory, Linux {}; {} on {} ({}, scheduler {}), medium {}\n\n",
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.fs,
            machine.device,
            machine.model,
            machine.scheduler,
            machine.medium
        ));
        self.notes.iter().for_each(|note| page.push_str(&format!("- {note}\n")));
        page.push_str(&format!("\n![{0}]({0}.svg)\n\n", self.bench));
        for (index, line) in self.lines().iter().enumerate() {
            page.push_str(&format!("| {} |\n", line.join(" | ")));
            if index == 0 {
                page.push_str(&format!("|{}\n", "---|".repeat(line.len())));
            }
        }
        page
    }

    /// A plot as an SVG document: a group of bars for each size, number of threads or category, or lines over numbers;
    /// a colour for each series.
    pub fn to_svg(&self) -> String {
        plot::svg(self)
    }

    /// The same plot as a PNG file.
    ///
    /// # Errors
    /// [`Error::Plot`](crate::Error::Plot).
    pub fn to_png(&self) -> crate::Result<Vec<u8>> {
        plot::png(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_three_digits() {
        assert_eq!(rate(12_345_678.0), "12.35M");
        assert_eq!(rate(12_345.0), "12.3k");
        assert_eq!(rate(123.4), "123");
    }
}
