//! Mounts for real, each in a mount namespace of its test's own.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use untorn_testing::{find_program, isolated, needs, sibling, skip, test_name};

use super::*;

/// How the test's program starts itself as a stage.
fn stage_of_the_tests() -> Stage {
    Stage::new(["--exact", sibling!("a_process_without_a_parent_is_no_stage"), "--nocapture", "--test-threads=1"])
}

/// Also what a stage of these tests runs.
#[test]
fn a_process_without_a_parent_is_no_stage() {
    if let Err(error) = stage() {
        assert!(error.to_string().contains("not the socket of a parent"), "{error}");
    }
}

/// Why a FUSE file system cannot be mounted here, even by root.
fn lacks_fuse() -> Option<String> {
    let device = Path::new("/dev/fuse");
    let opened = fs::File::options().read(true).write(true).open(device);
    opened.err().map(|error| format!("cannot open /dev/fuse: {error}"))
}

macro_rules! needs_fuse {
    ($($what:expr),*) => {
        needs!("mount namespace" $(, $what)*);
        if let Some(reason) = lacks_fuse() {
            skip!("{reason}");
        }
    };
}

/// Waits until a mount has ended: its device says so after the request that nobody answered.
fn wait_for_end(device: OwnedFd) {
    let mut device = fs::File::from(device);
    loop {
        if let Err(error) = device.read(&mut [0; 8192]) {
            // ENODEV
            return assert_eq!(error.raw_os_error(), Some(19), "{error}");
        }
    }
}

struct Place {
    dir: tempfile::TempDir,
    mountpoint: PathBuf,
    options: AttachOptions,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mountpoint = dir.path().canonicalize().unwrap().join("mount point");
        fs::create_dir(&mountpoint).unwrap();
        fs::write(mountpoint.join("below"), "").unwrap();
        let options = AttachOptions::over(fs::File::open(&mountpoint).unwrap()).unwrap();
        Place { dir, mountpoint, options }
    }

    /// A part of the mountpoint's path that no other one has: tests of other programs have mounts of untorn, too.
    fn name(&self) -> String {
        self.dir.path().canonicalize().unwrap().display().to_string()
    }

    fn covering(&self) -> Covering {
        Covering { mountpoint: self.mountpoint.clone(), options: self.options.clone() }
    }

    fn is_mounted(&self) -> bool {
        table::at(&self.mountpoint).unwrap().is_some_and(|mount| mount.is_ours())
    }
}

#[test]
fn roots_mount_appears_and_detach_removes_it() {
    needs_fuse!();
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let attached = attach(&place.mountpoint, &place.options).unwrap();
    assert_eq!((attached.way, &attached.mountpoint), (Way::Mount, &place.mountpoint));
    assert!(place.is_mounted());
    assert_eq!(table::at(&place.mountpoint).unwrap().map(|mount| mount.minor), attached.connection);
    // A second mount on it is refused, and nobody asks the server, which does not exist yet.
    let again = attach(&place.mountpoint, &place.options).unwrap_err();
    assert!(matches!(&again, AttachError::Request { why, .. } if why.contains("already")), "{again}");
    // The root opens without a server. While it is open, the mount is in use, and this process is named.
    let root = attached.root.open().unwrap();
    let busy = detach(&place.mountpoint, Unmount::Clean).unwrap_err();
    let me = format!("process {} ", std::process::id());
    assert!(matches!(busy, AttachError::Busy { .. }) && busy.to_string().contains(&me), "{busy}");
    drop(root);
    detach(&place.mountpoint, Unmount::Clean).unwrap();
    assert!(!place.is_mounted() && place.mountpoint.join("below").exists());
    assert_eq!(attached.root.open().unwrap_err().kind(), io::ErrorKind::NotFound);
    // The server is told: its device is at its end.
    wait_for_end(attached.device);
    let nothing = detach(&place.mountpoint, Unmount::Clean).unwrap_err().to_string();
    assert!(nothing.contains("nothing is mounted here"), "{nothing}");
}

