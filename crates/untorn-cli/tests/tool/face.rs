//! Help, completions, man pages, logging and pipes.

use std::process::{Command, Stdio};

use crate::common::{Place, UNTORN, run, untorn};

const VERBS: [&str; 24] = [
    "demo",
    "doctor",
    "create",
    "info",
    "stats",
    "check",
    "write",
    "read",
    "apply",
    "resize",
    "recover",
    "settle",
    "backup",
    "restore",
    "prune",
    "region",
    "replay",
    "log",
    "mount",
    "unmount",
    "torture",
    "bench",
    "completions",
    "man",
];

#[test]
fn help_and_version_end_with_0() {
    let help = untorn(&["--help"]).expect(0).text();
    for verb in VERBS {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in the help");
        let text = untorn(&[verb, "--help"]).expect(0).text();
        assert!(text.contains("Example") && text.contains(&format!("untorn {verb}")), "{verb} --help has no example");
    }
    assert!(!help.contains("-writer"), "a hidden verb shows");
    assert!(untorn(&["--version"]).expect(0).text().starts_with("untorn "));
}

#[test]
fn bench_help_lists_the_benchmarks() {
    let text = untorn(&["bench", "--help"]).expect(0).text();
    assert!(text.contains("atomic-write") && text.contains("atomic-read"), "{text}");
}

#[test]
fn usage_errors_end_with_64() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["create", "f"],
        &["create", "f", "--len", "ten"],
        &["create", "f", "--len", "1KB"],
        &["create", "f", "--len", "99999999T"],
        &["create", "f", "--len", "1", "--engine", "steam"],
        &["info"],
        &["info", "f", "--frob"],
        &["write", "f", "--offset", "-1"],
        &["recover", "f", "--trust", "nobody"],
        &["bench", "no-such"],
        &["region"],
        &["region", "frob", "s", "n"],
        &["region", "create", "s", "n", "--pages", "1", "--len", "1"],
        &["region", "info", "s", "n", "too-many"],
        &["replay"],
        &["log"],
        &["log", "frob", "f"],
        &["mount", "only-one"],
        &["mount", "--mode", "steam", "a", "b"],
        &["mount", "--log-size", "ten", "a", "b"],
        &["unmount"],
        &["torture", "--threads", "0"],
        &["torture", "--medium", "moon"],
        &["completions", "cobol"],
    ] {
        let run = untorn(arguments).expect(64);
        assert!(run.out.is_empty() && !run.err.is_empty(), "{arguments:?}: {run:?}");
    }
}

#[test]
fn hidden_verbs_refuse_to_run_for_anyone_but_their_parent() {
    let place = Place::plain(&[0; 100]);
    let writer = ["demo-writer", place.name(), "--writer=plain", "--seed=1", "--parent=1"];
    untorn(&writer).expect(64);
    assert_eq!(place.bytes(), [0; 100]);
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = untorn(&["completions", shell]).expect(0).text();
        assert!(script.contains("torture") && script.contains("settle"), "{shell}: {script}");
    }
}

#[test]
fn man_pages_are_made_for_every_verb() {
    assert!(untorn(&["man"]).expect(0).text().contains(".TH untorn 1"));
    let place = Place::empty();
    let out = place.dir.path().join("man");
    untorn(&["man", "--out", out.to_str().expect("text")]).expect(0);
    for verb in VERBS {
        let page = out.join(format!("untorn-{verb}.1"));
        assert!(page.exists(), "no {}", page.display());
    }
    assert!(!out.join("untorn-demo-writer.1").exists(), "a hidden verb has a page");
}

#[test]
fn the_log_goes_to_stderr_and_a_bad_filter_is_a_usage_error() {
    let place = Place::created(100);
    let arguments = ["info", place.name(), "--json"];
    let logged = |filter: &str| {
        let output = Command::new(UNTORN).args(arguments).env("UNTORN_LOG", filter).output().expect("runs");
        crate::common::Run::of(output, &arguments)
    };
    logged("trace").expect(0).json();
    logged("untorn=notalevel").expect(64).names("UNTORN_LOG");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::created(8 << 20);
    for verb in ["read", "info", "check"] {
        let mut child = Command::new(UNTORN)
            .args([verb, place.name()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("can be waited for");
        assert_eq!(output.status.code(), Some(0), "{verb}: {}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{verb}");
    }
}

#[test]
fn a_full_standard_output_is_an_io_error() {
    let place = Place::created(100);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full exists on Linux");
    let output = Command::new(UNTORN).args(["read", place.name()]).stdout(full).output().expect("runs");
    crate::common::Run::of(output, &["read"]).expect(74).names("standard output");
}

#[test]
fn colours_need_a_terminal() {
    let place = Place::created(100);
    let arguments = ["info", place.name()];
    let forced = run(Command::new(UNTORN).args(arguments).env("CLICOLOR_FORCE", "1"), &arguments, b"").expect(0);
    assert!(!forced.text().contains('\x1b'));
}
