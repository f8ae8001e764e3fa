//! The files that untorn keeps beside a file follow its owner, its permissions and its users; strangers keep theirs
//! apart.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};
use untorn::redundancy::ProtectOptions;
use untorn::{EngineKind, Error, Options};

use crate::common::{PAGE, killed, sidecar_of};
use crate::planted::{ATTACKER, FRESH, Forged, GROUP, LEFT, MEMBER, OPEN, SECRET, STAMP, VICTIM};
use crate::planted::{all_of, as_user, directory, original};

/// Gives what a crash left beside a file to this owner.
fn leave(path: &Path, owner: u32, group: u32, mode: u32) -> PathBuf {
    let side = sidecar_of(path);
    chown(&side, Some(owner), Some(group)).unwrap();
    fs::set_permissions(&side, Permissions::from_mode(mode)).unwrap();
    side
}

/// A crashed file of root's with a sidecar that holds a committed write.
fn crashed(dir: &Path) -> (PathBuf, Vec<u8>) {
    let path = dir.join("file");
    fs::write(&path, original()).unwrap();
    let file = Options::new().engine(EngineKind::Reflection).open(&path).unwrap();
    file.write_at(SECRET, 100).unwrap();
    file.sync().unwrap();
    let mut model = original();
    model[100..][..SECRET.len()].copy_from_slice(SECRET);
    (killed(file), model)
}

fn access(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o777)
}

/// Whatever owner and permissions it comes to, its sidecar follows, at the next opening and before the first store.
#[test]
fn a_sidecar_follows_its_file_to_another_owner_or_mode() {
    untorn_testing::needs!("root");
    for (owner, mode, side_mode) in [(0, 0o600, 0o600), (VICTIM, 0o644, 0o600), (VICTIM, 0o664, 0o660)] {
        let dir = directory(0o755, 0);
        let (path, model) = crashed(dir.path());
        let side = leave(&path, 0, 0, 0o644);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        let file = Options::new().open(&path).unwrap();
        assert_eq!(access(&side), (owner, owner, side_mode), "{mode:o}");
        assert_eq!(all_of(&file).unwrap().unwrap(), model);
        file.sync().unwrap();
        assert_eq!(killed(file), path);
        leave(&path, owner, owner, side_mode);
        // What root has opened, the owner can open.
        chown(dir.path(), Some(owner), None).unwrap();
        chown(side.parent().unwrap(), Some(owner), None).unwrap();
        let read = as_user(owner, owner, || all_of(&Options::new().open(&path)?));
        assert_eq!(read.unwrap().unwrap(), model);
    }
}

