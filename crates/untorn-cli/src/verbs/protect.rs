//! `untorn protect`, `unprotect`, `scrub` and `repair`, and the redundancy part of `info`.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use untorn::Error;
use untorn::redundancy::{Coverage, Damage, PageRange, ProtectOptions, RepairReport, ScrubReport};

use crate::cli;
use crate::exit::{Exit, Result};
use crate::output::{self, Colour, count, paint};
use crate::{progress, size};

/// The maximum number of pages listed in text reports.
const LISTED: usize = 10;

/// Adds checksums and parity to a file, or brings existing ones up to date.
pub(crate) fn protect(args: &cli::Protect) -> Result<Exit> {
    let mut options = ProtectOptions::new().batch(args.batch);
    if let Some(pages) = args.stripe {
        options = options.stripe(pages);
    }
    if let Some(layout) = args.layout {
        options = options.layout(layout);
    }
    if let Some(checksum) = args.checksum {
        options = options.checksum(checksum);
    }
    if let Some(period) = args.period {
        options = options.keep_period(period);
    }
    if let Some(pages) = args.max_uncovered {
        options = options.keep_max_uncovered(pages);
    }
    let coverage = untorn::protect(&args.file, &options)?;
    let of_sidecar = coverage.sidecar.as_deref();
    let none_lost = coverage.lost.is_empty() && of_sidecar.is_none_or(|sidecar| sidecar.lost.is_empty());
    let none_unknown = coverage.unknown.is_empty() && of_sidecar.is_none_or(|sidecar| sidecar.unknown.is_empty());
    let exit = match (none_lost, none_unknown) {
        (false, _) => Exit::Corrupt,
        (true, false) => Exit::Attention,
        (true, true) => Exit::Clean,
    };
    let mut object = object(&coverage);
    insert(&mut object, "path", json!(args.file.display().to_string()));
    output::report(args.form.json, &object, || {
        let path = args.file.display();
        let mut text = format!(
            "{path}: {} of {} covered, in stripes of {} data pages and 1 parity page; redundancy file of {}\n",
            coverage.pages - coverage.uncovered,
            count(coverage.pages, "page", "pages"),
            coverage.stripe,
            size::show(coverage.bytes)
        );
        if !coverage.unknown.is_empty() {
            let pages = list(&coverage.unknown);
            let _ = writeln!(text, "  - modified outside untorn, checksums recomputed: pages {pages}");
        }
        if !coverage.lost.is_empty() {
            let _ = writeln!(text, "  - damaged, and parity cannot restore them: pages {}", list(&coverage.lost));
        }
        if let Some(sidecar) = of_sidecar.filter(|_| !none_lost || !none_unknown) {
            let pages: Vec<u64> = sidecar.lost.iter().chain(&sidecar.unknown).copied().collect();
            if !pages.is_empty() {
                let _ =
                    writeln!(text, "  - damaged or modified outside untorn, in the sidecar: pages {}", list(&pages));
            }
        }
        text
    })?;
    Ok(exit)
}

/// Removes checksums and parity.
pub(crate) fn unprotect(args: &cli::Protection) -> Result<Exit> {
    let was_protected = untorn::unprotect(&args.file)?;
    let object = json!({ "path": args.file.display().to_string(), "was_protected": was_protected });
    output::report(args.form.json, &object, || {
        let what = if was_protected { "no longer protected" } else { "was not protected" };
        format!("{}: {what}\n", args.file.display())
    })?;
    Ok(Exit::Clean)
}

/// Compares a file with its checksums and parity.
pub(crate) fn scrub(args: &cli::Scrub) -> Result<Exit> {
    if args.repair {
        return mend(&args.file, false, args.form.json);
    }
    let bar = progress::bytes_bar(0, "scrubbing");
    let report = untorn::scrub(&args.file, args.rate, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        true
    });
    bar.finish_and_clear();
    let report = report?;
    let mut object = scrub_object(&report);
    insert(&mut object, "path", json!(args.file.display().to_string()));
    output::report(args.form.json, &object, || {
        let mut text = format!("{}: {}\n", args.file.display(), compared(&report));
        describe(&mut text, &report);
        if report.is_clean() {
            let _ = writeln!(text, "  nothing is damaged");
        }
        advise(&mut text, &args.file, &report.damage);
        text
    })?;
    Ok(if report.is_clean() { Exit::Clean } else { Exit::Attention })
}

/// Restores damaged pages.
pub(crate) fn repair(args: &cli::Repair) -> Result<Exit> {
    mend(&args.file, args.force, args.form.json)
}

