//! Arguments of the redundancy verbs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use untorn::redundancy::{Checksum, StripeLayout};

use super::Form;
use super::words::words;
use crate::size;

const CHECKSUMS: &[&str] = &["crc32c", "xxh3"];
pub(super) const STRIPE_LAYOUTS: &[&str] = &["consecutive", "spread"];

/// Arguments of `protect`.
#[derive(Debug, Args)]
pub(crate) struct Protect {
    /// The file. A file with an engine is opened with it, and so recovered if it needs recovery.
    pub(crate) file: PathBuf,
    /// Number of data pages that share a parity page, 1 to 64 [default: the file's current value, or 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) stripe: Option<u32>,
    /// Which pages share a parity page: neighbours, or pages as far apart as possible [default: the file's current
    /// value, or consecutive].
    #[arg(long, value_parser = words::<StripeLayout>(STRIPE_LAYOUTS))]
    pub(crate) layout: Option<StripeLayout>,
    /// Checksum algorithm for a page [default: the file's current value, or crc32c].
    #[arg(long, value_parser = words::<Checksum>(CHECKSUMS))]
    pub(crate) checksum: Option<Checksum>,
    /// Seconds until checksums and parity follow a change: 0 updates them with each change, otherwise at least 0.001.
    /// The file stores this value for programs that open it without one; a program that has it open sets its own
    /// [default: the file's current value, or 1].
    #[arg(long, value_name = "S", value_parser = period)]
    pub(crate) period: Option<Duration>,
    /// Number of uncovered pages beyond which checksums and parity are updated at once, whatever the period. The file
    /// stores this value for programs that open it without one [default: the file's current value, or none].
    #[arg(long, value_name = "N")]
    pub(crate) max_uncovered: Option<u64>,
    /// Number of pages to cover at a time.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: u64,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Parses a period in seconds.
fn period(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| format!("{text:?} is not a number of seconds; use 0, or 0.001 or more"))?;
    let period = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if (Duration::from_nanos(1)..Duration::from_millis(1)).contains(&period) {
        return Err(
            "the period must be 0 (update with each change) or at least 0.001 seconds: a shorter one keeps a core busy"
                .to_owned(),
        );
    }
    Ok(period)
}

/// Arguments of `repair`.
#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// The file.
    pub(crate) file: PathBuf,
    /// Also take back pages that were modified outside untorn: each gets the bytes that it was last covered with, and
    /// its new bytes are lost. If parity cannot vouch for all of these pages, nothing is changed.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `unprotect`.
#[derive(Debug, Args)]
pub(crate) struct Protection {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `scrub`.
#[derive(Debug, Args)]
pub(crate) struct Scrub {
    /// The file.
    pub(crate) file: PathBuf,
    /// Repair the damage found, as `untorn repair` does.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) repair: bool,
    /// Maximum bytes to read per second; suffixes K, M, G, T are powers of 1024 [default: no limit].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_none_or_one_that_can_be_kept() {
        assert_eq!(period("0"), Ok(Duration::ZERO));
        assert_eq!(period("0.001"), Ok(Duration::from_millis(1)));
        assert_eq!(period("30"), Ok(Duration::from_secs(30)));
        for text in ["0.0009", "-1", "nan", "1e30", "soon"] {
            assert!(period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_word_offered_is_one_the_library_knows() {
        assert!(CHECKSUMS.iter().all(|word| word.parse::<Checksum>().is_ok()));
        assert!(STRIPE_LAYOUTS.iter().all(|word| word.parse::<StripeLayout>().is_ok()));
    }
}