#[test]
fn a_redundancy_file_follows_its_file_to_another_owner() {
    untorn_testing::needs!("root");
    let dir = directory(0o755, 0);
    let path = dir.path().join("file");
    fs::write(&path, original()).unwrap();
    let companion = sidecar_of(&path).with_extension("redundancy");
    ProtectOptions::new().open(&path).unwrap().close().unwrap();
    assert_eq!(access(&companion), (0, 0, 0o600));
    fs::set_permissions(&companion, Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
    chown(&path, Some(VICTIM), Some(GROUP)).unwrap();
    ProtectOptions::new().open(&path).unwrap().close().unwrap();
    assert_eq!(access(&companion), (VICTIM, GROUP, 0o660));
}

/// It could keep a lock on it for ever.
#[test]
fn a_user_that_may_only_read_a_file_cannot_open_its_sidecar() {
    untorn_testing::needs!("root");
    let dir = directory(0o755, 0);
    let (path, _) = crashed(dir.path());
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let side = leave(&path, 0, 0, 0o600);
    let (opened, error) = as_user(ATTACKER, ATTACKER, || {
        (File::open(&side).is_ok(), Options::new().read_only(true).open(&path).err().unwrap())
    });
    assert!(!opened);
    let text = error.to_string();
    assert!(matches!(error, Error::NoAccess { .. }), "{text}");
    assert!(
        text.contains("user 0") && text.contains("untorn recover") && text.contains(side.to_str().unwrap()),
        "{text}"
    );
}

/// Members of a group share files that the group may write, in a directory that it may write to.
#[test]
fn a_group_shares_files_and_their_sidecars() {
    untorn_testing::needs!("root");
    let dir = directory(0o2770, GROUP);
    let path = dir.path().join("file");
    let model = as_user(VICTIM, GROUP, || {
        fs::write(&path, original()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        fs::read(&path).unwrap()
    });
    // The second makes the sidecar, so it is that one's, and the first believes it.
    let file = as_user(MEMBER, GROUP, || {
        let file = Options::new().engine(EngineKind::Reflection).open(&path).unwrap();
        file.write_at(SECRET, 0).unwrap();
        file.sync().unwrap();
        file
    });
    let side = sidecar_of(&path);
    assert_eq!(access(&side), (MEMBER, GROUP, 0o660));
    assert_eq!(access(side.parent().unwrap()), (MEMBER, GROUP, 0o775));
    let kept = fs::metadata(side.parent().unwrap()).unwrap();
    // What a crash leaves is put back here by root.
    let leave_directory = || {
        chown(side.parent().unwrap(), Some(kept.uid()), Some(kept.gid())).unwrap();
        fs::set_permissions(side.parent().unwrap(), kept.permissions()).unwrap();
    };
    killed(file);
    leave_directory();
    leave(&path, MEMBER, GROUP, 0o660);
    for user in [VICTIM, MEMBER, VICTIM] {
        let read = as_user(user, GROUP, || all_of(&Options::new().open(&path)?)).unwrap().unwrap();
        assert!(read.starts_with(SECRET) && read[SECRET.len()..] == model[SECRET.len()..]);
    }
    // A user of another group that could not have made it there is not believed.
    killed(as_user(VICTIM, GROUP, || Options::new().open(&path).unwrap()));
    leave_directory();
    leave(&path, ATTACKER, GROUP + 1, 0o600);
    let error = as_user(VICTIM, GROUP, || Options::new().open(&path).err().unwrap());
    assert!(matches!(error, Error::NoAccess { .. }), "{error}");
    let error = Options::new().open(&path).err().unwrap();
    assert!(matches!(error, Error::Untrusted { .. }) && error.to_string().contains("user 65534"), "{error}");
}

/// What a crash left of its making is removed, whatever it holds.
#[test]
fn a_fresh_sidecar_is_made_anew_and_never_completed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, original()).unwrap();
    let forged = Forged::new();
    let side = sidecar_of(&path);
    fs::create_dir(side.parent().unwrap()).unwrap();
    let bytes = Forged::for_file(&forged.sidecar, &fs::metadata(&path).unwrap(), STAMP, Some(FRESH));
    fs::write(&side, &bytes).unwrap();
    let read_only = all_of(&Options::new().read_only(true).open(&path).unwrap()).unwrap().unwrap();
    assert!(read_only == original());
    assert!(fs::read(&side).unwrap() == bytes, "a reader changed it");
    let inode = fs::metadata(&side).unwrap().ino();
    let kept = File::open(&side).unwrap();
    let file = Options::new().open(&path).unwrap();
    assert!(all_of(&file).unwrap().unwrap() == original());
    assert_ne!(fs::metadata(&side).unwrap().ino(), inode);
    assert_eq!(kept.metadata().unwrap().nlink(), 0);
    file.settle().unwrap();
    assert!(fs::read(&path).unwrap() == original());
}

/// In the first session one superblock says "open" and the other still "fresh": damage to the one must not bring the
/// other's state back.
#[test]
fn a_superblock_that_is_out_of_date_makes_no_sidecar_fresh() {
    for engine in untorn::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, original()).unwrap();
        let file = Options::new().engine(engine).open(&path).unwrap();
        file.write_at(SECRET, 0).unwrap();
        file.sync().unwrap();
        let side = sidecar_of(&killed(file));
        let mut bytes = fs::read(&side).unwrap();
        let newer = usize::from(bytes[LEFT] == FRESH);
        assert_eq!([bytes[newer * PAGE + LEFT], bytes[(1 - newer) * PAGE + LEFT]], [OPEN, FRESH], "{engine}");
        bytes[newer * PAGE..][..PAGE].fill(0xee);
        fs::write(&side, bytes).unwrap();
        let file = Options::new().engine(engine).open(&path).unwrap();
        assert!(all_of(&file).unwrap().unwrap().starts_with(SECRET), "{engine}");
    }
}

