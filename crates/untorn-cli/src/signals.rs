//! The signals of this process, and those that it was started to ignore.

use std::io;
use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

/// The signals that this process was started to ignore: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Those of these signals that this process may handle: one that it was started to ignore (`nohup`) stays ignored, here
/// and in the programs that it starts.
pub(crate) fn handled(signals: &[i32]) -> Vec<i32> {
    let ignored = ignored();
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// Has a write beyond the limit on the size of files (`ulimit -f`) fail with EFBIG in this process, and not end it. A
/// program that it starts finds SIGXFSZ as this process did: `exec` resets a handler, and an ignored signal stays
/// ignored.
///
/// # Errors
/// Those of `sigaction(2)`.
pub(crate) fn survive_size_limits() -> io::Result<()> {
    for signal in handled(&[SIGXFSZ]) {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}
