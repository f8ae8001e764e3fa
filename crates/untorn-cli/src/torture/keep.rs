//! Keeps the state after a kill and before recovery, so that a violation can be studied.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Sidecars live in this directory beside the data file.
pub(crate) const SIDECARS: &str = ".untorn";
/// Larger files are not copied at each kill.
const MOST: u64 = 256 << 20;

/// Copies the data file and all files in [`SIDECARS`] into `to`, replacing the copy of an earlier kill.
pub(crate) fn copy_state(file: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir(to)?,
    }
    let name = file.file_name().unwrap_or(file.as_os_str());
    copy_file(file, &to.join(name))?;
    let sidecars = file.with_file_name(SIDECARS);
    let entries = match fs::read_dir(&sidecars) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    fs::create_dir(to.join(SIDECARS))?;
    for entry in entries {
        let entry = entry?;
        copy_file(&entry.path(), &to.join(SIDECARS).join(entry.file_name()))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    if metadata.is_file() && metadata.blocks() * 512 <= MOST {
        fs::copy(from, to)?;
    }
    Ok(())
}
