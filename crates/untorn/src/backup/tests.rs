use std::os::unix::fs::MetadataExt;

use super::*;
use crate::file::AtomicFile;

const LEN: u64 = (3 << 20) + 77;

fn errno(error: &Error) -> i32 {
    error.errno()
}

/// A file with bytes in its first and last chunk.
fn data(dir: &Path) -> (AtomicFile, Vec<u8>) {
    let file = AtomicFile::create(dir.join("data"), LEN).unwrap();
    file.write_at(&[7; 5000], 100).unwrap();
    file.write_at(b"the end", LEN - 7).unwrap();
    file.sync().unwrap();
    let mut bytes = vec![0; LEN as usize];
    file.read_at(&mut bytes, 0).unwrap();
    (file, bytes)
}

#[test]
fn a_backup_has_one_commit_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bytes) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    let snapshot = file.snapshot().unwrap();
    file.write_at(&[9; 4096], 0).unwrap();
    file.sync().unwrap();
    let made = create(&snapshot, &dest, &BackupOptions::new().verify(true)).unwrap();
    assert_eq!((made.commit, made.len, made.bytes), (snapshot.commit(), LEN, 2 * 4096 + 77));
    assert_eq!(std::fs::read(&dest).unwrap(), bytes);
    assert!(std::fs::metadata(&dest).unwrap().blocks() * 512 < 1 << 20, "zeros are holes");
    assert_eq!(verify(&dest, &BackupOptions::new()).unwrap(), made);
    assert_eq!(restore(&dest, &again, &BackupOptions::new()).unwrap(), made);
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    let mut streamed = Vec::new();
    stream(&snapshot, &mut streamed, &BackupOptions::new()).unwrap();
    assert_eq!(streamed, bytes);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "{left:?}");
}

#[test]
fn nothing_is_replaced_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bytes) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    std::fs::write(&dest, "precious").unwrap();
    let snapshot = file.snapshot().unwrap();
    let exists = Errno::EXIST.raw_os_error();
    assert_eq!(errno(&create(&snapshot, &dest, &BackupOptions::new()).unwrap_err()), exists);
    assert_eq!(std::fs::read(&dest).unwrap(), b"precious");
    assert!(!manifest_of(&dest).exists());
    // Another program's file may have the name of the manifest.
    let other = dir.path().join("other");
    std::fs::write(manifest_of(&other), "precious").unwrap();
    assert_eq!(errno(&create(&snapshot, &other, &BackupOptions::new()).unwrap_err()), exists);
    assert!(!other.exists() && std::fs::read(manifest_of(&other)).unwrap() == b"precious");
    create(&snapshot, &dest, &BackupOptions::new().replace(true)).unwrap();
    create(&snapshot, &dest, &BackupOptions::new().replace(true)).unwrap();
    std::fs::write(&again, "precious").unwrap();
    assert_eq!(errno(&restore(&dest, &again, &BackupOptions::new()).unwrap_err()), exists);
    restore(&dest, &again, &BackupOptions::new().replace(true)).unwrap();
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    // A file that a process has open stays.
    let open = AtomicFile::open(&again).unwrap();
    let refused = restore(&dest, &again, &BackupOptions::new().replace(true)).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    open.close().unwrap();
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    create(&file.snapshot().unwrap(), &dest, &BackupOptions::new()).unwrap();
    let backup = OpenOptions::new().write(true).open(&dest).unwrap();
    let damage = |at: u64, byte: u8, offset: u64| {
        backup.write_all_at(&[byte], at).unwrap();
        for error in [
            verify(&dest, &BackupOptions::new()).unwrap_err(),
            restore(&dest, &again, &BackupOptions::new()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Corrupt { offset: Some(found), .. } if found == offset), "{error}");
        }
        assert!(!again.exists());
    };
    damage(2 << 20, 1, 2 << 20);
    backup.write_all_at(&[0], 2 << 20).unwrap();
    damage(100, 8, 0);
    backup.write_all_at(&[7], 100).unwrap();
    verify(&dest, &BackupOptions::new()).unwrap();
    backup.set_len(LEN - 1).unwrap();
    assert!(matches!(restore(&dest, &again, &BackupOptions::new()), Err(Error::Corrupt { .. })));
    std::fs::remove_file(manifest_of(&dest)).unwrap();
    let error = restore(&dest, &again, &BackupOptions::new()).unwrap_err();
    assert!(error.to_string().contains("backup.manifest"), "{error}");
}
