//! The report of a run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use untorn_mount::Report;

use super::serving::Account;
use crate::cli::RunMode;
use crate::output;
use crate::verbs::boost::Facts;

/// Files that a line names; `--stats` names them all.
const NAMED: usize = 3;

/// For `--json`.
pub(super) fn object(mode: RunMode, exit: u8, logs: &[Facts], report: &Report) -> Value {
    json!({
        "mode": mode.as_str(),
        "exit": exit,
        "logs": logs.iter().map(Facts::object).collect::<Vec<_>>(),
        "managed": report.managed,
        "bytes": report.bytes,
        "plain": list(&report.plain),
        "refused": list(&report.refused),
        "failed": list(&report.failed),
        "sealed": list(&report.sealed),
    })
}

fn list(files: &BTreeMap<PathBuf, String>) -> Vec<Value> {
    files.iter().map(|(path, why)| json!({ "path": path.display().to_string(), "why": why })).collect()
}

/// The text form, for `--stats`.
pub(super) fn words(mode: RunMode, logs: &[Facts], report: &Report) -> String {
    let mut text: String = logs.iter().map(|log| log.words(mode)).collect();
    // Writing to a String cannot fail.
    let files = output::count(report.managed, "file", "files");
    let bytes = output::count(report.bytes, "byte", "bytes");
    let _ = writeln!(text, "untorn: served {files} with the log, {bytes} written");
    for (files, what) in [(&report.plain, "left to the file system"), (&report.refused, "refused by --strict")] {
        for (path, why) in files {
            let _ = writeln!(text, "  {}: {what}: {why}", path.display());
        }
    }
    text
}

/// Files for which untorn's promise does not hold, on a line each kind, for runs without a report. Empty if there are
/// none.
pub(super) fn shortfalls(report: &Report) -> String {
    let mut text = String::new();
    line(&mut text, "left to the file system, without untorn's promise", &report.plain);
    line(&mut text, "not opened for writing (--strict)", &report.refused);
    text
}

fn line(text: &mut String, what: &str, files: &BTreeMap<PathBuf, String>) {
    if files.is_empty() {
        return;
    }
    let named: Vec<String> =
        files.iter().take(NAMED).map(|(path, why)| format!("{} ({why})", path.display())).collect();
    let more = match files.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more (--stats names them)"),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "untorn: {}: {}{more}", what, named.join(", "));
}

/// Files whose bytes are in the log alone.
pub(super) fn failures(account: &Account) -> String {
    let mut text = String::new();
    for (path, why) in &account.report.failed {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "untorn: cannot write {}: {why}; its bytes are in the log", path.display());
    }
    for (log, why) in &account.report.sealed {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "untorn: the directory of the log {} was not served: {why}; run `untorn replay {}` first",
            log.display(),
            quoted(log)
        );
    }
    for log in &account.logs_left {
        let _ = writeln!(text, "untorn: run `untorn replay {}` once the cause is removed", quoted(log));
    }
    text
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_kept_is_said_without_statistics() {
        assert_eq!(shortfalls(&Report::default()), "");
        let mut report = Report::default();
        report.plain = ["/a", "/b", "/c", "/d", "/e"].map(|path| (path.into(), "no owner".to_owned())).into();
        let said = shortfalls(&report);
        let expected = "untorn: left to the file system, without untorn's promise: /a (no owner), /b (no owner), /c \
                        (no owner) and 2 more (--stats names them)\n";
        assert_eq!(said, expected);
        report.refused.insert("/f".into(), "no owner".to_owned());
        assert_eq!(shortfalls(&report).lines().count(), 2);
        let stats = words(RunMode::Atomic, &[], &report);
        assert!(stats.contains("  /e: left to the file system: no owner\n"), "{stats}");
        assert!(stats.contains("  /f: refused by --strict: no owner\n"), "{stats}");
    }

    #[test]
    fn bytes_that_are_in_the_log_alone_are_told_with_the_remedy() {
        let mut account = Account { logs_left: vec!["/it's/log".into()], ..Account::default() };
        account.report.failed.insert("/f".into(), "No space left on device".to_owned());
        let expected = "untorn: cannot write /f: No space left on device; its bytes are in the log\n\
                        untorn: run `untorn replay '/it'\\''s/log'` once the cause is removed\n";
        assert_eq!(failures(&account), expected);
    }
}
