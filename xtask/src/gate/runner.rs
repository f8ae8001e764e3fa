//! Running steps, and the report at the end.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::steps::{self, Step, Work};
use crate::nightly::UNAVAILABLE;

/// Steps that run at the same time. Few steps keep two processors busy: most compile one large crate, wait for a disk,
/// or drive one process at a time.
const LANES: usize = 2;

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    Skipped,
    Failed,
}

/// The outcome of a step, or of a part of one.
#[derive(Debug)]
pub(super) enum Outcome {
    Passed,
    /// Why it could not run.
    Skipped(String),
    /// The reason for the failure.
    Failed(String),
}

/// The environment of a step.
pub(super) struct Context<'a> {
    pub(super) root: &'a Path,
    xtask: PathBuf,
}

impl Context<'_> {
    /// This program again, with other arguments.
    pub(super) fn xtask(&self) -> Command {
        let mut command = Command::new(&self.xtask);
        command.current_dir(self.root).stdin(Stdio::null());
        command
    }

    /// This program again, for one step alone.
    fn step(&self, step: &Step) -> Command {
        let mut command = self.xtask();
        command.args(["step", step.name]);
        command
    }

    pub(super) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Set for this package by the cargo that runs this; it means nothing to the one that it starts.
        command.current_dir(self.root).env_remove("CARGO_MANIFEST_DIR").stdin(Stdio::null());
        command
    }
}

/// Whether a step can start while `running` others run.
fn may_join(step: &Step, running: usize) -> bool {
    running < LANES && !steps::ALONE.contains(&step.name)
}

/// A step that ran in a process of its own.
struct Ended {
    step: &'static Step,
    outcome: Outcome,
    output: String,
    seconds: u64,
}

impl Ended {
    /// Runs `command`, which is `xtask step`, to its end.
    fn of(step: &'static Step, mut command: Command) -> Self {
        let start = Instant::now();
        let (outcome, output) = match captured(&mut command) {
            Ok((Some(0), output)) => (Outcome::Passed, output),
            Ok((code, output)) => {
                let reason = output.trim_end().rsplit('\n').next().unwrap_or_default();
                let reason = reason.strip_prefix(REASON).unwrap_or("it ended without a reason").to_owned();
                let unavailable = code == Some(UNAVAILABLE.into());
                (if unavailable { Outcome::Skipped(reason) } else { Outcome::Failed(reason) }, output)
            }
            Err(error) => (Outcome::Failed(format!("cannot run `{}`: {error}", words(&command))), String::new()),
        };
        Ended { step, outcome, output, seconds: start.elapsed().as_secs() }
    }
}

/// What the last line of a step in a process of its own begins with, if it did not pass.
const REASON: &str = "reason: ";

/// The exit code of a command, and all its output. It writes to one file, so that the order of its lines is kept.
fn captured(command: &mut Command) -> io::Result<(Option<i32>, String)> {
    let mut file = tempfile::tempfile()?;
    let clone = |file: &File| file.try_clone().map(Stdio::from);
    let status = command.stdout(clone(&file)?).stderr(clone(&file)?).status()?;
    let mut output = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut output)?;
    Ok((status.code(), String::from_utf8_lossy(&output).into_owned()))
}

struct Record {
    name: String,
    ending: Ending,
    reason: String,
    seconds: u64,
    /// The last lines that a failed step printed, if they were captured.
    last_words: String,
}

