//! The machine of a report: without it the numbers are meaningless.

use std::fs;
use std::path::Path;

use serde::Serialize;
use untorn::testing::storage::Detected;

/// The machine, and the medium under the directory of the run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of hardware threads available to this process.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Its best instruction for writing back a cache line; "none" if unknown.
    pub flush: &'static str,
    /// Its widest vector instructions.
    pub simd: &'static str,
    /// The medium of the directory: "pmem", "assumed-pmem", "block" or "volatile".
    pub medium: &'static str,
    /// Whether a commit there survives a power cut.
    pub durable: bool,
    /// The directory.
    pub dir: String,
    /// The file system it is on.
    pub fs: String,
}

impl Machine {
    /// Describes this machine and `dir`.
    pub(crate) fn look(dir: &Path, detected: &Detected) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, &["flags", "Features"]).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned());
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Machine {
            cpu: field(&cpuinfo, &["model name", "Processor", "cpu model"]).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            flush: first_of(flags, &["clwb", "clflushopt", "clflush"]),
            simd: first_of(flags, &["avx512f", "avx2", "sse2", "asimd"]),
            medium: detected.kind.as_str(),
            durable: detected.durable,
            fs: file_system(&mounts, &dir).unwrap_or("unknown").to_owned(),
            dir: dir.display().to_string(),
        }
    }
}

/// The value of the first of `names` in /proc/cpuinfo.
fn field<'a>(cpuinfo: &'a str, names: &[&str]) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(name, value)| names.contains(&name.trim()).then(|| value.trim()))
}

/// The first of `wanted` among the processor's flags.
fn first_of(flags: &str, wanted: &[&'static str]) -> &'static str {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    wanted.iter().find(|wanted| flags.contains(wanted)).copied().unwrap_or("none")
}

/// The type of the file system with `dir`: that of the longest mount point above it, or the last mounted of equals.
fn file_system<'a>(mountinfo: &'a str, dir: &Path) -> Option<&'a str> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            dir.starts_with(&point).then(|| (point.len(), kind.split(' ').next().unwrap_or(kind)))
        })
        .max_by_key(|&(len, _)| len)
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_fields_are_found() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: sse2 clflush clflushopt avx2\n";
        assert_eq!(field(info, &["model name"]), Some("Some CPU @ 2 GHz"));
        let flags = field(info, &["flags"]).unwrap();
        assert_eq!(first_of(flags, &["clwb", "clflushopt", "clflush"]), "clflushopt");
        assert_eq!(first_of("", &["clwb"]), "none");
    }

    #[test]
    fn the_innermost_mount_holds_the_directory() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      22 21 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw\n\
                      23 22 0:6 / /dev/shm rw - tmpfs tmpfs rw\n\
                      24 21 8:2 / /my\\040disk rw - xfs /dev/sdb rw\n";
        assert_eq!(file_system(mounts, Path::new("/dev/shm/a")), Some("tmpfs"));
        assert_eq!(file_system(mounts, Path::new("/dev/shmoo")), Some("devtmpfs"));
        assert_eq!(file_system(mounts, Path::new("/home")), Some("ext4"));
        assert_eq!(file_system(mounts, Path::new("/my disk/b")), Some("xfs"));
    }
}
