//! The results of benchmarks of maps and regions.

use serde::Serialize;

use super::{Cell, rate};

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

impl MapCommitRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("tracking", Some(self.tracking.to_owned())),
            ("pattern", Some(self.pattern.to_owned())),
            ("size", Some(self.size.to_string())),
            ("dirty pages", Some(self.dirty_pages.to_string())),
            ("commit us", Some(format!("{:.1}", self.commit_ns / 1e3))),
            ("quartiles", Some(format!("{:.1}-{:.1}", self.commit_ns_low / 1e3, self.commit_ns_high / 1e3))),
            ("raw us", Some(format!("{:.1}", self.raw_ns / 1e3))),
            ("time ratio", Some(two(self.time_to_raw))),
            ("store ns", Some(format!("{:.0}", self.store_ns))),
            ("raw store ns", Some(format!("{:.0}", self.raw_store_ns))),
            ("pages/s", Some(rate(self.pages_per_s))),
            ("raw pages/s", Some(rate(self.raw_pages_per_s))),
        ]
    }
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

impl RegionRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let two = |value: f64| format!("{value:.2}");
        vec![
            ("workload", Some(self.workload.to_owned())),
            ("pages", Some(self.pages.to_string())),
            ("untorn us", Some(format!("{:.1}", 1e6 / self.untorn_ops_per_s))),
            ("file system us", Some(format!("{:.1}", 1e6 / self.ops_per_s))),
            ("ratio", Some(two(self.ratio_to_untorn))),
            ("quartiles", Some(format!("{:.2}-{:.2}", self.ratio_low, self.ratio_high))),
        ]
    }
}
