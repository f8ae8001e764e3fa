//! The choice of managed files: globs over absolute paths in the source.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Globs that choose files by their absolute paths. The default chooses every file.
///
/// A glob without a slash names files anywhere. One that does not begin with a slash is relative to the directory that
/// the globs were made for.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    chosen: Vec<Vec<u8>>,
    excluded: Vec<Vec<u8>>,
}

impl Globs {
    /// Globs of files that are managed, and of files that are not, whatever else they match. `here` is the directory
    /// that relative globs begin in.
    ///
    /// # Errors
    /// [`Error::Glob`].
    pub fn new<S: AsRef<str>>(here: &Path, chosen: &[S], excluded: &[S]) -> Result<Self> {
        let absolute = |globs: &[S]| globs.iter().map(|glob| absolute(here, glob.as_ref())).collect::<Result<_>>();
        Ok(Globs { chosen: absolute(chosen)?, excluded: absolute(excluded)? })
    }

    /// Whether the globs choose this path.
    pub fn choose(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        let matches = |globs: &[Vec<u8>]| globs.iter().any(|glob| fast_glob::glob_match(glob, path));
        (self.chosen.is_empty() || matches(&self.chosen)) && !matches(&self.excluded)
    }
}

/// A glob for whole paths.
fn absolute(here: &Path, glob: &str) -> Result<Vec<u8>> {
    if glob.is_empty() || glob.contains('\n') || fast_glob::validate(glob).is_err() {
        return Err(Error::Glob(glob.to_owned()));
    }
    let mut all = Vec::new();
    if !glob.contains('/') {
        all.extend_from_slice(b"/**/");
    } else if !glob.starts_with('/') {
        all.extend(literal(here.as_os_str().as_bytes()));
        all.push(b'/');
    }
    all.extend_from_slice(glob.strip_prefix("./").unwrap_or(glob).as_bytes());
    Ok(all)
}

/// A glob that matches just these bytes.
fn literal(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| {
        let escape = b"*?[]{}!\\,".contains(byte).then_some(b'\\');
        escape.into_iter().chain([*byte])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooses(chosen: &[&str], excluded: &[&str], path: &str) -> bool {
        Globs::new(Path::new("/a[b]"), chosen, excluded).unwrap().choose(Path::new(path))
    }

    #[test]
    fn a_glob_names_files_anywhere_or_paths() {
        assert!(chooses(&["*.db"], &[], "/a/b/c.db") && chooses(&["*.db"], &[], "/c.db"));
        assert!(!chooses(&["*.db"], &[], "/a/b.db/c"));
        assert!(chooses(&["/a/**"], &[], "/a/b/c") && !chooses(&["/a/*"], &[], "/a/b/c"));
        assert!(chooses(&["d/*.db"], &[], "/a[b]/d/c.db") && !chooses(&["d/*.db"], &[], "/ab/d/c.db"));
        assert!(matches!(Globs::new(Path::new("/"), &["{a"], &[]), Err(Error::Glob(_))));
    }

    #[test]
    fn no_glob_chooses_all_but_what_is_excluded() {
        assert!(chooses(&[], &[], "/x") && chooses(&[], &["*.log"], "/x") && !chooses(&[], &["*.log"], "/x.log"));
        assert!(!chooses(&["*.db"], &["/a/**"], "/a/x.db") && chooses(&["*.db"], &["/a/**"], "/b/x.db"));
    }
}
