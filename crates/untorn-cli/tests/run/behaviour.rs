//! Unmodified programs do under `untorn run` what they do without it, in both modes.

use std::ffi::OsStr;
use std::fs;

use untorn_testing::programs::{GIT, REDIRECTIONS, USUAL_TOOLS, compile, each_call, program, succeed, text};

use crate::running::{MODES, Place, needs_mounts, same_as_bare, shell};

#[test]
fn every_call_does_what_it_does_bare() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    each_call(dir.path(), same_as_bare);
}

#[test]
fn redirections_and_pipelines_do_what_they_do_bare() {
    needs_mounts!();
    shell(REDIRECTIONS);
}

#[test]
fn the_usual_tools_do_what_they_do_bare() {
    needs_mounts!();
    shell(&format!("BLOCK=7\n{USUAL_TOOLS}"));
}

#[test]
fn git_does_what_it_does_bare() {
    needs_mounts!("git");
    shell(GIT);
}

#[test]
fn python_reads_and_writes_as_it_does_bare() {
    needs_mounts!("python3");
    same_as_bare(&["python3".as_ref(), program("io.py").as_os_str()]);
}

#[test]
fn a_mapping_is_what_it_is_bare() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    same_as_bare(&[compile("mapped.c", dir.path(), &[]).as_os_str(), "kernel".as_ref()]);
}

#[test]
fn threads_and_children_lose_nothing_of_what_they_store_at_once() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    same_as_bare(&[compile("storm.c", dir.path(), &[]).as_os_str()]);
}

#[test]
fn a_process_without_its_first_thread_is_served_as_usual() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    same_as_bare(&[compile("leaderless.c", dir.path(), &[]).as_os_str()]);
}

#[test]
fn shared_memory_works_as_it_does_bare() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    same_as_bare(&[compile("memory.c", dir.path(), &[]).as_os_str()]);
}

#[test]
fn listings_and_directory_removal_do_what_they_do_bare() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    same_as_bare(&[compile("unseen.c", dir.path(), &["-O0", "-DPLAIN"]).as_os_str()]);
}

#[test]
fn tools_that_copy_directories_copy_what_they_do_bare() {
    needs_mounts!();
    shell(
        "mkdir d; exec 5> d/a.managed; seq 1 3000 >&5; ls -aR d; find d | sort; cp -r d e; cp -a d f; \
         tar --xattrs -cf d.tar d; tar -tf d.tar | sort; ls -aR e f; cmp d/a.managed f/a.managed; wc -l < f/a.managed; \
         if command -v rsync > /dev/null; then rsync -aX d/ g; ls -aR g; wc -l < g/a.managed; fi; rm d.tar; \
         rm -r d; seq 1 10 >&5; mkdir d; ls -a d",
    );
}

#[test]
fn python_copies_what_it_does_bare() {
    needs_mounts!("python3");
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

#[test]
fn writes_survive_an_exec_of_a_program_unaware_of_the_file() {
    needs_mounts!();
    shell(
        "exec 5> a.managed; (echo one >&5; exec sh -c : 5>&-); echo two >&5; exec 5>&-; cat a.managed; \
         (echo three; exec true) > b.managed; cat b.managed",
    );
}

/// The kernel may write pages of a mapping back by a handle that appends; they belong to their places all the same.
#[test]
fn stores_to_a_mapping_of_an_appending_descriptor_stay_in_place() {
    needs_mounts!("python3");
    let program = "
import mmap, os
fd = os.open('f', os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
os.write(fd, b'x' * 10000)
at = mmap.mmap(fd, 0)
at[0:5] = b'first'; at[8192:8196] = b'last'
at.flush()
os.write(fd, b'end')
os.fsync(fd)
print(os.fstat(fd).st_size, os.pread(fd, 5, 0), os.pread(fd, 4, 8192), os.pread(fd, 10, 9998))
";
    same_as_bare(&["python3".as_ref(), "-c".as_ref(), program.as_ref()]);
}

#[test]
fn many_that_open_a_file_at_once_all_get_it() {
    needs_mounts!();
    shell(
        "for round in 1 2 3; do for i in $(seq 20); do (echo $i >> f.managed) & done; wait; done; sort -n f.managed; \
         rm f.managed",
    );
}

#[test]
fn a_sync_of_a_directory_fails_as_without_untorn() {
    needs_mounts!("python3");
    let program = "
import errno, os
def say(what, call):
    try: print(what, call())
    except OSError as error: print(what, errno.errorcode[error.errno])
f = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b'f')
say('path', lambda: os.fsync(os.open('.', os.O_PATH)))
say('process', lambda: os.fsync(os.open('/proc/self', os.O_RDONLY)))
say('pipe', lambda: os.fsync(os.pipe()[0]))
gone = (os.mkdir('e'), os.open('e', os.O_RDONLY), os.rmdir('e'))[1]
say('gone', lambda: os.fsync(gone))
say('gone once more', lambda: os.fsync(gone))
";
    same_as_bare(&["python3".as_ref(), "-c".as_ref(), program.as_ref()]);
}

/// Writes by a program, and reads the file of it in the source: the server managed it.
#[track_caller]
fn writes_through_the_log(program: &[&OsStr], file: &str, expected: &str) {
    for mode in MODES {
        let place = Place::new();
        let output = place.under(mode, &["--json"], program).output().unwrap();
        let (said, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{mode}: {said}{err}");
        let report: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert!(report["managed"].as_u64().unwrap() >= 1, "{mode}: {report}");
        assert_eq!(report["plain"], serde_json::json!([]), "{mode}");
        assert_eq!(place.read(file), expected, "{mode}");
    }
}

#[test]
fn a_static_program_is_served() {
    needs_mounts!("cc");
    let dir = tempfile::tempdir().unwrap();
    let taker = compile("taker.c", dir.path(), &["-static"]);
    let script = format!("exec 5> f; {} 5", taker.display());
    writes_through_the_log(&["sh".as_ref(), "-ec".as_ref(), script.as_ref()], "f", "taken");
}

#[test]
fn a_go_program_is_served() {
    needs_mounts!("go");
    let dir = tempfile::tempdir().unwrap();
    let (source, made) = (dir.path().join("main.go"), dir.path().join("writer"));
    let program = "package main\nimport \"os\"\nfunc main() {\n f, err := os.Create(\"f\")\n if err == nil { _, err = \
                   f.WriteString(\"go\") }\n if err == nil { err = f.Sync() }\n if err != nil { panic(err) }\n}\n";
    fs::write(&source, program).unwrap();
    let mut go = std::process::Command::new("go");
    succeed(go.args(["build", "-o"]).arg(&made).arg(&source).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off"));
    writes_through_the_log(&[made.as_os_str()], "f", "go");
}

/// The program is behind a chain of links, as `update-alternatives` makes them.
#[test]
fn a_program_behind_links_is_served() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("sh"));
    std::os::unix::fs::symlink("/bin/sh", &first).unwrap();
    std::os::unix::fs::symlink(&first, &second).unwrap();
    writes_through_the_log(&[second.as_os_str(), "-c".as_ref(), "printf linked > f".as_ref()], "f", "linked");
}

#[test]
fn a_java_program_is_served() {
    needs_mounts!("java", "javac");
    let place = Place::new();
    let source = place.aside.path().join("Writer.java");
    let program = "import java.nio.file.*; public class Writer { public static void main(String[] a) throws Exception \
                   { Files.writeString(Path.of(\"f\"), \"java\"); } }";
    fs::write(&source, program).unwrap();
    let output = place.under("boost", &["--json"], &["java".as_ref(), source.as_os_str()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.read("f"), "java");
}
