//! `untorn run`: unmodified programs do what they do without it, lose nothing that they synced, and tear nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use untorn_testing::programs::{GIT, REDIRECTIONS, TRANSACTIONS, USUAL_TOOLS, Victim, each_call, last_transaction};

use crate::common::UNTORN;
use crate::common::layered::{
    assert_left, by_nobody, discarded, ended, files, layer, run_in, same_as_bare, shell, succeed, text, under,
};
use untorn_testing::programs::{compile, program};

#[test]
fn every_call_does_what_it_does_bare() {
    let dir = tempfile::tempdir().unwrap();
    each_call(dir.path(), same_as_bare);
}

/// Where that is blind, nothing that is compared above shows that nothing slips past.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_test_build_reports_calls_that_bypass_the_layer() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = compile("past.c", dir.path(), &[]);
    let report = dir.path().join("escapes");
    succeed(
        under(at.path(), untorn_testing::built_oracle(), &[program.as_os_str()]).env("UNTORN_PRELOAD_ORACLE", &report),
    );
    let said = fs::read_to_string(&report).unwrap();
    let calls: Vec<&str> = said.lines().map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    // newfstatat, statx, ioctl twice, fsync.
    assert_eq!(calls, ["0262", "0332", "0016", "0016", "0074"], "{said}");
}

#[test]
fn redirections_and_pipelines_do_what_they_do_bare() {
    shell(REDIRECTIONS);
}

#[test]
fn the_usual_tools_do_what_they_do_bare() {
    shell(&format!("BLOCK=7\n{USUAL_TOOLS}"));
}

#[test]
fn a_glob_for_everything_chooses_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut untorn = run_in(dir.path(), layer(), &["--stats", "--match", "/**"]);
    let script = "read word rest < /proc/version; echo $word; echo null > /dev/null; echo text > f; cat f";
    let output = succeed(untorn.args(["sh", "-ec", script]));
    assert_eq!(text(&output.stdout), "Linux\ntext\n");
    let said = text(&output.stderr);
    assert!(said.contains("/f: opened 2 times") && !said.contains("/proc/") && !said.contains("/dev/"), "{said}");
}

#[test]
fn git_does_what_it_does_bare() {
    shell(GIT);
}

#[test]
fn a_kill_keeps_synced_writes_and_nothing_later() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("epochs.c", dir.path(), &[]);
    // What ends it, and what is found then: killed amid the third epoch, amid it after a fork, or by its own will.
    for (end, expected) in [("kill", "first second"), ("abort", "first second"), ("exit", "first second third")] {
        let at = tempfile::tempdir().unwrap();
        let output = under(at.path(), layer(), &[program.as_os_str(), end.as_ref()]).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(if end == "exit" {
                7
            } else if end == "kill" {
                137
            } else {
                134
            })
        );
        assert_eq!(text(&fs::read(at.path().join("f.managed")).unwrap()), expected, "after {end}");
        let told = if end == "exit" { String::new() } else { discarded(at.path(), "f.managed") };
        assert_eq!(text(&output.stderr), told, "after {end}");
        assert_eq!(files(at.path()).len(), 1, "a sidecar was left behind");
    }
}

#[test]
fn a_survivor_gets_eio_if_a_kill_takes_its_bytes_too() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("epochs.c", dir.path(), &[]);
    let at = tempfile::tempdir().unwrap();
    let output = succeed(&mut under(at.path(), layer(), &[program.as_os_str(), "child".as_ref()]));
    assert_eq!(text(&output.stdout), "alone: seen 12, synced 0\ntogether: synced -1 EIO\n");
    assert_eq!(text(&fs::read(at.path().join("f.managed")).unwrap()), "first second");
}

/// Whoever dies has let go of its files before anybody can tell that it died.
#[test]
fn writes_of_a_dying_process_are_lost_when_its_child_ends() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("dying.c", dir.path(), &[]);
    let output = succeed(&mut under(dir.path(), layer(), &[program.as_os_str()]));
    assert_eq!(text(&output.stdout), "kept: 10 of 10\n");
}

/// So it is when a lock is free that it had, and while it cannot be told at all since somebody traces it.
#[test]
fn writes_of_a_dying_process_are_not_seen_by_observers() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("heard.c", dir.path(), &[]);
    for (how, expected, kept) in [("lock", "kept: 10 of 10\n", b"kept 9\0"), ("trace", "kept: 1 of 1\n", b"kept 0\0")] {
        let at = tempfile::tempdir().unwrap();
        let output = succeed(&mut under(at.path(), layer(), &[program.as_os_str(), how.as_ref()]));
        assert_eq!(text(&output.stdout), expected, "{how}");
        assert_eq!(fs::read(at.path().join("f.managed")).unwrap(), kept, "{how}");
    }
}

#[test]
fn writes_are_kept_however_a_program_exits_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    for (end, expected) in [("quick_exit", "first"), ("exit_group", "first"), ("daemon", "first second")] {
        assert_left(ended(&[program.as_os_str(), end.as_ref()], 0).path(), &[("f.managed", expected)]);
    }
}

