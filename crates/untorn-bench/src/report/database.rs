//! The results of benchmarks of databases.

use serde::Serialize;

use super::{Cell, rate};

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

impl DatabaseRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("workload", Some(self.workload.to_owned())),
            ("page", Some(self.page_size.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("system", Some(self.system.to_owned())),
            ("ops/s", Some(rate(self.ops_per_s))),
            ("to untorn", Some(two(self.ratio_to_untorn))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
            ("p50 us", Some(format!("{:.1}", self.p50_us))),
            ("p99 us", Some(format!("{:.1}", self.p99_us))),
            ("p99.9 us", Some(format!("{:.0}", self.p99_9_us))),
            ("longest us", Some(format!("{:.0}", self.longest_us))),
            ("bytes/op", Some(format!("{:.0}", self.written_per_op))),
            ("cpu us/op", Some(format!("{:.1}", self.cpu_us_per_op))),
        ]
    }
}
