//! `untorn run`: what becomes of files, and of what was written to them, when a program becomes another or starts one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::layered::{assert_left, ended, layer, run_in, shell, succeed, text, under};
use untorn_testing::programs::compile;

/// The start of another program closes the last descriptor: of one that loads the layer, and of one that does not and
/// ends silently.
#[test]
fn writes_are_kept_when_exec_replaces_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    let fixed = compile("taker.c", dir.path(), &["-static"]);
    for (end, other, code, expected) in [
        ("another", Path::new("/bin/sh"), 137, "first"),
        ("another", &fixed, 137, "first"),
        ("child", &fixed, 0, "first second third"),
        ("child", Path::new("/bin/true"), 0, "first second third"),
    ] {
        let at = ended(&[program.as_os_str(), end.as_ref(), other.as_os_str()], code);
        assert_left(at.path(), &[("f.managed", expected)]);
    }
}

#[test]
fn writes_of_a_program_killed_after_a_failed_exec_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    // What the kernel takes for none, though it may be executed; and what there is not.
    let broken = dir.path().join("broken");
    fs::write(&broken, [0; 64]).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    for other in [&broken, &dir.path().join("none")] {
        let at = ended(&[program.as_os_str(), "another".as_ref(), other.as_os_str()], 137);
        assert_left(at.path(), &[("f.managed", "")]);
    }
}

#[test]
fn writes_survive_an_exec_of_a_program_unaware_of_the_file() {
    let script = "exec 5> a.managed; (echo one >&5; exec sh -c : 5>&-); echo two >&5; exec 5>&-; cat a.managed; \
                  (echo three; exec true) > b.managed; cat b.managed";
    shell(script);
}

#[test]
fn shared_memory_is_never_managed_whatever_the_globs() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = compile("memory.c", dir.path(), &[]);
    let output = succeed(run_in(at.path(), layer(), &["--stats", "--match", "/**", "--match", "*"]).arg(&program));
    assert_eq!(text(&output.stdout), "Child\n");
    assert!(!text(&output.stderr).contains("memfd"), "{}", text(&output.stderr));
}

#[test]
fn a_managed_descriptor_is_not_handed_to_a_program_out_of_reach() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = compile("refused.c", dir.path(), &["-static"]);
    let script = format!("{} > f.managed", program.display());
    let output = under(at.path(), layer(), &["sh".as_ref(), "-c".as_ref(), script.as_ref()]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(fs::read(at.path().join("f.managed")).unwrap(), b"");
    // In every way that there is.
    let program = compile("hands.c", dir.path(), &[]);
    let taker = compile("taker.c", dir.path(), &["-static"]);
    let mut untorn = run_in(at.path(), layer(), &["--stats", "--match", "*.managed"]);
    let output = succeed(untorn.arg(&program).arg(&taker));
    let said = text(&output.stdout);
    assert_eq!(said.lines().count(), 13, "{said}");
    assert!(said.lines().all(|line| line.ends_with(": ENOTSUP")), "{said}");
    assert_eq!(fs::read(at.path().join("f.managed")).unwrap(), b"");
    let report = text(&output.stderr);
    assert!(report.contains("g.managed: opened 1 times"), "{report}");
}
