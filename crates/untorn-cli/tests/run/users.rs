//! Users and rights under a run of root's.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use untorn_testing::programs::{files, text};

use crate::running::{MODES, Place, needs_mounts};

/// A place whose directories every user may change.
fn shared_place() -> Place {
    let place = Place::new();
    for dir in [place.files.path(), place.aside.path()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    place
}

/// As databases are started by root.
#[test]
fn a_process_that_gives_up_its_rights_is_served_on() {
    needs_mounts!("root", "python3");
    let program = "
import os, subprocess
open('before.managed', 'w').write('before')
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
file = os.open('f.managed', os.O_RDWR | os.O_CREAT)
os.write(file, b'synced')
os.fsync(file)
subprocess.run(['sh', '-ec', 'echo other > other.managed; cat before.managed; echo'], check=True)
try: open('before.managed', 'r+')
except PermissionError: print('not mine')
";
    for mode in MODES {
        let place = shared_place();
        let run = place.run(mode, &[], &["python3", "-c", program]).expect(0);
        assert_eq!((run.text().as_str(), run.err.as_str()), ("before\nnot mine\n", ""), "{mode}");
        let expected = [("before", "before"), ("f", "synced"), ("other", "other\n")];
        let expected = expected.map(|(name, text)| (format!("{name}.managed"), text.into()));
        assert_eq!(files(place.files.path()), expected, "{mode}");
        let owners =
            ["before", "f", "other"].map(|name| place.file(&format!("{name}.managed")).metadata().unwrap().uid());
        assert_eq!(owners, [0, 65534, 65534], "{mode}");
    }
}

/// As `su` starts one.
#[test]
fn a_process_of_another_user_is_served() {
    needs_mounts!("root", "python3", "setpriv");
    let program = r#"
import os, subprocess
held, moved = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ('held.managed', 'moved.managed'))
for fd in (held, moved): os.fchmod(fd, 0o666); os.write(fd, b'first\n')
script = '''
    echo new > new.managed; mv new.managed other.managed; mkdir d; mv d e; rmdir e
    echo second >> held.managed; mv moved.managed elsewhere.managed'''
subprocess.run(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', 'sh', '-ec', script], check=True)
for fd in (held, moved): os.write(fd, b'third\n'); os.fsync(fd)
"#;
    for mode in MODES {
        let place = shared_place();
        let run = place.run(mode, &[], &["python3", "-c", program]).expect(0);
        assert_eq!(run.err, "", "{mode}");
        let expected = [("elsewhere", "first\nthird\n"), ("held", "first\nsecond\nthird\n"), ("other", "new\n")];
        let expected = expected.map(|(name, bytes)| (format!("{name}.managed"), bytes.as_bytes().to_vec()));
        assert_eq!(files(place.files.path()), expected, "{mode}");
    }
}

#[test]
fn a_set_user_id_program_has_its_rights() {
    needs_mounts!("root", "setpriv");
    let place = shared_place();
    // Another user's program that any user may execute. The directory's file system must allow it.
    fs::copy("/usr/bin/id", place.file("id")).unwrap();
    std::os::unix::fs::chown(place.file("id"), Some(65533), Some(65533)).unwrap();
    fs::set_permissions(place.file("id"), fs::Permissions::from_mode(0o4755)).unwrap();
    let program = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "./id", "-u"];
    let bare = text(&place.bare(&program).stdout);
    let run = place.run("atomic", &[], &program).expect(0);
    assert_eq!(run.text(), bare);
}
