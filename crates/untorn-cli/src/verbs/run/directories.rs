//! The directories that a run serves, by its globs.
//!
//! A glob names the directory before its first wildcard. The run mounts on that directory, so the globs are made anew
//! with the directory's real path: the server chooses files by real paths, and a glob may lead through symbolic links.

use std::io;
use std::path::{Path, PathBuf};

use crate::exit::{Failure, Result};

/// Characters that make a component of a glob more than a name.
const WILDCARDS: [char; 6] = ['*', '?', '[', '{', '!', '\\'];

/// The files of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Directories to serve: real paths, none inside another.
    pub(super) directories: Vec<PathBuf>,
    /// Globs of managed files, by real paths.
    pub(super) globs: Vec<String>,
    /// Globs of files that are left plain, by real paths.
    pub(super) excluded: Vec<String>,
    /// Globs of files that get a commit log, by real paths.
    pub(super) commit_logs: Vec<String>,
}

impl Chosen {
    /// Finds the directories. `here` is the working directory, without symbolic links.
    ///
    /// # Errors
    /// Usage, for the root directory; I/O, for a directory that can't be found for another reason than that it does
    /// not exist.
    pub(super) fn of(here: &Path, globs: &[String], excluded: &[String]) -> Result<Self> {
        let mut directories = Vec::new();
        let mut real_globs = Vec::new();
        for glob in globs {
            let (directory, glob) = located(here, glob)?;
            directories.push(directory);
            real_globs.push(glob);
        }
        if globs.is_empty() {
            directories.push(here.to_owned());
        }
        if let Some(root) = directories.iter().position(|directory| directory == Path::new("/")) {
            let which =
                globs.get(root).map_or_else(|| "without --match".to_owned(), |glob| format!("--match {glob:?}"));
            let what = format!(
                "{which}: a run serves the directory /, which cannot be mounted on; name an existing directory, for \
                 example --match '/srv/data/**'"
            );
            return Err(Failure::usage(what));
        }
        let excluded = excluded.iter().map(|glob| Ok(located(here, glob)?.1)).collect::<Result<_>>()?;
        Ok(Chosen { directories: outermost(directories), globs: real_globs, excluded, commit_logs: Vec::new() })
    }

    /// With globs of files that get a commit log.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub(super) fn with_commit_logs(self, here: &Path, globs: &[String]) -> Result<Self> {
        let commit_logs = globs.iter().map(|glob| Ok(located(here, glob)?.1)).collect::<Result<_>>()?;
        Ok(Chosen { commit_logs, ..self })
    }
}

/// The directories that are in no other one.
fn outermost(mut directories: Vec<PathBuf>) -> Vec<PathBuf> {
    // By components, a directory comes before all that it holds.
    directories.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for directory in directories {
        if !kept.iter().any(|outer| directory.starts_with(outer)) {
            kept.push(directory);
        }
    }
    kept
}

/// The directory of a glob, and the glob with its real path.
fn located(here: &Path, glob: &str) -> Result<(PathBuf, String)> {
    if !glob.contains('/') {
        return Ok((here.to_owned(), glob.to_owned()));
    }
    let (directory, rest) = split(glob);
    let (real, missing) = existing(&here.join(directory))?;
    // A path that is no text has no glob as text. The glob stays, and means the same unless it leads through a link.
    let Some(real_text) = real.join(missing).to_str().map(str::to_owned) else { return Ok((real, glob.to_owned())) };
    let separator = if real_text.ends_with('/') { "" } else { "/" };
    Ok((real, format!("{}{separator}{rest}", literal(&real_text))))
}

/// A glob's directory, up to the first wildcard, and what follows.
fn split(glob: &str) -> (&str, &str) {
    let wild = glob.find(WILDCARDS).unwrap_or(glob.len());
    match glob.get(..wild).and_then(|before| before.rfind('/')) {
        Some(0) => ("/", glob.get(1..).unwrap_or_default()),
        Some(slash) => (glob.get(..slash).unwrap_or_default(), glob.get(slash + 1..).unwrap_or_default()),
        None => (".", glob),
    }
}

