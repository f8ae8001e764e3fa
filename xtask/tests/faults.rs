//! Failing system calls in small: a sample of the cases of `cargo xtask faults`. Passed over, and said so, where a
//! process may not be traced; on other processors than x86-64 there is no such rig.
#![cfg(target_arch = "x86_64")]

use std::process::Command;

use serde_json::Value;

/// Cases that are tried; another seed tries others.
const SAMPLE: &str = "150";

#[test]
fn a_failed_call_is_an_honest_error_or_a_true_success() {
    let seed = std::env::var("UNTORN_SEED").unwrap_or_else(|_| "1".to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = command.args(["faults", "--sample", SAMPLE, "--seed", &seed, "--json"]).output().expect("it runs");
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(69) {
        untorn_testing::skip!("failing system calls: {}", complaint.trim());
    }
    assert!(output.status.success(), "UNTORN_SEED={seed}: {}\n{said}{complaint}", output.status);
    eprintln!("UNTORN_SEED={seed}: {}", said.lines().last().unwrap_or_default());
    let report = said.lines().find(|line| line.starts_with('{')).expect("a JSON object");
    let report: Value = serde_json::from_str(report).expect("valid JSON");
    let count = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {report}"));
    assert!(count("tried") >= 100 && count("cases") > 5000, "{report}");
    assert!(count("told") > 0 && count("told") < count("tried"), "both kinds of case came about: {report}");
}

#[test]
fn an_unknown_case_is_an_error() {
    for words in [&["--only", "reboot"], &["--replay", "fsync:1:EBADF"], &["--replay", "fsync:9999:EIO"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("faults").args(words).output().expect("it runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(69 | 74)), "{words:?}: {}: {complaint}", output.status);
        assert!(complaint.starts_with("faults: "), "{complaint}");
    }
}
