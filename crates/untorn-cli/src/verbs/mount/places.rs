//! The directories and the log of a mount, checked before anything is made.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use untorn::write_cache::WriteCache;
use untorn_mount::attach::{self, Unmount};

use super::super::boost;
use super::super::unmount::failure;
use super::say;
use crate::cli::Mount;
use crate::exit::{Exit, Failure, Result};

/// The directory of untorn's own files, which a mount hides.
const HIDDEN: &str = ".untorn";

/// Checked paths, without symbolic links.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) source: PathBuf,
    /// An `O_PATH` descriptor of the source.
    pub(super) directory: OwnedFd,
    pub(super) mountpoint: PathBuf,
    pub(super) log: PathBuf,
}

impl Places {
    /// Checks the paths of a request. A mount on the mountpoint whose server is gone is removed.
    pub(super) fn of(args: &Mount) -> Result<Self> {
        let source = args.source.canonicalize().map_err(|error| Failure::io_at("find", &args.source, &error))?;
        if attach::is_dead(&args.mountpoint).map_err(failure)? {
            attach::detach(&args.mountpoint, Unmount::Lazy).map_err(failure)?;
            say(&format!("untorn: removed the mount on {}, whose server is gone\n", args.mountpoint.display()));
        }
        let found = args.mountpoint.canonicalize();
        let mountpoint = found.map_err(|error| Failure::io_at("find", &args.mountpoint, &error))?;
        apart(&source, &mountpoint)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&source, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOTDIR => Failure::usage_at(&source, "not a directory; SOURCE is a directory of files"),
            error => Failure::io_at("open", &source, &error.into()),
        })?;
        let log = match &args.log {
            Some(log) => given_log(log, &source, &mountpoint)?,
            None => hidden_log(&source)?,
        };
        boost::medium(&log)?;
        Ok(Places { source, directory, mountpoint, log })
    }
}

/// Refuses directories that hold each other.
fn apart(source: &Path, mountpoint: &Path) -> Result<()> {
    let why = if source == mountpoint {
        "SOURCE and MOUNTPOINT are the same directory, so the mount would hide the files that it serves; mount on \
         another directory"
    } else if mountpoint.starts_with(source) {
        "MOUNTPOINT is inside SOURCE, so the mount would contain itself; mount on a directory outside"
    } else if source.starts_with(mountpoint) {
        "SOURCE is inside MOUNTPOINT, so the mount would hide the files that it serves; mount on a directory outside"
    } else {
        return Ok(());
    };
    Err(Failure::usage_at(mountpoint, why))
}

/// The log that `--log` names.
fn given_log(named: &Path, source: &Path, mountpoint: &Path) -> Result<PathBuf> {
    let log = boost::resolved(named)?;
    // A link may lead elsewhere; the library decides whether it is trusted.
    let canonical = log.canonicalize().unwrap_or_else(|_| log.clone());
    if canonical.starts_with(mountpoint) {
        let what = "the log is inside MOUNTPOINT, so the server would wait for itself; move it outside";
        return Err(Failure::usage_at(&log, what));
    }
    if is_shown(&canonical, source) {
        let what = "the log is inside SOURCE, where programs would see it through the mount; omit --log, which puts it \
                    into a directory that the mount hides, or move it outside";
        return Err(Failure::usage_at(&log, what));
    }
    Ok(log)
}

/// Whether a mount of this source shows a file to programs, as all but those in untorn's own directories.
pub(in crate::verbs) fn is_shown(file: &Path, source: &Path) -> bool {
    let shown = |inside: &Path| !inside.components().any(|part| part.as_os_str() == HIDDEN);
    file.strip_prefix(source).is_ok_and(shown)
}

/// The default log, in a directory that is made if it is not there.
pub(in crate::verbs) fn hidden_log(source: &Path) -> Result<PathBuf> {
    untorn_mount::make_log_directory(source).map_err(|error| {
        let exit = if matches!(error, untorn_mount::Error::Planted { .. }) { Exit::Usage } else { Exit::Io };
        let elsewhere = if exit == Exit::Io { "; --log PATH puts the log elsewhere" } else { "" };
        Failure { exit, path: None, message: format!("{error}{elsewhere}") }
    })
}

/// A default log of this process. It goes with its owner if nothing needs it then, since what nobody named nobody
/// removes.
#[derive(Debug)]
pub(in crate::verbs) struct OwnLog(pub(in crate::verbs) WriteCache);

impl Drop for OwnLog {
    fn drop(&mut self) {
        match self.0.remove() {
            // The report of a log that failed says what to do with it.
            Ok(_) | Err(untorn::Error::Poisoned { .. }) => {}
            Err(error) => say(&format!("untorn: the empty log {} stays: {error}\n", self.0.path().display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_that_hold_each_other_are_refused() {
        let refused = |source: &str, mountpoint: &str| apart(Path::new(source), Path::new(mountpoint)).is_err();
        assert!(refused("/a", "/a") && refused("/a", "/a/b") && refused("/a/b", "/a") && refused("/", "/a"));
        assert!(!refused("/a", "/b") && !refused("/a", "/ab") && !refused("/a/b", "/a/c"));
    }

    #[test]
    fn a_log_that_programs_would_see_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (source, mountpoint) = (root.join("source"), root.join("mountpoint"));
        fs::create_dir_all(source.join("sub/.untorn")).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        let check = |log: &Path| given_log(log, &source, &mountpoint).map_err(|failure| failure.to_string());
        assert!(check(&source.join("log")).unwrap_err().contains("inside SOURCE"));
        assert!(check(&mountpoint.join("log")).unwrap_err().contains("inside MOUNTPOINT"));
        std::os::unix::fs::symlink(source.join("log"), root.join("link")).unwrap();
        fs::write(source.join("log"), "").unwrap();
        assert!(check(&root.join("link")).unwrap_err().contains("inside SOURCE"));
        assert_eq!(check(&source.join("sub/.untorn/log")).unwrap(), source.join("sub/.untorn/log"));
        assert_eq!(check(&root.join("log")).unwrap(), root.join("log"));
        assert_eq!(hidden_log(&source).unwrap(), source.join(".untorn/mount.log"));
        assert!(source.join(".untorn").is_dir());
    }

    #[test]
    fn a_directory_for_the_log_that_others_made_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().canonicalize().unwrap();
        let hidden = source.join(".untorn");
        let check = || hidden_log(&source).map_err(|failure| failure.to_string());
        assert_eq!(check(), Ok(hidden.join("mount.log")));
        for (mode, trusted) in [(0o755, true), (0o775, false), (0o777, false), (0o1777, true)] {
            fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check().is_ok(), trusted, "{mode:o}");
        }
        fs::rename(&hidden, source.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(source.join("elsewhere"), &hidden).unwrap();
        assert!(check().unwrap_err().contains("no directory"));
        fs::remove_file(&hidden).unwrap();
        fs::create_dir(&hidden).unwrap();
        untorn_testing::needs!("root");
        std::os::unix::fs::lchown(&hidden, Some(65_534), None).unwrap();
        assert!(check().unwrap_err().contains("user 65534"));
        // The owner of the source may remove its files in any case.
        std::os::unix::fs::lchown(&source, Some(65_534), None).unwrap();
        assert!(check().is_ok());
    }
}
