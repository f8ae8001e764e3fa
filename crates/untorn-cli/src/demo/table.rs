//! The demo's table and its summary.

use std::fmt::Write;

use super::Findings;
use crate::output::{Colour, fold, paint};

/// Whether untorn kept its promise in every test.
pub(crate) fn kept_promise(found: &Findings) -> bool {
    found.untorn.torn == 0 && found.untorn.lost == 0 && found.untorn_power.torn == 0 && found.untorn_power.lost == 0
}

/// The text form of the results.
pub(crate) fn words(found: &Findings) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "A bank in a file: each transfer changes two accounts, a 128 KiB receipt and a counter.\n");
    let _ = writeln!(text, "{:34}{:>20}{:>20}", "", "mmap + msync", "untorn");
    let kills = (&found.plain, &found.untorn);
    row(&mut text, "writer killed (SIGKILL), times", kills.0.kills, kills.1.kills);
    verdict(&mut text, "  file torn afterwards", kills.0.torn, kills.1.torn);
    let power = (&found.plain_power, &found.untorn_power);
    row(&mut text, "power cut (simulated), images", power.0.images, power.1.images);
    verdict(&mut text, "  file torn afterwards", power.0.torn, power.1.torn);
    if let Some(example) = kills.0.example.as_ref().or(power.0.example.as_ref()) {
        let _ = write!(text, "\n{}", fold(&format!("An example of a torn file: {example}.")));
    }
    let _ = write!(text, "\n{}{}", fold(&headline(found)), fold(&scope(found)));
    text
}

fn row(text: &mut String, what: &str, plain: u64, untorn: u64) {
    let _ = writeln!(text, "{what:34}{plain:>20}{untorn:>20}");
}

fn verdict(text: &mut String, what: &str, plain: u64, untorn: u64) {
    // Padding comes before painting: colour codes have no width.
    let cell = |torn: u64| paint(if torn == 0 { Colour::Good } else { Colour::Bad }, &format!("{torn:>20}"));
    let _ = writeln!(text, "{what:34}{}{}", cell(plain), cell(untorn));
}

/// The verdict in one or two sentences.
fn headline(found: &Findings) -> String {
    if !kept_promise(found) {
        let torn = found.untorn.torn + found.untorn_power.torn;
        let lost = found.untorn.lost + found.untorn_power.lost;
        return format!(
            "untorn broke its promise: {torn} states were torn, and {lost} lost a flushed transfer. Please report this \
             as a bug, with seed {}.",
            found.seed
        );
    }
    let mut text = "untorn always recovered to a whole transfer and never lost a flushed one.".to_owned();
    text += match (found.plain.torn, found.plain_power.torn) {
        (0, 0) => " The plain writer did not tear, because no kill or power cut hit a transfer. Run the demo again.",
        (0, _) => {
            " Plain mmap left mixtures of two transfers after power cuts, but not after kills, because no kill hit a \
             transfer. Run the demo again."
        }
        _ => " Plain mmap left mixtures of two transfers.",
    };
    text
}

/// The scope of the demo: what it tests and what not.
fn scope(found: &Findings) -> String {
    format!(
        "Tested in {:.1} s in {}: real processes killed at random instants, and simulated power cuts after which any \
         subset of the unflushed sectors survives. Not tested: a real power cut. A killed process leaves the page \
         cache intact, so the kills test atomicity only; the simulation tests flushes by sampling. `cargo xtask \
         explore` in untorn's repository tests every barrier.",
        found.seconds,
        found.dir.display()
    )
}
