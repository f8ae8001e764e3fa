//! What stands in `.untorn` and belongs to no file: listed, and removed when asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::forged::renumber;
use crate::common::{PAGE, copy, mark, names, partly_reflected, read, sidecar_of, tree};
use untorn::redundancy::ProtectOptions;
use untorn::report::{Leftover, LeftoverKind};
use untorn::{EngineKind, Error, Options};

const LEN: usize = 8 * PAGE;

fn options() -> Options {
    Options::new().engine(EngineKind::Reflection).record_area(2, 8).keep_sidecar(true)
}

fn found(dir: &Path) -> Vec<Leftover> {
    untorn::prune(dir, Duration::ZERO, false).unwrap()
}

fn kinds(found: &[Leftover]) -> Vec<(LeftoverKind, Option<PathBuf>)> {
    found.iter().map(|leftover| (leftover.kind, leftover.made_for.clone())).collect()
}

#[test]
fn only_what_belongs_to_no_file_is_left_over() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, gone) = (dir.path().join("kept"), dir.path().join("gone"));
    let model = partly_reflected(&options(), &kept, LEN, 1);
    let protection = ProtectOptions::new().on_demand();
    partly_reflected(&options().redundancy(protection), &gone, LEN, 2);
    assert!(found(dir.path()).is_empty());
    let sidecar = sidecar_of(&gone);
    std::fs::write(sidecar.with_extension("spill"), vec![1; 3 * PAGE]).unwrap();
    assert!(sidecar.with_extension("redundancy").exists());
    std::fs::remove_file(&gone).unwrap();
    // All of the set is one leftover.
    let left = found(dir.path());
    assert_eq!(kinds(&left), [(LeftoverKind::Sidecar, Some(gone))]);
    assert!(left[0].path == sidecar && left[0].bytes >= 3 * PAGE as u64, "{left:?}");
    // Looking changes nothing, nor does a removal of what is older.
    let before = tree(dir.path());
    assert!(untorn::prune(dir.path(), Duration::from_secs(3600), true).unwrap().is_empty());
    assert!(tree(dir.path()) == before);
    let removed = untorn::prune(dir.path(), Duration::ZERO, true).unwrap();
    assert!(removed.len() == 1 && removed[0].removed, "{removed:?}");
    let names = names(&dir.path().join(".untorn"));
    assert_eq!(names, [sidecar_of(&kept).file_name().unwrap().to_str().unwrap()]);
    assert!(read(&options().open(&kept).unwrap()) == model);
}

#[test]
fn a_sidecar_of_a_restored_or_open_file_is_not_left_over() {
    let dir = tempfile::tempdir().unwrap();
    let (path, restored) = (dir.path().join("data"), dir.path().join("restored"));
    let model = partly_reflected(&options(), &path, LEN, 1);
    copy(&path, &restored);
    std::fs::remove_file(&path).unwrap();
    // The mark speaks for the copy, whose inode number is another one.
    assert!(mark(&restored).is_some() && found(dir.path()).is_empty());
    untorn::recover(&restored, &options().adopt(true)).unwrap();
    let file = options().open(&restored).unwrap();
    std::fs::remove_file(&restored).unwrap();
    assert!(found(dir.path()).is_empty(), "a process has it open");
    assert!(read(&file) == model);
    drop(file);
    assert_eq!(found(dir.path()).len(), 1);
}

#[test]
fn what_was_set_aside_is_left_over_unless_its_file_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (path, gone) = (dir.path().join("data"), dir.path().join("gone"));
    partly_reflected(&options(), &gone, LEN, 1);
    let mut side = std::fs::read(sidecar_of(&gone)).unwrap();
    std::fs::remove_file(sidecar_of(&gone)).unwrap();
    std::thread::sleep(Duration::from_millis(20)); // Coarser clocks give times.
    std::fs::write(&path, vec![7; LEN]).unwrap();
    renumber(&mut side, &sidecar_of(&path));
    std::fs::write(sidecar_of(&path), &side).unwrap();
    Options::new().open(&path).unwrap().close().unwrap();
    assert!(found(dir.path()).is_empty(), "its own file is there, and may adopt it");
    std::fs::remove_file(&gone).unwrap();
    assert_eq!(kinds(&found(dir.path())), [(LeftoverKind::Orphan, Some(gone))]);
    // A kill between the removal of the sidecar and that of what goes with it leaves remains.
    let orphan = found(dir.path())[0].path.clone();
    let copied = std::fs::read(&orphan).unwrap();
    std::fs::remove_file(&orphan).unwrap();
    for kind in ["spill", "sidecar-redundancy"] {
        std::fs::write(orphan.with_extension(kind), [1; PAGE]).unwrap();
    }
    assert_eq!(kinds(&found(dir.path())), [(LeftoverKind::Remains, None), (LeftoverKind::Remains, None)]);
    assert_eq!(untorn::prune(dir.path(), Duration::ZERO, true).unwrap().len(), 2);
    std::fs::create_dir_all(orphan.parent().unwrap()).unwrap();
    std::fs::write(&orphan, copied).unwrap();
    assert!(untorn::prune(dir.path(), Duration::ZERO, true).unwrap()[0].removed);
    assert_eq!(names(dir.path()), ["data"]);
}

#[test]
fn nothing_is_removed_through_a_symbolic_link() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    partly_reflected(&options(), &gone, LEN, 1);
    std::fs::remove_file(&gone).unwrap();
    let (here, elsewhere) = (dir.path().join(".untorn"), dir.path().join("elsewhere"));
    std::fs::rename(&here, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &here).unwrap();
    let before = tree(&elsewhere);
    let refused = untorn::prune(dir.path(), Duration::ZERO, true).unwrap_err();
    assert!(matches!(&refused, Error::Untrusted { companion, .. } if *companion == here), "{refused}");
    assert!(tree(&elsewhere) == before);
}