/// A fresh sidecar of another file at the name of a lost one is no reason to forget what was lost.
#[test]
fn a_fresh_sidecar_does_not_hide_a_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = crashed(dir.path());
    let side = sidecar_of(&path);
    let forged = Forged::new();
    fs::write(&side, Forged::for_file(&forged.sidecar, &fs::metadata(&path).unwrap(), STAMP, Some(FRESH))).unwrap();
    for options in [Options::new(), Options::new().read_only(true)] {
        let error = options.open(&path).err().unwrap();
        assert!(matches!(error, Error::SidecarMismatch { .. }), "{error}");
    }
}

/// Each has a directory of its own for what untorn keeps beside their files, whoever came first and whatever the other
/// makes or removes.
#[test]
fn strangers_in_a_sticky_directory_keep_their_sidecars() {
    untorn_testing::needs!("root");
    strangers([VICTIM, MEMBER, 0]);
    strangers([0, VICTIM, MEMBER]);
}

fn strangers([first, second, third]: [u32; 3]) {
    let dir = directory(0o1777, 0);
    let own = |user: u32| dir.path().join(format!(".untorn-{user}"));
    let common = dir.path().join(".untorn");
    let write = |user: u32| {
        let path = dir.path().join(format!("of-{user}"));
        fs::write(&path, original()).unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        let open = || Options::new().engine(EngineKind::Reflection).open(&path).unwrap();
        let file = as_user(user, user, || {
            let file = open();
            file.write_at(SECRET, 0).unwrap();
            file.sync().unwrap();
            file
        });
        (path, file)
    };
    let users = [first, second, third];
    let files = users.map(write);
    let side = |dir: &Path, path: &Path| dir.join(fs::metadata(path).unwrap().ino().to_string());
    let dirs = [common.clone(), own(second), own(third)];
    let places = [0, 1, 2].map(|n| side(&dirs[n], &files[n].0));
    for (place, owner) in places.iter().zip(users) {
        assert_eq!(access(place), (owner, owner, 0o600), "{}", place.display());
        let around = fs::metadata(place.parent().unwrap()).unwrap();
        assert_eq!((around.uid(), around.mode() & 0o7777), (owner, 0o1755), "{}", place.display());
    }
    // As three processes leave them that are killed.
    let left = places.clone().map(|place| fs::read(place).unwrap());
    let marks = files.each_ref().map(|(path, _)| crate::common::mark(path));
    let paths = files.map(|(path, file)| {
        drop(file);
        path
    });
    for n in 0..3 {
        fs::create_dir_all(&dirs[n]).unwrap();
        chown(&dirs[n], Some(users[n]), Some(users[n])).unwrap();
        fs::write(&places[n], &left[n]).unwrap();
        chown(&places[n], Some(users[n]), Some(users[n])).unwrap();
        fs::set_permissions(&places[n], Permissions::from_mode(0o600)).unwrap();
        fs::write(&paths[n], original()).unwrap();
        if let Some(mark) = &marks[n] {
            setxattr(&paths[n], "user.untorn", mark, XattrFlags::empty()).unwrap();
        }
    }
    // The first goes, and another user makes the directory anew.
    let read = |n: usize| {
        let open = || Options::new().engine(EngineKind::Reflection).open(&paths[n]);
        let file = as_user(users[n], users[n], open).unwrap();
        let bytes = all_of(&file).unwrap().unwrap();
        assert!(bytes.starts_with(SECRET), "user {} lost a commit", users[n]);
        as_user(users[n], users[n], || file.settle()).unwrap();
    };
    read(0);
    assert!(!common.exists());
    read(1);
    as_user(ATTACKER, ATTACKER, || fs::create_dir(&common)).unwrap();
    read(2);
    assert!(common.exists() && dirs[1..].iter().all(|dir| !dir.exists()));
}

/// On upgrade, or after a `chmod`: what a file has there is neither used nor forgotten.
#[test]
fn a_sidecar_in_a_directory_not_believed_is_not_forgotten() {
    untorn_testing::needs!("root");
    let dir = directory(0o1777, 0);
    let (path, model) = crashed(dir.path());
    let common = dir.path().join(".untorn");
    chown(&common, Some(ATTACKER), None).unwrap();
    for options in [Options::new(), Options::new().read_only(true)] {
        let error = options.open(&path).err().unwrap();
        assert!(matches!(error, Error::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains("/.untorn,") && error.to_string().contains("user 65534"), "{error}");
    }
    chown(&common, Some(0), None).unwrap();
    assert!(all_of(&Options::new().open(&path).unwrap()).unwrap().unwrap() == model);
}
