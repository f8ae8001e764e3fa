//! The report of a mount that has ended.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use untorn_mount::Report;

use crate::cli::Mount;
use crate::exit::{Exit, Result};
use crate::output;

/// The most files that a text names.
const MOST: usize = 10;

/// Prints the report. The exit code says whether all bytes are in their files.
pub(super) fn end(args: &Mount, report: &Report) -> Result<Exit> {
    let object = json!({
        "mode": args.mode.as_str(),
        "managed": report.managed,
        "bytes": report.bytes,
        "plain": list(&report.plain),
        "failed": list(&report.failed),
        "sealed": list(&report.sealed),
    });
    output::report(args.form.json, &object, || words(report))?;
    Ok(if report.failed.is_empty() { Exit::Clean } else { Exit::Io })
}

fn list(files: &BTreeMap<PathBuf, String>) -> Vec<Value> {
    files.iter().map(|(path, why)| json!({ "path": path.display().to_string(), "why": why })).collect()
}

fn words(report: &Report) -> String {
    let mut text = format!("served {} with the log\n", output::count(report.managed, "file", "files"));
    name(&mut text, &report.plain, "left to the file system");
    name(&mut text, &report.failed, "not written, its bytes are in the log");
    name(&mut text, &report.sealed, "a log that kept its directory from being served");
    text
}

fn name(text: &mut String, files: &BTreeMap<PathBuf, String>, what: &str) {
    for (path, why) in files.iter().take(MOST) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: {what}: {why}", path.display());
    }
    if files.len() > MOST {
        let _ = writeln!(text, "  and {} more, {what} (--json names all)", files.len() - MOST);
    }
}
