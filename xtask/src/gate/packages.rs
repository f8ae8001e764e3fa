//! Checks of the crates as others get them: features, packages, and the release library's symbols.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::runner::{Context, Outcome, finish};

/// The features of the crate `untorn` but `metrics`: its manifest's default.
fn all_features(context: &Context<'_>) -> io::Result<Vec<String>> {
    let manifest = fs::read_to_string(context.root.join("crates/untorn/Cargo.toml"))?;
    let default = manifest.lines().find_map(|line| line.strip_prefix("default = [")?.strip_suffix(']'));
    let default = default.ok_or_else(|| io::Error::other("crates/untorn/Cargo.toml has no default features"))?;
    Ok(default.split(", ").map(|name| name.trim_matches('"').to_owned()).collect())
}

/// Compiles the crate with every combination of its features. A warning fails.
pub(super) fn feature_combinations(context: &Context<'_>) -> io::Result<Outcome> {
    let all = all_features(context)?;
    let combinations = (0..1u32 << all.len()).map(|combination| {
        let chosen = all.iter().enumerate().filter(|(bit, _)| combination >> bit & 1 == 1);
        chosen.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
    });
    // `metrics` is a layer of its own, which no other feature has to do with.
    for chosen in combinations.chain(["metrics".to_owned(), format!("{},metrics", all.join(","))]) {
        println!("-- features: {chosen}");
        let mut command = context.cargo();
        command.args(["check", "--quiet", "--package", "untorn", "--lib", "--no-default-features"]);
        let output = command.args(["--features", &chosen]).output()?;
        // Quietly, Cargo says only what is wrong.
        if !output.status.success() || !output.stderr.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Ok(Outcome::Failed(format!("the features {chosen:?} do not build without warnings:\n{said}")));
        }
    }
    Ok(Outcome::Passed)
}

/// Installs the C library by cargo-c, and uses it as its users do.
pub(super) fn c_library(context: &Context<'_>) -> io::Result<Outcome> {
    let prefix = crate::target(context.root, "cargo-c");
    if prefix.exists() {
        fs::remove_dir_all(&prefix)?;
    }
    let mut install = context.cargo();
    install.args(["cinstall", "--debug", "--package", "untorn-capi", "--prefix"]).arg(&prefix);
    if let not_passed @ (Outcome::Failed(_) | Outcome::Skipped(_)) =
        finish(install.arg("--libdir").arg(prefix.join("lib")), 0)
    {
        return Ok(not_passed);
    }
    Ok(match crate::dist::check_cargo_c(context.root, &prefix) {
        Ok(skipped) => {
            skipped.iter().for_each(|reason| println!("skipped: {reason}"));
            Outcome::Passed
        }
        Err(text) => Outcome::Failed(text),
    })
}

/// A program outside the repository. Without the feature `full` it has the crate without features.
const PROGRAM: &str = r#"
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: outside FILE")?;
    #[cfg(feature = "full")]
    {
        let file = untorn::AtomicFile::create(&path, 1 << 16)?;
        file.write_at(b"committed", 4090)?;
        file.sync()?;
        file.close()?;
        untorn::protect(&path, &untorn::redundancy::ProtectOptions::new())?;
    }
    #[cfg(not(feature = "full"))]
    {
        // Its stores would make the checksums wrong.
        let refused = untorn::AtomicFile::open(&path).expect_err("a protected file was opened for writing");
        assert!(refused.to_string().contains("lacks the feature `redundancy`"), "{refused}");
        let file = untorn::Options::new().read_only(true).open(&path)?;
        let mut bytes = [0; 9];
        file.read_at(&mut bytes, 4090)?;
        assert_eq!(&bytes, b"committed");
    }
    Ok(())
}
"#;

/// Builds and runs a program that depends on the packages that `cargo package` left, and on nothing in the repository.
pub(super) fn outside_program(context: &Context<'_>) -> io::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let version = env!("CARGO_PKG_VERSION");
    for name in ["untorn", "untorn-ring"] {
        let package = crate::target(context.root, "package").join(format!("{name}-{version}.crate"));
        let unpacked = finish(Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(directory.path()), 0);
        let Outcome::Passed = unpacked else { return Ok(unpacked) };
        fs::rename(at(&format!("{name}-{version}")), at(name))?;
    }
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [features]\ndefault = [\"full\"]\nfull = [\"untorn/default\"]\n\n\
         [dependencies]\nuntorn = {{ version = \"{version}\", default-features = false }}\n\n\
         [patch.crates-io]\nuntorn = {{ path = \"untorn\" }}\nuntorn-ring = {{ path = \"untorn-ring\" }}\n\n\
         [workspace]\n"
    );
    fs::write(at("Cargo.toml"), manifest)?;
    // The versions that everything else is tested with.
    fs::copy(context.root.join("Cargo.lock"), at("Cargo.lock"))?;
    fs::create_dir(at("src"))?;
    fs::write(at("src/main.rs"), PROGRAM)?;
    for features in [&[][..], &["--no-default-features"]] {
        let mut command = context.cargo();
        command.current_dir(directory.path()).args(["run", "--quiet"]).args(features);
        command.arg("--target-dir").arg(crate::target(context.root, "outside"));
        let outcome = finish(command.arg("--").arg(at("ledger")), 0);
        let Outcome::Passed = outcome else { return Ok(outcome) };
    }
    Ok(Outcome::Passed)
}

/// What the shared library exports and no header declares, or the other way round. Empty without `nm`.
pub(super) fn undeclared_symbols(root: &Path, library: &Path) -> io::Result<BTreeSet<String>> {
    let Ok(listing) = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output() else {
        println!("needs nm, to compare the symbols of {} with the headers", library.display());
        return Ok(BTreeSet::new());
    };
    let listing = String::from_utf8_lossy(&listing.stdout);
    let names = listing.lines().filter_map(|line| line.split_whitespace().last());
    let exported: BTreeSet<_> = names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect();
    Ok(exported.symmetric_difference(&crate::tidy::declared_functions(root)?).cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The features with which a build compiles each package for this machine.
    fn features(build: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(crate::root()).args(["tree", "--offline", "--locked", "--prefix", "none"]);
        let output = cargo.args(["--format", "{p}|{f}"]).args(build).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((package, features)) = line.split_once('|') {
                let features = features.strip_suffix(" (*)").unwrap_or(features);
                all.entry(package.to_owned()).or_default().insert(features.to_owned());
            }
        }
        all
    }

    /// A package that two builds of one profile want with other features is compiled twice, with all that depends on
    /// it: this program and the tool, then the tests and the build that some of them start.
    #[test]
    fn nothing_is_compiled_again_for_other_features() {
        let normal = ["--edges", "normal"];
        let tool = ["--package", "untorn-cli", "--package", "untorn-capi", "--package", "untorn-preload"];
        let workspace = ["--workspace"];
        for (one, other) in [
            ([&normal[..], &["--package", "xtask"]].concat(), [&normal[..], &tool].concat()),
            ([&normal[..], &workspace].concat(), [&["--edges", "normal,dev"], &workspace[..]].concat()),
        ] {
            let (found, wanted) = (features(&one), features(&other));
            let common: Vec<_> = found.iter().filter(|(package, _)| wanted.contains_key(*package)).collect();
            let again: Vec<_> = common.iter().filter(|(package, with)| wanted[*package] != **with).collect();
            assert!(common.len() > 20 && again.is_empty(), "{one:?} and {other:?}: {again:?}");
        }
    }
}
