//! One `AtomicFile` open in several processes: what one writes the others read, whatever process is killed, joins or
//! leaves.
//!
//! Kills at exact places are tested in the crate (`engine/together/tests.rs`); in `shared_file_kill.rs` they come at
//! any time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::members::{Member, obey, role};
use crate::common::{ReadAt, alone, limit, memory_dir, pattern};
use untorn::options::{LogPolicy, Order};
use untorn::report::State;
use untorn::shared::SharedMap;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};
use untorn_testing::sibling;

pub(crate) const LEN: u64 = 40 * 4096;
pub(crate) const ENGINES: [EngineKind; 3] = untorn::testing::ENGINES;
pub(crate) const DURABILITIES: [Durability; 2] = [Durability::PerWrite, Durability::PerCommit];

pub(crate) fn shared(durability: Durability) -> Options {
    Options::new().shared(true).durability(durability)
}

pub(crate) fn create(dir: &Path, engine: EngineKind, durability: Durability) -> PathBuf {
    let path = dir.join("data");
    let options = Options::new().engine(engine).durability(durability).keep_sidecar(true);
    options.create(&path, LEN).unwrap().close().unwrap();
    path
}

/// A process that shares the file and does what it is told.
fn puppet(path: &Path, durability: Durability) -> Member {
    let role = format!("{durability} {}", path.display());
    let (member, said) = Member::join(sibling!("a_process_that_is_told_what_to_do"), role);
    assert_eq!(said, "open");
    member
}

/// Not a test of its own: what a puppet is.
#[test]
fn a_process_that_is_told_what_to_do() {
    let Some(role) = role() else { return };
    let (durability, path) = role.to_str().unwrap().split_once(' ').unwrap();
    let mut file = Some(shared(durability.parse().unwrap()).open(path).unwrap());
    obey("open".to_owned(), |verb, numbers| {
        let open = || file.as_ref().unwrap();
        // Bytes that a seed tells.
        let bytes = || pattern(numbers[1] as usize, numbers[2]);
        let outcome = match verb {
            "write" => open().write_at(&bytes(), numbers[0]),
            "eager" => open().write_at_eager(&bytes(), numbers[0]),
            "both" => {
                let mut tx = open().transaction();
                tx.write_at(&pattern(8, numbers[2]), numbers[0]).unwrap();
                tx.write_at(&pattern(8, numbers[2]), numbers[1]).unwrap();
                tx.commit()
            }
            "read" => {
                let mut found = vec![0; numbers[1] as usize];
                match open().read_at(&mut found, numbers[0]) {
                    Ok(()) => return if found == bytes() { "same" } else { "other" }.to_owned(),
                    failed => failed,
                }
            }
            "len" => return open().len().to_string(),
            "resize" => open().resize(numbers[0]),
            "sync" => open().sync().map(drop),
            "deploy" => open().deploy(numbers[0], numbers[1]),
            "reclaim" => open().reclaim().map(drop),
            "info" => return format!("{:?}", open().info()),
            "time" => return costs(open()),
            // A child that lives on with all that this process has open, as long as a file is there.
            "fork" => {
                let file = Path::new(path).with_extension("heir");
                crate::common::system::in_forked_child(|| {
                    (0..60_000)
                        .take_while(|_| file.exists())
                        .for_each(|_| std::thread::sleep(Duration::from_millis(10)));
                    0
                });
                Ok(())
            }
            "settle" => file.take().unwrap().settle(),
            "close" => file.take().unwrap().close(),
            "drop" => {
                file = None;
                Ok(())
            }
            _ => panic!("{verb} {numbers:?}"),
        };
        outcome.map_or_else(|error| format!("error {}: {error}", error.errno()), |()| "done".to_owned())
    });
}

