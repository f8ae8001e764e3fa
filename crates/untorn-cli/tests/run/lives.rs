//! The lives of processes under `untorn run`: exit codes, signals, children that outlive the program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use untorn_testing::programs::{compile, succeed, text};

use crate::common::{UNTORN, at_a_terminal};
use crate::running::{MODES, Place, needs_mounts};

#[test]
fn the_programs_exit_code_or_signal_is_passed_on() {
    needs_mounts!();
    let place = Place::new();
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("true", 0)] {
        let run = place.run("atomic", &[], &["sh", "-c", script]).expect(code);
        assert_eq!(run.err, "", "{script}");
    }
}

#[test]
fn a_program_has_the_streams_and_the_environment_of_its_caller() {
    needs_mounts!();
    let place = Place::new();
    let script = "cat; echo \"$WORD\"; pwd; umask; ulimit -n; echo said >&2";
    let mut command = place.under("atomic", &[], &["sh".as_ref(), "-c".as_ref(), script.as_ref()]);
    let input = place.aside.path().join("input");
    fs::write(&input, "input\n").unwrap();
    command.stdin(fs::File::open(&input).unwrap()).env("WORD", "a word");
    let output = succeed(&mut command);
    let mut bare = Command::new("sh");
    bare.args(["-c", script]).current_dir(place.file("")).env("WORD", "a word");
    let bare = succeed(bare.stdin(fs::File::open(&input).unwrap()));
    assert_eq!((text(&output.stdout), text(&output.stderr)), (text(&bare.stdout), text(&bare.stderr)));
}

#[test]
fn a_signal_that_is_ignored_stays_so_in_the_program() {
    needs_mounts!();
    let place = Place::new();
    let mut shell = place.tool();
    let tool = shell.get_program().to_owned();
    shell = Command::new("sh");
    shell.current_dir(place.files.path()).args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(tool);
    shell.args(["run", "--log"]).arg(place.log()).args(["--", "sh", "-c", "kill -HUP $$; echo alive"]);
    assert_eq!(text(&succeed(&mut shell).stdout), "alive\n");
}

#[test]
fn a_caller_that_ignores_the_end_of_children_gets_the_code() {
    needs_mounts!();
    let place = Place::new();
    let mut shell = Command::new("sh");
    shell.current_dir(place.files.path()).args(["-c", "trap '' CHLD; exec \"$@\"", "sh", UNTORN, "run", "--log"]);
    let output = shell.arg(place.log()).args(["--", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(3), String::new()));
}

/// Starts a run, and returns after the program's first line.
fn started(place: &Place, script: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let command = place.under("atomic", &[], &["sh".as_ref(), "-c".as_ref(), script.as_ref()]);
    let mut tool = at_a_terminal(&command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(tool.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (tool, said)
}

#[test]
fn a_signal_to_the_tool_reaches_the_program() {
    needs_mounts!();
    for (signal, code) in [("TERM", 5), ("HUP", 6)] {
        let place = Place::new();
        let script = "trap 'echo ended > f; exit 5' TERM; trap 'echo ended > f; exit 6' HUP; echo ready; \
                      while :; do sleep 0.01; done";
        let (mut tool, _said) = started(&place, script);
        succeed(Command::new("kill").args(["-s", signal]).arg(tool.id().to_string()));
        assert_eq!(tool.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(place.read("f"), "ended\n", "{signal}");
    }
}

/// A terminal sends the signal to all of its group: the program ends, and the run brings its writes to the file.
#[test]
fn an_interrupt_from_the_terminal_ends_a_run_cleanly() {
    needs_mounts!();
    let place = Place::new();
    // The shell's own `read`: a signal that comes while it starts a program can be lost.
    let script = "exec > f; echo written; echo ready >&3; read line";
    let script = format!("sh -c '{script}' 3>&1");
    let command = place.under("atomic", &["--stats"], &["sh".as_ref(), "-c".as_ref(), script.as_ref()]);
    let mut command = at_a_terminal(&command);
    let command = std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut tool = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _nothing_to_read = tool.stdin.take();
    let mut line = String::new();
    BufReader::new(tool.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process_group(Pid::from_child(&tool), Signal::INT).unwrap();
    let output = tool.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("served 1 file with the log"), "{}", text(&output.stderr));
    assert_eq!(place.read("f"), "written\n");
}

#[test]
fn a_run_ends_with_the_last_of_its_processes() {
    needs_mounts!();
    for mode in MODES {
        let place = Place::new();
        // The child loses its parent at once.
        let script = "(setsid sh -c 'while ! test -e go; do sleep 0.01; done; echo late > late' &) ; exit 3";
        let mut command = place.under(mode, &[], &["sh".as_ref(), "-c".as_ref(), script.as_ref()]);
        let mut tool = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(tool.try_wait().unwrap().is_none(), "{mode}: it ended before its last process");
        // From outside, and seen through the mount.
        fs::write(place.file("go"), "").unwrap();
        assert_eq!(tool.wait().unwrap().code(), Some(3), "{mode}");
        assert_eq!(place.read("late"), "late\n", "{mode}");
    }
}

#[test]
fn writes_are_kept_however_a_program_exits_by_itself() {
    needs_mounts!();
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    for mode in MODES {
        for (end, expected) in [("quick_exit", "first"), ("exit_group", "first"), ("daemon", "first second")] {
            let place = Place::new();
            let output = place.under(mode, &[], &[program.as_os_str(), end.as_ref()]).output().unwrap();
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{mode}, {end}");
            assert_eq!(place.read("f.managed"), expected, "{mode}, {end}");
        }
    }
}

#[test]
fn a_run_may_have_more_processes_than_descriptors() {
    needs_mounts!();
    let place = Place::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$@\"", "sh", UNTORN, "run", "--log"]).arg(place.log());
    shell.args(["--", "sh", "-ec", "for i in $(seq 100); do env echo $i; done > f.managed; wc -l < f.managed"]);
    let output = succeed(shell.current_dir(place.files.path()));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("100\n".to_owned(), String::new()));
}

#[test]
fn a_file_size_limit_of_the_program_is_its_own() {
    needs_mounts!();
    let place = Place::new();
    let script = "trap '' XFSZ; ulimit -f 1; dd if=/dev/zero of=f bs=4096 count=1 2>/dev/null || echo refused";
    let run = place.run("atomic", &[], &["sh", "-c", script]).expect(0);
    assert_eq!(run.text(), "refused\n");
    assert!(fs::metadata(place.file("f")).unwrap().len() <= 1024);
}

#[test]
fn a_closed_standard_output_is_told_and_the_report_is_kept() {
    needs_mounts!();
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.under("atomic", &["--json"], &["true".as_ref()]).stdout(writer).output().unwrap();
    assert_eq!(output.status.signal(), None);
    assert!(text(&output.stderr).contains("served 0 files"), "{}", text(&output.stderr));
}
