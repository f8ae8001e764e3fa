//! The directories that a run serves, and the files in them that it manages.

use std::fs;
use std::process::Command;

use serde_json::json;
use untorn_testing::programs::{succeed, text};

use crate::common::{Run, UNTORN};
use crate::running::{MODES, Place, needs_mounts};

/// The program says on which file systems its directories are.
const WHERE: &str = "for d in . data data/deep other; do stat -f -c %T $d; done";

fn place() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.file("data/deep")).unwrap();
    fs::create_dir(place.file("other")).unwrap();
    place
}

#[test]
fn a_run_serves_the_directories_that_its_globs_name() {
    needs_mounts!();
    let place = place();
    let bare = text(&succeed(Command::new("stat").args(["-f", "-c", "%T"]).arg(place.files.path())).stdout);
    let bare = bare.trim();
    let other = place.file("other/*.db");
    for (globs, served) in [
        (&[][..], [true; 4]),
        (&["*.db"], [true; 4]),
        (&["data/**"], [false, true, true, false]),
        (&["data/deep/x.db"], [false, false, true, false]),
        (&["data/none/x.db", "data/deep/*"], [false, true, true, false]),
        (&["data/deep/*", other.to_str().unwrap()], [false, false, true, true]),
    ] {
        let options: Vec<&str> = globs.iter().flat_map(|glob| ["--match", glob]).collect();
        let said = place.run("atomic", &options, &["sh", "-c", WHERE]).expect(0).text();
        let expected: Vec<&str> = served.iter().map(|served| if *served { "fuseblk" } else { bare }).collect();
        // The names that coreutils has for a FUSE file system.
        let said: Vec<&str> =
            said.lines().map(|line| if line.starts_with("fuse") { "fuseblk" } else { line }).collect();
        assert_eq!(said, expected, "{globs:?}");
    }
}

#[test]
fn nobody_outside_sees_the_mount() {
    needs_mounts!();
    let place = place();
    let path = place.file("data").parent().unwrap().display().to_string();
    // This process is outside.
    let outside = std::process::id();
    let script = format!("for p in self {outside}; do grep fuse.untorn /proc/$p/mountinfo | grep -cF ' {path} '; done");
    let said = place.run("atomic", &[], &["sh", "-c", &script]).expect(1).text();
    assert_eq!(said, "1\n0\n");
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&path));
}

#[test]
fn matching_files_are_managed_and_others_pass_through() {
    needs_mounts!();
    let program = "mkdir d; for name in f.db f.db-shm g d/f.db d/g.db; do echo $name > $name; done";
    for mode in MODES {
        let place = Place::new();
        let excluded = place.file("d/g.db");
        let options = ["--match", "*.db*", "--exclude", "*-shm", "--exclude", excluded.to_str().unwrap()];
        let (_, report) = place.reported(mode, &options, &["sh", "-ec", program]);
        assert_eq!((&report["managed"], &report["plain"]), (&2.into(), &json!([])), "{mode}: {report}");
        for name in ["f.db", "f.db-shm", "g", "d/f.db", "d/g.db"] {
            assert_eq!(place.read(name), format!("{name}\n"), "{mode}");
        }
    }
}

/// The globs are made anew with real paths, so a link leads to the same files.
#[test]
fn a_glob_through_a_link_means_the_real_files() {
    needs_mounts!();
    let place = place();
    std::os::unix::fs::symlink("data", place.file("link")).unwrap();
    let (_, report) = place.reported("boost", &["--match", "link/*.db"], &["sh", "-ec", "echo text > data/f.db"]);
    assert_eq!(report["managed"], 1, "{report}");
}

#[test]
fn a_run_inside_another_is_refused_before_its_program_starts() {
    needs_mounts!();
    let place = place();
    let log = place.aside.path().join("other.log");
    for (directory, refused) in [("data/**", true), ("*", true)] {
        let script =
            format!("\"$0\" run --match '{directory}' --log {} --log-size 4M -- touch ran; echo $?", log.display());
        let run = place.run("atomic", &[], &["sh", "-c", &script, UNTORN]).expect(0);
        assert_eq!(run.text(), "64\n", "{directory}");
        assert!(run.err.contains("untorn serves this directory already, by the mount on"), "{}", run.err);
        assert_eq!(!place.file("ran").exists(), refused, "{directory}");
    }
    // A directory that the outer run does not serve is free.
    let elsewhere = tempfile::tempdir().unwrap();
    let glob = elsewhere.path().canonicalize().unwrap().join("**");
    let script = format!("\"$0\" run --match '{}' --log {} --log-size 4M -- true", glob.display(), log.display());
    place.run("atomic", &["--match", "data/**"], &["sh", "-c", &script, UNTORN]).expect(0);
}

#[test]
fn without_a_mount_no_program_starts_and_each_way_is_named() {
    needs_mounts!("root", "unshare", "mount");
    let place = place();
    // Without the device, as in a container.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-ec"]);
    command.arg("mount -t tmpfs none /dev; exec \"$@\"").args(["sh", UNTORN, "run", "--log"]);
    command.arg(place.log()).args(["--", "touch", "ran"]).current_dir(place.files.path());
    let output = command.output().unwrap();
    let run = Run::of(output, &["run"]).expect(74).names("the program was not started");
    for word in ["/dev/fuse: ", "; mount: ", "; private: ", "use the library untorn"] {
        assert!(run.err.contains(word), "no {word:?}: {}", run.err);
    }
    assert!(!place.file("ran").exists() && !place.log().exists());
}