#[test]
fn every_call_works_in_every_process() {
    let _limit = limit(120, "calls of several processes");
    for engine in ENGINES {
        for durability in DURABILITIES {
            let dir = memory_dir();
            let path = create(dir.path(), engine, durability);
            let mut puppets: Vec<Member> = (0..3).map(|_| puppet(&path, durability)).collect();
            let mut next = 0;
            for turn in 0..9 {
                let (writer, reader) = (turn % 3, (turn + 1 + turn / 3) % 3);
                let mut told = |who: usize, words: &str, answer: &str| {
                    assert_eq!(puppets[who].ask(words), answer, "{engine} {durability}: {words} by {who}");
                };
                next += 1;
                // Within a slice, over three pages, more than any buffer holds at first, two pages together, deployed.
                for (offset, len) in [(4000, 9), (4001, 2 * 4096), (77, 100_000)] {
                    told(writer, &format!("write {offset} {len} {next}"), "done");
                    told(reader, &format!("read {offset} {len} {next}"), "same");
                }
                told(writer, &format!("both 100 50000 {next}"), "done");
                told(reader, &format!("read 100 8 {next}"), "same");
                told(reader, &format!("read 50000 8 {next}"), "same");
                told(writer, &format!("eager 8192 5000 {next}"), "done");
                told(reader, "deploy 0 16384", "done");
                told(writer, "sync", "done");
                told(reader, &format!("read 8192 5000 {next}"), "same");
                told(reader, "reclaim", "done");
                told(writer, &format!("resize {}", LEN + next), "done");
                told(reader, "len", &(LEN + next).to_string());
                told(reader, &format!("write {} 4 {next}", LEN + next - 4), "done");
                told(writer, &format!("read {} 4 {next}", LEN + next - 4), "same");
            }
            // Not the state of what is being brought home at this very moment.
            let state = |info: String| info.split(", layout").next().unwrap().to_owned();
            assert_eq!(state(puppets[0].ask("info")), state(puppets[2].ask("info")));
            assert!(puppets[1].ask("info").contains(&format!("{engine:?}")));
            // Beyond the end, and more than a call holds.
            for puppet in &mut puppets {
                let beyond = puppet.ask(&format!("write {LEN} 4096 1"));
                assert!(beyond.contains("do not lie within"), "{beyond}");
                let beyond = puppet.ask(&format!("read {LEN} 4096 1"));
                assert!(beyond.contains("do not lie within"), "{beyond}");
            }
            for who in [2, 0] {
                let refused = puppets[who].ask("settle");
                assert!(refused.contains("another process"), "{refused}");
            }
            assert_eq!(puppets[1].ask(&format!("read 8192 5000 {next}")), "same");
            assert_eq!(puppets[1].ask("settle"), "done");
            assert_eq!(untorn::inspect(&path).unwrap().engine, None);
            let mut bytes = vec![0; 5000];
            std::os::unix::fs::FileExt::read_exact_at(&File::open(&path).unwrap(), &mut bytes, 8192).unwrap();
            assert_eq!(bytes, pattern(5000, next));
        }
    }
}

