//! `untorn unmount`, and what else the tool has to do with mounts that are made or removed elsewhere.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use untorn_mount::attach::{self, AttachError, Stage};

use crate::cli::Unmount;
use crate::exit::{Exit, Failure, Result};
use crate::output;

/// Removes a mount.
pub(super) fn run(args: &Unmount) -> Result<Exit> {
    refuse_more_rights()?;
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

/// Refuses to mount, to unmount or to start a program for a caller with fewer rights.
pub(super) fn refuse_more_rights() -> Result<()> {
    if untorn::testing::has_more_rights_than_its_caller() {
        let what = "verbs about mounts do not run with more rights than their caller; take the setuid bit and the file \
                    capabilities from the tool";
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// How this program starts itself as the stage of a private mount.
pub(super) fn stage_of_this_program() -> Stage {
    Stage::new(["mount-stage"])
}

/// Runs such a stage.
pub(super) fn stage() -> Result<Exit> {
    refuse_more_rights()?;
    attach::stage().map_err(failure)?;
    Ok(Exit::Clean)
}

/// How this program starts itself as the process that opens files in a mount for its server.
pub(super) fn puller_of_this_program() -> Stage {
    Stage::new(["mount-pull"])
}

/// Runs such a process.
pub(super) fn pull() -> Result<Exit> {
    refuse_more_rights()?;
    let (server, root) = attach::puller().map_err(failure)?;
    // It lives as long as its server: signals for the terminal's programs, or for all of a service, are the server's.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored)
            .map_err(|error| Failure::io("cannot install signal handlers", &error))?;
    }
    // The directory that the user stands in may be on a disk that is to be unmounted.
    std::env::set_current_dir("/").map_err(|error| Failure::io("cannot leave the working directory", &error))?;
    untorn_mount::pull_for(server, root)
        .map_err(|error| Failure::io("cannot serve the server of the mount", &error))?;
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
