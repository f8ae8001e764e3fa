//! Mode boost: handles that pass the pages of the kernel, for `O_DIRECT` and for synchronous writes.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};
use untorn_testing::{SplitMix, cases, needs, seed};

use crate::support::{How, Mount, mount, mount_as};

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// All of a file, by any handle.
fn all(file: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 17];
    let len = pread(file, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

fn made(mount: &Mount, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = mount.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Whether the kernel lets a handle pass its pages and maps the file all the same.
fn has_handles_that_pass() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let has = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 6);
    if !has {
        untorn_testing::skipped!("Linux {release} is older than 6.6");
    }
    has
}

#[test]
fn handles_of_each_kind_see_one_file() {
    for round in 0..cases(3, 30) {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", How::BoostUndrained) else { return };
        let seed = seed(untorn_testing::test_name!());
        let mut random = SplitMix::new(seed ^ round as u64);
        let path = made(&mount, "f", b"");
        let writers = [
            OFlags::RDWR,
            OFlags::RDWR | OFlags::DIRECT,
            OFlags::RDWR | OFlags::DIRECT | OFlags::SYNC,
            OFlags::RDWR | OFlags::DSYNC,
            OFlags::WRONLY | OFlags::DSYNC,
            OFlags::WRONLY | OFlags::DSYNC | OFlags::APPEND,
            OFlags::RDWR | OFlags::DIRECT | OFlags::APPEND,
        ];
        // All of them at once in some rounds, and in others none but those that pass the kernel's pages.
        let kept: Vec<OFlags> = writers
            .into_iter()
            .filter(|flags| round % 2 == 0 || flags.contains(OFlags::DIRECT) || flags.contains(OFlags::WRONLY))
            .collect();
        let handles: Vec<OwnedFd> = kept.iter().map(|&flags| open(&path, flags)).collect();
        let direct = open(&path, OFlags::RDONLY | OFlags::DIRECT);
        let mut expected = Vec::new();
        for step in 0..60 {
            let chosen = random.below(handles.len() as u64) as usize;
            // No alignment is asked for.
            let (offset, len) = (random.below(20_000), 1 + random.below(9_000));
            let bytes = vec![random.below(256) as u8; len as usize];
            if random.below(10) == 0 {
                rustix::fs::ftruncate(&handles[chosen], offset).unwrap();
                expected.resize(offset as usize, 0);
            } else {
                let appends = kept[chosen].contains(OFlags::APPEND);
                let offset = if appends { expected.len() } else { offset as usize };
                assert_eq!(pwrite(&handles[chosen], &bytes, offset as u64).unwrap(), bytes.len());
                expected.resize(expected.len().max(offset + bytes.len()), 0);
                expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            let what = format!("seed {seed}, round {round}, step {step}");
            assert!(all(&direct) == expected, "{what}: O_DIRECT");
            if round % 2 == 0 {
                assert!(all(&handles[0]) == expected, "{what}: the kernel's pages are older");
                assert_eq!(path.metadata().unwrap().len(), expected.len() as u64, "{what}");
            }
        }
        // An opening with pages begins with the bytes of those without.
        assert!(fs::read(&path).unwrap() == expected);
        mount.kill();
        let source = mount.source().join("f");
        assert!(fs::read(&source).unwrap() == expected);
        File::options().write(true).open(&source).unwrap().set_len(0).unwrap();
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(&source).unwrap().set_modified(long_ago).unwrap();
        mount.replay();
        assert!(fs::read(&source).unwrap() == expected, "seed {seed}, round {round}: after the replay");
    }
}

#[test]
fn a_synchronous_write_past_the_cache_is_one_request() {
    for how in [How::Boost, How::BoostPerSync] {
        for (flags, is_one) in [
            (OFlags::RDWR | OFlags::DIRECT | OFlags::DSYNC, true),
            (OFlags::RDWR | OFlags::DIRECT | OFlags::SYNC, true),
            (OFlags::WRONLY | OFlags::DSYNC, true),
            (OFlags::RDWR | OFlags::DSYNC, false),
            (OFlags::RDWR | OFlags::SYNC, false),
        ] {
            let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
            if !has_handles_that_pass() {
                return;
            }
            let path = made(&mount, "f", &[0; 4096]);
            let file = open(&path, flags);
            for _ in 0..5 {
                pwrite(&file, b"synchronous", 0).unwrap();
            }
            drop(file);
            // By a handle that is not synchronous no write is.
            pwrite(open(&path, OFlags::RDWR | OFlags::DIRECT), b"later", 0).unwrap();
            let [syncs, writes, _] = mount.unmount_counting_syncs();
            assert_eq!((syncs, writes), if is_one { (0, 5) } else { (5, 0) }, "{how:?} {flags:?}");
        }
    }
}

#[test]
fn a_file_that_is_not_managed_is_synced_too() {
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    if !has_handles_that_pass() {
        return;
    }
    let path = made(&mount, "other", b"before");
    let file = open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::SYNC);
    pwrite(&file, b"after", 0).unwrap();
    assert_eq!(all(&file), b"aftere");
    drop(file);
    let [_, writes, _] = mount.unmount_counting_syncs();
    assert_eq!(writes, 1);
}

