//! `cargo xtask bare`: the README's two commands on a machine that has only Rust and a C compiler.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::nightly::UNAVAILABLE;

/// The user of the minimal root that is not root.
const ORDINARY: &str = "1000:1000";
const ROOT: &str = "0:0";

/// Run `cargo run --release -- demo` and `cargo test --workspace` in a minimal Debian root with a Rust toolchain, gcc
/// and nothing else: as an ordinary user, then as root, without a network.
///
/// Exit codes: 0 both commands passed for both users; 1 one failed; 69 something is missing to make the root with.
#[derive(Args)]
#[command(after_help = "Example: sudo -E cargo xtask bare --as ordinary")]
pub(crate) struct Arguments {
    /// Directory for the root, reused if it has one; without it, one below Cargo's target directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Run the commands only as this user: ordinary or root
    #[arg(long = "as", value_name = "USER", value_parser = ["ordinary", "root"])]
    user: Option<String>,
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match commands(root, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            eprintln!("bare: {error}");
            ExitCode::from(UNAVAILABLE)
        }
        Err(error) => {
            eprintln!("bare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn commands(root: &Path, arguments: &Arguments) -> io::Result<bool> {
    let bare = arguments.dir.clone().unwrap_or_else(|| crate::target(root, "bare"));
    make_root(&bare, "gcc,libc6-dev", "usr/bin/gcc")?;
    let sysroot = said(Command::new("rustc").args(["--print", "sysroot"]).current_dir(root))?;
    let users = [("ordinary", ORDINARY), ("root", ROOT)];
    for (name, user) in users.into_iter().filter(|(name, _)| arguments.user.as_ref().is_none_or(|only| only == name)) {
        bring_project(root, &bare, user)?;
        println!("\n== the README's two commands as user {user} ({name})");
        let script = root.join("xtask/programs/bare.sh");
        let status = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .arg(script)
            .arg(&bare)
            .args([&sysroot, user])
            .stdin(Stdio::null())
            .status()?;
        if !status.success() {
            println!("as user {user} ({name}): {status}");
            return Ok(false);
        }
    }
    Ok(true)
}

/// A minimal Debian with these packages, from where this machine gets its own. A directory that has the file `sign` of
/// one of them is ready.
pub(crate) fn make_root(bare: &Path, packages: &str, sign: &str) -> io::Result<()> {
    if bare.join(sign).exists() {
        return Ok(());
    }
    let sources = said(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(SITE) $(CODENAME) $(COMPONENT)",
        "Created-By: Packages",
    ]));
    let sources = sources.map_err(missing("a Debian whose packages can be fetched"))?;
    let first = sources.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|words| match words[..] {
        [site, suite, "main"] if !suite.contains('-') => Some((site.to_owned(), suite.to_owned())),
        _ => None,
    });
    let Some((site, suite)) = first else {
        return Err(missing("a source of Debian's packages")(io::Error::other("apt-get names none")));
    };
    fs::create_dir_all(bare)?;
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={packages}"), &suite]).arg(bare).arg(site);
    said(&mut command).map_err(missing("debootstrap, and the rights of root"))?;
    Ok(())
}

/// A clone of the commit, and the sources of its dependencies, for a user.
fn bring_project(root: &Path, bare: &Path, user: &str) -> io::Result<()> {
    said(Command::new("cargo").args(["fetch", "--locked"]).current_dir(root))?;
    let (home, project) = (bare.join("untorn/home/.cargo"), bare.join("untorn/project"));
    for directory in [&home, &project] {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(directory)?,
        }
    }
    said(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root).arg(&project))?;
    said(Command::new("cp").arg("-a").arg(cargo_home().join("registry")).arg(&home))?;
    said(Command::new("chown").args(["-R", user]).arg(bare.join("untorn")))?;
    Ok(())
}

/// The directory that has what Cargo fetches.
pub(crate) fn cargo_home() -> PathBuf {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"))).unwrap_or_default()
}

fn missing(what: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(io::ErrorKind::Unsupported, format!("a minimal root needs {what}: {error}"))
}

/// The output of a command, without spaces at its end; a command that fails is an error with its words.
pub(crate) fn said(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}\n{}", output.status, complaint.trim())))
}
