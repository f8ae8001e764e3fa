//! `untorn run`: programs that map managed files. Their stores and their writes are durable together, or not at all.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::UNTORN;
use crate::common::layered::{ended, files, layer, run_in, same_as_bare, succeed, text, under};
use untorn_testing::programs::compile;

const PAGE: usize = 4096;
const PLACES: usize = 64;

/// Whether a program here is told of stores: it is refused what would need that otherwise.
fn are_stores_heard_of() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("stores.c", dir.path(), &[]);
    let output = under(dir.path(), layer(), &[program.as_os_str(), "exit".as_ref()]).output().unwrap();
    if output.status.code() == Some(2) {
        untorn_testing::skipped!("no userfaultfd here");
    }
    output.status.code() != Some(2)
}

#[test]
fn a_mapping_is_what_it_is_bare() {
    if are_stores_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("mapped.c", dir.path(), &[]);
        let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
        if rustix::process::geteuid().is_root() || allowed.trim() == "1" {
            same_as_bare(&[program.as_os_str(), "kernel".as_ref()]);
        } else {
            same_as_bare(&[program.as_os_str()]);
        }
    }
}

#[test]
fn threads_and_children_lose_nothing_of_what_they_store_at_once() {
    if are_stores_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        same_as_bare(&[compile("storm.c", dir.path(), &[]).as_os_str()]);
    }
}

#[test]
fn stores_during_a_remap_at_the_same_address_are_not_missed() {
    if are_stores_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("inplace.c", dir.path(), &[]);
        let output = succeed(&mut under(dir.path(), layer(), &[program.as_os_str()]));
        assert_eq!(text(&output.stdout), "lost: 0\n");
    }
}

/// Where the mapping is about to be, what is mapped cannot be stored to, and has nothing to be protected from.
#[test]
fn a_truncation_during_a_remap_of_a_read_only_mapping_works() {
    if are_stores_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("halfway.c", dir.path(), &[]);
        let output = under(dir.path(), layer(), &[program.as_os_str()]).output().unwrap();
        assert_eq!(text(&output.stdout), "synced: 0\n", "{}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(137));
        let bytes = fs::read(dir.path().join("f.managed")).unwrap();
        assert_eq!((bytes.len(), bytes[2 * PAGE], bytes[3 * PAGE]), (4 * PAGE, b'y', 0));
    }
}

#[test]
fn a_remap_waits_for_no_thread_that_lacks_a_descriptor() {
    if are_stores_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("crowded.c", dir.path(), &[]);
        let output = succeed(&mut under(dir.path(), layer(), &[program.as_os_str()]));
        assert_eq!(text(&output.stdout), "mapped: 1\n");
    }
}

#[test]
fn a_child_has_its_parents_mapping_or_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("heirs.c", dir.path(), &[]);
    let said = |how: &str| text(&succeed(&mut under(dir.path(), layer(), &[program.as_os_str(), how.as_ref()])).stdout);
    assert_eq!(said("forbidden"), "loads: 'x'\na writable one: Operation not supported\n");
    if are_stores_heard_of() {
        for how in ["late", "few"] {
            assert_eq!(said(how), "with descriptors to spare: 'x'\nwithout: Killed\n", "{how}");
        }
    }
}

/// The kernel says nothing of what such a process has open and mapped, but of its other threads'.
#[test]
fn a_process_without_its_first_thread_is_served_as_usual() {
    if !are_stores_heard_of() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile("leaderless.c", dir.path(), &[]);
    same_as_bare(&[program.as_os_str()]);
    let at = tempfile::tempdir().unwrap();
    let output = under(at.path(), layer(), &[program.as_os_str(), "kill".as_ref()]).output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{}", text(&output.stderr));
    let found = files(at.path());
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["f.managed", "g.managed"]);
    assert_eq!((&found[0].1[..6], &found[0].1[PAGE..PAGE + 7]), (&b"first\0"[..], &b"second\0"[..]));
    assert_eq!(found[1].1, b"", "what was never synced was kept, so nobody managed the file");
}

/// The one in the place of which another one is made is no more.
#[test]
fn mappings_that_replace_one_another_leave_nothing_behind() {
    if !are_stores_heard_of() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile("window.c", dir.path(), &[]);
    same_as_bare(&[program.as_os_str()]);
    // With what the first ones leave, the launcher has no descriptors for the last ones.
    let script = format!("ulimit -n 256; exec \"$0\" run --match '*.managed' --layer {:?} -- {program:?}", layer());
    let mut run = Command::new("sh");
    run.current_dir(dir.path()).args(["-c", &script, UNTORN]);
    assert_eq!(text(&succeed(&mut run).stdout), "1000 mappings, synced 0\n");
}

#[test]
fn stores_are_kept_only_by_a_sync_or_the_programs_own_end() {
    if !are_stores_heard_of() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile("stores.c", dir.path(), &[]);
    for (end, code, expected) in [
        ("kill", 137, ["second", "first"]),
        ("vanish", 137, ["third", "third"]),
        ("exit", 7, ["third", "third"]),
        ("exec", 0, ["third", "third"]),
        ("unmap", 137, ["third", "third"]),
    ] {
        let at = ended(&[program.as_os_str(), end.as_ref()], code);
        let bytes = fs::read(at.path().join("f.managed")).unwrap();
        let word = |page: usize| text(bytes[page * PAGE..].split(|byte| *byte == 0).next().unwrap());
        assert_eq!([word(0), word(5)], expected, "{end}");
        assert_eq!(bytes.len(), PLACES * PAGE);
        assert_eq!(files(at.path()).len(), 1, "a sidecar was left behind: {end}");
    }
}

