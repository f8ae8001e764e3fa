//! Backups whose processes are killed: what may stand where the backup is to be.

use std::fs;
use std::path::{Path, PathBuf};

use untorn::backup::{self, BackupOptions};
use untorn::{AtomicFile, EngineKind, Error, Result, Snapshot};

use super::verbs::{BEFORE, LEN, data, image, options, write};

/// The kind of backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    New,
    /// In the place of an older one.
    Over,
    Increment,
    /// An increment by the commit log.
    Since,
    /// It goes on from what is left of another one.
    Resumable,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::New => "backup",
            Kind::Over => "backup-over",
            Kind::Increment => "backup-increment",
            Kind::Since => "backup-since",
            Kind::Resumable => "backup-resumable",
        }
    }
}

fn dest(dir: &Path) -> PathBuf {
    dir.join("backup")
}

/// Makes a file with a sidecar, and what stands there of earlier backups.
pub(super) fn prepare(kind: Kind, dir: &Path) -> Result<()> {
    let options = options().engine(EngineKind::HybridLog).keep_sidecar(true);
    let options = if kind == Kind::Since { options.commit_log(1 << 20) } else { options };
    let file = options.create(data(dir), LEN)?;
    write(&file, BEFORE[0])?;
    let earlier = match kind {
        Kind::New => None,
        Kind::Over | Kind::Resumable => Some(dest(dir)),
        Kind::Increment | Kind::Since => Some(dir.join("base")),
    };
    if let Some(earlier) = &earlier {
        backup::create(&file.snapshot()?, earlier, &BackupOptions::new())?;
    }
    if kind == Kind::Resumable {
        let _ = fs::remove_file(backup::manifest_of(&dest(dir)));
        let _ = fs::rename(dest(dir), dir.join(".backup.untorn-new"));
    }
    write(&file, BEFORE[1])?;
    file.close()
}

pub(super) fn back_up(kind: Kind, dir: &Path, replace: bool) -> Result<()> {
    let options = BackupOptions::new().replace(replace).resume(kind == Kind::Resumable);
    let base = dir.join("base");
    let options = match kind {
        Kind::Increment => options.base(base),
        Kind::Since => options.since(backup::verify(&base, &BackupOptions::new())?.commit),
        Kind::New | Kind::Over | Kind::Resumable => options,
    };
    backup::create(&Snapshot::open(data(dir))?, &dest(dir), &options).map(drop)
}

/// Whether a restored file has the number of the backup's commit, or a higher one.
pub(super) fn numbered(dir: &Path, file: &AtomicFile) -> std::result::Result<(), String> {
    let made = backup::verify(&dest(dir), &BackupOptions::new());
    let commit = made.map_err(|error| format!("the backup is harmed: {error}"))?.commit;
    let found = file.last_commit().number;
    let why = || format!("the restored file is at commit {found}, and the backup has commit {commit}");
    if commit > 0 && found >= commit { Ok(()) } else { Err(why()) }
}

/// Whether a backup that was reported as made is there. `now` is the file.
pub(super) fn is_made(kind: Kind, dir: &Path, now: &[u8]) -> std::result::Result<(), String> {
    if !dest(dir).exists() {
        return Err("the backup was reported as made, and is not there".to_owned());
    }
    // One that it replaces has other bytes.
    survives(if kind == Kind::Over { Kind::New } else { kind }, dir, now)
}

pub(super) fn restore(dir: &Path, path: &Path, replace: bool) -> Result<()> {
    backup::restore(&[dest(dir)], path, &BackupOptions::new().replace(replace)).map(drop)
}

/// A backup that is there is whole, and the next one is not kept from being made. `now` is the file.
pub(super) fn survives(kind: Kind, dir: &Path, now: &[u8]) -> std::result::Result<(), String> {
    let told = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let (dest, again) = (dest(dir), dir.join("again"));
    let shows = |allowed: &[&[u8]]| {
        backup::verify(&dest, &BackupOptions::new()).map_err(told("verifying the backup"))?;
        let is_increment = matches!(kind, Kind::Increment | Kind::Since);
        let chain = if is_increment { vec![dir.join("base"), dest.clone()] } else { vec![dest.clone()] };
        backup::restore(&chain, &again, &BackupOptions::new().replace(true)).map_err(told("restoring the backup"))?;
        let bytes = fs::read(&again).map_err(|error| format!("reading what was restored: {error}"))?;
        if allowed.contains(&&*bytes) { Ok(()) } else { Err("the backup has bytes of no commit".to_owned()) }
    };
    let older = image(&BEFORE[..1], LEN);
    let replaces = kind == Kind::Over;
    match dest.exists() {
        true if replaces => shows(&[&older, now])?,
        true => return shows(&[now]),
        false if replaces => return Err("the older backup is gone, and no other is there".to_owned()),
        false => {}
    }
    back_up(kind, dir, replaces).map_err(told("making the backup again"))?;
    shows(&[now])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_file_whose_numbers_begin_anew_is_convicted() {
        let dir = tempfile::tempdir().unwrap();
        let again = dir.path().join("again");
        prepare(Kind::New, dir.path()).unwrap();
        back_up(Kind::New, dir.path(), false).unwrap();
        restore(dir.path(), &again, false).unwrap();
        let opened = || options().open(&again).unwrap();
        numbered(dir.path(), &opened()).unwrap();
        if rustix::fs::removexattr(&again, "user.untorn.commit").is_ok() {
            assert!(numbered(dir.path(), &opened()).unwrap_err().contains("at commit"));
        }
    }

    #[test]
    fn a_backup_of_no_commit_and_a_lost_one_are_convicted() {
        let dir = tempfile::tempdir().unwrap();
        let now = image(&BEFORE, LEN);
        prepare(Kind::Over, dir.path()).unwrap();
        survives(Kind::Over, dir.path(), &now).unwrap();
        assert!(survives(Kind::Over, dir.path(), &image(&[], LEN)).unwrap_err().contains("no commit"));
        fs::remove_file(dest(dir.path())).unwrap();
        assert!(survives(Kind::Over, dir.path(), &now).unwrap_err().contains("gone"));
        fs::write(dest(dir.path()), now).unwrap();
        fs::remove_file(backup::manifest_of(&dest(dir.path()))).unwrap();
        assert!(survives(Kind::New, dir.path(), &[]).unwrap_err().starts_with("verifying"));
    }
}
