//! Sidecars under another name than their file expects: restored with it, copied without it, set aside.

use std::path::{Path, PathBuf};

use super::forged::renumber;
use crate::common::counting::Counting;
use crate::common::{PAGE, copy, names, on_disk, partly_reflected, pattern, read, sidecar_of, tree};
use untorn::options::Layout;
use untorn::testing::storage::PageCache;
use untorn::{Durability, Error, Options};

const LEN: usize = 40 * PAGE;

fn options() -> Options {
    Options::new().layout(Layout::Sparse).durability(Durability::PerCommit).record_area(2, 8).max_len(1 << 20)
}

fn made(path: &Path) -> Vec<u8> {
    partly_reflected(&options(), path, LEN, 1)
}

/// A file and its sidecar as a crash leaves them in the middle of a commit whose record stands in a spill file:
/// copied to `to` under the names they had. Returns the sidecar there, and what the file holds after that commit.
fn crashed_in_a_large_commit(to: &Path) -> (PathBuf, Vec<u8>) {
    let path = on_disk("data");
    std::fs::create_dir(to.join(".untorn")).unwrap();
    let medium = Counting::new(PageCache::new());
    let (seen, copied) = (path.clone(), to.to_owned());
    medium.watch(move |what, _| {
        let sidecar = if what == "reflection.epoch.record" { sidecar_of(&seen) } else { return };
        let spill = sidecar.with_extension("spill");
        if spill.exists() {
            copy(&seen, &copied.join("data"));
            for file in [&sidecar, &spill] {
                std::fs::copy(file, copied.join(".untorn").join(file.file_name().unwrap())).unwrap();
            }
        }
    });
    let file = options().create_on(medium, &path, LEN as u64).unwrap();
    let model = pattern(LEN, 3);
    file.write_at(&model, 0).unwrap();
    file.sync().unwrap();
    let sidecar = to.join(".untorn").join(sidecar_of(&path).file_name().unwrap());
    assert!(sidecar.with_extension("spill").exists(), "the commit had no spill file");
    (sidecar, model)
}

#[test]
fn a_copy_does_not_take_its_originals_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("copy"));
    let model = made(&path);
    copy(&path, &other);
    let before = tree(dir.path());
    let adopt = || untorn::recover(&other, &options().adopt(true));
    let error = adopt().unwrap_err();
    assert!(matches!(&error, Error::SidecarMissing { original: Some(of), .. } if *of == path), "{error}");
    let place = sidecar_of(&other);
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains(place.to_str().unwrap()), "{text}");
    assert!(tree(dir.path()) == before, "a refusal changed something");
    let file = options().open(&path).unwrap();
    assert!(matches!(adopt(), Err(Error::InUse { .. })));
    assert!(read(&file) == model);
    file.close().unwrap();
    // The advice.
    copy(&path, &other);
    std::fs::copy(sidecar_of(&path), place).unwrap();
    adopt().unwrap();
    assert!(read(&options().open(&other).unwrap()) == model);
    assert!(read(&options().open(&path).unwrap()) == model);
    // Without the original, the sidecar is the copy's.
    let alone = dir.path().join("alone");
    copy(&path, &alone);
    std::fs::remove_file(&path).unwrap();
    untorn::recover(&alone, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&alone).unwrap()) == model);
}

#[test]
fn a_sidecar_put_beside_the_originals_is_found_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("copy"));
    let model = made(&path);
    copy(&path, &other);
    std::fs::copy(sidecar_of(&path), dir.path().join(".untorn/restored")).unwrap();
    untorn::recover(&other, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&other).unwrap()) == model);
    assert!(read(&options().open(&path).unwrap()) == model, "the original");
}

#[test]
fn an_adopted_sidecar_brings_its_spill_file() {
    // Under its old name; or as a crash in the middle of an earlier adoption left the two.
    for half_done in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (sidecar, model) = crashed_in_a_large_commit(dir.path());
        let path = dir.path().join("data");
        if half_done {
            let spill = sidecar.with_extension("spill");
            std::fs::rename(spill, sidecar_of(&path).with_extension("spill")).unwrap();
        }
        assert!(matches!(options().open(&path), Err(Error::SidecarMissing { original: None, .. })));
        let recovery = untorn::recover(&path, &options().adopt(true)).unwrap();
        assert!(recovery.was_needed && recovery.replayed > 0, "{recovery:?}");
        assert!(read(&options().open(&path).unwrap()) == model, "half done: {half_done}");
    }
}

#[test]
fn a_sidecar_set_aside_keeps_its_spill_file() {
    let dir = tempfile::tempdir().unwrap();
    let (sidecar, model) = crashed_in_a_large_commit(dir.path());
    let (lost, path) = (dir.path().join("data"), dir.path().join("new"));
    // A younger file that got the inode number of the one the sidecar was made for.
    std::thread::sleep(std::time::Duration::from_millis(20)); // Coarser clocks give times.
    std::fs::write(&path, b"new").unwrap();
    let place = sidecar_of(&path);
    let mut side = std::fs::read(&sidecar).unwrap();
    renumber(&mut side, &place);
    std::fs::rename(sidecar.with_extension("spill"), place.with_extension("spill")).unwrap();
    std::fs::write(&place, &side).unwrap();
    // Now and then it has got that number indeed.
    if place != sidecar {
        std::fs::remove_file(&sidecar).unwrap();
    }
    options().open(&path).unwrap().close().unwrap();
    let aside = names(place.parent().unwrap());
    assert!(aside.iter().any(|name| name.ends_with(".orphan")), "{aside:?}");
    // Its own file turns up.
    untorn::recover(&lost, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&lost).unwrap()) == model);
}