#[test]
fn a_mapping_meets_direct_writes_both_ways() {
    needs!("python3");
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let path = made(&mount, "f", &[b'.'; 12288]);
    let program = "
import mmap, os, sys
direct = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
buffered = os.open(sys.argv[1], os.O_RDWR)
for mapped in (direct, buffered):
    memory = mmap.mmap(mapped, 12288)
    assert memory[4096:4099] == b'...', memory[4096:4099]
    os.pwrite(direct, b'one', 4096)
    assert memory[4096:4099] == b'one', memory[4096:4099]
    memory[4100:4103] = b'two'
    assert os.pread(direct, 7, 4096) == b'one.two', os.pread(direct, 7, 4096)
    os.pwrite(direct, b'3', 4103)
    assert memory[4096:4104] == b'one.two3', memory[4096:4104]
    os.pwrite(buffered, b'........', 4096)
    assert memory[4096:4104] == b'........'
    memory[8192:8196] = b'kept'
    memory.flush()
    memory.close()
os.kill(os.getpid(), 9)
";
    let status = std::process::Command::new("python3").arg("-c").arg(program).arg(&path).status().unwrap();
    assert!(status.code().is_none(), "an assertion failed: {status}");
    mount.kill();
    let found = fs::read(mount.source().join("f")).unwrap();
    assert!(found[..8192] == [b'.'; 8192] && &found[8192..8196] == b"kept");
}

#[test]
fn direct_writes_to_other_pages_run_at_the_same_time() {
    let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", How::BoostUndrained) else { return };
    if !has_handles_that_pass() {
        return;
    }
    const LEN: usize = 1 << 16;
    let path = made(&mount, "f", &[0; 4 * LEN]);
    let begun = Instant::now();
    thread::scope(|scope| {
        for number in 0..2 {
            let path = &path;
            scope.spawn(move || {
                let file = open(path, OFlags::RDWR | OFlags::DIRECT);
                let mut round = 0_u8;
                while begun.elapsed() < Duration::from_secs(1) {
                    round = round % 100 + 1;
                    let bytes = vec![100 * number as u8 + round; LEN];
                    pwrite(&file, &bytes, (number * LEN) as u64).unwrap();
                    assert!(all(&file)[number * LEN..(number + 1) * LEN] == bytes, "another thread's write is here");
                }
            });
        }
    });
    // A change outside, after writes that nobody could tell from it.
    let source = File::options().write(true).open(mount.source().join("f")).unwrap();
    source.write_all_at(b"outside", 3 * LEN as u64).unwrap();
    let reader = File::open(&path).unwrap();
    let mut bytes = [0; 7];
    reader.read_exact_at(&mut bytes, 3 * LEN as u64).unwrap();
    assert_eq!(&bytes, b"outside");
    drop(reader);
    assert_eq!(path.metadata().unwrap().size(), 4 * LEN as u64);
    let [.., together] = mount.unmount_counting_syncs();
    assert!(together > 0, "no two writes ran at the same time");
}
