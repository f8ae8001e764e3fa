//! The tree as one file, and the checksums of all results.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Result, at, entries, output, replace, said, succeed, write};

/// Packs the tree `name` of a directory. The same tree gives the same bytes, for whatever user and at whatever time.
pub(super) fn pack(root: &Path, out: &Path, name: &str, scratch: &Path) -> Result<()> {
    let archive = format!("{name}.tar.gz");
    let new = scratch.join(&archive);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu", "--use-compress-program"]);
    tar.args(["gzip -6n", &format!("--mtime=@{}", time(root))]).arg("-C").arg(out).arg("-cf").arg(&new).arg(name);
    succeed(&mut tar)?;
    replace(&new, &out.join(archive))
}

/// The time of the files in packages, in seconds since 1970: `SOURCE_DATE_EPOCH`, or that of the commit.
pub(super) fn time(root: &Path) -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let of_commit = || said(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"])).ok();
    given.or_else(of_commit).and_then(|text| text.trim().parse().ok()).unwrap_or(1)
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads, with every package in the directory.
pub(super) fn sums(out: &Path) -> Result<()> {
    let is_package = |name: &str| [".tar.gz", ".deb", ".whl"].iter().any(|end| name.ends_with(end));
    let names = entries(out)?.into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let names: Vec<String> = names.filter(|name| is_package(name)).collect();
    let sums = output(Command::new("sha256sum").current_dir(out).arg("--").args(&names))?;
    let new = out.join(".SHA256SUMS");
    write(&new, sums)?;
    let place = out.join("SHA256SUMS");
    fs::rename(&new, &place).map_err(at("create", &place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_same_each_time_and_its_sum_is_right() {
        let out = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir_in(out.path()).unwrap();
        let root = crate::root();
        write(&out.path().join("tree/bin/tool"), "tool").unwrap();
        write(&out.path().join("other.txt"), "no package").unwrap();
        let mut archives = Vec::new();
        for _ in 0..2 {
            pack(&root, out.path(), "tree", scratch.path()).unwrap();
            archives.push(fs::read(out.path().join("tree.tar.gz")).unwrap());
            let again = fs::read(out.path().join("tree/bin/tool")).unwrap();
            // Another time of modification.
            write(&out.path().join("tree/bin/tool"), again).unwrap();
        }
        assert_eq!(archives[0], archives[1]);
        sums(out.path()).unwrap();
        let text = fs::read_to_string(out.path().join("SHA256SUMS")).unwrap();
        assert!(text.ends_with("  tree.tar.gz\n") && text.lines().count() == 1, "{text}");
        let check = ["--check", "--quiet", "SHA256SUMS"];
        succeed(Command::new("sha256sum").current_dir(out.path()).args(check)).unwrap();
    }
}
