//! [`SharedMap`] against a plain byte array, and the one of the last commit: processes that store, load, commit, roll
//! back, grow the file, come, leave and are killed, one step at a time, whoever serves.
//!
//! What they do at the same time is for `shared_map.rs` and the tests in the crate.

use std::path::Path;

use crate::common::members::{Member, obey, sum};
use crate::common::{Rng, limit, memory_dir, pattern, seed};
use untorn::shared::SharedMap;
use untorn::{AtomicMap, Options};
use untorn_testing::sibling;

/// What a process that is started by these tests runs.
const MEMBER: &str = "UNTORN_TEST_MEMBER";
const FIRST_LEN: usize = 9 * 4096 + 700;
const MAX_LEN: usize = 64 * 4096;
const MOST_MEMBERS: usize = 4;

fn share(path: &Path) -> untorn::Result<SharedMap> {
    Options::new().max_len(MAX_LEN as u64).share_map(path)
}

/// Not a test of its own: a process that shares the map.
#[test]
fn a_member() {
    let Some(path) = std::env::var_os(MEMBER) else { return };
    let map = share(Path::new(&path)).unwrap();
    obey(format!("len {}", map.len()), |verb, numbers| match (verb, numbers) {
        ("write", &[at, len, seed]) => {
            map.write_at(&pattern(len as usize, seed), at).unwrap();
            "done".to_owned()
        }
        ("read", &[at, len]) => {
            let mut bytes = vec![0; len as usize];
            map.read_at(&mut bytes, at).unwrap();
            sum(&bytes)
        }
        ("commit", []) => {
            map.commit().unwrap();
            "done".to_owned()
        }
        ("rollback", []) => {
            map.rollback().unwrap();
            "done".to_owned()
        }
        ("grow", &[len]) => {
            map.grow(len).unwrap();
            format!("len {}", map.len())
        }
        _ => panic!("{verb} {numbers:?} is nothing to do"),
    });
    map.close().unwrap();
}

/// What all see, and what is durable.
struct Model {
    now: Vec<u8>,
    committed: Vec<u8>,
}

struct Run<'a> {
    path: &'a Path,
    rng: Rng,
    model: Model,
    members: Vec<Member>,
    /// What was done, for who studies a failure.
    done: Vec<String>,
}

impl Run<'_> {
    fn range(&mut self) -> (usize, usize) {
        let len = self.model.now.len() as u64;
        let most = [1, 9, 300, 4096, 20_000][self.rng.below(5) as usize];
        let count = 1 + self.rng.below(most);
        let at = self.rng.below(len);
        (at as usize, count.min(len - at) as usize)
    }

    fn ask(&mut self, order: String, expected: &str) {
        let who = self.rng.below(self.members.len() as u64) as usize;
        self.done.push(format!("{who}: {order}"));
        let said = self.members[who].ask(&order);
        assert_eq!(said, expected, "{}", self.done.join("\n"));
    }

    fn join(&mut self) {
        self.done.push("one joins".to_owned());
        let (member, said) = Member::join(sibling!("a_member"), MEMBER, self.path);
        assert_eq!(said, format!("len {}", self.model.now.len()), "{}", self.done.join("\n"));
        self.members.push(member);
    }

    fn go(&mut self, member: Member, killed: bool) {
        self.done.push(if killed { "one is killed" } else { "one leaves" }.to_owned());
        if killed {
            member.kill()
        } else {
            member.leave()
        }
        if self.members.is_empty() {
            self.model.now = self.model.committed.clone();
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => {
                let ((at, len), seed) = (self.range(), self.rng.below(1 << 32));
                self.model.now[at..at + len].copy_from_slice(&pattern(len, seed));
                self.ask(format!("write {at} {len} {seed}"), "done");
            }
            40..65 => {
                let (at, len) = self.range();
                let expected = sum(&self.model.now[at..at + len]);
                self.ask(format!("read {at} {len}"), &expected);
            }
            65..77 => {
                self.model.committed = self.model.now.clone();
                self.ask("commit".to_owned(), "done");
            }
            77..82 => {
                self.model.now = self.model.committed.clone();
                self.ask("rollback".to_owned(), "done");
            }
            82..86 => {
                let len = (self.model.now.len() + 1 + self.rng.below(9000) as usize).min(MAX_LEN);
                self.model.now.resize(len, 0);
                self.model.committed = self.model.now.clone();
                self.ask(format!("grow {len}"), &format!("len {len}"));
            }
            86..91 if self.members.len() < MOST_MEMBERS => self.join(),
            number => {
                let who = self.rng.below(self.members.len() as u64) as usize;
                let member = self.members.swap_remove(who);
                self.go(member, number % 2 == 0);
                if self.members.is_empty() {
                    self.join();
                }
            }
        }
        let all = sum(&self.model.now);
        if self.rng.below(8) == 0 {
            self.ask(format!("read 0 {}", self.model.now.len()), &all);
        }
    }
}

fn agrees(dir: &Path, steps: usize, seed: u64) {
    let path = dir.join("data");
    let first = pattern(FIRST_LEN, seed);
    std::fs::write(&path, &first).unwrap();
    match share(&path) {
        Ok(map) => map.close().unwrap(),
        Err(error @ untorn::Error::Io { .. }) if matches!(error.errno(), 1 | 38) => {
            untorn_testing::skip!("{error}");
        }
        Err(error) => panic!("{error}"),
    }
    let model = Model { now: first.clone(), committed: first };
    let mut run =
        Run { path: &path, rng: Rng::new(seed), model, members: Vec::new(), done: vec![format!("seed {seed}")] };
    run.join();
    for _ in 0..steps {
        run.step();
    }
    // All at once, or one after the other: nobody is left to commit anything.
    let killed = run.rng.below(2) == 0;
    while let Some(member) = run.members.pop() {
        run.go(member, killed);
    }
    if !killed {
        assert!(std::fs::read(&path).unwrap() == run.model.committed, "{}", run.done.join("\n"));
    }
    let map = AtomicMap::open(&path).unwrap();
    assert!(map[..] == run.model.committed[..], "{}", run.done.join("\n"));
    map.close().unwrap();
}

#[test]
fn processes_in_memory_agree_with_a_byte_array() {
    let _limit = limit(300, "processes that share memory, step by step");
    let seed = seed("shared_map_model");
    for number in 0..6 {
        agrees(memory_dir().path(), 250, seed.wrapping_add(number));
    }
}

#[test]
fn processes_on_a_disk_agree_with_a_byte_array() {
    let _limit = limit(300, "processes that share memory, step by step");
    let seed = seed("shared_map_model").rotate_left(32);
    for number in 0..4 {
        agrees(tempfile::tempdir().unwrap().path(), 150, seed.wrapping_add(number));
    }
}
