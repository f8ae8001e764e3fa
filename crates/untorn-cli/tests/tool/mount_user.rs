//! Mounts of an ordinary user. Root runs these tests again as one, in a mount namespace with a `/dev/fuse` of its own:
//! that of the machine may be closed to users.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use untorn_mount::attach::{
    AttachError, AttachOptions, Covering, FILE_SYSTEM, Program, Stage, Unmount, Way, attach, attach_private, detach,
};
use untorn_testing::{again, isolated, needs, skip, skipped, test_name};

use crate::common::{Run, UNTORN};

/// The number of an ordinary user that nobody is.
const USER: u32 = 54321;
/// The number of one who has a name, without which `fusermount3` serves nobody.
const NAMED: u32 = 65534;
/// Set in the process of the user: the directory that root made for it.
const PLACE: &str = "UNTORN_TEST_PLACE";

/// Ends the calling test in the process of root, after the process of the user has passed it. `$mode` is the mode of
/// `/dev/fuse`; the rest are programs that the test needs.
macro_rules! as_a_user {
    ($user:expr, $mode:literal $(, $needs:literal)*) => {{
        if std::env::var_os(PLACE).is_none() {
            needs!("mount namespace", "mknod", "mount" $(, $needs)*);
            if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
                skip!("cannot open /dev/fuse: {error}");
            }
        }
        match place(test_name!(), $user, $mode) {
            Some(place) => place,
            None => return,
        }
    }};
}

