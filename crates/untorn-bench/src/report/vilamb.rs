//! The results of the experiments of the Vilamb paper that compare no systems.

use serde::Serialize;

use super::Cell;

/// The cost of finding the pages that were stored to, and of having the next stores found.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DirtyBitsRow {
    /// Length of all files in bytes.
    pub file_len: u64,
    /// Pages that a call of the kernel looks at: those of one file.
    pub batch_pages: u64,
    /// Pages that were stored to.
    pub dirty_pages: u64,
    /// Milliseconds of the system calls alone.
    pub call_ms: f64,
    /// The walk over the page tables, if no page was stored to.
    pub walk_ms: f64,
    /// Reporting the pages that were.
    pub read_ms: f64,
    /// Protecting them again, with the TLB flushes.
    pub reset_ms: f64,
    /// All of it.
    pub total_ms: f64,
}

impl DirtyBitsRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        let three = |value: f64| Some(format!("{value:.3}"));
        vec![
            ("file MiB", Some((self.file_len >> 20).to_string())),
            ("pages/call", Some(self.batch_pages.to_string())),
            ("dirty pages", Some(self.dirty_pages.to_string())),
            ("call ms", three(self.call_ms)),
            ("walk ms", three(self.walk_ms)),
            ("read ms", three(self.read_ms)),
            ("reset ms", three(self.reset_ms)),
            ("total ms", three(self.total_ms)),
        ]
    }
}

/// How long data lasts while a workload runs, and what it takes to cover what is left.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MttdlRow {
    /// The workload.
    pub workload: String,
    /// Seconds between passes.
    pub period_s: f64,
    /// Number of threads.
    pub threads: usize,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// P: pages of the file and parity pages.
    pub pages: u64,
    /// Mean number of uncovered pages.
    pub uncovered_pages: f64,
    /// V: mean number of vulnerable stripes.
    pub vulnerable_stripes: f64,
    /// P / (V · N); `None` if no stripe was vulnerable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mttdl_gain: Option<f64>,
    /// The mean time to data loss as a share of the mean time until a page is damaged: 1 / (V · N).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mttdl_per_page_mttf: Option<f64>,
    /// The same without redundancy: 1 / P.
    pub mttdl_without_per_page_mttf: f64,
    /// Seconds to cover everything after the last store.
    pub full_coverage_s: f64,
    /// The energy that a server of 500 W takes for that.
    pub joules: f64,
    /// The price of this energy in ultracapacitors.
    pub ultracapacitor_dollars: f64,
    /// Its price in lithium-ion batteries.
    pub lithium_ion_dollars: f64,
    /// Samples of the means.
    pub looks: usize,
}

impl MttdlRow {
    pub(super) fn cells(&self) -> Vec<Cell> {
        vec![
            ("workload", Some(self.workload.clone())),
            ("threads", Some(self.threads.to_string())),
            ("period s", Some(self.period_s.to_string())),
            ("vulnerable", Some(format!("{:.0}", self.vulnerable_stripes))),
            ("gain", self.mttdl_gain.map(|gain| format!("{gain:.1}"))),
            ("mttdl/page mttf", self.mttdl_per_page_mttf.map(|share| format!("{share:.2e}"))),
            ("without", Some(format!("{:.2e}", self.mttdl_without_per_page_mttf))),
            ("covered after s", Some(format!("{:.3}", self.full_coverage_s))),
            ("joules", Some(format!("{:.1}", self.joules))),
            ("capacitor $", Some(format!("{:.3}", self.ultracapacitor_dollars))),
            ("lithium $", Some(format!("{:.5}", self.lithium_ion_dollars))),
        ]
    }
}
