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
    /// The device of the file system, as it is mounted.
    pub device: String,
    /// The model of that device; "unknown" if it has none, as on tmpfs and in many virtual machines.
    pub model: String,
    /// The I/O scheduler of that device.
    pub scheduler: String,
    /// Memory of the machine.
    pub memory_mib: u64,
}

impl Machine {
    /// Describes this machine and `dir`.
    pub(crate) fn look(dir: &Path, detected: &Detected) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, &["flags", "Features"]).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned());
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let mount = mount_of(&mounts, &dir);
        let of_device = |file: &str| mount.as_ref().and_then(|mount| read_of_device(mount.number, file));
        Machine {
            cpu: field(&cpuinfo, &["model name", "Processor", "cpu model"]).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            flush: first_of(flags, &["clwb", "clflushopt", "clflush"]),
            simd: first_of(flags, &["avx512f", "avx2", "sse2", "asimd"]),
            medium: detected.kind.as_str(),
            durable: detected.durable,
            fs: mount.as_ref().map_or("unknown", |mount| mount.fs).to_owned(),
            device: mount.as_ref().map_or("unknown", |mount| mount.device).to_owned(),
            model: of_device("device/model").map_or("unknown".to_owned(), |model| model.trim().to_owned()),
            scheduler: of_device("queue/scheduler").as_deref().and_then(chosen).unwrap_or("unknown").to_owned(),
            memory_mib: memory_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
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

/// A line of /proc/self/mountinfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mount<'a> {
    /// The device's major and minor number.
    number: &'a str,
    fs: &'a str,
    device: &'a str,
}

/// The mount of the file system with `dir`: that of the longest mount point above it, or the last mounted of equals.
fn mount_of<'a>(mountinfo: &'a str, dir: &Path) -> Option<Mount<'a>> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            let (number, mut kind) = (mount.split(' ').nth(2)?, kind.split(' '));
            let found = Mount { number, fs: kind.next()?, device: kind.next().unwrap_or("unknown") };
            dir.starts_with(&point).then_some((point.len(), found))
        })
        .max_by_key(|&(len, _)| len)
        .map(|(_, mount)| mount)
}

/// A file of a block device in /sys; a partition has those of the whole device.
fn read_of_device(number: &str, file: &str) -> Option<String> {
    let device = Path::new("/sys/dev/block").join(number);
    [device.join(file), device.join("..").join(file)].iter().find_map(|path| fs::read_to_string(path).ok())
}

/// The scheduler in use, which stands in brackets.
fn chosen(schedulers: &str) -> Option<&str> {
    schedulers.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

/// Memory by /proc/meminfo.
fn memory_mib(meminfo: &str) -> u64 {
    let kib = field(meminfo, &["MemTotal"]).and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
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
        let fs = |dir: &str| mount_of(mounts, Path::new(dir)).unwrap().fs;
        assert_eq!(["/dev/shm/a", "/dev/shmoo", "/my disk/b"].map(fs), ["tmpfs", "devtmpfs", "xfs"]);
        let root = Mount { number: "8:1", fs: "ext4", device: "/dev/sda1" };
        assert_eq!(mount_of(mounts, Path::new("/home")), Some(root));
    }

    #[test]
    fn schedulers_and_memory_are_read_from_what_the_kernel_prints() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), Some("mq-deadline"));
        assert_eq!(chosen("none\n"), None);
        assert_eq!(memory_mib("MemTotal:       24689540 kB\nMemFree: 1 kB\n"), 24_110);
        assert_eq!(memory_mib(""), 0);
    }
}
