//! The shell blocks of the README, of the book and of the documents for users do what they show, and systemd takes the
//! units of the documents.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use untorn_testing::documents::{self, Block, Document, shows};
use untorn_testing::{needs, skip, skipped, skips};

use crate::common::{UNTORN, untorn};

/// Why this machine cannot run a block.
fn obstacle(block: &Block) -> Option<String> {
    if block.has("fuse") && !has_private_mounts() {
        return Some("needs a mount that one program sees; `untorn doctor` says why there is none".to_owned());
    }
    skips::lacks(&block.needs().collect::<Vec<_>>())
}

fn has_private_mounts() -> bool {
    let ways = untorn(&["doctor", "--json", "/"]).json()["mount"].clone();
    let works = |name: &str| {
        ways.as_array().is_some_and(|ways| ways.iter().any(|way| way["name"] == name && way["works"] == true))
    };
    works("/dev/fuse") && works("private")
}

/// Runs a block as a script of its own, and compares what it prints with what is shown.
fn run(document: &Document, block: &Block, shown: Option<&Block>, directory: &Path) {
    let place = format!("{}:{}", document.path, block.line);
    let tool = Path::new(UNTORN).parent().expect("the tool is in a directory");
    let paths = env::var_os("PATH").unwrap_or_default();
    let paths = [tool.to_owned()].into_iter().chain(env::split_paths(&paths));
    let mut shell = Command::new("bash");
    // Pages show permissions as they are under the usual mask.
    let script = format!("umask 022\n{}", block.code);
    shell.args(["-euo", "pipefail", "-c", &script]).current_dir(directory).stdin(Stdio::null());
    shell.env("PATH", env::join_paths(paths).expect("a path has no colon")).env("HOME", directory).env("LC_ALL", "C");
    shell.env_remove("UNTORN_LOG").env_remove("UNTORN_ASSUME_PMEM");
    let output = shell.output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{place}: {}\n{}\n{said}{complained}", output.status, block.code);
    if let Some(shown) = shown {
        assert!(shows(&shown.code, &said), "{place} prints\n{said}\nand the page shows\n{}{complained}", shown.code);
    }
}

/// The blocks of one page share a directory, in which they run one after another.
#[test]
fn shell_blocks_do_what_they_show() {
    // Temporary files may be in memory, where reports say that nothing is durable.
    let place = env!("CARGO_TARGET_TMPDIR");
    if untorn(&["doctor", "--json", place]).json()["durable"] != true {
        skip!("{place} is on a medium that does not survive a power cut, and the book shows one that does");
    }
    let mut count = 0;
    for document in documents::documents() {
        let directory = tempfile::tempdir_in(place).expect("a temporary directory can be made");
        let mut obstructed = None;
        for (i, block) in document.blocks.iter().enumerate() {
            if !block.is("sh") || block.is_only_shown() {
                continue;
            }
            // A later block of the page may use what this one leaves.
            obstructed = obstructed.or_else(|| obstacle(block));
            if let Some(reason) = &obstructed {
                skipped!("{reason}");
                break;
            }
            let shown = document.blocks.get(i + 1).filter(|next| next.is("text") && next.has("output"));
            run(&document, block, shown, directory.path());
            count += 1;
        }
    }
    assert!(count > 0, "the documents have no shell blocks");
}

/// Blocks that no test runs name options, too.
#[test]
fn options_in_documents_are_options_of_the_tool() {
    let mut seen = 0;
    for Document { path, blocks } in documents::documents() {
        for block in blocks.iter().filter(|block| block.is("sh")) {
            for line in block.code.lines() {
                let Some(line) = line.trim_start_matches("sudo ").strip_prefix("untorn ") else { continue };
                let own = line.split(" -- ").next().unwrap_or_default().split(" #").next().unwrap_or_default();
                let verb = own.split_whitespace().next().unwrap_or_default();
                // `untorn --version` has no verb.
                let asked: &[&str] = if verb.starts_with("--") { &["--help"] } else { &[verb, "--help"] };
                let help = untorn(asked).expect(0).text();
                for option in own.split_whitespace().filter(|word| word.starts_with("--")) {
                    let name = option.split('=').next().unwrap_or_default();
                    let of_a_region = verb == "region";
                    assert!(of_a_region || help.contains(name), "{path}:{}: `untorn {verb}` has no {name}", block.line);
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 0, "the documents name no options");
}

/// What systemd says about a unit; nothing, if it takes it.
fn complaints(name: &str, unit: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let at = |name: &str| directory.path().join(name);
    // The service that a timer starts.
    fs::write(at("unit.service"), "[Service]\nExecStart=/bin/true\n").expect("a file can be written");
    fs::write(at(name), unit).expect("a file can be written");
    let mut systemd = Command::new("systemd-analyze");
    let output = systemd.args(["verify", "--man=no"]).arg(at(name)).output().expect("systemd-analyze runs");
    let said = String::from_utf8_lossy(&output.stderr);
    // It looks at other units of the machine, too.
    let about = |line: &&str| line.contains("unit.") || line.contains(name);
    let about: Vec<&str> = said.lines().filter(about).collect();
    if about.is_empty() && !output.status.success() { said.into_owned() } else { about.join("\n") }
}

#[test]
fn systemd_takes_the_units_of_the_documents() {
    needs!("systemd-analyze");
    let least = complaints("unit.service", "[Service]\nExecStart=/bin/true\n");
    if !least.is_empty() {
        skip!("systemd-analyze refuses every unit here: {}", least.lines().next().unwrap_or_default());
    }
    assert!(!complaints("unit.service", "[Service]\nExecStart=/bin/true\nNice=very\n").is_empty(), "it checks nothing");
    let mut count = 0;
    for document in documents::documents() {
        for block in document.blocks.iter().filter(|block| block.is("ini")) {
            let name = if block.code.contains("[Timer]") { "unit.timer" } else { "unit.service" };
            // The tool is not installed here, and a drop-in has its program from the unit that it belongs to.
            let mut unit = block.code.replace("/usr/local/bin/untorn", "/bin/true");
            if name == "unit.service" && !unit.contains("ExecStart=") {
                unit.push_str("ExecStart=/bin/true\n");
            }
            let complaints = complaints(name, &unit);
            assert!(complaints.is_empty(), "{}:{}: {complaints}\n{unit}", document.path, block.line);
            count += 1;
        }
    }
    assert!(count > 0, "the documents have no units");
}
