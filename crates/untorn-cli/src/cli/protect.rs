//! The arguments of the verbs about redundancy.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use untorn::{Checksum, StripeLayout};

use super::{Form, words};
use crate::size;

const CHECKSUMS: &[&str] = &["crc32c", "xxh3"];
pub(super) const STRIPE_LAYOUTS: &[&str] = &["consecutive", "spread"];

/// Arguments of `protect`.
#[derive(Debug, Args)]
pub(crate) struct Protect {
    /// The file. One that has an engine is opened with it, and so recovered if need be.
    pub(crate) file: PathBuf,
    /// Data pages that share a parity page, 1 to 64 [default: 4, or what the file is protected with].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) stripe: Option<u32>,
    /// Which pages share one: neighbours, or pages as far apart as can be [default: consecutive, or what the file is
    /// protected with].
    #[arg(long, value_parser = words::<StripeLayout>(STRIPE_LAYOUTS))]
    pub(crate) layout: Option<StripeLayout>,
    /// The checksum of a page [default: crc32c, or what the file is protected with].
    #[arg(long, value_parser = words::<Checksum>(CHECKSUMS))]
    pub(crate) checksum: Option<Checksum>,
    /// Seconds after which stores are covered, kept for whoever opens the file and names none: 0 is at once, and from 0.001
    /// on some time later [default: 1, or what the file is protected with].
    #[arg(long, value_name = "S", value_parser = period)]
    pub(crate) period: Option<Duration>,
    /// Pages that are covered at a time.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: u64,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Seconds, as a period.
fn period(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    let period = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if (Duration::from_nanos(1)..Duration::from_millis(1)).contains(&period) {
        return Err(
            "a period is 0, at once, or at least 0.001 seconds: a shorter one would keep a core busy".to_owned()
        );
    }
    Ok(period)
}

/// Arguments of `unprotect` and `repair`.
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
    /// Repair what is found, as `untorn repair` does.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) repair: bool,
    /// Bytes to read in a second, at most: a number, or with K, M, G, T (powers of 1024) [default: as many as can be].
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
