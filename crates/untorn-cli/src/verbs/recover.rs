//! `untorn recover` and `settle`.

use serde_json::{Value, json};
use untorn::options::Prefer;
use untorn::report::State;
use untorn::{EngineKind, Options};

use super::{change, info};
use crate::cli;
use crate::exit::{Exit, Result};
use crate::{output, progress};

/// Brings a file to its last committed state.
pub(crate) fn recover(args: &cli::Recover) -> Result<Exit> {
    let mut options = progress::attach(Options::new().adopt(args.adopt).keep_sidecar(args.keep.keep_sidecar));
    if let Some(side) = args.trust {
        options = options.prefer(side);
    }
    // Recovery ends with a plain file, which has no commit number.
    let before = untorn::inspect(&args.file)?;
    let done = untorn::recover(&args.file, &options)?;
    let report = untorn::inspect(&args.file)?;
    let mut object = info::object(&report);
    if let Value::Object(fields) = &mut object {
        fields.insert(
            "recovery".to_owned(),
            json!({
                "was_needed": done.was_needed,
                "replayed": done.replayed,
                "discarded": done.discarded,
                "dropped_commits": done.dropped_commits,
                "lost_bytes": done.lost_bytes,
            }),
        );
    }
    output::report(args.form.json, &object, || {
        let path = args.file.display();
        if args.trust == Some(Prefer::File) {
            let dropped = output::count(done.dropped_commits, "commit", "commits");
            return format!("{path}: kept the file as it is; discarded {dropped} that only the sidecar held\n");
        }
        let lost = match done.lost_bytes {
            0 => String::new(),
            bytes => {
                let bytes = output::count(bytes, "byte", "bytes");
                format!("{path}: up to {bytes} are lost: the file was cut short, and the sidecar does not hold them\n")
            }
        };
        if !done.was_needed {
            let done = if lost.is_empty() { "nothing to recover" } else { "kept what the sidecar holds" };
            return format!("{path}: {done}\n{lost}");
        }
        // The unit differs by engine: a commit's record, or one block's entry in an epoch.
        let (one, many) = match before.engine {
            Some(EngineKind::HybridLog) => ("log entry", "log entries"),
            _ => ("record", "records"),
        };
        format!(
            "{path}: recovered to commit {}; {} applied, {} of uncommitted writes discarded\n{lost}",
            before.commit,
            output::count(done.replayed, one, many),
            output::count(done.discarded, one, many)
        )
    })?;
    Ok(match info::verdict(&report) {
        Exit::Clean if done.lost_bytes > 0 => Exit::Attention,
        verdict => verdict,
    })
}

/// Deploys all committed data and removes the sidecar.
pub(crate) fn settle(args: &cli::Settle) -> Result<Exit> {
    let before = untorn::inspect(&args.file)?;
    let had_sidecar = before.sidecar.is_some() || before.state != State::Clean;
    // Opening a plain file would create a sidecar first.
    if had_sidecar {
        change::open(&args.file)?.settle()?;
    }
    let after = untorn::inspect(&args.file)?;
    let mut object = info::object(&after);
    if let Value::Object(fields) = &mut object {
        fields.insert("settled".to_owned(), json!(had_sidecar));
    }
    output::report(args.form.json, &object, || {
        let what = if had_sidecar { "settled; it is now a plain file" } else { "already a plain file" };
        format!("{}: {what}\n", args.file.display())
    })?;
    Ok(info::verdict(&after))
}
