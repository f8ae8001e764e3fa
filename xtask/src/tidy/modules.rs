//! One convention for modules with files of their own: `name/mod.rs`, never `name.rs` beside `name/`.
//!
//! The root of a crate is no module: a file of `tests/`, `benches/`, `examples/`, `fuzz_targets/` or `src/bin/`.

use std::collections::BTreeSet;

use super::{Finding, Tree};

/// Directories whose files are crates.
const CRATES: &[&str] = &["tests", "benches", "examples", "fuzz_targets", "bin"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let files = || tree.files.iter().filter(|file| file.is_rust());
    let directories: BTreeSet<&str> = files().filter_map(|file| Some(file.path.rsplit_once('/')?.0)).collect();
    files()
        .map(|file| (file, file.path.trim_end_matches(".rs")))
        .filter(|(_, module)| directories.contains(module) && !is_crate(module))
        .map(|(file, module)| Finding::new(file, 1, format!("a module with a directory; move it to {module}/mod.rs")))
        .collect()
}

/// Whether a file, without `.rs`, is the root of a crate. `src/x/tests.rs` is a module, `crates/x/tests/y.rs` is not.
fn is_crate(module: &str) -> bool {
    let mut segments = module.rsplit('/').skip(1);
    segments.next().is_some_and(|directory| match directory {
        "bin" => segments.next() == Some("src"),
        other => CRATES.contains(&other) && !module.contains("/src/"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        Tree::of(&paths.iter().map(|path| (*path, "")).collect::<Vec<_>>())
    }

    #[test]
    fn modules_in_their_directory_are_fine() {
        let paths = [
            "crates/x/src/lib.rs",
            "crates/x/src/a/mod.rs",
            "crates/x/src/a/b.rs",
            "crates/x/tests/c.rs",
            "crates/x/tests/c/d.rs",
            "crates/x/src/bin/e.rs",
            "crates/x/src/bin/e/f.rs",
            "crates/x/src/g.rs",
            "crates/x/src/g/data.txt",
        ];
        assert!(check(&tree(&paths)).is_empty());
    }

    #[test]
    fn a_module_beside_its_directory_is_found() {
        for paths in [["src/a.rs", "src/a/b.rs"], ["src/tests/a.rs", "src/tests/a/b.rs"]] {
            let paths = paths.map(|path| format!("crates/x/{path}"));
            let found = check(&tree(&paths.each_ref().map(String::as_str)));
            assert!(found.len() == 1 && found[0].fails && found[0].path == paths[0], "{found:#?}");
            assert!(found[0].message.ends_with("a/mod.rs"));
        }
    }
}
