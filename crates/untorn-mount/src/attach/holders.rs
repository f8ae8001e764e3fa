//! The processes that keep a mount from being removed, as far as `/proc` shows them.
//!
//! Everything comes from the names of links in `/proc`, which the kernel makes up by itself. Following a link would ask
//! the mount's server, which may hang.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::mount_of;
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

/// The processes that use the mount with this number at a path, at most [`MOST`].
pub(super) fn of(mountpoint: &Path, id: u64) -> Vec<Holder> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holder = |process| {
        let proc = PathBuf::from(format!("/proc/{process}"));
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default().trim().to_owned();
        // A puller has open what others have open.
        let how = if name == PULLER { None } else { how(&proc, mountpoint, id) };
        Some(Holder { process, name, how: how? })
    };
    processes.filter_map(holder).take(MOST).collect()
}

/// How a process uses the mount, if it does.
fn how(proc: &Path, mountpoint: &Path, id: u64) -> Option<String> {
    let inside = |path: &Path| path.starts_with(mountpoint);
    for (link, word) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")] {
        if let Some(path) = fs::read_link(proc.join(link)).ok().filter(|path| inside(path)) {
            return Some(format!("{word} {}", path.display()));
        }
    }
    for entry in fs::read_dir(proc.join("fd")).into_iter().flatten().flatten() {
        // The server has the directory below the mount open, which has the same path.
        let is_in_mount = || mount_of(&proc.join("fdinfo").join(entry.file_name())) == Some(id);
        if let Some(path) = fs::read_link(entry.path()).ok().filter(|path| inside(path) && is_in_mount()) {
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
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let id = mount_of(Path::new(&format!("/proc/self/fdinfo/{number}"))).unwrap();
        let found = of(&path, id);
        let me = found.iter().find(|holder| holder.process == std::process::id()).expect("this process is found");
        assert!(me.to_string().contains("open file") && me.how.ends_with("/held"), "{me}");
        let other = of(&path, id + 1_000_000);
        assert!(other.iter().all(|holder| holder.process != std::process::id()), "a file of another mount");
        drop(file);
        // A child that another test is about to start may still have it.
        assert!(of(&path, id).iter().all(|holder| holder.process != std::process::id()));
    }
}