/// How long a write and a read of 64 bytes and of 4 KiB take, in nanoseconds; the middle ones of 200.
fn costs(file: &AtomicFile) -> String {
    let mut bytes = vec![1; 4096];
    let mut median = |len: usize, write: bool| {
        let mut times: Vec<u128> = (0..200)
            .map(|turn| {
                let (began, offset) = (Instant::now(), turn % 40 * 4096);
                if write {
                    file.write_at(&bytes[..len], offset).unwrap();
                } else {
                    file.read_at(&mut bytes[..len], offset).unwrap();
                }
                began.elapsed().as_nanos()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (write, read) = (median(64, true), median(64, false));
    format!("64 B: write {write}, read {read}; 4 KiB: write {}, read {}", median(4096, true), median(4096, false))
}

/// For reading: what a call of a process costs that does not have the file open, and one of the process that has.
#[test]
fn a_call_is_timed() {
    let _limit = limit(60, "calls that are timed");
    for durability in DURABILITIES {
        let dir = memory_dir();
        let path = create(dir.path(), EngineKind::Reflection, durability);
        let mut first = puppet(&path, durability);
        let mut second = puppet(&path, durability);
        for _ in 0..2 {
            eprintln!("durable at each {durability}: ns here {}", first.ask("time"));
            eprintln!("durable at each {durability}: ns there {}", second.ask("time"));
        }
        assert_eq!(first.ask("sync"), second.ask("sync"));
    }
}

#[test]
fn options_that_differ_and_other_uses_are_refused() {
    for durability in DURABILITIES {
        let dir = memory_dir();
        let path = create(dir.path(), EngineKind::HybridLog, durability);
        let mut puppet = self::puppet(&path, durability);
        let new = || Options::new().shared(true);
        let other = if durability == Durability::PerWrite { Durability::PerCommit } else { Durability::PerWrite };
        for (options, found, wanted) in [
            (new().engine(EngineKind::Reflection), "hybrid-log", "reflection"),
            (new().durability(other), durability.as_str(), other.as_str()),
            (new().order(Order::TwoFence), "one-fence", "two-fence"),
            (new().log_policy(LogPolicy::Redo), "hybrid", "redo"),
        ] {
            let error = options.open(&path).unwrap_err();
            assert!(matches!(error, Error::InUse { .. }), "{error}");
            let text = error.to_string();
            let process = format!("process {}", puppet.id());
            assert!([found, wanted, &process].iter().all(|word| text.contains(*word)), "{text}");
        }
        assert!(matches!(new().read_only(true).open(&path), Err(Error::Invalid { .. })));
        assert!(matches!(new().engine(EngineKind::Passthrough).open(&path), Err(Error::Invalid { .. })));
        assert!(matches!(new().map(&path), Err(Error::Invalid { .. })));
        // Who does not share is kept out, and sharers by who does not.
        assert!(matches!(AtomicFile::open(&path), Err(Error::InUse { .. })));
        assert!(matches!(AtomicMap::open(&path), Err(Error::InUse { .. })));
        assert!(matches!(Options::new().read_only(true).open(&path), Err(Error::InUse { .. })));
        assert_eq!(untorn::inspect(&path).unwrap().state, State::InUse);
        let mine = new().open(&path).unwrap();
        for one_of_two in [Options::new().open(&path), Options::new().read_only(true).open(&path)] {
            assert!(one_of_two.unwrap_err().to_string().contains("shared with other processes"));
        }
        let again = new().durability(durability).open(&path).unwrap();
        again.write_at(b"both handles", 0).unwrap();
        assert_eq!(mine.bytes_at(0, 12), b"both handles");
        assert!(matches!(new().durability(other).open(&path), Err(Error::InUse { .. })));
        drop(again);
        mine.close().unwrap();
        assert_eq!(puppet.ask("close"), "done");
        let alone = AtomicFile::open(&path).unwrap();
        assert!(matches!(new().open(&path), Err(Error::InUse { .. })), "by this process");
        alone.close().unwrap();
        if let Ok(map) = SharedMap::open(&path) {
            assert!(matches!(new().open(&path), Err(Error::InUse { .. })), "by another way of sharing");
            map.close().unwrap();
        }
    }
}

#[test]
fn a_call_that_is_too_long_is_refused_and_harms_nothing() {
    let dir = memory_dir();
    let path = create(dir.path(), EngineKind::Reflection, Durability::PerCommit);
    let mut puppet = self::puppet(&path, Durability::PerCommit);
    assert_eq!(puppet.ask("resize 200000000"), "done");
    let mine = shared(Durability::PerCommit).open(&path).unwrap();
    mine.write_at(b"before", 100).unwrap();
    let mut long = vec![7; (128 << 20) + 1];
    let error = mine.read_at(&mut long, 0).unwrap_err();
    assert!(matches!(&error, Error::Invalid { what, .. } if what.contains("134217728")), "{error}");
    assert!(matches!(mine.write_at(&long, 0), Err(Error::Invalid { .. })));
    assert_eq!(mine.bytes_at(100, 6), b"before");
}

#[test]
fn a_leaving_process_takes_nothing_with_it() {
    for engine in ENGINES {
        for durability in DURABILITIES {
            for leave in ["close", "drop"] {
                let dir = memory_dir();
                let path = create(dir.path(), engine, durability);
                // The first has the file open; when it leaves another one does.
                let mut puppets: Vec<Member> = (0..4).map(|_| puppet(&path, durability)).collect();
                for turn in 0..3 {
                    assert_eq!(puppets[3].ask(&format!("write 5000 9000 {turn}")), "done");
                    assert_eq!(puppets[turn].ask(&format!("write 20000 100 {turn}")), "done");
                    assert_eq!(puppets[turn].ask(leave), "done");
                    assert_eq!(puppets[3].ask(&format!("read 5000 9000 {turn}")), "same");
                    assert_eq!(puppets[3].ask(&format!("read 20000 100 {turn}")), "same");
                }
                assert_eq!(puppets[3].ask("write 5000 9000 77"), "done");
                assert_eq!(puppets[3].ask(leave), "done");
                let file = AtomicFile::open(&path).unwrap();
                let bytes = file.bytes_at(5000, 9000);
                let found = [0, 1, 2, 77].into_iter().find(|seed| bytes == pattern(9000, *seed));
                if leave == "close" || durability == Durability::PerWrite {
                    assert_eq!(found, Some(77), "{engine} {durability} {leave}");
                } else {
                    // Alone, dropping discards the open epoch, as ever: what was written since the last leaving of
                    // one that had the file open, of which the first was one.
                    assert!(found.is_some_and(|seed| seed < 77), "{engine} {durability} {leave}: {found:?}");
                }
            }
        }
    }
}

#[test]
fn a_killed_process_takes_what_it_alone_had() {
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerCommit);
        let mut first = puppet(&path, Durability::PerCommit);
        let mut second = puppet(&path, Durability::PerCommit);
        let mut third = puppet(&path, Durability::PerCommit);
        assert_eq!(first.ask("write 0 5000 1"), "done");
        assert_eq!(first.ask("sync"), "done");
        // One that did not have the file open: what it wrote stays in the epoch.
        assert_eq!(third.ask("write 5000 5000 2"), "done");
        third.kill();
        assert_eq!(second.ask("read 5000 5000 2"), "same");
        assert_eq!(first.ask("read 5000 5000 2"), "same");
        // The one that had it: the epoch is lost, and everybody is told until he opens the file again.
        first.kill();
        for words in ["read 0 8 1", "sync", "write 0 8 3"] {
            let told = second.ask(words);
            assert!(told.contains("the writes since the last commit are lost"), "{told}");
        }
        let mut fourth = puppet(&path, Durability::PerCommit);
        assert_eq!(fourth.ask("read 0 5000 1"), "same");
        assert_eq!(fourth.ask("read 5000 5000 2"), "other");
        assert_eq!(fourth.ask("write 0 5000 4"), "done");
        assert_eq!(fourth.ask("sync"), "done");
    }
}

#[test]
fn a_forked_child_is_refused_and_disturbs_nobody() {
    alone!(60, "a forked child");
    let dir = memory_dir();
    let path = create(dir.path(), EngineKind::Reflection, Durability::PerWrite);
    let mut puppet = self::puppet(&path, Durability::PerWrite);
    let file = shared(Durability::PerWrite).open(&path).unwrap();
    let child = crate::common::system::in_forked_child(|| {
        let refused = |result: untorn::Result<()>| matches!(result, Err(Error::Forked { .. }));
        let calls = refused(file.write_at(b"child", 0))
            && refused(file.read_at(&mut [0; 5], 0))
            && refused(file.sync().map(drop))
            && file.is_empty();
        drop(file.clone());
        i32::from(calls)
    });
    assert_eq!(child.wait(), Some(1));
    file.write_at(b"parent", 0).unwrap();
    assert_eq!(puppet.ask("write 0 6 1"), "done");
    assert_eq!(file.bytes_at(0, 6), *pattern(6, 1));
}

#[test]
fn a_leaving_process_is_missed_while_its_child_lives() {
    let _limit = limit(60, "processes that fork and leave");
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        File::create(path.with_extension("heir")).unwrap();
        let mut puppets: Vec<Member> = (0..4).map(|_| puppet(&path, Durability::PerWrite)).collect();
        // The first serves, and then whichever comes next; the last does neither.
        for turn in [0, 1, 2] {
            assert_eq!(puppets[3].ask(&format!("write 5000 9000 {turn}")), "done");
            assert_eq!(puppets[turn].ask("fork"), "done");
            assert_eq!(puppets[turn].ask("drop"), "done");
            assert_eq!(puppets[3].ask(&format!("read 5000 9000 {turn}")), "same", "{engine}");
        }
        let file = shared(Durability::PerWrite).open(&path).unwrap();
        file.write_at(&pattern(9000, 7), 5000).unwrap();
        assert_eq!(puppets[3].ask("read 5000 9000 7"), "same", "{engine}");
        drop(file);
        // It takes nobody for a process that shares it still.
        assert_eq!(puppets[3].ask("settle"), "done", "{engine}");
    }
}