/// Says which command deals with each kind of what a scrub found.
fn advise(text: &mut String, path: &Path, damage: &[Damage]) {
    let is_modified = |damage: &Damage| matches!(damage, Damage::Unknown(_) | Damage::SidecarUnknown(_));
    let path = path.display();
    if !damage.iter().all(is_modified) {
        let _ = writeln!(text, "  run `untorn repair {path}`");
    }
    if damage.iter().any(is_modified) {
        choose(text, &path.to_string());
    }
}

/// Says what can be done about pages that were modified outside untorn.
fn choose(text: &mut String, path: &str) {
    let _ = writeln!(
        text,
        "  accept pages modified outside untorn with `untorn protect {path}`, or take them back from parity with \
         `untorn repair --force {path}`"
    );
}

fn mend(path: &Path, force: bool, as_json: bool) -> Result<Exit> {
    let bar = progress::bytes_bar(0, "looking for damage");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        true
    };
    let report = if force { untorn::repair_modified(path, &mut progress) } else { untorn::repair(path, &mut progress) };
    bar.finish_and_clear();
    let report = report?;
    let all_known = report.unknown.is_empty() && report.sidecar_unknown.is_empty();
    let mut object = repair_object(&report);
    insert(&mut object, "path", json!(path.display().to_string()));
    output::report(as_json, &object, || {
        let mut text = format!("{}: {}\n", path.display(), compared(&report.scrub));
        describe(&mut text, &report.scrub);
        if report.scrub.is_clean() {
            let _ = writeln!(text, "  nothing to repair");
        } else if report.is_whole() && !report.refused.is_empty() {
            let _ = writeln!(
                text,
                "  {}: parity cannot vouch for these pages, because others of their stripes differ too, are not \
                 covered, or lost their checksums; nothing was changed:",
                paint(Colour::Bad, "refused")
            );
            for range in &report.refused {
                let _ = writeln!(text, "    {} bytes at offset {}", range.len, range.offset);
            }
        } else if report.is_whole() {
            let pages = (report.repaired.len() + report.sidecar_repaired.len()) as u64;
            if pages + report.rebuilt > 0 {
                let pages = count(pages, "page", "pages");
                let parts = count(report.rebuilt, "part of the redundancy", "parts of the redundancy");
                let _ = writeln!(text, "  {}: {pages} and {parts}", paint(Colour::Good, "repaired"));
            }
        } else {
            let word = paint(Colour::Bad, "lost");
            // The list includes pages that the device did not store. Other pages may then have been repaired.
            let repaired = (report.repaired.len() + report.sidecar_repaired.len()) as u64;
            let _ = match repaired {
                0 => writeln!(
                    text,
                    "  {word}: parity cannot restore these pages, or the device does not store what was written; \
                     nothing was changed:"
                ),
                many => {
                    let pages = count(many, "page was", "pages were");
                    writeln!(
                        text,
                        "  {word}: the device does not store what was written to these pages; {pages} repaired:"
                    )
                }
            };
            for range in &report.lost {
                let _ = writeln!(text, "    {} bytes at offset {}", range.len, range.offset);
            }
            for range in &report.sidecar_lost {
                let _ = writeln!(text, "    {} bytes at offset {} in the sidecar", range.len, range.offset);
            }
        }
        if !report.not_rebuilt.is_empty() {
            let parts = count(report.not_rebuilt.len() as u64, "part", "parts");
            let _ = writeln!(
                text,
                "  {}: {parts} of the redundancy, but no data page; run `untorn repair` again",
                paint(Colour::Bad, "still damaged")
            );
        }
        if !report.replaced.is_empty() {
            let _ = writeln!(text, "  replaced from parity, as they were when last covered:");
            for range in &report.replaced {
                let _ = writeln!(text, "    {} bytes at offset {}", range.len, range.offset);
            }
        }
        if !all_known && force {
            let _ = writeln!(
                text,
                "  pages modified outside untorn were left alone; accept them with `untorn protect {}`, or restore the \
                 file from a backup",
                path.display()
            );
        } else if !all_known {
            let _ = writeln!(text, "  pages modified outside untorn were left alone");
            choose(&mut text, &path.display().to_string());
        }
        text
    })?;
    Ok(match (report.is_whole(), all_known && report.not_rebuilt.is_empty()) {
        (false, _) => Exit::Corrupt,
        (true, false) => Exit::Attention,
        (true, true) => Exit::Clean,
    })
}

