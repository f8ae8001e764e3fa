//! The recorder under every file system it knows: what a program synced is in every image, what it didn't sync need not
//! be. Passed over, and said so, where the machine lacks what it needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use untorn_rigs::Error;
use untorn_rigs::block::{FileSystem, Mounted, Position, Recorder, ReplayOutcome, isolated, write_image};
use untorn_sim::Rng;

/// Images of each file system.
const IMAGES: u64 = 12;

#[test]
fn every_image_has_synced_files_and_may_lack_unsynced_ones() {
    for kind in FileSystem::ALL {
        let outcome = kind
            .require()
            .map_err(|error| error.to_string())
            .and_then(|()| isolated(|| run(kind)).map_err(|error| error.to_string()));
        if let Err(error) = outcome {
            untorn_testing::skipped!("power cuts under {kind}: {error}");
        }
    }
}

fn run(kind: FileSystem) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (base, live, image, mount) = (path("base"), path("live"), path("image"), path("mount"));
    fs::create_dir(&mount).expect("a mount point");
    kind.make(&base).unwrap_or_else(|error| panic!("{kind}: {error}"));
    write_image(&base, &[], &live).expect("a copy");

    fs::write(path("synced"), content("synced")).expect("written");
    fs::write(path("unsynced"), content("unsynced")).expect("written");
    let recorder = Recorder::start(kind, &live, dir.path()).unwrap_or_else(|error| panic!("{kind}: {error}"));
    let clock = recorder.clock();
    let there = recorder.path();
    // By other processes, as a recorder asks.
    command("cp", &[&path("synced"), there]);
    command("sync", &[&there.join("synced"), there]);
    let synced: Position = clock.now();
    command("cp", &[&path("unsynced"), there]);
    let log = recorder.finish();
    assert_eq!(clock.now(), Position::MAX, "a clock of a record that has ended");
    assert!(log.writes() > 0 && log.flushes() > 0 && synced > 0 && synced <= log.position(), "{kind}: {log:?}");

    let (mut mounted, mut missing) = (0, 0);
    for seed in 0..IMAGES {
        let mut rng = Rng::new(seed);
        let at = synced + rng.below(log.position() - synced + 1);
        let (fate, patches) = log.cut(at).draw(&mut rng);
        write_image(&base, &patches, &image).expect("an image");
        // A file system may refuse a disk of which it lost more than it was made to bear, but not one that lost
        // nothing.
        let found = match Mounted::new(kind, &image, &mount) {
            Ok(found) => found,
            Err(Error::Unmountable { reason: error, .. }) => {
                assert!(
                    !matches!(fate, ReplayOutcome::Lost | ReplayOutcome::Kept),
                    "{kind}, seed {seed}, {fate}: {error}"
                );
                continue;
            }
            Err(error) => panic!("{kind}, seed {seed}: {error}"),
        };
        mounted += 1;
        let bytes = fs::read(found.path().join("synced"));
        let bytes = bytes.unwrap_or_else(|error| panic!("{kind}, seed {seed}, instant {at}, {fate}: {error}"));
        assert!(bytes == content("synced"), "{kind}, seed {seed}, instant {at}, {fate}: other bytes");
        missing += u32::from(fs::read(found.path().join("unsynced")).is_ok_and(|bytes| bytes != content("unsynced")));
        missing += u32::from(!found.path().join("unsynced").exists());
    }
    assert!(mounted > 0 && missing > 0, "{kind}: {mounted} images mounted, {missing} of them lost what may be lost");
}

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(50_000).collect()
}

fn command(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status().expect("a program of every Linux");
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