#[test]
fn sync_by_a_program_without_managed_files_commits_all() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    assert_left(ended(&[program.as_os_str(), "synced".as_ref()], 137).path(), &[("f.managed", "first")]);
}

/// Which it does by a filter of the program's own (seccomp), so nothing stands between it and the kernel that could
/// be wrong.
#[test]
fn syncs_of_what_is_not_managed_come_to_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("reaches.c", dir.path(), &[]);
    let log = dir.path().join("log");
    let boost = ["--mode", "boost", "--log-size", "4M", "--log", log.to_str().unwrap()];
    for (options, demoted) in [(&["--mode", "atomic"][..], 0), (&boost, 1)] {
        let at = tempfile::tempdir().unwrap();
        let mut untorn = run_in(at.path(), layer(), &[options, &["--match", "*.managed"]].concat());
        if !untorn::doctor(dir.path()).unwrap().durable {
            // Where files for tests are in memory, so is the log.
            untorn.env("UNTORN_ASSUME_PMEM", "1");
        }
        let said = text(&succeed(untorn.arg(&program)).stdout);
        let expected = format!(
            "fsync(managed): 0\nfdatasync(managed): 0\nfsync(plain): 1\nfdatasync(plain): 1\nfsync(directory): 1\n\
             syncfs(plain): 1\nsyncfs(directory): 1\nsync(): 1\nfsync(demoted): {demoted}\n\
             fdatasync(demoted): {demoted}\n"
        );
        assert_eq!(said, expected, "{options:?}");
    }
}

/// As the library of C++ keeps what it makes `std::cin` of.
#[test]
fn a_stream_that_a_library_has_kept_is_read_as_it_is_bare() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile("keeper.c", dir.path(), &["-shared", "-fPIC"]);
    for optimised in ["-O0", "-O2"] {
        let program = compile("kept.c", dir.path(), &[optimised, "-Wl,--no-as-needed", library.to_str().unwrap()]);
        let input = r"one line\nfourthird line\nup to; 42 word and the rest\n";
        shell(&format!("printf '{input}' > in.managed; {} < in.managed", program.display()));
    }
}

#[test]
fn wide_characters_are_read_and_written_as_they_are_bare() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile("keeper.c", dir.path(), &["-shared", "-fPIC"]);
    let (no_more, kept) = ("-Wl,--no-as-needed", library.to_str().unwrap());
    for options in [&["-O0"][..], &["-O2", "-D_FORTIFY_SOURCE=2"], &["-O1", "-DOLD"], &["-O1", "-DKEPT", no_more, kept]]
    {
        let program = compile("wide.c", dir.path(), options);
        same_as_bare(&[program.as_os_str(), "files".as_ref()]);
        let input = r"\303\251\342\202\254abc line \303\251\n42 word 17 \303\251nd and rest";
        shell(&format!(
            "printf '{input}' > in.managed; {program} standard < in.managed > out.managed 2> err.managed; \
             cat told out.managed err.managed later.managed; rm later.managed; \
             {program} standard < in.managed | cat; cat told later.managed",
            program = program.display()
        ));
    }
}

/// By programs that read and write wide characters only, where they are installed.
#[test]
fn tools_for_wide_characters_do_what_they_do_bare() {
    shell(
        r"export LC_ALL=C.UTF-8; printf 'abc\303\251\nx\bxy\n12345\n' > a.managed; for how in 'rev a.managed' \
          'ul a.managed' 'rev < a.managed' 'colrm 2 3 < a.managed' 'col < a.managed' \
          'col -b < a.managed' 'colcrt a.managed'; do \
          eval $how || echo $?; eval $how > b.managed || echo $?; cat b.managed; done",
    );
}

#[test]
fn a_kill_returns_a_renamed_file_to_its_last_sync() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    for (end, expected) in
        [("renamed", &[("g.managed", "first")][..]), ("removed", &[]), ("replaced", &[("f.managed", "new")])]
    {
        assert_left(ended(&[program.as_os_str(), end.as_ref()], 137).path(), expected);
    }
}

/// By one who is not root: what is behind the log has to be found again, and its name synced.
#[test]
fn a_file_in_an_unreadable_directory_is_left_to_the_kernel() {
    untorn_testing::needs!("python3");
    let dir = tempfile::tempdir().unwrap();
    let drop = dir.path().join("drop");
    fs::create_dir(&drop).unwrap();
    fs::set_permissions(&drop, fs::Permissions::from_mode(0o333)).unwrap();
    let program =
        "import os; f = os.open('../drop/f', os.O_CREAT | os.O_WRONLY, 0o644); os.write(f, b'dropped'); os.fsync(f)";
    let mut command = by_nobody(dir.path(), &["--mode", "boost", "--log", "log", "--log-size", "1M", "--stats"]);
    let output = succeed(command.args(["--", "python3", "-c", program]));
    fs::set_permissions(&drop, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read(drop.join("f")).unwrap(), b"dropped");
    assert!(text(&output.stderr).contains("no permission to read the file's directory"), "{}", text(&output.stderr));
}

