//! Verifies one run of the writer in another process, for a rig that cuts the power of a whole machine.
//!
//! The rig keeps the writer's reports outside the machine, and passes them to this verb inside the machine after the
//! cut.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::json;
use untorn::{Error, Options};

use super::model::Model;
use super::plan::Plan;
use super::report;
use super::target::{Face, Target};
use crate::cli::TortureVerify;
use crate::exit::{Exit, Failure, Result, exit_of};
use crate::output;

/// Verifies a file written by one run of the writer from operation 1 on, and prints the result as JSON.
pub(crate) fn run(args: &TortureVerify) -> Result<Exit> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::io("cannot read the writer's reports from standard input", &error))?;
    let mut model = Model::new(Plan::new(args.seed, usize::from(args.threads)), args.durability);
    let heard = model.hear(&report::words(&bytes));
    let (operations, acknowledged) = (heard.done.iter().sum::<u64>(), heard.durable.iter().sum::<u64>());

    let mut violations = Vec::new();
    let plan = model.plan().clone();
    if let Some(file) = reopen(args, &mut violations)? {
        if args.demand_map_sync {
            demand_map_sync(&args.file)?;
        }
        violations.extend(model.verify(&heard, |block, bytes| {
            let place = plan.blocks[block];
            bytes.clear();
            bytes.resize(place.len, 0);
            file.read(place.offset, bytes)
        })?);
        violations.extend(file.audit()?);
    }
    output::json(&json!({
        "operations": operations,
        "acknowledged": acknowledged,
        "violations": violations,
    }))?;
    Ok(if violations.is_empty() { Exit::Clean } else { Exit::Attention })
}

/// Opens the file, which recovers it. An error about the file's state is a violation.
fn reopen(args: &TortureVerify, violations: &mut Vec<String>) -> Result<Option<Target>> {
    let options = Options::new().engine(args.engine).durability(args.durability);
    let face = if args.region { Face::Region } else { Face::File };
    match Target::open(&options, &args.file, false, face) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(exit_of(&error), Exit::Attention | Exit::Corrupt) => {
            violations.push(format!("recovery failed: {error}"));
            Ok(None)
        }
        // The writer had the file open before the power cut, and opening it makes its name durable.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            violations.push("the file does not exist after the power cut".to_owned());
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Fails unless this process maps the file and the kernel reports each shared mapping of it as synchronous (`sf` in
/// `VmFlags`, requested with `MAP_SYNC`). The medium's own answer is not trusted. Private mappings don't matter: they
/// never change the file.
pub(super) fn demand_map_sync(path: &Path) -> Result<()> {
    let refuse = |what: String| Failure { exit: Exit::Attention, path: Some(path.to_owned()), message: what };
    let path = path.canonicalize().map_err(|error| Failure::io_at("find", path, &error))?;
    let maps =
        fs::read_to_string("/proc/self/smaps").map_err(|error| Failure::io("cannot read /proc/self/smaps", &error))?;
    let flags = mapping_flags(&maps, &path.display().to_string());
    if flags.is_empty() {
        return Err(refuse(format!("{} is not mapped, so it is not used as persistent memory", path.display())));
    }
    match flags.iter().find(|flags| !flags.split_whitespace().any(|flag| flag == "sf")) {
        None => Ok(()),
        Some(flags) => Err(refuse(format!("a shared mapping of {} lacks MAP_SYNC (VmFlags:{flags})", path.display()))),
    }
}

/// The flags of each shared mapping of a file, from the text of `/proc/PID/smaps`.
fn mapping_flags<'a>(smaps: &'a str, path: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in smaps.lines() {
        // A mapping's first line starts with its hexadecimal addresses; its properties start with a capital letter.
        if line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            let shared = line.split_whitespace().nth(1).is_some_and(|rights| rights.ends_with('s'));
            inside = shared && line.split_once('/').is_some_and(|(_, rest)| path.strip_prefix('/') == Some(rest));
        } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            found.push(flags);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_mapping_are_those_below_its_line() {
        let smaps = "7f00-7f01 rw-s 00000000 103:01 12 /mnt/tortured\nSize: 4 kB\nVmFlags: rd wr sh sf \n\
                     a000-b000 rw-s 00000000 103:01 13 /mnt/tortured.other\nVmFlags: rd wr \n\
                     b000-c000 rw-p 00000000 103:01 12 /mnt/tortured\nVmFlags: rd wr ac \n\
                     c000-d000 rw-p 00000000 00:00 0\nVmFlags: rd ac \n";
        assert_eq!(mapping_flags(smaps, "/mnt/tortured"), [" rd wr sh sf "]);
        assert_eq!(mapping_flags(smaps, "/mnt/tortured.other"), [" rd wr "]);
        assert!(mapping_flags(smaps, "/mnt").is_empty());
    }

    #[test]
    fn an_ordinary_file_is_refused_where_map_sync_is_demanded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let failure = demand_map_sync(file.path()).unwrap_err();
        assert!(failure.message.contains("not mapped"), "{failure}");
    }
}
