//! Runs and mounts in a container: a root of its own that has only what a program needs, with namespaces of its own for
//! mounts and processes, and without the privileges that a container lacks. The recipes of docs/mount.md run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use untorn_testing::programs::{succeed, text};

use crate::common::{Run, UNTORN};
use crate::running::{MODES, needs_mounts};

/// Enters the root: `$1` is the directory, `$2` a directory of the host for /srv/data or nothing, `$3` whether there is
/// /dev/fuse. The rest is the program.
const ENTER: &str = r#"
root=$1 data=$2 device=$3; shift 3
mount --rbind "$root" "$root"
cd "$root"
mount -t proc proc proc
for name in null zero; do mount --bind /dev/$name dev/$name; done
if [ "$device" = fuse ]; then mount --bind /dev/fuse dev/fuse; else rm dev/fuse; fi
if [ -n "$data" ]; then mount --rbind "$data" srv/data; fi
pivot_root . old
umount -l /old
exec "$@"
"#;

/// A root in a directory.
struct Container {
    root: tempfile::TempDir,
    /// What `unshare` makes for it.
    namespaces: &'static [&'static str],
    /// What runs before the program.
    within: &'static [&'static str],
    device: &'static str,
}

/// The programs in it.
const PROGRAMS: &[&str] = &["sh", "cat", "umount", "setpriv"];

/// As Docker's default: no right to mount, and none to make namespaces.
const UNPRIVILEGED: &[&str] = &[
    "sh",
    "-ec",
    "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"",
    "sh",
    "setpriv",
    "--bounding-set=-sys_admin",
    "--inh-caps=-all",
];

impl Container {
    /// As `docker run --device /dev/fuse --cap-add SYS_ADMIN` makes one.
    fn with_rights() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["bin", "dev", "proc", "old", "srv/data", "tmp"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        for name in ["null", "zero", "fuse"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        for name in PROGRAMS {
            bring(root.path(), &untorn_testing::find_program(name).unwrap(), name);
        }
        bring(root.path(), Path::new(UNTORN), "untorn");
        Container { root, namespaces: &[], within: &[], device: "fuse" }
    }

    /// A command in it.
    fn command(&self, data: Option<&Path>, program: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child"]).args(self.namespaces);
        command.args(["--", "sh", "-ec", ENTER, "sh"]).arg(self.root.path()).arg(data.unwrap_or(Path::new("")));
        command.arg(self.device).args(self.within).args(program);
        command.env_clear().env("PATH", "/bin:/usr/bin:/sbin:/usr/sbin").stdin(Stdio::null());
        if !untorn::doctor(self.root.path()).unwrap().durable {
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        command
    }

    fn run(&self, program: &[&str]) -> Output {
        self.command(None, program).output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }
}

/// Copies a program into a root, with the libraries that it loads.
fn bring(root: &Path, program: &Path, name: &str) {
    fs::copy(program, root.join("bin").join(name)).unwrap();
    // A static program has none, and `ldd` fails.
    let loaded = Command::new("ldd").arg(program).output().unwrap();
    for word in text(&loaded.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let library = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::copy(word, library).unwrap();
    }
}

/// A program that keeps files, under a run in the container.
fn serves(container: &Container) {
    for mode in MODES {
        fs::write(container.path("srv/data/state"), "").unwrap();
        let script = "echo $0 > /srv/data/state; cat /srv/data/state; cd /srv/data; echo $0 > other; cat other";
        let run = ["untorn", "run", "--mode", mode, "--log", "/srv/log", "--log-size", "4M", "--match", "/srv/data/**"];
        let output = container.run(&[&run[..], &["--", "sh", "-ec", script, mode]].concat());
        let run = Run::of(output, &[mode]).expect(0);
        assert_eq!(run.text(), format!("{mode}\n{mode}\n"), "{}", run.err);
        for name in ["state", "other"] {
            let found = fs::read_to_string(container.path("srv/data").join(name)).unwrap();
            assert_eq!(found, format!("{mode}\n"));
        }
    }
}

#[test]
fn a_run_works_in_a_container_with_the_right_to_mount() {
    needs_mounts!("root", "unshare", "mount", "pivot_root", "ldd", "setpriv");
    serves(&Container::with_rights());
    mounts(&Container::with_rights());
}

/// As rootless containers are, and those of a user.
#[test]
fn a_run_works_in_a_container_with_its_own_users() {
    needs_mounts!("root", "unshare", "mount", "pivot_root", "ldd", "setpriv");
    let with_users = || Container { namespaces: &["--user", "--map-root-user"], ..Container::with_rights() };
    serves(&with_users());
    mounts(&with_users());
}

/// A mount in the container, for programs in it.
fn mounts(container: &Container) {
    let script = "
        untorn mount --log-size 4M /srv/data /srv/app
        echo committed > /srv/app/state
        untorn unmount /srv/app
        cat /srv/data/state";
    fs::create_dir(container.path("srv/app")).unwrap();
    let output = container.run(&["sh", "-ec", script]);
    assert_eq!(text(&succeed_with(output).stdout), "committed\n");
}

/// The mount is the host's, and the container has neither the device nor a right.
#[test]
fn a_container_uses_a_mount_of_the_host() {
    needs_mounts!("root", "unshare", "mount", "pivot_root", "ldd", "setpriv");
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    for name in ["source", "app"] {
        fs::create_dir(at(name)).unwrap();
    }
    let untorn = |arguments: &[&str]| succeed(Command::new(UNTORN).args(arguments).stdin(Stdio::null()));
    let container = Container {
        device: "none",
        within: &["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"],
        ..Container::with_rights()
    };
    for mode in MODES {
        untorn(&["mount", "--mode", mode, "--log-size", "4M", "--log", &at("log"), &at("source"), &at("app")]);
        let script = "echo $0 > /srv/data/state; cat /srv/data/state";
        let output = container.command(Some(Path::new(&at("app"))), &["sh", "-ec", script, mode]).output();
        let ended = output.map(succeed_with);
        untorn(&["unmount", &at("app")]);
        assert_eq!(text(&ended.unwrap().stdout), format!("{mode}\n"));
        assert_eq!(fs::read_to_string(at("source/state")).unwrap(), format!("{mode}\n"));
        fs::write(container.path("dev/fuse"), "").unwrap();
    }
}

#[test]
fn a_container_without_the_device_or_the_right_is_refused() {
    needs_mounts!("root", "unshare", "mount", "pivot_root", "ldd", "setpriv");
    let without_device = Container { device: "none", ..Container::with_rights() };
    let without_right =
        Container { namespaces: &["--user", "--map-root-user"], within: UNPRIVILEGED, ..Container::with_rights() };
    for (container, word) in [(without_device, "/dev/fuse: "), (without_right, "; mount: ")] {
        let output = container.run(&["untorn", "run", "--log", "/srv/log", "--match", "/srv/data/**", "--", "cat"]);
        let run = Run::of(output, &["run"]).expect(74).names("the program was not started");
        assert!(run.err.contains(word) && run.err.contains("use the library untorn"), "{}", run.err);
    }
}

#[track_caller]
fn succeed_with(output: Output) -> Output {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    output
}
