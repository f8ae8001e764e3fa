//! Side-by-side benchmarks: the cost of failure atomicity compared with the raw limit of the same medium.
//!
//! A single number says little on a shared machine. Every benchmark therefore measures two or three *arms*
//! interleaved in short slices, and reports the median of the ratios of neighbouring slices. A separate pass runs the
//! same workload on [`Counting`], a medium that counts fences, flushes and bytes, so that counting does not slow the
//! timed pass.
//!
//! | benchmark | compares | with |
//! |---|---|---|
//! | `atomic-write` | [`AtomicFile::write_at`](untorn::AtomicFile::write_at) | a non-atomic copy and a fence |
//! | `atomic-commit` | the same, with a commit every N writes | copies with a locked instruction each, and a fence |
//! | `atomic-read` | [`AtomicFile::read_at`](untorn::AtomicFile::read_at) | memcpy from an identical mapping |
//! | `commit-time` | one commit after 10 to 100,000 written blocks | a fence after the same number of raw copies |
//! | `map-commit` | plain stores and a [commit](untorn::AtomicMap::commit) | the same and `msync`, or line flushes |
//! | `hybrid-policy` | reads and writes under undo, redo and hybrid logging | each other, and raw copies |
//! | `idle` | an open but unused file | a processor's time |
//! | `redundancy` | a protected mapping or map | the same without protection |
//! | `redundancy-pass` | a pass over an unmodified file | a processor's time |
//! | `redundancy-kernels` | checksums and parity of uncached memory | a read of it |
//! | `group-commit` | threads that write and sync one file on a disk | `pwrite` and `fdatasync` by each |
//! | `recovery-time` | opening a file after a crash, by the bytes logged | reading and writing as many bytes |
//! | `updates` | durable updates of records by several systems | each other, and the raw limit |
//! | `redb-readme` | the benchmark of redb's README | the databases of the build, and untorn |
//! | `scale-threads` and others | an operation, as its surroundings grow | the same without untorn |
//! | `acumen-fig3` | accesses in six mixes, with every engine | each other, and the raw limit |
//! | `ycsb`, `acumen-fig4` | YCSB's workloads on SQLite with untorn's VFS | the same SQLite with its own journals |
//! | `tpcc`, `acumen-fig5` | TPC-C likewise | likewise |
//! | `libnvmmio-fig12` | transactions of one row likewise | likewise, and no journal |
//!
//! Some engines continue to work after a call has returned. Between two slices the run waits for that work to end, so
//! no arm pays for another's work, and `cpu_ratio` includes all processor time that the accesses cost.
//!
//! On persistent memory the raw arm is a non-temporal copy and a store fence; on a block medium it is `pwrite` and
//! `fdatasync`.
//!
//! ```
//! # fn main() -> Result<(), untorn_bench::Error> {
//! let args = untorn_bench::Args {
//!     sizes: vec![256],
//!     threads: vec![1],
//!     file_len: Some(1 << 20),
//!     ops: Some(8), // in each slice; without it, slices of a fixed time
//!     ..untorn_bench::Args::default()
//! };
//! # let dir = tempfile::tempdir().unwrap();
//! # let args = untorn_bench::Args { dir: Some(dir.path().to_owned()), ..args };
//! let report = untorn_bench::run("atomic-write", &args, &mut |done, total, what| {
//!     eprintln!("{done}/{total} {what}");
//! })?;
//! assert_eq!(report.to_json()["bench"], "atomic-write");
//! println!("{}", report.to_table());
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

mod args;
mod benches;
mod compare;
mod counting;
mod cpu;
mod error;
mod lines;
mod machine;
mod measure;
mod model;
mod offsets;
mod plot;
mod raw;
mod report;
mod results;
mod rig;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stats;
#[cfg(feature = "sqlite")]
mod workloads;
mod zipf;

pub use args::{Args, Pattern, System, Workload};
pub use benches::{names, run};
pub use compare::{X, XValue};
pub use counting::{Counters, Counting, CountingFile, Counts};
pub use error::{Error, Result};
pub use lines::{Line, Lines, png_of_lines, svg_of_lines};
pub use machine::Machine;
pub use report::{
    CommitRow, CommitTimeRow, ComparisonRow, CopyRow, DatabaseRow, DirtyBitsRow, IdleRow, KernelRow, Latency,
    MapCommitRow, MttdlRow, PassRow, PerOp, RedundancyRow, RegionRow, Report, Row, StepRow, Vulnerable,
};
pub use results::{run_all, write_results};