/// The nearest directory of a path that exists, by its real path, and the part of the path that does not exist.
fn existing(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let (mut at, mut missing) = (path, PathBuf::new());
    loop {
        match at.canonicalize() {
            Ok(real) if real.is_dir() => return Ok((real, missing)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(Failure::io_at("find the directory", at, &error)),
        }
        let (Some(name), Some(parent)) = (at.file_name(), at.parent()) else {
            return Err(Failure::usage_at(path, "this path does not exist; name an existing directory"));
        };
        missing = match missing.as_os_str().is_empty() {
            true => PathBuf::from(name),
            false => Path::new(name).join(missing),
        };
        at = parent;
    }
}

/// A glob that matches just this path.
fn literal(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        if WILDCARDS.contains(&character) || "]},".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        _dir: tempfile::TempDir,
        here: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let here = dir.path().canonicalize().unwrap();
            for directory in ["data/deep", "other", "odd[1]"] {
                std::fs::create_dir_all(here.join(directory)).unwrap();
            }
            std::fs::write(here.join("data/file"), "").unwrap();
            std::os::unix::fs::symlink("data", here.join("link")).unwrap();
            Place { _dir: dir, here }
        }

        fn chosen(&self, globs: &[&str]) -> Chosen {
            let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
            Chosen::of(&self.here, &globs, &[]).unwrap()
        }

        /// Directories below the place, and the globs without its path.
        fn of(&self, globs: &[&str]) -> (Vec<String>, Vec<String>) {
            let chosen = self.chosen(globs);
            let inside = |path: &PathBuf| path.strip_prefix(&self.here).unwrap().display().to_string();
            let here = self.here.to_str().unwrap();
            let glob = |glob: &String| glob.strip_prefix(here).unwrap_or(glob).to_owned();
            (chosen.directories.iter().map(inside).collect(), chosen.globs.iter().map(glob).collect())
        }
    }

    fn owned(directories: &[&str], globs: &[&str]) -> (Vec<String>, Vec<String>) {
        let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        (all(directories), all(globs))
    }

    #[test]
    fn a_glob_names_the_directory_before_its_first_wildcard() {
        let place = Place::new();
        assert_eq!(place.of(&[]), owned(&[""], &[]));
        assert_eq!(place.of(&["*.db"]), owned(&[""], &["*.db"]));
        assert_eq!(place.of(&["./**"]), owned(&[""], &["/**"]));
        assert_eq!(place.of(&["data/**"]), owned(&["data"], &["/data/**"]));
        assert_eq!(place.of(&["data/d*/x"]), owned(&["data"], &["/data/d*/x"]));
        // A plain path is a file's, so its directory is served.
        assert_eq!(place.of(&["data/file"]), owned(&["data"], &["/data/file"]));
        assert_eq!(place.of(&["data/deep"]), owned(&["data"], &["/data/deep"]));
        let absolute = format!("{}/other/?", place.here.display());
        assert_eq!(place.of(&[&absolute]), owned(&["other"], &["/other/?"]));
    }

    #[test]
    fn a_directory_through_links_or_dots_is_the_real_one() {
        let place = Place::new();
        assert_eq!(place.of(&["link/*.db"]), owned(&["data"], &["/data/*.db"]));
        assert_eq!(place.of(&["other/../data/*"]), owned(&["data"], &["/data/*"]));
    }

    #[test]
    fn a_missing_directory_is_served_by_the_nearest_one() {
        let place = Place::new();
        assert_eq!(place.of(&["data/new/er/*.db"]), owned(&["data"], &["/data/new/er/*.db"]));
        assert_eq!(place.of(&["data/file/*"]), owned(&["data"], &["/data/file/*"]));
    }

    #[test]
    fn directories_inside_others_are_served_by_the_outer_one() {
        let place = Place::new();
        let found = place.of(&["data/deep/*", "other/*", "data/*"]);
        assert_eq!(found, owned(&["data", "other"], &["/data/deep/*", "/other/*", "/data/*"]));
    }

    #[test]
    fn wildcards_in_a_real_name_are_literal() {
        let place = Place::new();
        let here = place.here.join("odd[1]");
        let chosen = Chosen::of(&here, &["./*.db".to_owned()], &[]).unwrap();
        assert_eq!(chosen.directories, [here]);
        assert!(chosen.globs[0].ends_with(r"odd\[1\]/*.db"), "{chosen:?}");
    }

    #[test]
    fn the_root_directory_is_refused() {
        let root = Path::new("/");
        for globs in [&[][..], &["/**".to_owned()], &["/no-such-directory/**".to_owned()]] {
            let refused = Chosen::of(root, globs, &[]).unwrap_err().to_string();
            assert!(refused.contains("cannot be mounted on"), "{refused}");
        }
    }
}