#[test]
fn a_child_of_a_killed_process_keeps_the_file_until_it_ends() {
    let _limit = limit(60, "processes that fork and are killed");
    for engine in ENGINES {
        let dir = memory_dir();
        let path = create(dir.path(), engine, Durability::PerWrite);
        let heir = path.with_extension("heir");
        File::create(&heir).unwrap();
        let mut first = puppet(&path, Durability::PerWrite);
        let mut others = [0, 1].map(|_| puppet(&path, Durability::PerWrite));
        assert_eq!(others[0].ask("write 5000 9000 1"), "done");
        assert_eq!(first.ask("fork"), "done");
        first.kill();
        for (puppet, words) in others.iter_mut().zip(["read 5000 9000 1", "write 20000 100 2"]) {
            puppet.tell(words);
        }
        // Both wait for it, and neither is told that anything was lost.
        std::fs::remove_file(&heir).unwrap();
        assert_eq!(others[0].answer(), "same", "{engine}");
        assert_eq!(others[1].answer(), "done", "{engine}");
        assert_eq!(others[0].ask("read 20000 100 2"), "same", "{engine}");
    }
}

#[test]
fn looking_for_a_sidecar_to_adopt_gives_no_lock_back() {
    let dir = memory_dir();
    let path = create(dir.path(), EngineKind::Reflection, Durability::PerWrite);
    let mine = shared(Durability::PerWrite).open(&path).unwrap();
    // A file and its sidecar as they are restored: with the mark, and under new inode numbers.
    let (lost, restored) = (dir.path().join("lost"), dir.path().join("restored"));
    let other = Options::new().durability(Durability::PerWrite).keep_sidecar(true).create(&lost, LEN).unwrap();
    other.write_at(b"kept", 100).unwrap();
    other.close().unwrap();
    crate::common::copy(&lost, &restored);
    std::fs::remove_file(&lost).unwrap();
    let adopted = shared(Durability::PerWrite).adopt(true).open(&restored).unwrap();
    assert_eq!(adopted.bytes_at(100, 4), b"kept");
    // This process serves both files still, so others can join.
    for (file, path) in [(&mine, &path), (&adopted, &restored)] {
        let mut puppet = self::puppet(path, Durability::PerWrite);
        assert_eq!(puppet.ask("write 8192 5000 3"), "done");
        assert_eq!(file.bytes_at(8192, 5000), pattern(5000, 3));
    }
}
