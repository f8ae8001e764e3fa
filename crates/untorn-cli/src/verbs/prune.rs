//! `untorn prune`, and `untorn info` of a directory: what stands in `.untorn` and belongs to no file.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use untorn::report::Leftover;

use crate::cli::Prune;
use crate::exit::{Exit, Result};
use crate::{output, size};

/// Lists what is left over, and removes it if asked to.
pub(crate) fn run(args: &Prune) -> Result<Exit> {
    let found = untorn::prune(&args.dir, args.older_than, args.remove)?;
    show(&args.dir, &found, args.remove, args.form.json)
}

/// Lists what is left over in a directory.
pub(crate) fn look(dir: &Path, as_json: bool) -> Result<Exit> {
    show(dir, &untorn::prune(dir, Duration::ZERO, false)?, false, as_json)
}

fn show(dir: &Path, found: &[Leftover], removes: bool, as_json: bool) -> Result<Exit> {
    let bytes: u64 = found.iter().filter(|leftover| !removes || leftover.removed).map(|leftover| leftover.bytes).sum();
    let object = json!({
        "path": dir.display().to_string(),
        "leftovers": found.iter().map(object).collect::<Vec<_>>(),
        "bytes": bytes,
    });
    output::report(as_json, &object, || {
        let mut text = String::new();
        for leftover in found {
            let made_for = leftover.made_for.as_ref().map(|path| format!(", made for {}", path.display()));
            let state = match (removes, leftover.removed) {
                (false, _) => "",
                (true, true) => ": removed",
                (true, false) => ": kept, it is in use or its file is back",
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{} ({}{}, {}, changed {} ago){state}",
                leftover.path.display(),
                leftover.kind.as_str(),
                made_for.unwrap_or_default(),
                size::show(leftover.bytes),
                ago(leftover.age)
            );
        }
        let count = output::count(found.len() as u64, "leftover", "leftovers");
        let end = if removes || found.is_empty() { "" } else { "; `untorn prune --remove` removes them" };
        let _ = writeln!(text, "{}: {count} of removed files, {}{end}", dir.display(), size::show(bytes));
        text
    })?;
    Ok(Exit::Clean)
}

fn object(leftover: &Leftover) -> Value {
    json!({
        "path": leftover.path.display().to_string(),
        "kind": leftover.kind.as_str(),
        "made_for": leftover.made_for.as_ref().map(|path| path.display().to_string()),
        "bytes": leftover.bytes,
        "age_seconds": leftover.age.as_secs(),
        "removed": leftover.removed,
    })
}

/// An age in its largest unit.
fn ago(age: Duration) -> String {
    let seconds = age.as_secs();
    match [("day", "days", 86400), ("hour", "hours", 3600), ("minute", "minutes", 60)]
        .iter()
        .find(|(.., unit)| seconds >= *unit)
    {
        Some((one, many, unit)) => output::count(seconds / unit, one, many),
        None => output::count(seconds, "second", "seconds"),
    }
}