/// In the process of the user, the place. Otherwise `None`, after the next process has passed the test.
fn place(test: &str, number: u32, mode: u32) -> Option<Place> {
    if let Some(dir) = std::env::var_os(PLACE) {
        return Some(Place { dir: dir.into() });
    }
    if !isolated(test) {
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = dir.path().canonicalize().expect("it is there");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    for name in ["source", "mountpoint", "tmp"] {
        fs::create_dir(path.join(name)).expect("it can be made");
        std::os::unix::fs::chown(path.join(name), Some(number), Some(number)).expect("root may");
    }
    let device = path.join("fuse");
    let run = |command: &mut Command| assert!(command.status().expect("it runs").success(), "{command:?}");
    run(Command::new("mknod").arg(format!("--mode={mode:o}")).arg(&device).args(["c", "10", "229"]));
    if let Err(error) = fs::File::open(&device) {
        skipped!("a device node in the temporary directory cannot be opened: {error}");
        return None;
    }
    run(Command::new("mount").args(["--bind"]).arg(&device).arg("/dev/fuse"));
    // The build directory may be private to root.
    let tests = std::env::current_exe().expect("it has a path");
    for (program, name) in [(tests, "tests"), (UNTORN.into(), "untorn"), (UNTORN.into(), "setuid")] {
        run(Command::new("cp").arg(program).arg(path.join(name)));
    }
    run(Command::new("chmod").arg("4755").arg(path.join("setuid")));
    let mut user = Command::new(path.join("tests"));
    user.args(again(test).get_args())
        .env(PLACE, &path)
        .env("TMPDIR", path.join("tmp"))
        .current_dir(path.join("source"));
    let status = user.uid(number).gid(number).status().expect("it starts");
    assert!(status.success(), "{test} failed as an ordinary user: {status}");
    None
}

struct Place {
    dir: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn untorn(&self, arguments: &[&str]) -> Run {
        Run::of(Command::new(self.path("untorn")).args(arguments).output().expect("it starts"), arguments)
    }

    fn options(&self) -> AttachOptions {
        AttachOptions::over(fs::File::open(self.path("source")).expect("it is ours")).expect("it has a file system")
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    table.lines().any(|line| line.contains(path.to_str().expect("text")) && line.contains(FILE_SYSTEM))
}

/// The doctor's answer about one way to mount.
fn finding(place: &Place, name: &str) -> (bool, String) {
    let said = place.untorn(&["doctor", "--json"]).json();
    let ways = said["mount"].as_array().expect("a list").clone();
    let way = ways.iter().find(|way| way["name"] == name).unwrap_or_else(|| panic!("no {name} in {said}"));
    (way["works"].as_bool().expect("yes or no"), format!("{}; {}", way["why"], way["advice"]))
}

#[test]
fn the_doctor_tells_a_user_what_is_missing() {
    let place = as_a_user!(USER, 0o600);
    let (works, said) = finding(&place, "/dev/fuse");
    assert!(!works && said.contains("Permission denied") && said.contains("chmod 666 /dev/fuse"), "{said}");
    let (works, said) = finding(&place, "mount");
    assert!(!works && said.contains("CAP_SYS_ADMIN"), "{said}");
    let refused = place.untorn(&["mount", "--mode=boost", ".", place.path("mountpoint").to_str().unwrap()]).expect(74);
    assert!(refused.err.contains("cannot open /dev/fuse") && refused.err.contains("chmod 666"), "{}", refused.err);
}

#[test]
fn a_users_private_mount_is_seen_by_its_program_alone() {
    let place = as_a_user!(USER, 0o666);
    let (works, said) = finding(&place, "private");
    if !works {
        skip!("this machine gives users no private mounts: {said}");
    }
    // Over the source itself, which is the working directory.
    let source = place.path("source");
    fs::write(source.join("below"), "").unwrap();
    let out = place.path("tmp").join("out");
    // Only this mount: tests of other programs have mounts of untorn, too.
    let ours = format!("{}.* {FILE_SYSTEM} ", source.display());
    let script = format!("(grep -c '{ours}' /proc/self/mountinfo; id -u; id -g) >'{}'", out.display());
    let program = Program { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
    let stage = Stage::of(place.path("untorn"), ["mount-stage"]);
    let covering = Covering { mountpoint: source.clone(), options: place.options() };
    let (mut attached, held) = attach_private(std::slice::from_ref(&covering), &stage, &program).unwrap();
    let attached = attached.remove(0);
    assert_eq!((attached.way, attached.ids), (Way::Private, Some((USER, USER))));
    assert!(!is_mounted(&source) && source.join("below").exists(), "it is seen outside");
    drop(attached.root.open().unwrap());
    // The mount has no server, so entering it fails, and does not show the directory below it.
    drop(attached.device);
    let refused = held.start().unwrap_err().to_string();
    assert!(refused.contains("enter the working directory through the mount"), "{refused}");
    assert!(!out.exists(), "the program ran");

    std::env::set_current_dir("/").unwrap();
    let (mut attached, held) = attach_private(&[covering], &stage, &program).unwrap();
    let attached = attached.remove(0);
    let status = held.start().unwrap().wait().unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(out).unwrap(), format!("1\n{USER}\n{USER}\n"));
    drop(attached.root);
    let ended = fs::File::from(attached.device).read(&mut [0; 8192]).unwrap_err();
    assert_eq!(ended.raw_os_error(), Some(19), "its last user is gone");
}

#[test]
fn a_user_runs_a_program_over_its_own_directory() {
    let place = as_a_user!(USER, 0o666);
    let (works, said) = finding(&place, "private");
    if !works {
        skip!("this machine gives users no private mounts: {said}");
    }
    let source = place.path("source");
    if !untorn::doctor(&source).is_ok_and(|found| found.durable) {
        skip!("the temporary directory is on a medium that a log may not be on");
    }
    fs::write(source.join("before"), "before\n").unwrap();
    for mode in ["atomic", "boost"] {
        let log = format!("--log={}", place.path("tmp").join(mode).display());
        let script = "cat before; echo new > f; mv f g; cat g; stat -c %u:%g g before; id -u; rm g";
        let run = place.untorn(&["run", "--mode", mode, &log, "--json", "--", "sh", "-ec", script]).expect(0);
        let out = run.text();
        let (said, report) = out.trim_end().rsplit_once('\n').expect("a report follows");
        assert_eq!(said, format!("before\nnew\n{USER}:{USER}\n{USER}:{USER}\n{USER}"), "{mode}");
        assert!(report.contains("\"managed\":1"), "{mode}: {report}");
        assert!(!source.join("g").exists(), "{mode}");
    }
    // Files of others are shown as the user's own, which the kernel needs to permit a change.
    fs::create_dir(source.join("d")).unwrap();
    let run = place.untorn(&["run", "--match", "d/**", "--", "sh", "-ec", "echo text > d/f; sync d/f"]).expect(0);
    assert_eq!(run.err, "");
    assert_eq!(fs::read_to_string(source.join("d/f")).unwrap(), "text\n");
}

#[test]
fn a_user_mounts_and_unmounts_with_fusermount3() {
    let place = as_a_user!(NAMED, 0o666, "fusermount3");
    let mountpoint = place.path("mountpoint");
    let attached = attach(&mountpoint, &place.options()).unwrap();
    assert_eq!(attached.way, Way::Fusermount);
    assert!(is_mounted(&mountpoint));
    let root = attached.root.open().unwrap();
    let busy = detach(&mountpoint, Unmount::Clean).unwrap_err();
    assert!(matches!(busy, AttachError::Busy { .. }), "{busy}");
    drop(root);
    detach(&mountpoint, Unmount::Clean).unwrap();
    assert!(!is_mounted(&mountpoint));
    let ended = fs::File::from(attached.device).read(&mut [0; 8192]).unwrap_err();
    assert_eq!(ended.raw_os_error(), Some(19));
    assert!(finding(&place, "fusermount3").0);

    // The same by the tool, with a server.
    if !untorn::doctor(place.path("source")).is_ok_and(|found| found.durable) {
        skip!("the temporary directory is on a medium that a log may not be on");
    }
    let (source, mountpoint) = (place.path("source"), mountpoint.to_str().unwrap());
    place.untorn(&["mount", "--mode=boost", source.to_str().unwrap(), mountpoint]).expect(0);
    let file = Path::new(mountpoint).join("file");
    fs::write(&file, "bytes").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let mode = file.metadata().unwrap().permissions().mode();
    place.untorn(&["unmount", mountpoint]).expect(0);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"bytes");
    assert_eq!(source.join("file").metadata().unwrap().permissions().mode(), mode);
}

#[test]
fn a_tool_with_more_rights_than_its_caller_mounts_nothing() {
    let place = as_a_user!(USER, 0o666);
    if place.options().restrictions.nosuid {
        skip!("the temporary directory is mounted with nosuid");
    }
    let tool = place.path("setuid");
    let mode = tool.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o4000, 0o4000, "root made it so");
    let (source, mountpoint) = (place.path("source"), place.path("mountpoint"));
    let (source, mountpoint) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    for arguments in [
        &["mount", source, mountpoint][..],
        &["unmount", mountpoint],
        &["mount-stage"],
        &["mount-pull"],
        &["run", "true"],
    ] {
        let output = Command::new(&tool).args(arguments).output().expect("it starts");
        Run::of(output, arguments).expect(64).names("more rights than their caller");
    }
}