/// By one who is not root: a file may be created with rights that do not let its owner open it a second time, as git
/// does.
#[test]
fn a_file_its_owner_cannot_reopen_is_served_to_its_holders() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("ends.c", dir.path(), &[]);
    let at = dir.path().join("at");
    let ordinary = |end: &str| {
        let mut command = by_nobody(dir.path(), &["--match", "*.managed"]);
        command.env("TMPDIR", &at).arg("--").arg(&program).arg(end).output().unwrap()
    };
    for (end, code, expected) in [("quick_exit", 0, "first"), ("killed", 137, "first"), ("daemon", 0, "first second")] {
        let output = ordinary(end);
        let told = if end == "killed" { discarded(&at, "f.managed") } else { String::new() };
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(code), told), "{end}");
        assert_left(&at, &[("f.managed", expected)]);
        let mode = fs::metadata(at.join("f.managed")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o444, "{end}");
        fs::remove_file(at.join("f.managed")).unwrap();
    }
}

#[test]
fn a_run_may_have_more_processes_than_descriptors() {
    let at = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]);
    shell.arg(UNTORN).args(["run", "--match", "*.managed", "--layer"]).arg(layer()).args(["--", "sh", "-ec"]);
    shell.arg("for i in $(seq 100); do env echo $i; done > f.managed; wc -l < f.managed");
    let output = succeed(shell.current_dir(at.path()));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("100\n".to_owned(), String::new()));
}

#[test]
fn many_that_open_a_file_at_once_all_get_it() {
    shell(
        "for round in 1 2 3; do for i in $(seq 20); do (echo $i >> f.managed) & done; wait; done; sort -n f.managed; \
         rm f.managed",
    );
}

#[test]
fn a_signal_that_is_ignored_stays_so_in_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap '' HUP; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.current_dir(dir.path()).args(["-c", script, "sh", UNTORN, "run", "--layer"]).arg(layer());
    let output = succeed(shell.args(["--", "sh", "-c", "kill -HUP $$; echo alive"]));
    assert_eq!(text(&output.stdout), "alive\n");
}

#[test]
fn o_atomic_chooses_a_file_without_a_glob() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("epochs.c", dir.path(), &[]);
    for (flag, expected) in [("o-atomic", "first second"), ("kill", "first second third")] {
        let at = tempfile::tempdir().unwrap();
        let mut untorn = run_in(at.path(), layer(), &[]);
        assert_eq!(untorn.arg(&program).arg(flag).output().unwrap().status.code(), Some(137));
        assert_eq!(text(&fs::read(at.path().join("f.managed")).unwrap()), expected);
    }
}

/// Kills a program that commits transactions, at instants that no one chose, and judges the file with a program that
/// is not under untorn. Without a journal nothing but untorn makes a transaction whole.
#[test]
fn sqlite_without_a_journal_survives_its_kills() {
    untorn_testing::needs!("python3");
    let dir = tempfile::tempdir().unwrap();
    let kills = std::env::var("UNTORN_KILLS").ok().and_then(|kills| kills.parse::<u64>().ok()).unwrap_or(12);
    for (number, journal) in (0..kills).map(|number| (number, if number % 3 == 2 { "delete" } else { "off" })) {
        let mut victim = Victim::start(&[TRANSACTIONS, "app.managed", journal, "normal"], |program| {
            let mut command = under(dir.path(), layer(), program);
            // One that is killed leaves its socket behind.
            command.env("TMPDIR", dir.path());
            command
        });
        // After so many transactions, and somewhere within the next ones.
        victim.await_lines((number * 7919 % 23) as usize + 1);
        thread::sleep(Duration::from_micros(number * 7919 % 97 * 100));
        // Now and then the one that serves is killed instead: the program finds every call failing, and ends.
        let serves = number % 4 == 1;
        let whom = if serves { victim.server() } else { victim.process.clone() };
        let (acknowledged, ended) = victim.killed(&[&whom]);
        assert_eq!(ended.code(), if serves { None } else { Some(137) });
        if serves {
            // The kill left the sidecar behind. The next run would recover the file; here a settle makes it plain.
            succeed(Command::new(UNTORN).args(["settle", "app.managed"]).current_dir(dir.path()));
        }
        let found = last_transaction(dir.path(), "app.managed");
        assert!(found >= acknowledged, "transaction {acknowledged} was acknowledged, and {found} is the last there is");
        assert!(found <= acknowledged + 1, "transaction {found} was never begun");
    }
}

#[test]
fn python_reads_and_writes_as_it_does_bare() {
    untorn_testing::needs!("python3");
    same_as_bare(&["python3".as_ref(), program("io.py").as_os_str()]);
}