/// The number of pages that a scrub compared.
fn compared(report: &ScrubReport) -> String {
    let pages = count(report.checked, "page", "pages");
    match report.sidecar_checked {
        0 => format!("{pages} compared"),
        others => format!("{pages} compared, and {} in the sidecar", others),
    }
}

fn describe(text: &mut String, report: &ScrubReport) {
    let skipped = report.skipped + report.sidecar_skipped;
    if skipped > 0 {
        let _ = writeln!(text, "  {} not covered and skipped", count(skipped, "page is", "pages are"));
    }
    for damage in report.damage.iter().take(LISTED) {
        let _ = match damage {
            Damage::Page(range) => writeln!(text, "  - damaged: {} bytes at offset {}", range.len, range.offset),
            Damage::Unknown(range) => {
                writeln!(text, "  - modified outside untorn: {} bytes at offset {}", range.len, range.offset)
            }
            Damage::Parity { stripe } => writeln!(text, "  - damaged: parity of stripe {stripe}"),
            Damage::Table { offset } => writeln!(text, "  - damaged: table at offset {offset} in the redundancy file"),
            Damage::SidecarPage(range) => {
                writeln!(text, "  - damaged: {} bytes at offset {} in the sidecar", range.len, range.offset)
            }
            Damage::SidecarUnknown(range) => {
                writeln!(
                    text,
                    "  - modified outside untorn: {} bytes at offset {} in the sidecar",
                    range.len, range.offset
                )
            }
            Damage::SidecarParity { stripe } => {
                writeln!(text, "  - damaged: parity of stripe {stripe} of the sidecar")
            }
            Damage::SidecarTable { offset } => {
                writeln!(text, "  - damaged: table at offset {offset} in the redundancy file of the sidecar")
            }
            other => writeln!(text, "  - {other:?}"),
        };
    }
    if report.damage.len() > LISTED {
        let _ = writeln!(text, "  - and {} more", report.damage.len() - LISTED);
    }
}

fn list(pages: &[u64]) -> String {
    let mut text = pages.iter().take(LISTED).map(u64::to_string).collect::<Vec<_>>().join(", ");
    if pages.len() > LISTED {
        let _ = write!(text, " and {} more", pages.len() - LISTED);
    }
    text
}

fn insert(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(key.to_owned(), value);
    }
}

fn ranges(ranges: &[PageRange]) -> Value {
    ranges.iter().map(|range| json!({ "offset": range.offset, "len": range.len })).collect()
}

fn scrub_object(report: &ScrubReport) -> Value {
    json!({
        "checked": report.checked,
        "skipped": report.skipped,
        "sidecar_checked": report.sidecar_checked,
        "sidecar_skipped": report.sidecar_skipped,
        "damage": damages(&report.damage),
    })
}

fn damages(damages: &[Damage]) -> Value {
    let damage = damages.iter().map(|damage| match damage {
        Damage::Page(range) => json!({ "what": "page", "offset": range.offset, "len": range.len }),
        Damage::Unknown(range) => json!({ "what": "unknown", "offset": range.offset, "len": range.len }),
        Damage::Parity { stripe } => json!({ "what": "parity", "stripe": stripe }),
        Damage::Table { offset } => json!({ "what": "table", "offset": offset }),
        Damage::SidecarPage(range) => json!({ "what": "sidecar-page", "offset": range.offset, "len": range.len }),
        Damage::SidecarUnknown(range) => json!({ "what": "sidecar-unknown", "offset": range.offset, "len": range.len }),
        Damage::SidecarParity { stripe } => json!({ "what": "sidecar-parity", "stripe": stripe }),
        Damage::SidecarTable { offset } => json!({ "what": "sidecar-table", "offset": offset }),
        other => json!({ "what": format!("{other:?}") }),
    });
    damage.collect()
}

fn repair_object(report: &RepairReport) -> Value {
    let mut object = scrub_object(&report.scrub);
    insert(&mut object, "repaired", ranges(&report.repaired));
    insert(&mut object, "rebuilt", json!(report.rebuilt));
    insert(&mut object, "not_rebuilt", damages(&report.not_rebuilt));
    insert(&mut object, "lost", ranges(&report.lost));
    insert(&mut object, "unknown", ranges(&report.unknown));
    insert(&mut object, "replaced", ranges(&report.replaced));
    insert(&mut object, "refused", ranges(&report.refused));
    insert(&mut object, "sidecar_repaired", ranges(&report.sidecar_repaired));
    insert(&mut object, "sidecar_lost", ranges(&report.sidecar_lost));
    insert(&mut object, "sidecar_unknown", ranges(&report.sidecar_unknown));
    object
}

