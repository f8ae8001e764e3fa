//! The reasons of a machine that refuses a mount, read from `/proc`, and what to do about each.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

/// The number of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u32 = 21;
/// The needs of a container.
const CONTAINER: &str = "start the container with --device /dev/fuse --cap-add SYS_ADMIN, and where AppArmor confines \
                         it also with --security-opt apparmor=unconfined";

/// Facts of this process that decide about mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// It has CAP_SYS_ADMIN in its user namespace.
    pub(super) may_mount: bool,
    /// A seccomp filter sees its system calls.
    pub(super) filtered: bool,
    /// The set-user-ID bit of a program that it executes has no effect.
    pub(super) no_new_privileges: bool,
}

impl Facts {
    /// Those of this process.
    pub(super) fn read() -> Self {
        Facts::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn of(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim).unwrap_or_default()
        };
        let capabilities = u64::from_str_radix(field("CapEff"), 16).unwrap_or(0);
        Facts {
            may_mount: capabilities >> CAP_SYS_ADMIN & 1 == 1,
            filtered: field("Seccomp") == "2",
            no_new_privileges: field("NoNewPrivs") == "1",
        }
    }
}

/// Whether this process seems to be in a container.
fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
        || std::env::var_os("container").is_some()
}

/// Why the device cannot be opened, and what to do.
pub(super) fn for_device(error: &io::Error, device: &Path) -> String {
    let name = device.display();
    match error.kind() {
        io::ErrorKind::NotFound if in_container() => CONTAINER.to_owned(),
        io::ErrorKind::NotFound => {
            format!("there is no {name}: load the kernel's module with `modprobe fuse`, or build it into the kernel")
        }
        io::ErrorKind::PermissionDenied => match device.metadata() {
            Ok(found) if !found.file_type().is_char_device() => format!("{name} is no character device"),
            Ok(found) if !geteuid().is_root() && found.mode() & 0o006 != 0o006 => format!(
                "its mode is {:o} and its owner {}: `chmod 666 {name}` lets every user open it, as the package fuse3 \
                 does",
                found.mode() & 0o7777,
                found.uid()
            ),
            _ => format!("a device rule forbids {name}: {CONTAINER}"),
        },
        _ => "load the kernel's module with `modprobe fuse`".to_owned(),
    }
}

/// Why mount(2) was refused, and what to do.
pub(super) fn for_mount(error: &io::Error) -> Option<String> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some(join(mount_reasons(Facts::read()))),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => None,
        _ if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
            Some("the kernel has no FUSE: load its module with `modprobe fuse`".to_owned())
        }
        _ => None,
    }
}

/// Why the mounts of a new namespace cannot be made private, and what to do.
pub(super) fn for_propagation(error: &io::Error) -> Option<String> {
    if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) {
        let advice = "the root directory of this process is not a mountpoint, as after chroot(2): before chroot, mount \
                      that directory on itself (`mount --bind DIR DIR`)";
        return Some(advice.to_owned());
    }
    for_mount(error)
}

fn mount_reasons(facts: Facts) -> Vec<String> {
    let mut reasons = Vec::new();
    if !facts.may_mount && !geteuid().is_root() {
        reasons.push("mount(2) needs root (CAP_SYS_ADMIN), or the program fusermount3 (package fuse3)".to_owned());
    } else if !facts.may_mount {
        reasons.push("this process has the user ID of root but lacks CAP_SYS_ADMIN".to_owned());
    }
    if facts.filtered {
        reasons.push("a seccomp filter is active (Seccomp in /proc/self/status) and may forbid it".to_owned());
    }
    if flag("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") {
        reasons.push(APPARMOR.to_owned());
    }
    if in_container() {
        reasons.push(CONTAINER.to_owned());
    }
    reasons
}

const APPARMOR: &str = "AppArmor gives user namespaces no rights (kernel.apparmor_restrict_unprivileged_userns is 1): \
                        set it to 0, or give this program a profile with `userns`, or install fusermount3 (package \
                        fuse3)";

/// Why a user namespace was refused, and what to do.
pub(super) fn for_unshare(error: &io::Error) -> Option<String> {
    // ENOSPC says that there are as many namespaces as there may be.
    let refusals = [Errno::PERM, Errno::NOSPC, Errno::ACCESS].map(|errno| Some(errno.raw_os_error()));
    if !refusals.contains(&error.raw_os_error()) {
        return None;
    }
    let mut reasons = Vec::new();
    if number("/proc/sys/user/max_user_namespaces") == Some(0) {
        reasons.push("user.max_user_namespaces is 0: set it to 10000 or so".to_owned());
    }
    if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        reasons.push("kernel.unprivileged_userns_clone is 0: set it to 1".to_owned());
    }
    if flag("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") {
        reasons.push(APPARMOR.to_owned());
    }
    if Facts::read().filtered {
        reasons.push("a seccomp filter is active (Seccomp in /proc/self/status) and may forbid it".to_owned());
    }
    if in_container() {
        reasons.push(CONTAINER.to_owned());
    }
    (!reasons.is_empty()).then(|| join(reasons))
}

/// Advice for a machine without the program.
pub(super) fn for_missing_fusermount() -> String {
    "an ordinary user needs the program fusermount3: install the package fuse3, or mount as root".to_owned()
}

/// Why `fusermount3` failed, and what to do.
pub(super) fn for_fusermount(program: &Path, said: &str) -> Option<String> {
    let mut reasons = Vec::new();
    if said.contains("user_allow_other") {
        reasons.push("write the line `user_allow_other` into /etc/fuse.conf".to_owned());
    }
    if said.contains("username") {
        reasons.push("it serves users with a name alone: give this user one in /etc/passwd".to_owned());
    }
    let root = geteuid().is_root();
    if !root && program.metadata().is_ok_and(|found| found.mode() & 0o4000 == 0 || found.uid() != 0) {
        reasons
            .push(format!("{0} has no set-user-ID bit of root: `chown root {0}; chmod 4755 {0}`", program.display()));
    }
    if !root && Facts::read().no_new_privileges {
        reasons.push("this process has no_new_privs set, so a set-user-ID bit has no effect for it".to_owned());
    }
    (!reasons.is_empty()).then(|| join(reasons))
}

/// Whether `/etc/fuse.conf` lets ordinary users open their mounts to others.
pub(super) fn user_allow_other() -> bool {
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn flag(path: &str) -> bool {
    number(path) == Some(1)
}

fn join(reasons: Vec<String>) -> String {
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_the_status_of_the_process() {
        let status = "Name:\tx\nCapEff:\t0000000000200000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(Facts::of(status), Facts { may_mount: true, filtered: true, no_new_privileges: true });
        let status = "CapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t2\n";
        assert_eq!(Facts::of(status), Facts::default());
        assert_eq!(Facts::of(""), Facts::default());
    }
}
