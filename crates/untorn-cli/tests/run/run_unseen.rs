//! `untorn run`: programs see nothing of what untorn keeps beside managed files and on them, and it is in nobody's way.

use std::ffi::OsStr;
use std::fs;
use std::thread;
use std::time::Duration;

use crate::common::layered::{files, layer, same_as_bare, shell, succeed, text, under};
use untorn_testing::programs::compile;

#[test]
fn listings_and_directory_removal_do_what_they_do_bare() {
    let dir = tempfile::tempdir().unwrap();
    for options in [["-O0", "-DPLAIN"], ["-O1", "-D_FILE_OFFSET_BITS=64"]] {
        same_as_bare(&[compile("unseen.c", dir.path(), &options).as_os_str()]);
    }
}

#[test]
fn hidden_sidecars_exist_and_no_program_can_set_the_mark() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = compile("unseen.c", dir.path(), &[]);
    let output = succeed(&mut under(at.path(), layer(), &[program.as_os_str(), "mark".as_ref()]));
    let no = |calls: &[&str], errno: &str| calls.iter().map(|call| format!("{call}: -1 {errno}\n")).collect::<String>();
    let set = no(&["setxattr", "lsetxattr", "fsetxattr", "by number"], "EOPNOTSUPP");
    let removed = no(&["removexattr", "lremovexattr", "fremovexattr"], "ENODATA");
    assert_eq!(text(&output.stdout), format!("sidecars: 0 \n{set}{removed}"));
}

#[test]
fn tools_that_copy_directories_copy_what_they_do_bare() {
    shell(
        "mkdir d; exec 5> d/a.managed; seq 1 3000 >&5; ls -aR d; find d | sort; du -a d | wc -l; cp -r d e; cp -a d f; \
         tar --xattrs -cf d.tar d; tar -tf d.tar | sort; ls -aR e f; cmp d/a.managed f/a.managed; wc -l < f/a.managed; \
         if command -v rsync > /dev/null; then rsync -aX d/ g; ls -aR g; wc -l < g/a.managed; fi; \
         if command -v zip > /dev/null; then zip -qr d.zip d; unzip -l d.zip | tail -n 1; fi; rm d.tar d.zip -f; \
         rm -r d; seq 1 10 >&5; mkdir d; ls -a d",
    );
}

#[test]
fn python_copies_what_it_does_bare() {
    untorn_testing::needs!("python3");
    let program = "import os, shutil
os.mkdir('d'); f = open('d/a.managed', 'w'); f.write('x' * 10000); f.flush()
print(os.listdir('d'), [entry.name for entry in os.scandir('d')], list(os.walk('d')), os.listxattr('d/a.managed'))
shutil.copytree('d', 'e'); shutil.copy2('d/a.managed', 'b.managed')
print(os.listdir('e'), os.listxattr('e/a.managed'), len(open('e/a.managed').read()), len(open('b.managed').read()))
os.unlink('d/a.managed'); os.rmdir('d'); f.write('more'); f.flush(); os.fsync(f.fileno())
print(os.fstat(f.fileno()).st_size)
os.mkdir('d'); g = open('d/a.managed', 'w'); g.write('y'); g.flush()
shutil.rmtree('d'); shutil.rmtree('e'); f.close()";
    same_as_bare(&["python3".as_ref(), "-c".as_ref(), program.as_ref()]);
}

/// Nobody told the server of it.
#[test]
fn rmdir_works_after_an_outside_program_removed_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mkdir d; exec 5> d/a.managed; echo one >&5; : > ready; \
                  while test -e d/a.managed; do sleep 0.01; done; rmdir d; echo two >&5; test ! -e d";
    let program: [&OsStr; 3] = ["sh".as_ref(), "-ec".as_ref(), script.as_ref()];
    let child = under(dir.path(), layer(), &program).spawn().unwrap();
    while !dir.path().join("ready").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(dir.path().join("d/.untorn").exists());
    fs::remove_file(dir.path().join("d/a.managed")).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

/// A run sees nothing of what one left that was killed, and need not.
#[test]
fn sidecars_left_by_a_crash_are_removed_with_their_file() {
    untorn_testing::needs!("python3");
    let dir = tempfile::tempdir().unwrap();
    let script = "mkdir d; exec 5> d/a.managed; echo one >&5; echo two > d/b; kill -9 $PPID; sleep 1";
    let program: [&OsStr; 3] = ["sh".as_ref(), "-ec".as_ref(), script.as_ref()];
    assert!(!under(dir.path(), layer(), &program).status().unwrap().success());
    assert_eq!(fs::read_dir(dir.path().join("d/.untorn")).unwrap().count(), 1);
    let script = "python3 -c \"import os; os.rename('d/a.managed', './d/a.managed')\"; rm d/b; ! rmdir d 2> /dev/null; \
                  test -n \"$(ls d/.untorn)\"; rm -r d";
    let program: [&OsStr; 3] = ["sh".as_ref(), "-ec".as_ref(), script.as_ref()];
    succeed(&mut under(dir.path(), layer(), &program));
    assert!(!dir.path().join("d").exists());
    assert!(files(dir.path()).is_empty());
}
