//! The results of the redundancy benchmarks.

use serde::Serialize;

use super::{Cell, rate};

/// A workload on a mapping with detected and periodically covered stores, compared with the same on an unwatched
/// mapping.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RedundancyRow {
    /// "key-value" or "random-stores".
    pub workload: &'static str,
    /// The target of the stores: "plain-mapping", or "atomic-map", which is committed periodically.
    pub system: &'static str,
    /// "off"; "tracking" (stores are detected, but nothing is covered); or "on".
    pub redundancy: &'static str,
    /// Seconds between passes, unless it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_s: Option<f64>,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Number of threads of the program.
    pub threads: usize,
    /// Operations per second at which the processors are saturated, through the extra work per operation; `None`
    /// without extra work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<u64>,
    /// Operations per second, all threads together.
    pub ops_per_s: f64,
    /// Microseconds of processor time per operation, including the passes.
    pub cpu_us_per_op: f64,
    /// The loss in operations per second compared with redundancy off; 0 for off itself.
    pub overhead: f64,
    /// The loss in operations per second of processor time.
    pub cpu_overhead: f64,
    /// Seconds of running time, with whole passes.
    pub seconds: f64,
    /// Number of passes in that time.
    pub passes: usize,
    /// Median seconds of a pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_s: Option<f64>,
    /// Number of stripes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u64>,
    /// Mean number of vulnerable stripes over two periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable_stripes: Option<f64>,
    /// The gain in mean time to data loss with that number: P / (V · N) of the Vilamb paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mttdl_gain: Option<f64>,
    /// Seconds from the program's last store until everything is covered, if a pass begins right after it. A pass
    /// begins by itself at most one period later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_coverage_s: Option<f64>,
    /// The vulnerable stripes over two periods, and the time until everything was covered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over_time: Vec<Vulnerable>,
    /// Number of slices, in turns with the other rows.
    pub slices: usize,
}

/// The uncovered pages and stripes at one time.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Vulnerable {
    /// Seconds since the program's first store.
    pub seconds: f64,
    /// Number of uncovered pages.
    pub uncovered_pages: u64,
    /// Number of stripes with such a page.
    pub vulnerable_stripes: u64,
}

/// A pass over an unmodified file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PassRow {
    /// How stores are detected: "page-tables", or "announced".
    pub tracking: &'static str,
    /// "look" for modified pages, or a whole "pass".
    pub what: &'static str,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Median milliseconds of processor time.
    pub cpu_ms: f64,
    /// Their lower quartile.
    pub cpu_ms_low: f64,
    /// Their upper quartile.
    pub cpu_ms_high: f64,
    /// Median milliseconds of elapsed time.
    pub wall_ms: f64,
    /// Milliseconds of processor time per GiB.
    pub cpu_ms_per_gib: f64,
    /// Number of timed passes.
    pub passes: usize,
}

/// A computation over uncached memory, compared with a read of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KernelRow {
    /// "crc32c" or "parity".
    pub kernel: &'static str,
    /// "sequential" or "random".
    pub pattern: &'static str,
    /// Its instructions: "x86_64-avx512-vpclmulqdq", "avx2", "portable" and so on. Redundancy uses the first one of
    /// each kernel on this machine.
    pub way: &'static str,
    /// The instructions of the read.
    pub read: &'static str,
    /// Bytes read per result.
    pub size: usize,
    /// Median nanoseconds per result.
    pub ns: f64,
    /// Nanoseconds of the read.
    pub read_ns: f64,
    /// The ratio of its time to the read's, the median over rounds.
    pub ratio: f64,
    /// Its lower quartile.
    pub ratio_low: f64,
    /// Its upper quartile.
    pub ratio_high: f64,
    /// The number of pairs of slices in the ratio's median.
    pub pairs: usize,
}

impl RedundancyRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let compared = |share: f64| (self.redundancy != "off").then(|| percent(share));
        vec![
            ("workload", Some(self.workload.to_owned())),
            ("system", Some(self.system.to_owned())),
            ("redundancy", Some(self.redundancy.to_owned())),
            ("period s", self.period_s.map(|seconds| seconds.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("ops/s", Some(rate(self.ops_per_s))),
            ("overhead %", compared(self.overhead)),
            ("cpu us/op", Some(format!("{:.3}", self.cpu_us_per_op))),
            ("cpu overhead %", compared(self.cpu_overhead)),
            ("passes", Some(self.passes.to_string())),
            ("pass ms", self.pass_s.map(|seconds| format!("{:.1}", seconds * 1e3))),
            ("vulnerable %", self.vulnerable_stripes.zip(self.stripes).map(|(some, all)| percent(some / all as f64))),
            ("mttdl gain", self.mttdl_gain.map(|gain| format!("{gain:.1}"))),
            ("covered after ms", self.full_coverage_s.map(|seconds| format!("{:.1}", seconds * 1e3))),
        ]
    }
}

impl PassRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        vec![
            ("tracking", Some(self.tracking.to_owned())),
            ("what", Some(self.what.to_owned())),
            ("file MiB", Some((self.file_len >> 20).to_string())),
            ("cpu ms", Some(format!("{:.3}", self.cpu_ms))),
            ("quartiles", Some(format!("{:.3}-{:.3}", self.cpu_ms_low, self.cpu_ms_high))),
            ("ms", Some(format!("{:.3}", self.wall_ms))),
            ("cpu ms/GiB", Some(format!("{:.3}", self.cpu_ms_per_gib))),
            ("passes", Some(self.passes.to_string())),
        ]
    }
}

impl KernelRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        vec![
            ("kernel", Some(self.kernel.to_owned())),
            ("pattern", Some(self.pattern.to_owned())),
            ("way", Some(self.way.to_owned())),
            ("bytes", Some(self.size.to_string())),
            ("ns", Some(format!("{:.0}", self.ns))),
            ("read", Some(self.read.to_owned())),
            ("read ns", Some(format!("{:.0}", self.read_ns))),
            ("ratio", Some(format!("{:.2}", self.ratio))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
        ]
    }
}
