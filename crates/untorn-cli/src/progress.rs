//! Progress bars on stderr, drawn only if stderr is a terminal.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use untorn::Options;
use untorn::options::{Progress, ProgressFn};

/// A bar over `total` steps. indicatif draws nothing if stderr is not a terminal.
pub(crate) fn bar(total: u64, message: &str) -> ProgressBar {
    styled(total, "{msg:28} {bar:32} {pos}/{len} {eta}").with_message(message.to_owned())
}

/// A bar over bytes.
pub(crate) fn bytes_bar(total: u64, message: &str) -> ProgressBar {
    styled(total, "{msg:28} {bar:32} {bytes}/{total_bytes} {eta}").with_message(message.to_owned())
}

fn styled(total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

/// `options` with a bar for long work inside the library: recovery at open, settling.
pub(crate) fn attach(options: Options) -> Options {
    options.progress(shower())
}

/// The same for library calls that take a progress function.
pub(crate) fn function() -> ProgressFn {
    Arc::new(shower())
}

fn shower() -> impl Fn(Progress) + Send + Sync {
    let shown: Mutex<Option<(&'static str, ProgressBar)>> = Mutex::new(None);
    move |step: Progress| {
        let Ok(mut shown) = shown.lock() else { return };
        let same_phase = shown.as_ref().is_some_and(|(phase, _)| *phase == step.phase);
        if !same_phase {
            if let Some((_, old)) = shown.take() {
                old.finish_and_clear();
            }
            let fresh = bar(step.total, step.phase);
            fresh.enable_steady_tick(Duration::from_millis(200));
            *shown = Some((step.phase, fresh));
        }
        if let Some((_, bar)) = &*shown {
            bar.set_length(step.total);
            bar.set_position(step.done);
            if step.done >= step.total {
                bar.finish_and_clear();
            }
        }
    }
}
