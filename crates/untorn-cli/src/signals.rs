//! The signals of this process, and those that it was started to ignore.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

use crate::exit::{Failure, Result};

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
        flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Signals that have long work end in order. A second one ends the process at once.
pub(crate) struct Stop {
    told: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// # Errors
    /// Those of `sigaction(2)`.
    pub(crate) fn on(signals: &[i32]) -> Result<Self> {
        let stop = Stop { told: Arc::default(), signal: Arc::default() };
        for signal in handled(signals) {
            // In this order: the first signal finds the flag unset.
            let installed = flag::register_conditional_default(signal, Arc::clone(&stop.told))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize))
                .and_then(|_| flag::register(signal, Arc::clone(&stop.told)));
            installed.map_err(|error| Failure::io("cannot install signal handlers", &error))?;
        }
        Ok(stop)
    }

    /// The flag that says so.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.told)
    }

    /// The number of the last signal; 0 before the first.
    pub(crate) fn signal(&self) -> i32 {
        self.signal.load(Ordering::Acquire) as i32
    }

    /// If a signal came, says what is left and ends the process by it, as its parent expects.
    pub(crate) fn interrupted(&self, left: &str) {
        if self.told.load(Ordering::Acquire) {
            // If stderr is closed, the signal still tells.
            let _ = writeln!(io::stderr(), "untorn: interrupted: {left}");
            let _ = emulate_default_handler(self.signal.load(Ordering::Acquire) as i32);
        }
    }
}
