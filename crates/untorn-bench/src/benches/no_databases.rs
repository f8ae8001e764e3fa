//! The benchmarks of databases in a build without SQLite: each says how to get it.

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::error::{Error, Result};

const TAKES: &[&str] = &["threads", "system", "page-size", "records", "warehouses", "seconds", "ops", "seed"];

pub(super) const YCSB: Benchmark = Benchmark::new("ycsb", "YCSB on SQLite (not in this build)", TAKES, refuse);
pub(super) const TPCC: Benchmark = Benchmark::new("tpcc", "TPC-C on SQLite (not in this build)", TAKES, refuse);
pub(super) const ACUMEN_FIG4: Benchmark =
    Benchmark::new("acumen-fig4", "Fig. 4 of the Acumen paper: ycsb (not in this build)", TAKES, refuse);
pub(super) const ACUMEN_FIG5: Benchmark =
    Benchmark::new("acumen-fig5", "Fig. 5 of the Acumen paper: tpcc (not in this build)", TAKES, refuse);
pub(super) const LIBNVMMIO_FIG12: Benchmark =
    Benchmark::new("libnvmmio-fig12", "Fig. 12 of the Libnvmmio paper: Mobibench (not in this build)", TAKES, refuse);
pub(super) const LIBNVMMIO_FIG13: Benchmark =
    Benchmark::new("libnvmmio-fig13", "Fig. 13 of the Libnvmmio paper: tpcc (not in this build)", TAKES, refuse);
pub(super) const LIBNVMMIO_FIG14: Benchmark =
    Benchmark::new("libnvmmio-fig14", "Fig. 14 of the Libnvmmio paper: ycsb (not in this build)", TAKES, refuse);

fn refuse(job: &Job<'_>, _: &mut Progress<'_>) -> Result<Outcome> {
    Err(Error::usage(format!(
        "this build has no SQLite, which {} needs; build the tool with `--features untorn-cli/sqlite`",
        job.benchmark.name
    )))
}
