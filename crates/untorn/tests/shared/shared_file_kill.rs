//! Processes that have one `AtomicFile` open at once and append to one list, killed at any time: nothing is torn, and
//! nothing that was acknowledged is lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Rng, limit, memory_dir, seed};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_testing::{again, sibling};

const LEN: u64 = 40 * 4096;
const ENGINES: [EngineKind; 2] = [EngineKind::Reflection, EngineKind::HybridLog];
const DURABILITIES: [Durability; 2] = [Durability::PerWrite, Durability::PerCommit];

/// What a process started by these tests is to do, and with which file.
const ROLE: &str = "UNTORN_TEST_SHARER";

fn shared(durability: Durability) -> Options {
    Options::new().shared(true).durability(durability)
}

fn create(dir: &Path, engine: EngineKind, durability: Durability) -> PathBuf {
    let path = dir.join("data");
    Options::new().engine(engine).durability(durability).create(&path, LEN).unwrap().close().unwrap();
    path
}

fn start(test: &str, role: String) -> Child {
    again(test).env(ROLE, role).stdout(Stdio::piped()).spawn().unwrap()
}

/// Where entry `number` of the list is; each is written over a page boundary.
fn entry(number: u64) -> u64 {
    4096 * (1 + number % 30) - 8
}

const HEAD: u64 = 39 * 4096;

/// Not a test of its own: a process that appends to a list until it is killed, one entry after the other in a total
/// order of all processes, which a lock on a file beside makes.
///
/// Entry n is n twice, across a page boundary, and written together with the head, which is n. So whoever has the
/// lock finds the entries before the head as they were written; and what one process acknowledged no later one may
/// miss.
#[test]
fn a_process_that_appends() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (durability, path) = role.split_once(' ').unwrap();
    let durability: Durability = durability.parse().unwrap();
    let turns = File::open(Path::new(path).with_extension("turns")).unwrap();
    let join = || loop {
        match shared(durability).open(path) {
            // Where a machine has much else to do it may not have been let in for as long as it had patience.
            Err(Error::InUse { .. }) => {}
            opened => return opened.unwrap(),
        }
    };
    let mut file = join();
    let (mut out, mut last, mut longest) = (std::io::stdout(), 0, Duration::ZERO);
    loop {
        turns.lock().unwrap();
        let began = Instant::now();
        let appended = append(&file, &mut last).and_then(|next| {
            file.sync()?;
            Ok(next)
        });
        longest = longest.max(began.elapsed());
        turns.unlock().unwrap();
        match appended {
            Ok(next) => writeln!(out, "appended {next} {}", longest.as_micros()).unwrap(),
            Err(Error::Poisoned { .. }) if durability == Durability::PerCommit => {
                drop(file);
                file = join();
                // What it saw last may have been lost; what was acknowledged may not, which the parent sees to.
                last = 0;
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        out.flush().unwrap();
    }
}

fn append(file: &AtomicFile, last: &mut u64) -> untorn::Result<u64> {
    let head = check(file)?;
    assert!(head >= *last, "{last} was there, and now the head is {head}");
    let next = head + 1;
    let mut tx = file.transaction();
    tx.write_at(&[next.to_le_bytes(), next.to_le_bytes()].concat(), entry(next))?;
    tx.write_at(&next.to_le_bytes(), HEAD)?;
    tx.commit()?;
    *last = next;
    Ok(next)
}

/// The head, if the whole list is what it says.
fn check(file: &AtomicFile) -> untorn::Result<u64> {
    let mut word = [0; 8];
    file.read_at(&mut word, HEAD)?;
    let head = u64::from_le_bytes(word);
    for number in (head.saturating_sub(28)..=head).filter(|number| *number > 0) {
        let mut both = [0; 16];
        file.read_at(&mut both, entry(number))?;
        let wanted = [number.to_le_bytes(), number.to_le_bytes()].concat();
        assert_eq!(both[..], wanted[..], "entry {number} of {head}");
    }
    Ok(head)
}

/// Hears what a process appended, until it ends, and notes the highest number, and how long the longest append took:
/// some 32 calls, with what is checked, each of which may have to wait for two processes to get a CPU.
fn hear(child: &mut Child, highest: &Arc<AtomicU64>, longest: &Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (highest, longest) = (Arc::clone(highest), Arc::clone(longest));
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let Some((number, micros)) = line.strip_prefix("appended ").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            highest.fetch_max(number.parse().unwrap(), Ordering::SeqCst);
            longest.fetch_max(micros.parse().unwrap(), Ordering::SeqCst);
        }
    })
}

#[test]
fn ordered_writes_are_neither_torn_nor_lost_by_random_kills() {
    let _limit = limit(300, "processes that are killed");
    let seed = seed("shared_file");
    let mut rng = Rng::new(seed);
    for (engine, durability) in
        ENGINES.into_iter().flat_map(|engine| DURABILITIES.map(|durability| (engine, durability)))
    {
        let dir = memory_dir();
        let path = create(dir.path(), engine, durability);
        File::create(path.with_extension("turns")).unwrap();
        let (highest, longest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let child = || start(sibling!("a_process_that_appends"), format!("{durability} {}", path.display()));
        let (mut children, mut ears) = (Vec::new(), Vec::new());
        let rounds = 12;
        for round in 0..rounds {
            // New ones join while the others go on.
            while children.len() < 4 {
                let mut new = child();
                ears.push(hear(&mut new, &highest, &longest));
                children.push(new);
            }
            let before = highest.load(Ordering::SeqCst);
            while highest.load(Ordering::SeqCst) < before + 40 {
                for child in &mut children {
                    assert!(child.try_wait().unwrap().is_none(), "one ended by itself: {engine} {durability}");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // One, and every fourth time all, so that recovery is by nobody who knew them.
            let count = if round % 4 == 3 { children.len() } else { 1 };
            for _ in 0..count {
                let mut victim = children.swap_remove(rng.below(children.len() as u64) as usize);
                victim.kill().unwrap();
                victim.wait().unwrap();
            }
            if children.is_empty() {
                ears.drain(..).for_each(|ear| ear.join().unwrap());
                let acknowledged = highest.load(Ordering::SeqCst);
                let file = AtomicFile::open(&path).unwrap();
                let head = check(&file).unwrap();
                assert!(
                    head >= acknowledged,
                    "{acknowledged} was acknowledged, {head} is there: {engine} {durability}"
                );
                file.close().unwrap();
            }
        }
        eprintln!(
            "{engine}, durable at each {durability}: {} appended, {rounds} kills, longest append {} us",
            highest.load(Ordering::SeqCst),
            longest.load(Ordering::SeqCst)
        );
    }
}
