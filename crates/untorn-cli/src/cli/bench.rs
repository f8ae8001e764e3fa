//! The arguments of `untorn bench`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use untorn::{Durability, EngineKind, LogPolicy, Order, StripeLayout};
use untorn_bench::{Pattern, Workload};

use super::log::LOG_POLICIES;
use super::{Form, durabilities, engines, words};
use crate::size;

/// Arguments of `bench`. An option that is not given has the benchmark's own default.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The benchmark.
    #[arg(value_parser = names())]
    pub(crate) name: String,
    /// Where to make the files; they are removed at the end [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Bytes of one access, several separated by commas [default: 64,256,1K,4K].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = access_size)]
    pub(crate) size: Vec<usize>,
    /// Numbers of threads, separated by commas.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) threads: Vec<usize>,
    /// Engines, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = engines())]
    pub(crate) engine: Vec<EngineKind>,
    /// Orders of an atomic write, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = words::<Order>(ORDERS))]
    pub(crate) order: Vec<Order>,
    /// Access patterns, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = words::<Pattern>(PATTERNS))]
    pub(crate) pattern: Vec<Pattern>,
    /// When a write is durable.
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    /// What the hybrid-log engine logs, separated by commas [default: hybrid; hybrid-policy compares all].
    #[arg(long, value_delimiter = ',', value_parser = words::<LogPolicy>(LOG_POLICIES))]
    pub(crate) log_policy: Vec<LogPolicy>,
    /// The most bytes its log may take: bytes, or with K, M, G, T.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// The share of writes from which on it logs redo, when it is to choose.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) redo_from: Option<u8>,
    /// Threads with which it checkpoints.
    #[arg(long, value_name = "N")]
    pub(crate) checkpointers: Option<usize>,
    /// Accesses to one commit, in benchmarks of commits.
    #[arg(long, visible_alias = "sync-every", value_name = "N", default_value_t = 100)]
    pub(crate) commit_every: u32,
    /// Blocks written before the commit that commit-time measures, separated by commas [default: 10,1000,100000]; pages
    /// stored to before that of map-commit and region-flush [default: 1,10,100,1000]; pages of a region in region-ops [default:
    /// 1,64].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) dirty: Vec<u64>,
    /// Shares of reads in hybrid-policy, separated by commas [default: 0,20,40,60,80,100]; that of the key-value workload
    /// of redundancy [default: 50].
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    pub(crate) reads: Vec<u32>,
    /// Workloads of redundancy, separated by commas [default: both].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = words::<Workload>(WORKLOADS))]
    pub(crate) workload: Vec<Workload>,
    /// Seconds from one pass of redundancy to the next, separated by commas [default: 1,30; of random stores 1,60].
    #[arg(long, value_name = "S,...", value_delimiter = ',')]
    pub(crate) period: Vec<f64>,
    /// Which pages share a parity page in redundancy: consecutive ones, or those as far apart as can be.
    #[arg(long, value_name = "LAYOUT", default_value = "consecutive", value_parser = words::<StripeLayout>(super::protect::STRIPE_LAYOUTS))]
    pub(crate) layout: StripeLayout,
    /// Operations a second that take the processors whole in the key-value workload of redundancy, by the work that each has
    /// beside its accesses; 0 is none [default: 20000].
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Length of the file, or of the memory in redundancy-kernels: bytes, or with K, M, G, T (powers of 1024).
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    /// Seconds to measure each row for; of idle, seconds to lie idle; of redundancy, seconds that each row runs at least
    /// [default: the longest period].
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Accesses in each slice at most, for a run of a fixed amount instead of a fixed time.
    #[arg(long, value_name = "N")]
    pub(crate) ops: Option<u64>,
    /// Seed of the random offsets.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also draw the rows into an SVG file.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

const ORDERS: &[&str] = &["one-fence", "two-fence"];
const PATTERNS: &[&str] = &["random", "sequential"];
const WORKLOADS: &[&str] = &["key-value", "random-stores"];

fn names() -> PossibleValuesParser {
    untorn_bench::names().iter().map(|(name, what)| PossibleValue::new(*name).help(*what)).into()
}

fn access_size(text: &str) -> Result<usize, String> {
    usize::try_from(size::parse(text)?).map_err(|_| format!("{text} is more than memory can hold"))
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
