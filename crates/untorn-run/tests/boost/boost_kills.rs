//! Unmodified programs with a log in front of their files lose nothing that was acknowledged, whoever is killed.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use untorn_testing::programs::{TRANSACTIONS, Victim, last_transaction};

use crate::common::{BEGIN, Place, Talk, built, released, replayed, succeed, text};

/// How often each test kills: `UNTORN_KILLS`, or once in each of its ways.
fn kills() -> usize {
    std::env::var("UNTORN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(8)
}

/// So that repeated kills hit other instants.
fn wait_a_little(number: usize) {
    thread::sleep(Duration::from_micros((number / 8 * 7919 % 97 * 100) as u64));
}

/// Writes blocks of one byte each, changes the length now and then, and says after each call which that was.
const WRITER: &str = "
import os, random
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
random.seed(7)
for number in range(1, 100000):
    at, len = random.randrange(60000), random.randrange(1, 9000)
    if number % 10 == 0:
        os.ftruncate(fd, at)
    else:
        os.pwrite(fd, bytes([number % 256]) * len, at)
    os.write(1, b'%d\\n' % number)
";

/// What the file is after so many calls of the writer: asked of Python, whose random numbers they are.
fn after(calls: u64) -> Vec<u8> {
    let model = format!(
        "
import random, sys
random.seed(7)
file = bytearray()
for number in range(1, {calls} + 1):
    at, len = random.randrange(60000), random.randrange(1, 9000)
    if number % 10 == 0:
        del file[at:]
        file.extend(bytes(at - file.__len__()))
    else:
        file.extend(bytes(max(0, at + len - file.__len__())))
        file[at:at + len] = bytes([number % 256]) * len
sys.stdout.buffer.write(file)
"
    );
    succeed(Command::new("python3").args(["-c", &model])).stdout
}

/// Kills the program, or the process that serves it, after so many calls and somewhere within the next ones, and
/// looks at the file after a replay.
#[test]
fn acknowledged_writes_survive_a_kill_and_a_replay() {
    untorn_testing::needs!("python3");
    for number in 0..kills() {
        let calls = [1, 7, 40, 90, 150, 230][number % 6];
        let place = Place::new();
        let mut victim = Victim::start(&[WRITER], |program| place.under(&built().layer, program));
        victim.await_lines(calls);
        wait_a_little(number);
        let serves = number % 2 == 0;
        let whom = if serves { victim.server() } else { victim.process.clone() };
        let (acknowledged, ended) = victim.killed(&[&whom]);
        assert_eq!(ended.code(), if serves { None } else { Some(137) });
        let replay = replayed(&place);
        assert!(replay.is_complete());
        assert!(replayed(&place).is_complete());
        let found = fs::read(place.file("f.managed")).unwrap();
        // The call that was under way is there or not.
        let states = [after(acknowledged), after(acknowledged + 1)];
        assert!(
            states.contains(&found),
            "{} bytes are the state after neither {acknowledged} calls nor one more",
            found.len()
        );
    }
}

#[test]
fn sqlite_loses_no_transaction_to_a_kill() {
    untorn_testing::needs!("python3");
    let journals = ["delete", "truncate", "wal", "persist", "wal", "delete", "truncate", "delete"];
    for number in 0..kills() {
        let journal = journals[number % journals.len()];
        let place = Place::new();
        // Where it is not exclusive, the journal is opened and closed, or removed, with each transaction.
        let locking = if number % journals.len() < 4 { "exclusive" } else { "normal" };
        let mut victim = Victim::start(&[TRANSACTIONS, "app.managed", journal, locking], |program| {
            place.under(&built().layer, program)
        });
        victim.await_lines(number % 6 * 5 + 4);
        wait_a_little(number);
        // Now and then the one that serves goes first. A program whose files are all plain by then would not even
        // notice.
        let (launcher, process) = (victim.server(), victim.process.clone());
        let both = if number % 2 == 0 { [&launcher, &process] } else { [&process, &launcher] };
        let (acknowledged, _) = victim.killed(&both.map(String::as_str));
        assert!(replayed(&place).is_complete());
        let found = last_transaction(place.files.path(), "app.managed");
        assert!(found == acknowledged || found == acknowledged + 1, "{journal}: {found}, and {acknowledged} was said");
    }
}

#[test]
fn the_next_run_replays_before_its_program_opens_a_file() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let mut talk =
        Talk::start(&place, &format!("{BEGIN}print('written'); sys.stdin.readline(); os.write(fd, b'never')"));
    talk.hear("written");
    talk.child.kill().unwrap();
    talk.child.wait().unwrap();
    // The program that was served by it is told by its next call, and ends.
    talk.say();
    assert!(talk.from.next().is_none());
    released(&place);
    let output = succeed(&mut place.under(&built().layer, &["cat".as_ref(), "f.managed".as_ref()]));
    assert_eq!(text(&output.stdout), "first");
}
