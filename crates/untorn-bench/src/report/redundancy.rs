//! What the benchmarks of redundancy found.

use serde::Serialize;

use super::rate;

/// A workload on a mapping whose stores are found, and covered now and then, against the same on one that nobody watches.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RedundancyRow {
    /// "key-value" or "random-stores".
    pub workload: &'static str,
    /// What is stored to: "plain-mapping", or "atomic-map", which is committed now and then.
    pub system: &'static str,
    /// "off"; "tracking", where stores are found and nothing is covered; or "on".
    pub redundancy: &'static str,
    /// Seconds from one pass to the next, unless it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_s: Option<f64>,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Threads of the program.
    pub threads: usize,
    /// Operations a second that take the processors whole, by the work that each has beside its accesses; `None` if it has
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<u64>,
    /// Operations a second, all threads together.
    pub ops_per_s: f64,
    /// Microseconds of processor time of an operation, with that of the passes.
    pub cpu_us_per_op: f64,
    /// The share of operations a second that is lost to what runs when it is off; 0 for that itself.
    pub overhead: f64,
    /// The share of operations for each second of processor time that is lost.
    pub cpu_overhead: f64,
    /// Seconds that it ran, with whole passes.
    pub seconds: f64,
    /// Passes in them.
    pub passes: usize,
    /// Seconds of a pass, the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_s: Option<f64>,
    /// Stripes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u64>,
    /// Vulnerable stripes, the mean over two periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable_stripes: Option<f64>,
    /// The gain in mean time to data loss with so many: P / (V · N) of the Vilamb paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mttdl_gain: Option<f64>,
    /// Seconds from the program's last store until everything is covered, when a pass begins right after it. One that begins
    /// by itself begins a period later at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_coverage_s: Option<f64>,
    /// What was vulnerable over two periods, and when everything was covered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over_time: Vec<Vulnerable>,
    /// Slices that it ran in, in turns with the others.
    pub slices: usize,
}

/// What is not covered at one time.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Vulnerable {
    /// Seconds since the program began to store.
    pub seconds: f64,
    /// Pages.
    pub uncovered_pages: u64,
    /// Stripes with such a page.
    pub vulnerable_stripes: u64,
}

/// A pass over a file that nobody stored to.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PassRow {
    /// How stores are found: "page-tables", or "announced".
    pub tracking: &'static str,
    /// "look" at what was stored to, or a whole "pass".
    pub what: &'static str,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Milliseconds of processor time, the median.
    pub cpu_ms: f64,
    /// Their lower quartile.
    pub cpu_ms_low: f64,
    /// Their upper quartile.
    pub cpu_ms_high: f64,
    /// Milliseconds, the median.
    pub wall_ms: f64,
    /// Milliseconds of processor time for each GiB.
    pub cpu_ms_per_gib: f64,
    /// Passes timed.
    pub passes: usize,
}

/// What is computed of memory out of the caches, against a read of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KernelRow {
    /// "crc32c" or "parity".
    pub kernel: &'static str,
    /// "sequential", each place after the one before, or "random".
    pub pattern: &'static str,
    /// What it uses: "x86_64-avx512-vpclmulqdq", "avx2", "portable" and the like. The first of each kernel is what redundancy uses here.
    pub way: &'static str,
    /// What the read uses.
    pub read: &'static str,
    /// Bytes read for one result.
    pub size: usize,
    /// Nanoseconds for one result, the median.
    pub ns: f64,
    /// Nanoseconds of the read.
    pub read_ns: f64,
    /// The time to the read's, the median over rounds.
    pub ratio: f64,
    /// Its lower quartile.
    pub ratio_low: f64,
    /// Its upper quartile.
    pub ratio_high: f64,
    /// Pairs of slices the ratio is the median of.
    pub pairs: usize,
}

type Cells = Vec<(&'static str, Option<String>)>;

impl RedundancyRow {
    pub(super) fn cells(&self) -> Cells {
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
    pub(super) fn cells(&self) -> Cells {
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
    pub(super) fn cells(&self) -> Cells {
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