#[test]
fn a_mount_in_use_is_detached_lazily() {
    needs_fuse!();
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let attached = attach(&place.mountpoint, &place.options).unwrap();
    let root = attached.root.open().unwrap();
    detach(&place.mountpoint, Unmount::Lazy).unwrap();
    assert!(!place.is_mounted());
    drop(root);
    // Its last user is gone, so it has ended.
    wait_for_end(attached.device);
}

#[test]
fn a_mount_whose_server_is_gone_is_found_and_removed() {
    needs_fuse!();
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    assert!(!is_dead(&place.mountpoint).unwrap());
    let attached = attach(&place.mountpoint, &place.options).unwrap();
    drop(attached.device);
    assert!(is_dead(&place.mountpoint).unwrap());
    detach(&place.mountpoint, Unmount::Clean).unwrap();
    assert!(!is_dead(&place.mountpoint).unwrap() && !place.is_mounted());
}

#[test]
fn a_mount_of_another_program_is_not_removed() {
    needs_fuse!("mount");
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let status = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place.mountpoint).status().unwrap();
    assert!(status.success());
    let refused = detach(&place.mountpoint, Unmount::Lazy).unwrap_err().to_string();
    assert!(refused.contains("no mount of untorn") && refused.contains("tmpfs"), "{refused}");
    assert!(!place.mountpoint.join("below").exists(), "it was removed");
}

#[test]
fn a_mount_has_the_restrictions_of_its_source() {
    needs_fuse!("mount");
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let source = place.dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", "nosuid,noexec", "none"]).arg(&source).status();
    assert!(status.unwrap().success());
    let options = AttachOptions::over(fs::File::open(&source).unwrap()).unwrap();
    assert_eq!(options.restrictions, Restrictions { nosuid: true, noexec: true, ..Restrictions::default() });
    let _attached = attach(&place.mountpoint, &options).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(&place.name()) && line.contains(FILE_SYSTEM));
    let line = line.expect("it is mounted");
    assert!(line.contains("nosuid,noexec") && !line.contains("nodev"), "{line}");
    detach(&place.mountpoint, Unmount::Lazy).unwrap();
}

#[test]
fn a_file_or_a_missing_directory_is_no_mountpoint() {
    let dir = tempfile::tempdir().unwrap();
    let options = AttachOptions::over(fs::File::open(dir.path()).unwrap()).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let file = attach(&dir.path().join("file"), &options).unwrap_err();
    assert!(matches!(&file, AttachError::Request { why, .. } if why.contains("not a directory")), "{file}");
    let missing = attach(&dir.path().join("missing"), &options).unwrap_err().to_string();
    assert!(missing.contains("cannot find the mountpoint"), "{missing}");
}

#[test]
fn a_missing_device_is_named_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = AttachOptions::over(fs::File::open(dir.path()).unwrap()).unwrap();
    options.device = dir.path().join("no-fuse");
    let error = attach(dir.path(), &options).unwrap_err();
    assert!(matches!(&error, AttachError::System { advice: Some(_), .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("cannot open {}", options.device.display())), "{error}");
}