pub(super) struct Runner<'a> {
    context: Context<'a>,
    start: Instant,
    records: Vec<Record>,
    json: bool,
    /// No further step starts after this.
    limit: Option<Duration>,
    memory: Option<Memory>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(root: &'a Path, json: bool) -> Self {
        let xtask = std::env::current_exe().expect("the path of this program is known");
        let context = Context { root, xtask };
        Runner { context, start: Instant::now(), records: Vec::new(), json, limit: None, memory: None }
    }

    /// Passes over steps that passed before for this commit, unless `fresh`, and remembers those that pass now.
    pub(super) fn remember(&mut self, fresh: bool) {
        self.memory = Memory::load(self.context.root, fresh);
    }

    pub(super) fn limit(&mut self, limit: Duration) {
        self.limit = Some(limit);
    }

    /// Starts steps in this order, [`LANES`] at a time, those of [`steps::ALONE`] by themselves. With
    /// `stop_at_failure`, no step starts after one has failed.
    pub(super) fn run_all(&mut self, steps: &[&'static Step], stop_at_failure: bool) {
        let (sender, ended) = mpsc::channel();
        let mut waiting = steps.iter().copied().peekable();
        let mut running = 0;
        loop {
            let stopped = stop_at_failure && self.records.iter().any(|record| record.ending == Ending::Failed);
            while let Some(step) = waiting.next_if(|step| !stopped && (running == 0 || may_join(step, running))) {
                if let Some(outcome) = self.passed_over(step) {
                    self.record(step.name, outcome, 0);
                } else if steps.len() == 1 || steps::ALONE.contains(&step.name) {
                    self.run(step);
                    // It may have failed.
                    break;
                } else {
                    println!("== {}: started", step.name);
                    let (command, sender) = (self.context.step(step), sender.clone());
                    thread::spawn(move || sender.send(Ended::of(step, command)));
                    running += 1;
                }
            }
            if running == 0 && (stopped || waiting.peek().is_none()) {
                return;
            }
            if running > 0 {
                let Ok(end) = ended.recv() else { return };
                running -= 1;
                println!("\n== {}: {}\n{}", end.step.name, end.step.does, end.output);
                let ending = self.record(end.step.name, end.outcome, end.seconds);
                if let (Ending::Failed, Some(record)) = (ending, self.records.last_mut()) {
                    record.last_words = last_lines(&end.output, LAST_LINES);
                }
                self.remember_passed(end.step, ending);
            }
        }
    }

    /// Why a step does not run at all.
    fn passed_over(&self, step: &Step) -> Option<Outcome> {
        if self.memory.as_ref().is_some_and(|memory| memory.passed.contains(step.name)) {
            return Some(Outcome::Skipped("passed before for this commit".to_owned()));
        }
        if self.limit.is_some_and(|limit| self.start.elapsed() >= limit) {
            return Some(Outcome::Failed("the budget ended before it".to_owned()));
        }
        None
    }

    fn remember_passed(&mut self, step: &Step, ending: Ending) {
        if let (Ending::Passed, Some(memory)) = (ending, &mut self.memory) {
            memory.add(step.name);
        }
    }

    /// Runs one step in this process.
    pub(super) fn run(&mut self, step: &Step) -> Ending {
        println!("\n== {}: {}", step.name, step.does);
        let start = Instant::now();
        let missing = step.needs.iter().find(|(program, _)| !on_path(program));
        let outcome = match missing {
            Some((program, remedy)) => Outcome::Skipped(format!("needs {program}: {remedy}")),
            None => all(&self.context, step.work),
        };
        let ending = self.record(step.name, outcome, start.elapsed().as_secs());
        self.remember_passed(step, ending);
        ending
    }

    /// Explores crash states of these engines, with every mutant.
    pub(super) fn explore(&mut self, engines: &BTreeSet<&str>, states: u64) {
        for engine in engines {
            println!("\n== explore-{engine}: {states} crash states, every mutant and the canary");
            let start = Instant::now();
            let mut command = self.context.xtask();
            command.args(["explore", "--engine", engine, "--states", &states.to_string(), "--known-first"]);
            let outcome = finish(&mut command, 0);
            self.record(&format!("explore-{engine}"), outcome, start.elapsed().as_secs());
        }
    }

    fn record(&mut self, name: &str, outcome: Outcome, seconds: u64) -> Ending {
        let (ending, reason) = match outcome {
            Outcome::Passed => (Ending::Passed, String::new()),
            Outcome::Skipped(reason) => (Ending::Skipped, reason),
            Outcome::Failed(reason) => (Ending::Failed, reason),
        };
        match ending {
            Ending::Passed => println!("== {name}: passed in {seconds} s"),
            Ending::Skipped => println!("== {name}: skipped: {reason}"),
            Ending::Failed => println!("== {name}: FAILED after {seconds} s: {reason}"),
        }
        let _ = io::stdout().flush();
        self.records.push(Record { name: name.to_owned(), ending, reason, seconds, last_words: String::new() });
        ending
    }

    /// The exit code of a step in a process of its own; [`Ended::of`] reads it and the last line.
    pub(super) fn conclude_step(self) -> ExitCode {
        let Some(record) = self.records.last() else { return ExitCode::FAILURE };
        if record.ending != Ending::Passed {
            println!("{REASON}{}", record.reason.replace('\n', " "));
        }
        match record.ending {
            Ending::Passed => ExitCode::SUCCESS,
            Ending::Skipped => ExitCode::from(UNAVAILABLE),
            Ending::Failed => ExitCode::FAILURE,
        }
    }

    /// Prints the report: what each step took, then one line that says it all.
    pub(super) fn conclude(self, what: &str) -> ExitCode {
        println!();
        for record in &self.records {
            println!("{:>6} s  {:<20} {:?}", record.seconds, record.name, record.ending);
        }
        // Other steps may have printed thousands of lines since, of which a log viewer shows the end only.
        for record in self.records.iter().filter(|record| !record.last_words.is_empty()) {
            println!("the last lines of {}:\n{}", record.name, record.last_words);
        }
        let count = |ending| self.records.iter().filter(|record| record.ending == ending).count();
        let (passed, failed, skipped) = (count(Ending::Passed), count(Ending::Failed), count(Ending::Skipped));
        let seconds = self.start.elapsed().as_secs();
        if self.json {
            let steps: Vec<Value> = self.records.iter().map(Record::json).collect();
            println!(
                "{}",
                json!({
                    "loop": what, "passed": passed, "failed": failed, "skipped": skipped, "seconds": seconds,
                    "steps": steps,
                })
            );
        }
        let reasons = |ending, word: &str| {
            let all = self.records.iter().filter(|record| record.ending == ending);
            let all: Vec<String> = all.map(|record| format!("{} ({})", record.name, record.reason)).collect();
            if all.is_empty() { String::new() } else { format!("; {word}: {}", all.join(", ")) }
        };
        println!(
            "{what}: {passed} passed, {failed} failed, {skipped} skipped, {seconds} s{}{}",
            reasons(Ending::Failed, "failed"),
            reasons(Ending::Skipped, "skipped")
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Record {
    fn json(&self) -> Value {
        let ending = format!("{:?}", self.ending).to_lowercase();
        json!({ "name": self.name, "ending": ending, "reason": self.reason, "seconds": self.seconds })
    }
}

/// Lines of a failed step that the report repeats.
const LAST_LINES: usize = 20;

/// The last lines of a text, without those that are empty.
fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Does each part of a step until one does not pass.
fn all(context: &Context<'_>, work: &[Work]) -> Outcome {
    for work in work {
        let outcome = one(context, work);
        if !matches!(outcome, Outcome::Passed) {
            return outcome;
        }
    }
    Outcome::Passed
}

fn one(context: &Context<'_>, work: &Work) -> Outcome {
    match work {
        Work::Cargo(arguments) => finish(context.cargo().args(*arguments), 0),
        Work::CargoWith(variable, value, arguments) => finish(context.cargo().env(variable, value).args(*arguments), 0),
        Work::Xtask(arguments) => finish(context.xtask().args(*arguments), 0),
        Work::Tool(arguments) => finish(context.cargo().args(TOOL).args(*arguments), 0),
        // A conviction keeps its disk, and nobody is going to look at this one.
        Work::ToolFails(arguments) => match tempfile::tempdir() {
            Ok(kept) => finish(context.cargo().args(TOOL).args(*arguments).arg("--keep").arg(kept.path()), 1),
            Err(error) => Outcome::Failed(format!("cannot create a temporary directory: {error}")),
        },
        Work::Call(check) => check(context).unwrap_or_else(|error| Outcome::Failed(error.to_string())),
    }
}

/// The tool, as a user builds it.
pub(super) const TOOL: &[&str] = &["run", "--quiet", "--release", "--package", "untorn-cli", "--"];

/// Runs a command to its end, which must be with this exit code. 69 says that something is missing here.
pub(super) fn finish(command: &mut Command, expected: i32) -> Outcome {
    let line = words(command);
    println!("-- {line}");
    let _ = io::stdout().flush();
    match command.status() {
        Err(error) => Outcome::Failed(format!("cannot run `{line}`: {error}")),
        Ok(status) if status.code() == Some(expected) => Outcome::Passed,
        Ok(status) if status.code() == Some(UNAVAILABLE.into()) => {
            Outcome::Skipped(format!("`{line}` says that this machine lacks something"))
        }
        Ok(status) => Outcome::Failed(format!("`{line}` ended with {status}, not with {expected}")),
    }
}

/// A command as a person types it.
fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let program = program.to_string_lossy().replace("xtask", "cargo xtask");
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Whether a program can be started by its name.
fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|directory| directory.join(program).is_file())
}

/// The steps that passed for a commit, kept in a file below Cargo's target directory.
struct Memory {
    path: PathBuf,
    commit: String,
    passed: BTreeSet<String>,
}

impl Memory {
    /// Loads the steps that passed for this commit. `None` for a tree that no commit names: a step that passed there
    /// says nothing about another tree.
    fn load(root: &Path, fresh: bool) -> Option<Self> {
        let git = |arguments: &[&str]| Command::new("git").current_dir(root).args(arguments).output().ok();
        let clean = git(&["status", "--porcelain"])?.stdout.is_empty();
        let commit = String::from_utf8_lossy(&git(&["rev-parse", "HEAD"])?.stdout).trim().to_owned();
        if !clean || commit.is_empty() {
            println!("the tree has changes that are not committed, so every step runs and none is remembered");
            return None;
        }
        let path = crate::target(root, "nightly").join("passed.json");
        let kept = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let kept = kept.filter(|kept| !fresh && kept["commit"] == commit.as_str());
        let passed = kept.as_ref().and_then(|kept| kept["passed"].as_array()).into_iter().flatten();
        let passed = passed.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Some(Memory { path, commit, passed })
    }

    fn add(&mut self, name: &str) {
        self.passed.insert(name.to_owned());
        let text = json!({ "commit": self.commit, "passed": self.passed }).to_string();
        let written = self.path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&self.path, text));
        if let Err(error) = written {
            println!("cannot remember that {name} passed: {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::steps::all as all_steps;

    fn context(root: &Path) -> Context<'_> {
        Context { root, xtask: "sh".into() }
    }

    #[test]
    fn a_command_that_ends_otherwise_fails_its_step() {
        let step = |work| all(&context(Path::new("/")), work);
        assert!(matches!(step(&[Work::Xtask(&["-c", "exit 0"])]), Outcome::Passed));
        assert!(matches!(step(&[Work::Xtask(&["-c", "exit 69"])]), Outcome::Skipped(_)));
        let Outcome::Failed(reason) = step(&[Work::Xtask(&["-c", "exit 3"]), Work::Xtask(&["-c", "exit 0"])]) else {
            panic!("a failure was passed over");
        };
        assert!(reason.contains("exit 3") && reason.contains("exit status: 3"), "{reason}");
    }

    #[test]
    fn a_step_of_its_own_process_tells_how_it_ended() {
        let ended = |script: &str| {
            let mut command = context(Path::new("/")).xtask();
            command.args(["-c", script]);
            Ended::of(all_steps().next().unwrap(), command)
        };
        assert!(matches!(ended("echo fine").outcome, Outcome::Passed));
        let skipped = ended("echo one; echo two >&2; echo 'reason: no disk'; exit 69");
        assert!(matches!(&skipped.outcome, Outcome::Skipped(reason) if reason == "no disk"));
        assert_eq!(skipped.output, "one\ntwo\nreason: no disk\n");
        assert!(matches!(ended("echo 'reason: lost'; exit 1").outcome, Outcome::Failed(reason) if reason == "lost"));
        assert!(matches!(ended("kill -9 $$").outcome, Outcome::Failed(_)));
    }

    #[test]
    fn the_report_repeats_the_end_of_a_failed_step() {
        let step = all_steps().find(|step| step.name == "lints").unwrap();
        for (program, words) in [("cat", true), ("true", false)] {
            let mut runner = Runner::new(Path::new("/"), false);
            // It is called with the arguments `step lints`, which `cat` cannot find.
            runner.context.xtask = program.into();
            runner.run_all(&[step, all_steps().find(|step| step.name == "documentation").unwrap()], true);
            let record = runner.records.iter().find(|record| record.name == "lints").unwrap();
            assert_eq!(record.last_words.contains("lints"), words);
        }
        assert_eq!(last_lines("one\ntwo\n\nthree\n", 2), "two\nthree");
    }

    #[test]
    fn steps_share_the_machine_unless_one_needs_it_alone() {
        let step = |name: &str| all_steps().find(|step| step.name == name).unwrap();
        assert!(may_join(step("lints"), 1) && !may_join(step("lints"), LANES));
        assert!(!may_join(step("tests"), 1));
        assert!(steps::ALONE.iter().all(|name| all_steps().any(|step| step.name == *name)));
    }

    #[test]
    fn no_step_starts_after_a_failure_if_asked_so() {
        for (stop_at_failure, records) in [(true, 1), (false, 3)] {
            let mut runner = Runner::new(Path::new("/"), false);
            runner.context.xtask = "false".into();
            let step = |name| all_steps().find(|step| step.name == name).unwrap();
            runner.record("one before", Outcome::Failed(String::new()), 0);
            runner.run_all(&[step("lints"), step("documentation")], stop_at_failure);
            assert_eq!(runner.records.len(), records);
        }
    }

    #[test]
    fn a_step_without_its_program_is_skipped_with_the_remedy() {
        let step = Step {
            name: "step",
            does: "nothing",
            loops: &[],
            needs: &[("no-such-program", "write it")],
            work: &[Work::Xtask(&["-c", "exit 3"])],
        };
        let mut runner = Runner::new(Path::new("/"), false);
        assert_eq!(runner.run(&step), Ending::Skipped);
        assert_eq!(runner.records[0].reason, "needs no-such-program: write it");
    }

    #[test]
    fn a_budget_that_ended_is_a_failure_and_not_a_pass() {
        let mut runner = Runner::new(Path::new("/"), false);
        runner.limit(Duration::ZERO);
        runner.run_all(&[all_steps().next().unwrap(), all_steps().nth(1).unwrap()], false);
        assert!(runner.records.len() == 2 && runner.records.iter().all(|record| record.ending == Ending::Failed));
    }
}
