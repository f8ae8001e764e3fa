//! `untorn run`: what it says no to, and what it reports of that and of what it served, also where nobody takes the
//! report.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::layered::{layer, run_in, succeed, text, under};
use crate::common::{Run, UNTORN};
use untorn_testing::programs::compile;

#[test]
fn the_report_says_what_was_served_and_what_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("refused.c", dir.path(), &[]);
    let at = tempfile::tempdir().unwrap();
    let output = succeed(run_in(at.path(), layer(), &["--json", "--match", "*.managed"]).arg(&program));
    let out = text(&output.stdout);
    let (said, json) = out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said.lines().filter(|line| line.ends_with("ENOTSUP")).count(), said.lines().count(), "{said}");
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["mode"], "atomic");
    assert_eq!(report["exit"], 0);
    assert_eq!(report["processes"], 1);
    assert_eq!(report["files"][0]["bytes_written"], 5);
    let refused: Vec<&str> =
        report["refused"].as_array().unwrap().iter().map(|entry| entry[0]["call"].as_str().unwrap()).collect();
    for call in [
        "madvise",
        "remap_file_pages",
        "mremap",
        "splice",
        "vmsplice",
        "aio_write",
        "ioctl",
        "open",
        "rename or link",
        "unlink",
        "fcntl",
    ] {
        assert!(refused.contains(&call), "{call} is not in {refused:?}");
    }
}

#[test]
fn asynchronous_io_calls_fail_with_enosys() {
    untorn_testing::needs!("python3");
    let program = "
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True)
assert c.io_setup(1, ctypes.byref(ctypes.c_long(0))) == -errno.ENOSYS
assert c.io_uring_queue_init(4, ctypes.create_string_buffer(1000), 0) == -errno.ENOSYS
assert c.syscall(425, 4, ctypes.create_string_buffer(120)) == -1 and ctypes.get_errno() == errno.ENOSYS
how = (ctypes.c_uint64 * 3)(2, 0, 8)
assert c.syscall(437, -100, b'f.managed', how, ctypes.c_long(24)) == -1 and ctypes.get_errno() == errno.ENOSYS
";
    let at = tempfile::tempdir().unwrap();
    let mut untorn = run_in(at.path(), layer(), &["--stats", "--match", "*.managed"]);
    let said = text(&succeed(untorn.args(["python3", "-c", program])).stderr);
    assert!(said.contains("refused 1 times: io_setup") && said.contains("refused 2 times: io_uring_setup"), "{said}");
    assert!(said.contains("refused 1 times: openat2"), "{said}");
}

#[test]
fn a_program_that_the_layer_cannot_get_into_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixed = compile("refused.c", dir.path(), &["-static"]);
    let refused = |program: &Path, why: &str| {
        let command = ["run", "--layer", layer().to_str().unwrap(), "--", program.to_str().unwrap()];
        Run::of(Command::new(UNTORN).args(command).output().unwrap(), &command).expect(64).names(why);
    };
    refused(&fixed, "statically linked");
    let privileged = dir.path().join("privileged");
    fs::copy("/bin/true", &privileged).unwrap();
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
    refused(&privileged, "gains privileges");
    refused(&dir.path().join("none"), "cannot run");
    let go = dir.path().join("go");
    fs::copy("/bin/true", &go).unwrap();
    let section = dir.path().join("section");
    fs::write(&section, b"Go buildinf:").unwrap();
    let add = format!(".go.buildinfo={}", section.display());
    succeed(Command::new("objcopy").args(["--add-section", &add]).arg(&go));
    refused(&go, "Go program");
    let musl = dir.path().join("musl");
    let source = dir.path().join("musl.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    succeed(Command::new("cc").arg(&source).arg("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1").arg("-o").arg(&musl));
    refused(&musl, "ld-musl-x86_64.so.1");
    let broken = dir.path().join("broken.so");
    fs::write(&broken, b"no library").unwrap();
    let command = ["run", "--layer", broken.to_str().unwrap(), "--", "true"];
    Run::of(Command::new(UNTORN).args(command).output().unwrap(), &command).expect(64).names("cannot preload");
    let command = ["run", "--mode", "boost", "--", "true"];
    Run::of(Command::new(UNTORN).args(command).output().unwrap(), &command).expect(64);
}

#[test]
fn a_file_in_use_elsewhere_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.managed");
    let held = untorn::AtomicFile::create(&path, 4096).unwrap();
    held.write_at(b"theirs", 0).unwrap();
    let cat = |what: &str| {
        let mut untorn = run_in(dir.path(), layer(), &["--stats", "--match", "*.managed"]);
        let output = untorn.args(["cat", "f.managed"]).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.matches(what).count() == 2 && said.contains("refused 1 times"),
            "{said}"
        );
    };
    cat("esource busy");
    held.settle().unwrap();
    // Of another engine, whose epochs are not those of the program: told no, too.
    let held = untorn::Options::new().keep_sidecar(true).open(&path).unwrap();
    held.write_at(b"theirs", 0).unwrap();
    held.close().unwrap();
    cat("peration not supported");
    untorn::AtomicFile::open(&path).unwrap().settle().unwrap();
    let output = succeed(&mut under(dir.path(), layer(), &["head".as_ref(), "-c6".as_ref(), "f.managed".as_ref()]));
    assert_eq!(text(&output.stdout), "theirs");
}

/// A program that writes a file and ends with a code, whose report goes to `out`.
fn reporting(dir: &Path, code: i32, out: Stdio) -> Output {
    let mut command = run_in(dir, untorn_testing::built_oracle(), &["--json", "--match", "*.managed"]);
    let script = format!("echo bytes > f.managed; exit {code}");
    command.args(["sh", "-c", &script]).stdin(Stdio::null()).stdout(out).output().unwrap()
}

/// The program has run, and how it ended and what became of its files is not to be lost with the report.
#[test]
fn a_failed_report_hides_neither_the_exit_code_nor_the_counts() {
    for (code, expected) in [(0, 74), (3, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = reporting(dir.path(), code, full.into());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{said}");
        assert!(said.contains("cannot write to standard output"), "{said}");
        assert!(said.contains("f.managed: opened 1 times"), "{said}");
        assert_eq!(fs::read(dir.path().join("f.managed")).unwrap(), b"bytes\n");
    }
}

#[test]
fn a_report_that_nobody_reads_is_not_dropped_in_silence() {
    for code in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = reporting(dir.path(), code, writer.into());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains("the reader of standard output is gone") && said.contains("f.managed: opened 1 times"),
            "{said}"
        );
    }
}
