//! The results of comparisons of any systems.

use serde::Serialize;

use super::{Cell, rate};
use crate::compare::{X, XValue};

/// A system at one place of a figure, compared with the others of the same run. Rates are medians over slices. A ratio
/// is the median of the ratios of slices of one round.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ComparisonRow {
    /// The benchmark.
    pub figure: &'static str,
    /// The workload.
    pub workload: String,
    /// The system.
    pub system: String,
    /// The durability of an operation that has returned.
    pub durability: String,
    /// The place on the horizontal axis.
    pub x: X,
    /// Bytes of a record.
    pub size: usize,
    /// Number of records.
    pub records: u64,
    /// Number of threads.
    pub threads: usize,
    /// Operations per second, all threads together.
    pub ops_per_s: f64,
    /// The ratio of this rate to untorn's, if untorn is among the systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_untorn: Option<f64>,
    /// The system that `ratio` is to.
    pub baseline: String,
    /// The ratio of this rate to the baseline's.
    pub ratio: f64,
    /// Its lower quartile.
    pub ratio_low: f64,
    /// Its upper quartile.
    pub ratio_high: f64,
    /// The latencies.
    pub latency_ns: Latency,
    /// The cost of an operation.
    pub per_op: PerOp,
    /// Bytes stored for each byte that the user wrote, in benchmarks that count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_user_byte: Option<f64>,
    /// Operations per second in each slice, in the order of time.
    pub slices_per_s: Vec<f64>,
}

/// A step that each system does once in a round, such as a bulk load. Rates are medians over rounds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StepRow {
    /// The step.
    pub workload: String,
    /// The system.
    pub system: String,
    /// The call that makes a write durable.
    pub durability: String,
    /// Number of records that the first step loads.
    pub records: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// The ratio of this rate to untorn's, if untorn has this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_untorn: Option<f64>,
    /// Bytes of the system's files after the step, as they are allocated.
    pub bytes_on_disk: u64,
    /// Operations per second in each round.
    pub rounds_per_s: Vec<f64>,
}

impl StepRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        vec![
            ("workload", Some(self.workload.clone())),
            ("system", Some(self.system.clone())),
            ("ops/s", Some(rate(self.ops_per_s))),
            ("to untorn", self.ratio_to_untorn.map(|ratio| format!("{ratio:.2}"))),
            ("MiB on disk", Some(format!("{:.1}", self.bytes_on_disk as f64 / f64::from(1 << 20)))),
        ]
    }
}

/// Latencies of single operations in nanoseconds, with three significant digits.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Half of all operations took at most this long.
    pub p50: u64,
    /// 90 % of them.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
    /// 99.99 %.
    pub p99_99: u64,
    /// 99.999 %.
    pub p99_999: u64,
    /// The longest one.
    pub max: u64,
    /// The number of operations.
    pub ops: u64,
}

/// The cost of an operation, as the kernel counts it for the process. Counts of the medium are those of a separate pass
/// on a medium that counts, which untorn alone has.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PerOp {
    /// Processor time in microseconds, of all threads, with work in the background.
    pub cpu_us: f64,
    /// System calls that read, in number (`syscr`). The kernel counts no calls that flush.
    pub read_calls: f64,
    /// System calls that write (`syscw`).
    pub write_calls: f64,
    /// Bytes written by system calls (`wchar`).
    pub bytes_by_calls: f64,
    /// Bytes that the kernel has to write to the medium (`write_bytes`): pages made dirty. 0 on tmpfs and DAX.
    pub bytes_to_medium: f64,
    /// Page faults.
    pub page_faults: f64,
    /// Fences; on a block medium, flush rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fences: Option<f64>,
    /// Cache lines written back; on a block medium, files flushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flushes: Option<f64>,
    /// Bytes stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_stored: Option<f64>,
}

impl ComparisonRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        let micros = |nanos: u64| format!("{:.1}", nanos as f64 / 1e3);
        let x = match &self.x.value {
            XValue::Number(number) => number.to_string(),
            XValue::Category(name) => name.clone(),
        };
        vec![
            ("workload", Some(self.workload.clone())),
            (self.x.name, Some(x)),
            ("system", Some(self.system.clone())),
            ("ops/s", Some(rate(self.ops_per_s))),
            ("ratio", Some(two(self.ratio))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
            ("to untorn", self.ratio_to_untorn.map(two)),
            ("p50 us", Some(micros(self.latency_ns.p50))),
            ("p99 us", Some(micros(self.latency_ns.p99))),
            ("p99.99 us", Some(micros(self.latency_ns.p99_99))),
            ("longest us", Some(micros(self.latency_ns.max))),
            ("cpu us", Some(two(self.per_op.cpu_us))),
            ("writes", Some(two(self.per_op.write_calls))),
            ("bytes to medium", Some(format!("{:.0}", self.per_op.bytes_to_medium))),
            ("fences", self.per_op.fences.map(two)),
            ("bytes stored", self.per_op.bytes_stored.map(|bytes| format!("{bytes:.0}"))),
            ("bytes/byte", self.bytes_per_user_byte.map(two)),
        ]
    }
}
