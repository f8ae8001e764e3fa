//! `untorn doctor`.

use std::fmt::Write;

use serde_json::json;
use untorn::Durability;
use untorn::report::Diagnosis;
use untorn::testing::storage::MediumKind;
use untorn_mount::attach::{Finding, probe};

use super::unmount::stage_of_this_program;
use crate::cli::Doctor;
use crate::exit::{Exit, Result};
use crate::output::{self, Colour, paint};

/// Reports what untorn can guarantee at a path.
pub(crate) fn run(args: &Doctor) -> Result<Exit> {
    let found = untorn::doctor(&args.path)?;
    // A file system that keeps no files has no medium to speak of.
    let of_files = |word: &'static str| found.keeps_files.then_some(word);
    let mounts = probe(&stage_of_this_program());
    let of_mount = |found: &Finding| {
        json!({
            "name": found.name,
            "works": found.works,
            "why": found.why,
            "advice": found.advice,
        })
    };
    let object = json!({
        "path": found.path.display().to_string(),
        "medium": of_files(found.medium.as_str()),
        "durable": found.durable,
        "obstacle": found.obstacle,
        "engine": of_files(found.engine.as_str()),
        "durability": of_files(found.durability.as_str()),
        "dirty_tracking": of_files(found.dirty_tracking),
        "reasons": found.reasons,
        "mount": mounts.iter().map(of_mount).collect::<Vec<_>>(),
    });
    output::report(args.form.json, &object, || words(&found) + &mount_words(&mounts))?;
    Ok(if found.durable && found.obstacle.is_none() { Exit::Clean } else { Exit::Attention })
}

fn words(found: &Diagnosis) -> String {
    let medium = match found.medium {
        MediumKind::PersistentMemory => "persistent memory",
        MediumKind::Block => "a block device behind the page cache",
        MediumKind::AssumedPmem => "memory that UNTORN_ASSUME_PMEM=1 declares persistent",
        MediumKind::Volatile => "volatile memory",
    };
    let verdict = if found.obstacle.is_some() {
        paint(Colour::Bad, "untorn can create or change no file here")
    } else if found.durable {
        paint(Colour::Good, "commits survive program crashes and power cuts")
    } else {
        paint(Colour::Bad, "commits survive program crashes, but NOT a power cut")
    };
    let durability = match found.durability {
        Durability::PerWrite => "write: each write is durable when its call returns",
        Durability::PerCommit => "commit: writes become durable together, at a commit",
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}: {verdict}", paint(Colour::Strong, &found.path.display().to_string()));
    if found.keeps_files {
        let _ = writeln!(text, "  medium          {medium}");
        let _ = writeln!(text, "  engine          {}", found.engine);
        let _ = writeln!(text, "  durability      {durability}");
        let _ = writeln!(text, "  dirty tracking  {}", found.dirty_tracking);
    }
    let _ = writeln!(text, "why:");
    for reason in &found.reasons {
        let _ = writeln!(text, "  - {reason}");
    }
    text
}

/// Whether `untorn mount` works, and by which ways.
fn mount_words(mounts: &[Finding]) -> String {
    let works = |names: &[&str]| mounts.iter().any(|found| found.works && names.contains(&found.name.as_str()));
    let public = ["mount", "fusermount3"];
    let verdict = match works(&public) {
        true => paint(Colour::Good, "works here"),
        false => paint(Colour::Bad, "does not work here"),
    };
    let mut text = format!("`untorn mount` {verdict}:\n");
    for found in mounts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<12} {} {}", found.name, if found.works { "yes" } else { "no " }, found.why);
        // One public way is enough.
        let needed = !(public.contains(&found.name.as_str()) && works(&public));
        if let Some(advice) = found.advice.as_ref().filter(|_| needed) {
            let _ = writeln!(text, "  {:<12}     {advice}", "");
        }
    }
    text
}