/// Waits until a file has this content.
fn wait_for(path: &Path, content: &str) {
    for _ in 0..2000 {
        if fs::read_to_string(path).is_ok_and(|found| found == content) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{} never held {content:?}", path.display());
}

#[test]
fn roots_private_mount_is_seen_by_its_program_alone() {
    needs_fuse!();
    let place = Place::new();
    let (out, go) = (place.dir.path().join("out"), place.dir.path().join("go"));
    let script = format!(
        "(grep -c '{2}.* {FILE_SYSTEM} ' /proc/self/mountinfo; id -u; readlink /proc/self/fd/0) >'{0}.new'
        mv '{0}.new' '{0}'; while ! [ -e '{1}' ]; do sleep 0.01; done; exit 7",
        out.display(),
        go.display(),
        place.name()
    );
    let program = Program { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
    let (mut attached, held) = attach_private(&[place.covering()], &stage_of_the_tests(), &program).unwrap();
    let attached = attached.remove(0);
    assert_eq!(attached.way, Way::Private);
    assert!(!place.is_mounted(), "it is seen outside");
    let root = attached.root.open().unwrap();
    let mut child = held.start().unwrap();
    // The mount, the user, and the standard input of this process.
    let stdin = fs::read_link("/proc/self/fd/0").unwrap();
    wait_for(&out, &format!("1\n0\n{}\n", stdin.display()));
    assert!(!place.is_mounted() && place.mountpoint.join("below").exists(), "it is seen outside");
    fs::write(go, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    // The program and the root were its last users.
    drop((root, attached.root));
    wait_for_end(attached.device);
}

#[test]
fn a_mount_that_is_removed_outside_goes_inside_too() {
    needs_fuse!("mount", "umount");
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let (out, outer) = (place.dir.path().join("out"), place.dir.path().canonicalize().unwrap().join("outer"));
    let run = |program: &str, arguments: &[&str], on: &Path| {
        assert!(Command::new(program).args(arguments).arg(on).status().unwrap().success(), "{program}");
    };
    // The mount below decides whether what is mounted on it goes elsewhere too.
    let other = outer.join("other");
    fs::create_dir(&outer).unwrap();
    run("mount", &["-t", "tmpfs", "untorn-outer"], &outer);
    run("mount", &["--make-shared"], &outer);
    fs::create_dir(&other).unwrap();
    run("mount", &["-t", "tmpfs", "untorn-other"], &other);
    let script = format!(
        "echo ready >'{0}.new'; mv '{0}.new' '{0}'
        for n in $(seq 1000); do grep -q untorn-other /proc/self/mountinfo || exit 7; sleep 0.01; done",
        out.display()
    );
    let program = Program { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
    let (attached, held) = attach_private(&[place.covering()], &stage_of_the_tests(), &program).unwrap();
    let mut child = held.start().unwrap();
    wait_for(&out, "ready\n");
    run("umount", &[], &other);
    assert_eq!(child.wait().unwrap().code(), Some(7), "the program keeps the mount in use");
    run("umount", &[], &outer);
    drop(attached);
}

#[test]
fn a_program_sees_each_of_its_mounts() {
    needs_fuse!();
    let (place, other, plain) = (Place::new(), Place::new(), Place::new());
    let out = place.dir.path().join("out");
    let script = format!("grep -c {FILE_SYSTEM} /proc/self/mountinfo >'{}'", out.display());
    let program = Program { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
    let coverings = [place.covering(), other.covering()];
    let (attached, held) = attach_private(&coverings, &stage_of_the_tests(), &program).unwrap();
    let mountpoints: Vec<_> = attached.iter().map(|attached| &attached.mountpoint).collect();
    assert_eq!(mountpoints, [&place.mountpoint, &other.mountpoint]);
    for (attached, place) in attached.iter().zip([&place, &other]) {
        let root = attached.root.open().unwrap();
        assert!(!place.is_mounted(), "it is seen outside");
        // The namespace of this process lacks the mount, so its table does not tell the type.
        assert_ne!(mount_id(&root).unwrap(), mount_id(&open_root(&plain.mountpoint).unwrap()).unwrap());
    }
    drop(held);
    for attached in attached {
        drop(attached.root);
        wait_for_end(attached.device);
    }
    assert!(!out.exists(), "a program that was given up ran");
}

#[test]
fn a_directory_on_a_mount_of_untorn_is_told() {
    needs_fuse!();
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let below = open_root(&place.mountpoint).unwrap();
    let _attached = attach(&place.mountpoint, &place.options).unwrap();
    assert_eq!(mount_around(&open_root(&place.mountpoint).unwrap()).unwrap(), Some(place.mountpoint.clone()));
    assert_eq!(mount_around(&below).unwrap(), None);
    detach(&place.mountpoint, Unmount::Lazy).unwrap();
}

#[test]
fn a_program_that_does_not_start_is_named() {
    needs_fuse!();
    let place = Place::new();
    let program = Program { program: "/no/such/program".into(), arguments: Vec::new() };
    let (mut attached, held) = attach_private(&[place.covering()], &stage_of_the_tests(), &program).unwrap();
    let attached = attached.remove(0);
    let error = held.start().unwrap_err();
    assert!(matches!(error, AttachError::Program { .. }), "{error:?}");
    assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
    drop(attached.root);
    wait_for_end(attached.device);
}

#[test]
fn a_private_mount_that_is_given_up_ends() {
    needs_fuse!();
    let place = Place::new();
    let program = Program { program: "false".into(), arguments: Vec::new() };
    let (mut attached, held) = attach_private(&[place.covering()], &stage_of_the_tests(), &program).unwrap();
    let attached = attached.remove(0);
    drop((held, attached.root));
    wait_for_end(attached.device);
}

#[test]
fn a_probe_leaves_nothing_and_finds_what_root_can_do() {
    needs_fuse!();
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let found = probe(&stage_of_the_tests());
    let of =
        |name: &str| found.iter().find(|found| found.name == name).unwrap_or_else(|| panic!("no {name}: {found:?}"));
    assert!(of("/dev/fuse").works && of("mount").works && of("private").works, "{found:?}");
    let helper = of("fusermount3");
    assert_eq!(helper.works, find_program("fusermount3").is_some(), "{helper:?}");
    assert_eq!(helper.advice.is_none(), helper.works, "{helper:?}");
    // One of another program may go meanwhile.
    let after = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let left = after.lines().find(|line| line.contains(FILE_SYSTEM) && !before.contains(line));
    assert_eq!(left, None);
}

/// Also what a puller of these tests runs: it answers each byte by whether it could open the root.
#[test]
fn a_process_without_a_parent_is_no_puller() {
    match puller() {
        Err(error) => assert!(error.to_string().contains("not the socket of a parent"), "{error}"),
        Ok((mut server, open)) => {
            while server.read_exact(&mut [0]).is_ok() {
                server.write_all(if open().is_ok() { b"y" } else { b"n" }).unwrap();
            }
        }
    }
}

#[test]
fn a_puller_opens_the_root_and_does_not_keep_the_mount_in_use() {
    needs_fuse!();
    if !isolated(test_name!()) {
        return;
    }
    let place = Place::new();
    let arguments = ["--exact", sibling!("a_process_without_a_parent_is_no_puller"), "--nocapture"];
    let opens = |mut socket: &std::os::unix::net::UnixStream| {
        let mut answer = [0];
        socket.write_all(b"?").and_then(|()| socket.read_exact(&mut answer)).unwrap();
        answer[0] == b'y'
    };
    let attached = attach(&place.mountpoint, &place.options).unwrap();
    let (_puller, socket) = Puller::start(&Stage::new(arguments), &attached.root).unwrap();
    assert!(opens(&socket) && opens(&socket));
    detach(&place.mountpoint, Unmount::Clean).unwrap();
    assert!(!opens(&socket), "the directory below is no root of the mount");

    let attached = attach(&place.mountpoint, &place.options).unwrap();
    let (puller, socket) = Puller::start(&Stage::new(arguments), &attached.root).unwrap();
    puller.keep_root(&attached.root).unwrap();
    detach(&place.mountpoint, Unmount::Lazy).unwrap();
    assert!(opens(&socket), "the root was not kept");
    // The mount ends with its last user, and the puller is none any more.
    puller.let_go().unwrap();
    wait_for_end(attached.device);
    assert!(!opens(&socket));
}

#[test]
fn a_stage_that_is_lied_to_mounts_nothing() {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", sibling!("a_process_without_a_parent_is_no_stage"), "--test-threads=1"])
        .stdin(OwnedFd::from(theirs))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // A request without a descriptor, and a text that is none.
    ours.write_all(b"R\xff\xff\xff\xff").unwrap();
    drop(ours);
    assert!(child.wait().unwrap().success(), "the stage did not refuse it");
}