/// The value of `redundancy` in `info --json`.
pub(crate) fn summary(path: &Path) -> Value {
    match untorn::coverage(path) {
        Ok(None) => Value::Null,
        Ok(Some(coverage)) => recorded(&coverage),
        Err(Error::InUse { .. }) => in_use(path),
        Err(error) => json!({ "state": "unreadable", "error": error.to_string() }),
    }
}

/// The same while a process has the file open. That process knows more than the redundancy file records.
fn in_use(path: &Path) -> Value {
    let (coverage, holder) = match untorn::redundancy::recorded(path) {
        Ok(Some(untorn::redundancy::Record { coverage, holder, .. })) => (coverage, holder),
        Ok(None) => return Value::Null,
        Err(error) => return json!({ "state": "in-use", "error": error.to_string() }),
    };
    let mut object = recorded(&coverage);
    insert(&mut object, "state", json!("in-use"));
    insert(&mut object, "holder", json!(holder));
    object
}

/// The state recorded in the redundancy file, without looking at any page. Only the process that has the file open
/// knows how long pages have been uncovered, which pages are lost, and what the log holds.
fn recorded(coverage: &Coverage) -> Value {
    let mut object = object(coverage);
    for unknown in ["in_sidecar", "unknown", "lost", "oldest_uncovered_seconds"] {
        insert(&mut object, unknown, Value::Null);
    }
    for unknown in ["unknown", "lost"] {
        if !object["sidecar"].is_null() {
            insert(&mut object["sidecar"], unknown, Value::Null);
        }
    }
    object
}

fn object(coverage: &Coverage) -> Value {
    let sidecar = coverage.sidecar.as_deref().map(|sidecar| {
        json!({
            "companion": { "path": sidecar.redundancy_file.display().to_string(), "bytes": sidecar.bytes },
            "pages": sidecar.pages,
            "uncovered": sidecar.uncovered,
            "unknown": sidecar.unknown,
            "lost": sidecar.lost,
            "stripes": sidecar.stripes,
            "vulnerable_stripes": sidecar.vulnerable_stripes,
            "repaired": sidecar.history.repaired,
        })
    });
    json!({
        "state": if coverage.believed { "trusted" } else { "changed-untold" },
        "companion": { "path": coverage.redundancy_file.display().to_string(), "bytes": coverage.bytes },
        "pages": coverage.pages,
        "uncovered": coverage.uncovered,
        "in_sidecar": coverage.in_sidecar,
        "sidecar": sidecar,
        "unknown": coverage.unknown,
        "lost": coverage.lost,
        "oldest_uncovered_seconds": coverage.oldest_uncovered.map(|age| age.as_secs_f64()),
        "stripes": coverage.stripes,
        "vulnerable_stripes": coverage.vulnerable_stripes,
        "mttdl_gain": coverage.mttdl_gain(),
        "stripe": coverage.stripe,
        "layout": coverage.layout.to_string(),
        "checksum": coverage.checksum.to_string(),
        "period_seconds": coverage.period.map(|period| period.as_secs_f64()),
        "max_uncovered": coverage.max_uncovered,
        "scrubs": coverage.history.scrubs,
        "last_scrub": (coverage.history.scrubs > 0).then_some(coverage.history.scrubbed),
        "repaired": coverage.history.repaired,
    })
}

/// The redundancy line of `info`.
pub(crate) fn line(summary: &Value) -> String {
    let number = |key: &str| summary[key].as_u64().unwrap_or(0);
    match summary["state"].as_str() {
        None => "none".to_owned(),
        Some("in-use") => {
            let holder = match summary["holder"].as_u64() {
                Some(process) => format!("maintained by process {process}, which has the file open"),
                None => "maintained by the process that has the file open".to_owned(),
            };
            match summary["pages"].as_u64() {
                Some(pages) => {
                    format!("{holder}; {} of {pages} pages covered as last recorded", pages - number("uncovered"))
                }
                None => holder,
            }
        }
        Some("unreadable") => summary["error"].as_str().unwrap_or_default().to_owned(),
        Some(state) => {
            let covered = number("pages") - number("uncovered");
            let changed = if state == "trusted" {
                ""
            } else {
                "; the file may have been modified outside untorn since: `untorn scrub` lists the differences, `untorn \
                 protect` accepts them, `untorn repair --force` takes them back from parity"
            };
            format!("{covered} of {} pages covered{changed}", number("pages"))
        }
    }
}
