//! The committed inputs of every fuzz target, on a stable compiler and without a fuzzer.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::Path;

use untorn_fuzz::{TARGETS, Target};

/// The inputs in `fuzz/corpus` of one target, by name.
fn corpus(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let named = entries.map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    });
    named.collect()
}

#[test]
fn every_committed_input_is_judged() {
    for target in TARGETS {
        let corpus = corpus(&target);
        assert!(corpus.len() >= 24, "{}: only {} inputs", target.name, corpus.len());
        for (name, bytes) in corpus {
            let judged = catch_unwind(|| (target.run)(&bytes));
            assert!(judged.is_ok(), "fuzz/corpus/{}/{name} is a finding; its panic is above", target.name);
        }
    }
}

#[test]
fn each_target_has_its_file() {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    let mut targets = TARGETS.map(|target| format!("{}.rs", target.name));
    targets.sort_unstable();
    assert_eq!(files, targets);
}

#[test]
fn the_seeds_are_those_that_the_command_writes() {
    for target in TARGETS {
        let corpus = corpus(&target);
        for (n, seed) in (target.seeds)().into_iter().enumerate() {
            let name = format!("seed-{n:02}");
            let committed = corpus.get(&name);
            let told = "run `cargo xtask fuzz --seed-corpus`";
            assert!(committed == Some(&seed), "{}/{name} is out of date; {told}", target.name);
        }
    }
}

/// Any bytes at all are a case: of every length, and of every value.
#[test]
fn any_bytes_are_a_case() {
    for target in TARGETS {
        for len in [0, 1, 2, 3, 7, 40, 300] {
            for fill in [0, 1, 0x7f, 0x80, 0xff] {
                (target.run)(&vec![fill; len]);
            }
        }
    }
}

/// Operations that a generator made up, on each engine: what a fuzzer would take a while to come to from zeros.
#[test]
fn made_up_operations_on_each_engine() {
    let operations = TARGETS.iter().find(|target| target.name == "operations").unwrap();
    for seed in 0..150 {
        let mut bytes = vec![0; 400];
        untorn_sim::Rng::new(seed).fill(&mut bytes);
        // The highest bit of the first byte chooses the engine.
        for engine in [0, 0x80] {
            bytes[0] = bytes[0] & 0x7f | engine;
            assert!(catch_unwind(|| (operations.run)(&bytes)).is_ok(), "seed {seed}, engine {engine:#x}");
        }
    }
}

/// Changes of a replica that a generator made up: most seeds change one object only.
#[test]
fn made_up_changes_of_a_replica() {
    let replica = TARGETS.iter().find(|target| target.name == "replica").unwrap();
    for seed in 0..untorn_testing::cases(1000, 200_000) {
        let mut bytes = vec![0; 80];
        untorn_sim::Rng::new(seed).fill(&mut bytes);
        assert!(catch_unwind(|| (replica.run)(&bytes)).is_ok(), "seed {seed}");
    }
}
