//! The engines that a change touches.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Command;

/// Directories of the library, and the engines of the explorer that run their code. A directory that is in no row
/// belongs to the ground that all engines stand on.
const OWNERS: &[(&str, &[&str])] = &[
    ("file/reflection", &["reflection", "shadow", "covered"]),
    ("file/hybrid_log", &["hybrid-log", "covered"]),
    ("region", &["snapshot"]),
    ("write_cache", &["cache"]),
    ("redundancy", &["redundancy", "covered"]),
    // No simulated storage runs these; their tests do.
    ("file/map", &[]),
    ("ipc", &[]),
    ("shared", &[]),
    ("simd", &[]),
    ("doctor", &[]),
];

/// Every engine of the explorer.
const ALL: &[&str] = &["reflection", "hybrid-log", "shadow", "snapshot", "cache", "redundancy", "covered"];

/// The engines whose code differs between `base` and the working tree.
pub(super) fn engines(root: &Path, base: &str) -> io::Result<BTreeSet<&'static str>> {
    let mut changed = git(root, &["diff", "--name-only", base])?;
    changed.push_str(&git(root, &["ls-files", "--others", "--exclude-standard"])?);
    Ok(changed.lines().flat_map(owners).copied().collect())
}

fn owners(path: &str) -> &'static [&'static str] {
    if path.starts_with("crates/untorn-sim/src/") {
        return ALL;
    }
    let Some(inner) = path.strip_prefix("crates/untorn/src/") else { return &[] };
    let owner = OWNERS.iter().find(|(directory, _)| {
        inner.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/') || rest.starts_with('.'))
    });
    owner.map_or(ALL, |(_, engines)| *engines)
}

fn git(root: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_to_one_engine_explores_that_engine() {
        assert_eq!(owners("crates/untorn/src/write_cache/engine/drain.rs"), ["cache"]);
        assert_eq!(owners("crates/untorn/src/region/engine/mod.rs"), ["snapshot"]);
    }

    #[test]
    fn a_change_to_the_ground_explores_every_engine() {
        assert_eq!(owners("crates/untorn/src/storage/dax.rs"), ALL);
        assert_eq!(owners("crates/untorn-sim/src/crash.rs"), ALL);
    }

    #[test]
    fn a_change_elsewhere_explores_nothing() {
        assert!(owners("README.md").is_empty() && owners("crates/untorn-cli/src/main.rs").is_empty());
    }

    #[test]
    fn every_owner_is_a_directory_or_file_of_the_library() {
        let source = crate::root().join("crates/untorn/src");
        for (owner, _) in OWNERS {
            assert!(source.join(owner).is_dir() || source.join(owner).with_extension("rs").is_file(), "{owner}");
        }
    }
}
