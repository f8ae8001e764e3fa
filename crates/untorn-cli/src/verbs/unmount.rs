//! `untorn unmount`, and what else the tool has to do with mounts that are made or removed elsewhere.

use serde_json::json;
use untorn_mount::attach::{self, AttachError, Stage};

use crate::cli::Unmount;
use crate::exit::{Exit, Failure, Result};
use crate::output;

/// Removes a mount.
pub(super) fn run(args: &Unmount) -> Result<Exit> {
    let how = if args.lazy { attach::Unmount::Lazy } else { attach::Unmount::Clean };
    attach::detach(&args.mountpoint, how).map_err(failure)?;
    if !args.lazy {
        // Its server brings the log to the files, and ends.
        attach::wait_for_server(&args.mountpoint);
    }
    if args.form.json {
        output::json(&json!({ "unmounted": args.mountpoint.display().to_string(), "lazy": args.lazy }))?;
    }
    Ok(Exit::Clean)
}

/// How this program starts itself as the stage of a private mount.
pub(super) fn stage_of_this_program() -> Stage {
    Stage::new(["mount-stage"])
}

/// Runs such a stage.
pub(super) fn stage() -> Result<Exit> {
    attach::stage().map_err(failure)?;
    Ok(Exit::Clean)
}

/// The failure of a mount that could not be made or removed.
pub(super) fn failure(error: AttachError) -> Failure {
    let message = error.to_string();
    match error {
        AttachError::Request { path, .. } => Failure { exit: Exit::Usage, path: Some(path), message },
        AttachError::Busy { mountpoint, .. } => Failure { exit: Exit::Io, path: Some(mountpoint), message },
        _ => Failure { exit: Exit::Io, path: None, message },
    }
}
