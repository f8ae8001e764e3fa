//! `untorn recover` and `settle`.

use serde_json::{Value, json};
use untorn::{EngineKind, Options, State};

use super::{change, info};
use crate::cli;
use crate::exit::{Exit, Result};
use crate::{output, progress};

/// Brings a file to its last commit.
pub(crate) fn recover(args: &cli::Recover) -> Result<Exit> {
    let mut options = progress::attach(Options::new().adopt(args.adopt));
    if let Some(side) = args.trust {
        options = options.trust(side);
    }
    let done = untorn::recover(&args.file, &options)?;
    let report = untorn::inspect(&args.file)?;
    let mut object = info::object(&report);
    if let Value::Object(fields) = &mut object {
        fields.insert(
            "recovery".to_owned(),
            json!({ "was_needed": done.was_needed, "replayed": done.replayed, "discarded": done.discarded }),
        );
    }
    output::report(args.form.json, &object, || {
        let path = args.file.display();
        if !done.was_needed {
            return format!("{path}: nothing to recover, it stands at commit {}\n", report.commit);
        }
        // What one of them is: a commit's record, or one block's part of an epoch.
        let (one, many) = match report.engine {
            Some(EngineKind::HybridLog) => ("entry of the log", "entries of the log"),
            _ => ("record", "records"),
        };
        format!(
            "{path}: recovered to commit {}; {} applied, {} in flight at the crash dropped whole\n",
            report.commit,
            output::count(done.replayed, one, many),
            output::count(done.discarded, one, many)
        )
    })?;
    Ok(info::verdict(&report))
}

/// Deploys everything and removes the sidecar.
pub(crate) fn settle(args: &cli::Settle) -> Result<Exit> {
    let before = untorn::inspect(&args.file)?;
    let had_sidecar = before.sidecar.is_some() || before.state != State::Clean;
    // Opening a plain file would give it a sidecar first.
    if had_sidecar {
        change::open(&args.file)?.settle()?;
    }
    let after = untorn::inspect(&args.file)?;
    let mut object = info::object(&after);
    if let Value::Object(fields) = &mut object {
        fields.insert("settled".to_owned(), json!(had_sidecar));
    }
    output::report(args.form.json, &object, || {
        let what = if had_sidecar { "settled: it is a plain file now" } else { "is a plain file already" };
        format!("{}: {what}\n", args.file.display())
    })?;
    Ok(info::verdict(&after))
}
