//! Arguments of `prune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Form;

/// Arguments of `prune`.
#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// The directory with the files; what is left over is in its `.untorn`.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Remove what is listed. Without it, nothing is changed.
    #[arg(long)]
    pub(crate) remove: bool,
    /// Only what was last changed so long ago; a number with the suffix s, m, h or d.
    #[arg(long, value_name = "AGE", value_parser = age, default_value = "0s")]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Parses `90s`, `15m`, `12h`, `7d`.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let unit = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3600,
        Some(b'd') => 86400,
        _ => return Err("expected a number with the suffix s, m, h or d, such as 90s or 7d".to_owned()),
    };
    let number: Option<u64> = text[..text.len() - 1].parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(unit));
    seconds.map(Duration::from_secs).ok_or_else(|| format!("{text:?} is not an age; use a whole number, such as 7d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units() {
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(age("7d"), Ok(Duration::from_secs(7 * 86400)));
        assert!(["", "7", "d", "-1d", "1.5h", "99999999999999999999d", "7ü"].iter().all(|text| age(text).is_err()));
    }
}
