//! The processes that keep a mount from being removed, as far as `/proc` shows them.
//!
//! Everything comes from the names of links in `/proc`, which the kernel makes up by itself. Following a link would ask
//! the mount's server, which may hang.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::puller::PULLER;

/// The most processes that are named.
const MOST: usize = 5;

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// Its name.
    pub name: String,
    /// How it uses the mount.
    pub how: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}: {})", self.process, self.name, self.how)
    }
}

/// The processes that use the mount at a path, at most [`MOST`].
pub(super) fn of(mountpoint: &Path) -> Vec<Holder> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holder = |process| {
        let proc = PathBuf::from(format!("/proc/{process}"));
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default().trim().to_owned();
        // A puller has open what others have open.
        let how = if name == PULLER { None } else { how(&proc, mountpoint) };
        Some(Holder { process, name, how: how? })
    };
    processes.filter_map(holder).take(MOST).collect()
}

/// How a process uses the mount, if it does.
fn how(proc: &Path, mountpoint: &Path) -> Option<String> {
    let inside = |path: &Path| path.starts_with(mountpoint);
    for (link, word) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")] {
        if let Some(path) = fs::read_link(proc.join(link)).ok().filter(|path| inside(path)) {
            return Some(format!("{word} {}", path.display()));
        }
    }
    for entry in fs::read_dir(proc.join("fd")).into_iter().flatten().flatten() {
        if let Some(path) = fs::read_link(entry.path()).ok().filter(|path| inside(path)) {
            return Some(format!("open file {}", path.display()));
        }
    }
    let maps = fs::read(proc.join("maps")).unwrap_or_default();
    let mapped = maps.split(|byte| *byte == b'\n').find_map(|line| {
        let start = line.iter().position(|byte| *byte == b'/')?;
        Some(Path::new(OsStr::from_bytes(&line[start..]))).filter(|path| inside(path))
    })?;
    Some(format!("mapped file {}", mapped.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let file = fs::File::create(path.join("held")).unwrap();
        let found = of(&path);
        let me = found.iter().find(|holder| holder.process == std::process::id()).expect("this process is found");
        assert!(me.to_string().contains("open file") && me.how.ends_with("/held"), "{me}");
        drop(file);
        // A child that another test is about to start may still have it.
        assert!(of(&path).iter().all(|holder| holder.process != std::process::id()));
    }
}
