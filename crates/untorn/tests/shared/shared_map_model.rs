//! [`SharedMap`] against a plain byte array, and the one of the last commit: processes that store, load, commit, roll
//! back, grow the file, come, leave and are killed, one step at a time, whoever serves.
//!
//! What they do at the same time is for `shared_map.rs` and the tests in the crate.

use std::path::Path;

use crate::common::members::{Band, obey, role, sum, unless_forbidden};
use crate::common::{ReadAt, limit, memory_dir, pattern, seed};
use untorn::shared::SharedMap;
use untorn::{AtomicMap, Options};
use untorn_testing::sibling;

const FIRST_LEN: usize = 9 * 4096 + 700;
const MAX_LEN: usize = 64 * 4096;
const MOST_MEMBERS: usize = 4;

fn share(path: &Path) -> untorn::Result<SharedMap> {
    Options::new().max_len(MAX_LEN as u64).share_map(path)
}

/// Not a test of its own: a process that shares the map.
#[test]
fn a_member() {
    let Some(path) = role() else { return };
    let map = share(Path::new(&path)).unwrap();
    obey(format!("len {}", map.len()), |verb, numbers| match (verb, numbers) {
        ("write", &[at, len, seed]) => {
            map.write_at(&pattern(len as usize, seed), at).unwrap();
            "done".to_owned()
        }
        ("read", &[at, len]) => {
            let bytes = map.bytes_at(at, len as usize);
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
    band: Band<'a>,
    model: Model,
}

impl Run<'_> {
    fn range(&mut self) -> (usize, usize) {
        let len = self.model.now.len() as u64;
        let most = [1, 9, 300, 4096, 20_000][self.band.rng.below(5) as usize];
        let count = 1 + self.band.rng.below(most);
        let at = self.band.rng.below(len);
        (at as usize, count.min(len - at) as usize)
    }

    fn join(&mut self) {
        let found = format!("len {}", self.model.now.len());
        self.band.join(&found);
    }

    fn step(&mut self) {
        match self.band.rng.below(100) {
            0..40 => {
                let ((at, len), seed) = (self.range(), self.band.rng.below(1 << 32));
                self.model.now[at..at + len].copy_from_slice(&pattern(len, seed));
                self.band.check(format!("write {at} {len} {seed}"), "done");
            }
            40..65 => {
                let (at, len) = self.range();
                let expected = sum(&self.model.now[at..at + len]);
                self.band.check(format!("read {at} {len}"), &expected);
            }
            65..77 => {
                self.model.committed = self.model.now.clone();
                self.band.check("commit".to_owned(), "done");
            }
            77..82 => {
                self.model.now = self.model.committed.clone();
                self.band.check("rollback".to_owned(), "done");
            }
            82..86 => {
                let len = (self.model.now.len() + 1 + self.band.rng.below(9000) as usize).min(MAX_LEN);
                self.model.now.resize(len, 0);
                self.model.committed = self.model.now.clone();
                self.band.check(format!("grow {len}"), &format!("len {len}"));
            }
            86..91 if self.band.len() < MOST_MEMBERS => self.join(),
            number => {
                self.band.part(number % 2 == 0);
                if self.band.len() == 0 {
                    self.model.now = self.model.committed.clone();
                    self.join();
                }
            }
        }
        let all = sum(&self.model.now);
        if self.band.rng.below(8) == 0 {
            self.band.check(format!("read 0 {}", self.model.now.len()), &all);
        }
    }
}

fn agrees(dir: &Path, steps: usize, seed: u64) {
    let path = dir.join("data");
    let first = pattern(FIRST_LEN, seed);
    std::fs::write(&path, &first).unwrap();
    let Some(map) = unless_forbidden(share(&path)) else { return };
    map.close().unwrap();
    let model = Model { now: first.clone(), committed: first };
    let mut run = Run { band: Band::new(sibling!("a_member"), &path, seed), model };
    run.join();
    for _ in 0..steps {
        run.step();
    }
    // All at once, or one after the other: nobody is left to commit anything.
    let killed = run.band.end();
    if !killed {
        assert!(std::fs::read(&path).unwrap() == run.model.committed, "{}", run.band.done());
    }
    let map = AtomicMap::open(&path).unwrap();
    assert!(map[..] == run.model.committed[..], "{}", run.band.done());
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
