//! `untorn check`: verifies a file without changing it.

use std::fmt::Write;

use serde_json::{Value, json};
use untorn::report::State;
use untorn::{EngineKind, Error, Options};

use super::info;
use crate::cli::Look;
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, paint};
use crate::{progress, size};

/// Bytes of one read: long enough for a disk to stream.
const CHUNK: u64 = 1 << 20;

/// The property that this verb cannot verify.
const NOT_VERIFIED: &str = "that the data file's bytes are unchanged since they were written: only a protected file \
                    has \
                            checksums for that, and `untorn scrub` compares them";

/// Verifies a file and reports what was verified.
pub(crate) fn run(args: &Look) -> Result<Exit> {
    let report = untorn::inspect(&args.file)?;
    if report.state == State::InUse {
        // A file that changes during the check cannot be verified, and a partial answer would mislead.
        let holder = report.holder.unwrap_or_else(|| "another process".to_owned());
        return Err(Error::InUse { path: args.file.clone(), holder }.into());
    }
    let mut verified = Vec::new();
    let failure = match report.state {
        State::Clean => read_all(args, &mut verified).err(),
        _ => None,
    };
    let (exit, problem) = match failure {
        Some(failure) => (failure.exit, Some(failure.message)),
        None => (info::verdict(&report), None),
    };
    let mut object = info::object(&report);
    if let Value::Object(fields) = &mut object {
        fields.insert("ok".to_owned(), json!(exit == Exit::Clean));
        fields.insert("verified".to_owned(), json!(verified));
        fields.insert("not_verified".to_owned(), json!([NOT_VERIFIED]));
        fields.insert("error".to_owned(), json!(problem));
    }
    output::report(args.form.json, &object, || {
        let mut text = info::words(&report);
        // Writing to a String cannot fail.
        for sentence in &verified {
            let _ = writeln!(text, "  - verified: {sentence}");
        }
        let _ = writeln!(text, "  - not verified: {NOT_VERIFIED}");
        if let Some(problem) = &problem {
            let _ = writeln!(text, "  - failed: {problem}");
        }
        let (colour, word) = match exit {
            Exit::Clean => (Colour::Good, "every check passed"),
            Exit::Attention => (Colour::Bad, "the file needs recovery or a decision"),
            Exit::Corrupt => (Colour::Bad, "the file is corrupt"),
            Exit::Usage | Exit::Io => (Colour::Bad, "the file could not be verified"),
        };
        let _ = writeln!(text, "{}", paint(colour, word));
        text
    })?;
    if exit != Exit::Clean {
        let message = problem.unwrap_or_else(|| match report.state {
            State::NeedsRecovery => Error::NeedsRecovery { path: args.file.clone() }.to_string(),
            _ => format!("{}: {}", args.file.display(), report.findings.join("; ")),
        });
        eprintln!("untorn: {message}");
    }
    Ok(exit)
}

/// Opens the file read-only, which verifies its sidecar's digest, and reads every byte.
fn read_all(args: &Look, verified: &mut Vec<String>) -> Result<()> {
    let file = Options::new().read_only(true).verify(true).open(&args.file)?;
    let info = file.info();
    if info.sidecar.is_some() {
        let what = match info.engine {
            EngineKind::HybridLog => {
                "the sidecar belongs to this file; its superblock and retirement line match their checksums; the file \
                 was \
                 closed cleanly, so the log holds no undeployed data"
            }
            _ => {
                "the sidecar belongs to this file; its superblock and bitmaps match their checksums; the slices that \
                 only \
                 the sidecar holds match the digest of the last clean close"
            }
        };
        verified.push(what.to_owned());
    }
    let len = file.len();
    let bar = progress::bytes_bar(len, "reading");
    let mut buffer = vec![0; CHUNK.min(len) as usize];
    let mut offset = 0;
    while offset < len {
        let part = CHUNK.min(len - offset);
        file.read_at(&mut buffer[..part as usize], offset).map_err(Failure::from)?;
        offset += part;
        bar.set_position(offset);
    }
    bar.finish_and_clear();
    verified.push(format!("all {} are readable", size::show(len)));
    Ok(())
}