#[test]
fn stores_of_a_killed_process_vanish_and_co_writers_get_eio() {
    if !are_stores_heard_of() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile("stores.c", dir.path(), &[]);
    let output = succeed(&mut under(dir.path(), layer(), &[program.as_os_str(), "child".as_ref()]));
    let expected = "alone: seen second '', synced 0\ntogether: synced -1 EIO\nseen: Bus error\n";
    assert_eq!(text(&output.stdout), expected);
    let bytes = fs::read(dir.path().join("f.managed")).unwrap();
    assert_eq!(&bytes[..7], b"second\0");
    assert_eq!(&bytes[PAGE..PAGE + 7], b"parent\0");
    assert_eq!(bytes[2 * PAGE], 0);
}

/// The number up to which all that was stored in order is in the file, and nothing later.
fn in_order(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    assert_eq!(bytes.len(), PLACES * PAGE);
    let number = |place: usize| u64::from_ne_bytes(bytes[place * PAGE..place * PAGE + 8].try_into().unwrap());
    let last = (0..PLACES).map(number).max().unwrap();
    for place in 0..PLACES as u64 {
        // The latest one up to the last that belongs there.
        let wanted = (last + 1).saturating_sub(PLACES as u64)..=last;
        let wanted = wanted.into_iter().find(|number| number % PLACES as u64 == place).unwrap_or(0);
        assert_eq!(number(place as usize), wanted, "place {place}, when the last one stored was {last}");
    }
    last
}

/// Kills all processes of a run at once, some time after it has said that numbers up to this one were synced.
fn killed_amid(program: &Path, how: &str, reached: u64, patience: Duration) -> (u64, u64) {
    let at = tempfile::tempdir().unwrap();
    let mut command = under(at.path(), layer(), &[program.as_os_str(), how.as_ref()]);
    // One that is killed leaves its socket behind.
    let aside = tempfile::tempdir().unwrap();
    let mut run = command.env("TMPDIR", aside.path()).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stdout.take().unwrap()).lines();
    let first =
        said.by_ref().map(|line| line.unwrap().parse::<u64>().unwrap()).find(|synced| *synced >= reached).unwrap();
    thread::sleep(patience);
    let group = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    run.wait().unwrap();
    // Until the last of them has gone.
    let synced = said.map_while(Result::ok).filter_map(|line| line.parse().ok()).max();
    succeed(Command::new(UNTORN).arg("recover").arg(at.path().join("f.managed")));
    (synced.unwrap_or(first), in_order(&at.path().join("f.managed")))
}

#[test]
fn stores_of_processes_killed_together_form_a_consistent_cut() {
    if !are_stores_heard_of() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile("stores.c", dir.path(), &[]);
    let mut latest = 0;
    for kill in 0..10 {
        for how in ["stores", "calls"] {
            // However slow a machine is, the later ones are killed when every place was stored to more than twice.
            let (synced, found) = killed_amid(&program, how, 20 * kill, Duration::from_millis(3 + 7 * kill));
            assert!(found >= synced, "{found} was kept, and {synced} was synced");
            latest = latest.max(found);
        }
    }
    assert!(latest > 2 * PLACES as u64, "no place was stored to twice: {latest}");
}

#[test]
fn the_report_counts_mappings_stores_and_refused_calls() {
    untorn_testing::needs!("python3");
    if !are_stores_heard_of() {
        return;
    }
    let script = "
import mmap, os
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 3 * 4096)
with mmap.mmap(fd, 0) as both, mmap.mmap(fd, 4096, prot=mmap.PROT_READ):
    both[0] = both[1] = both[8192] = 1
    both.flush()
    both[0] = 2
    # Beyond the end, within the last page: no part of the file.
    os.ftruncate(fd, 3 * 4096 - 100)
    both[3 * 4096 - 50] = 3
    os.ftruncate(fd, 3 * 4096)
    assert os.pread(fd, 100, 3 * 4096 - 100) == bytes(100) == both[-100:]
    try:
        both.madvise(9, 0, 4096)
        print('removed')
    except OSError as error:
        print(error.errno)
";
    let dir = tempfile::tempdir().unwrap();
    let mut run = run_in(dir.path(), layer(), &["--json", "--match", "*.managed"]);
    let output = succeed(run.args(["python3", "-c", script]));
    let said = text(&output.stdout);
    let (said, json) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said, "95");
    let report: Value = serde_json::from_str(json).unwrap();
    let file = &report["files"][0];
    assert_eq!((file["mappings"].as_u64(), file["stores"].as_u64()), (Some(2), Some(4)), "{file}");
    assert_eq!(report["refused"][0][0]["call"], "madvise", "{report}");
    assert!(report["refused"][0][0]["path"].as_str().unwrap().ends_with("/f.managed"), "{report}");
    let output =
        succeed(&mut under(dir.path(), layer(), &["sh".as_ref(), "-c".as_ref(), "od -An -tx1 -N2 f.managed".as_ref()]));
    assert_eq!(text(&output.stdout), " 02 01\n");
}
