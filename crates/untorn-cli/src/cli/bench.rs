//! The arguments of `untorn bench`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use untorn::options::{LogPolicy, Order};
use untorn::redundancy::StripeLayout;
use untorn::{Durability, EngineKind};
use untorn_bench::{Pattern, Workload};

use super::Form;
use super::log::LOG_POLICIES;
use super::protect::STRIPE_LAYOUTS;
use super::words::{durabilities, engines, words};
use crate::size;

/// Arguments of `bench`. Each benchmark has its own defaults for options that are not given, and refuses those that it
/// does not honour.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The benchmark to run; `all` runs every one and needs --out.
    #[arg(value_parser = names())]
    pub(crate) name: String,
    /// Directory for the benchmark's files, which are removed at the end [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Bytes per access, comma-separated; suffixes K, M, G, T are powers of 1024 [default: 64,256,1K,4K].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = access_size)]
    pub(crate) size: Vec<usize>,
    /// Numbers of threads, comma-separated; in recovery-time, of the processors that recovery may use [default: 1 and
    /// all].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) threads: Vec<usize>,
    /// Engines, comma-separated.
    #[arg(long, value_delimiter = ',', value_parser = engines())]
    pub(crate) engine: Vec<EngineKind>,
    /// Fence orders of an atomic write, comma-separated.
    #[arg(long, value_delimiter = ',', value_parser = words::<Order>(ORDERS))]
    pub(crate) order: Vec<Order>,
    /// Access patterns, comma-separated.
    #[arg(long, value_delimiter = ',', value_parser = words::<Pattern>(PATTERNS))]
    pub(crate) pattern: Vec<Pattern>,
    /// When a write becomes durable: `write`, when its call returns; `commit`, at the next commit.
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    /// Log policies of the hybrid-log engine, comma-separated [default: hybrid; hybrid-policy compares all].
    #[arg(long, value_delimiter = ',', value_parser = words::<LogPolicy>(LOG_POLICIES))]
    pub(crate) log_policy: Vec<LogPolicy>,
    /// Maximum size of the hybrid-log engine's log, or size of the write cache's, in bytes; suffixes K, M, G, T are
    /// powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// With --log-policy hybrid, the percentage of writes from which the engine logs redo instead of undo.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) redo_from: Option<u8>,
    /// Number of threads with which the hybrid-log engine checkpoints.
    #[arg(long, value_name = "N")]
    pub(crate) checkpointers: Option<usize>,
    /// In benchmarks of commits, the number of accesses per commit [default: 100].
    #[arg(long, visible_alias = "sync-every", value_name = "N")]
    pub(crate) commit_every: Option<u32>,
    /// Amounts of dirty data per commit, comma-separated: blocks in commit-time [default: 10,1000,100000]; pages in
    /// map-commit and region-flush [default: 1,10,100,1000]; pages per region in region-ops [default: 1,64]. In
    /// recovery-time, pages that are logged before the crash [default: 256,4096,65536].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) dirty: Vec<u64>,
    /// Percentages of reads, comma-separated: in hybrid-policy [default: 0,20,40,60,80,100]; in the key-value workload
    /// of redundancy, one value [default: 50].
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    pub(crate) reads: Vec<u32>,
    /// Workloads of redundancy, comma-separated [default: both].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = words::<Workload>(WORKLOADS))]
    pub(crate) workload: Vec<Workload>,
    /// Redundancy periods in seconds, comma-separated [default: 1,30; for random-stores 1,60].
    #[arg(long, value_name = "S,...", value_delimiter = ',')]
    pub(crate) period: Vec<f64>,
    /// Which pages share a parity page in redundancy: neighbours, or pages as far apart as possible [default:
    /// consecutive].
    #[arg(long, value_name = "LAYOUT", value_parser = words::<StripeLayout>(STRIPE_LAYOUTS))]
    pub(crate) layout: Option<StripeLayout>,
    /// In the key-value workload of redundancy, the operations per second at which the processors are saturated. Each
    /// operation does extra work to reach that rate; 0 means no extra work [default: 20000].
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Length of the file, or of the memory in redundancy-kernels, in bytes; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    /// Seconds to measure each row for. In idle, the seconds to stay idle; in redundancy, the minimum seconds per row
    /// [default: the longest period].
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Maximum number of accesses per slice, to run a fixed amount of work instead of a fixed time.
    #[arg(long, value_name = "N")]
    pub(crate) ops: Option<u64>,
    /// Systems to compare, comma-separated. In ycsb and tpcc, some of untorn, untorn-hybrid-log, untorn-reflection,
    /// wal, delete and truncate [default: untorn,wal,delete]; in libnvmmio-fig12 also off. In other comparisons, some
    /// of their rows' systems, beside the first one and untorn, which always run [default: all that can run]. A system
    /// that is named and not installed is an error.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) system: Vec<String>,
    /// In ycsb and tpcc, the sizes of a database's pages in bytes, comma-separated [default: 4096; 512 to 4096 for the
    /// figures].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) page_size: Vec<u32>,
    /// Number of records: in ycsb those that it loads [default: 20000]; in libnvmmio-fig12 the rows [default: 2000]; in
    /// updates those of each store [default: what fits into the file, at most 100000].
    #[arg(long, value_name = "N")]
    pub(crate) records: Option<u64>,
    /// Warehouses of tpcc [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) warehouses: Option<u32>,
    /// Seed for the random offsets [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Finish in less than a minute: few rounds, a short file, and of each list's default values the first and the
    /// last.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also plot the rows into this file: a PNG image if the name ends in .png, otherwise SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Also write the results into this directory: NAME.json, NAME.svg, NAME.png and a page NAME.md; with `all` of
    /// every benchmark that can run here, and README.md.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The name that stands for every benchmark.
pub(crate) const ALL: &str = "all";

const ORDERS: &[&str] = &["one-fence", "two-fence"];
const PATTERNS: &[&str] = &["random", "sequential"];
const WORKLOADS: &[&str] = &["key-value", "random-stores"];

fn names() -> PossibleValuesParser {
    let all = (ALL, "every benchmark that can run here, with the results in --out");
    let names = untorn_bench::names().into_iter().chain([all]);
    PossibleValuesParser::new(names.map(|(name, what)| PossibleValue::new(name).help(what)))
}

fn access_size(text: &str) -> Result<usize, String> {
    usize::try_from(size::parse(text)?).map_err(|_| format!("{text} is too large: an access must fit into memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_offered_is_one_the_benchmarks_know() {
        assert!(ORDERS.iter().all(|word| word.parse::<Order>().is_ok()));
        assert!(PATTERNS.iter().all(|word| word.parse::<Pattern>().is_ok()));
        assert!(WORKLOADS.iter().all(|word| word.parse::<Workload>().is_ok()));
    }
}
