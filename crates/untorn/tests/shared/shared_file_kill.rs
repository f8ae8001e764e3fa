//! Processes that have one `AtomicFile` open at once and append to one list, killed at any time: nothing is torn, and
//! nothing that was acknowledged is lost.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::shared_file::{DURABILITIES, ENGINES, create, shared};
use crate::common::members::{hear, kill, role, start};
use crate::common::{Rng, limit, memory_dir, seed};
use untorn::{AtomicFile, Durability, Error};
use untorn_testing::sibling;

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
    let Some(role) = role() else { return };
    let (durability, path) = role.to_str().unwrap().split_once(' ').unwrap();
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

/// Notes the highest number that a process appended, and how long the longest append took: some 32 calls, with what is
/// checked, each of which may have to wait for two processes to get a CPU.
fn hear_appends(child: &mut Child, highest: &Arc<AtomicU64>, longest: &Arc<AtomicU64>) -> JoinHandle<()> {
    let (highest, longest) = (Arc::clone(highest), Arc::clone(longest));
    hear(child, "appended ", move |numbers| {
        let &[number, micros] = numbers else { return };
        highest.fetch_max(number, Ordering::SeqCst);
        longest.fetch_max(micros, Ordering::SeqCst);
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
                ears.push(hear_appends(&mut new, &highest, &longest));
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
                kill(children.swap_remove(rng.below(children.len() as u64) as usize));
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
