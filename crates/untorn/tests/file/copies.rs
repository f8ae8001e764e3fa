//! Cycles of create, write, close or crash, copy, restore and read, with the programs that people copy files with.
//!
//! A closed file is a plain one: whatever copies it, every committed byte is there. After a crash, a copy that keeps
//! the mark is refused with the way out, and a copy with its sidecar is adopted. A copy that drops the mark after a
//! crash is not noticed, as `docs/fault-model.md` says, so these cycles have none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{PAGE, killed, pattern};
use untorn::testing::ENGINES;
use untorn::{Durability, Error, Options};
use untorn_testing::{cases, needs};

/// How a file gets from one directory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cp,
    CpWithAttributes,
    Tar,
    TarWithAttributes,
    Rsync,
    RsyncWithAttributes,
}

const WAYS: [Way; 6] =
    [Way::Cp, Way::CpWithAttributes, Way::Tar, Way::TarWithAttributes, Way::Rsync, Way::RsyncWithAttributes];

impl Way {
    fn keeps_marks(self) -> bool {
        matches!(self, Way::CpWithAttributes | Way::TarWithAttributes | Way::RsyncWithAttributes)
    }

    fn copy(self, from: &Path, names: &[&str], to: &Path) {
        let run = |program: &str, words: &[&str], within: &Path, paths: &[PathBuf]| {
            let done = Command::new(program).args(words).args(paths).current_dir(within).status().unwrap();
            assert!(done.success(), "{program} {words:?} {paths:?}: {done}");
        };
        let all = || names.iter().map(|name| from.join(name)).chain([to.to_owned()]).collect::<Vec<_>>();
        let archive = to.join("archive.tar");
        let tar = |attributes: &[&str]| {
            let archived: Vec<PathBuf> = [archive.clone()].into_iter().chain(names.iter().map(PathBuf::from)).collect();
            run("tar", &[attributes, &["-cf"]].concat(), from, &archived);
            run("tar", &[attributes, &["-xpf"]].concat(), to, std::slice::from_ref(&archive));
            std::fs::remove_file(&archive).unwrap();
        };
        match self {
            Way::Cp => run("cp", &["-r"], from, &all()),
            Way::CpWithAttributes => run("cp", &["-a"], from, &all()),
            Way::Tar => tar(&[]),
            Way::TarWithAttributes => tar(&["--xattrs", "--xattrs-include=user.*"]),
            Way::Rsync => run("rsync", &["-a"], from, &all()),
            Way::RsyncWithAttributes => run("rsync", &["-aX"], from, &all()),
        }
    }
}

#[test]
fn cycles_of_copies_bring_every_committed_byte() {
    needs!("cp", "tar", "rsync");
    // Every way, engine and ending meets every other in the short run already.
    for cycle in 0..cases(36, 1000) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        let way = WAYS[cycle % 6];
        let engine = ENGINES[cycle / 6 % ENGINES.len()];
        let crashes = way.keeps_marks() && cycle / 18 % 2 == 1;
        let (len, seed) = (PAGE * (1 + cycle % 7) + cycle % 100, cycle as u64 + 1);
        let options = Options::new().engine(engine).durability(Durability::PerCommit).record_area(2, 8);
        let file = options.create(from.join("data"), len as u64).unwrap();
        let mut model = vec![0; len];
        for n in 0..1 + cycle % 4 {
            let at = n * 1000 % len;
            let bytes = pattern((len - at).min(900 + 100 * n), seed + n as u64);
            file.write_at(&bytes, at as u64).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            file.sync().unwrap();
        }
        if crashes {
            killed(file);
        } else {
            file.close().unwrap();
        }
        let what = format!("cycle {cycle}: {way:?}, {engine}, crashes: {crashes}");
        let has_sidecar = from.join(".untorn").exists();
        assert_eq!(has_sidecar, crashes, "{what}");
        let with = has_sidecar && cycle % 2 == 1;
        way.copy(&from, if with { &["data", ".untorn"] } else { &["data"] }, &to);
        // Nothing of the original helps.
        std::fs::remove_dir_all(&from).unwrap();
        let copy = to.join("data");
        if crashes {
            let error = Options::new().open(&copy).unwrap_err();
            assert!(matches!(error, Error::SidecarMissing { .. }), "{what}: {error}");
            assert!(error.to_string().contains("untorn recover --adopt"), "{what}: {error}");
            let adopted = untorn::recover(&copy, &Options::new().adopt(true));
            if !with {
                assert!(matches!(adopted, Err(Error::SidecarMissing { .. })), "{what}");
                continue;
            }
            adopted.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert!(std::fs::read(&copy).unwrap() == model, "{what}");
    }
}
