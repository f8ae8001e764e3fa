//! The ways that work on this machine, found by trying them.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::private::begin;
use super::stage::{Leave, Request};
use super::{AttachError, AttachOptions, Covering, Stage, Unmount, Way, advice, detach, fusermount, privileged};

/// One way to mount, or what all of them need.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// `/dev/fuse`, or the [name](Way::as_str) of a way.
    pub name: String,
    /// Whether it works.
    pub works: bool,
    /// The trial, and its outcome.
    pub why: String,
    /// The remedy if it does not work, as far as it is known.
    pub advice: Option<String>,
}

/// Tries every way to mount. It mounts for real, in namespaces of a stage or on a directory of its own, and leaves
/// nothing behind.
pub fn probe(stage: &Stage) -> Vec<Finding> {
    let place = some_directory();
    let options = match rustix::fs::open(&place, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()) {
        Ok(directory) => AttachOptions::over(directory),
        Err(error) => Err(error.into()),
    };
    let options = match options {
        Ok(options) => options,
        Err(error) => return vec![failed("/dev/fuse", &AttachError::system("find a directory to try", error))],
    };
    vec![
        device(&options),
        in_stage(Way::Mount, Leave::Mounts, &place, &options, stage),
        by_program(&options),
        in_stage(Way::Private, Leave::Users, &place, &options, stage),
    ]
}

fn device(options: &AttachOptions) -> Finding {
    let name = options.device.display().to_string();
    match privileged::open_device(options) {
        Ok(_) => Finding { name, works: true, why: "this user can open it".to_owned(), advice: None },
        Err(source) => failed(&name, &privileged::device_error(&options.device, source)),
    }
}

/// Mounts in namespaces that end with the stage.
fn in_stage(way: Way, leave: Leave, place: &Path, options: &AttachOptions, stage: &Stage) -> Finding {
    let leave = if way == Way::Private && geteuid().is_root() { Leave::Mounts } else { leave };
    let covering = Covering { mountpoint: place.to_owned(), options: options.clone() };
    let request = Request { leave, mounts: vec![covering], command: Vec::new() };
    let tried = match leave {
        Leave::Mounts => "mount(2) in a mount namespace",
        Leave::Users => "mount(2) in a user namespace",
    };
    match begin(&request, stage) {
        Ok(_) => works(way, format!("{tried} works")),
        Err(error) => failed(way.as_str(), &error.explain(&request)),
    }
}

/// Mounts with `fusermount3` on a directory of its own.
fn by_program(options: &AttachOptions) -> Finding {
    let way = Way::Fusermount;
    if fusermount::find().is_none() {
        let why = format!("the program {} is not in PATH", fusermount::NAME);
        return Finding {
            name: way.as_str().to_owned(),
            works: false,
            why,
            advice: Some(advice::for_missing_fusermount()),
        };
    }
    let tried = tempfile::tempdir().and_then(|directory| {
        let path = directory.path().canonicalize()?;
        let mounted = fusermount::mount(&path, options);
        // The mount has no server, so it is unmounted before the directory is removed.
        Ok(mounted.and_then(|device| {
            drop(device);
            detach(&path, Unmount::Lazy)
        }))
    });
    let others = match (geteuid().is_root(), advice::user_allow_other()) {
        (true, _) | (_, true) => "; it can serve other users too",
        (false, false) => "; it serves this user alone: /etc/fuse.conf has no line user_allow_other",
    };
    match tried {
        Ok(Ok(())) => works(way, format!("a mount by it works{others}")),
        Ok(Err(error)) => failed(way.as_str(), &error),
        Err(error) => failed(way.as_str(), &AttachError::system("make a directory for a trial", error)),
    }
}

/// A directory for a mount that only the stage sees.
fn some_directory() -> PathBuf {
    let mut candidates = vec![std::env::temp_dir()];
    candidates.extend(["/tmp", "/var/tmp", "/proc"].map(PathBuf::from));
    let found = candidates.into_iter().find_map(|path| path.canonicalize().ok().filter(|path| path.is_dir()));
    found.unwrap_or_else(|| PathBuf::from("/proc"))
}

fn works(way: Way, why: String) -> Finding {
    Finding { name: way.as_str().to_owned(), works: true, why, advice: None }
}

fn failed(name: &str, error: &AttachError) -> Finding {
    let (why, advice) = match error {
        AttachError::System { what, source, advice } => (format!("cannot {what}: {source}"), advice.clone()),
        other => (other.to_string(), None),
    };
    Finding { name: name.to_owned(), works: false, why, advice }
}
