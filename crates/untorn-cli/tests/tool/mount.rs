//! `untorn mount`, `untorn unmount`, and the doctor's lines about them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use untorn_testing::{isolated, needs, skip, test_name};

use crate::common::records::{self, Before};
use crate::common::{UNTORN, at_a_terminal, run, untorn};

/// Skips a test where root cannot mount, or where a log would not be durable.
macro_rules! needs_mounts {
    () => {
        needs!("mount namespace");
        if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
            skip!("cannot open /dev/fuse: {error}");
        }
        if !untorn::doctor(&std::env::temp_dir()).is_ok_and(|found| found.durable) {
            skip!("the temporary directory is on a medium that a log may not be on");
        }
        if !isolated(test_name!()) {
            return;
        }
    };
}

const MODES: [&str; 2] = ["boost", "atomic"];

/// A source with one file, and a mountpoint.
struct Tree {
    dir: tempfile::TempDir,
    source: PathBuf,
    mountpoint: PathBuf,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let root = dir.path().canonicalize().expect("it is there");
        let (source, mountpoint) = (root.join("source"), root.join("mountpoint"));
        for directory in [&source, &mountpoint] {
            fs::create_dir(directory).expect("it can be made");
        }
        fs::write(source.join("file"), "before").expect("it can be written");
        Tree { dir, source, mountpoint }
    }

    /// `untorn mount` with these options, over the source.
    fn arguments<'a>(&'a self, options: &[&'a str]) -> Vec<&'a str> {
        [&["mount"], options, &[text(&self.source), text(&self.mountpoint)]].concat()
    }

    /// Serves in the foreground, and returns when the mount answers.
    fn serve(&self, mode: &str) -> Child {
        let mut command = Command::new(UNTORN);
        // A new log is written whole, and a small one is as good.
        command.args(self.arguments(&["--foreground", "--json", "--log-size=1M", "--mode", mode]));
        let child = at_a_terminal(&command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        self.wait_until_mounted();
        child
    }

    fn wait_until_mounted(&self) {
        for _ in 0..4000 {
            if self.is_mounted() && self.mountpoint.join("file").exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{} was not mounted", self.mountpoint.display());
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        table.lines().any(|line| line.contains(text(&self.mountpoint)) && line.contains(" fuse.untorn "))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // After a failed assertion; the temporary directory is removed next.
        if self.is_mounted() {
            let _ = Command::new(UNTORN).args(["unmount", "--lazy"]).arg(&self.mountpoint).status();
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

#[test]
fn wrong_requests_are_refused_before_anything_is_made() {
    let tree = Tree::new();
    let (source, mountpoint) = (text(&tree.source), text(&tree.mountpoint));
    let inside = tree.source.join("inside");
    fs::create_dir(&inside).unwrap();
    let (inside, file) = (text(&inside).to_owned(), text(&tree.source.join("file")).to_owned());
    let log_inside = format!("--log={source}/log");
    let log_below = format!("--log={mountpoint}/log");
    for (arguments, code, word) in [
        (vec![source, source], 64, "the same directory"),
        (vec![source, &inside], 64, "inside SOURCE"),
        (vec![inside.as_str(), source], 64, "inside MOUNTPOINT"),
        (vec![file.as_str(), mountpoint], 64, "not a directory"),
        (vec![source, "/nonexistent"], 74, "/nonexistent"),
        (vec!["/nonexistent", mountpoint], 74, "/nonexistent"),
        (vec![&log_inside, source, mountpoint], 64, "inside SOURCE"),
        (vec![&log_below, source, mountpoint], 64, "inside MOUNTPOINT"),
        (vec!["--log=/nonexistent/log", source, mountpoint], 74, "/nonexistent"),
        (vec!["--mode=boost", "--write-through", source, mountpoint], 64, "--write-through"),
        (vec!["--mode=boost", "--commit-log=f", source, mountpoint], 64, "--commit-log"),
        (vec!["--commit-log={a", source, mountpoint], 64, "{a"),
        (vec!["--match={a", source, mountpoint], 64, "{a"),
        (vec!["--foreground", "--background", source, mountpoint], 64, "--background"),
        (vec!["--half", source, mountpoint], 64, "--half"),
    ] {
        // In the background, which is the default, the process that returns passes on what the other one says.
        for how in [&["mount"][..], &["mount", "--foreground"]] {
            if how.len() == 2 && arguments[0].contains("ground") || how.len() == 2 && arguments[0] == "--half" {
                continue;
            }
            let refused = untorn(&[how, &arguments].concat()).expect(code);
            assert!(refused.err.contains(word), "{arguments:?}: no {word:?} in {:?}", refused.err);
        }
    }
    let refused = untorn(&["mount", "--json", source, source]).expect(64);
    assert_eq!(refused.json()["path"], source);
    let no_directory = tree.dir.path().join("file");
    fs::write(&no_directory, "").unwrap();
    untorn(&["mount", source, text(&no_directory)]).expect(64);
    assert!(!tree.source.join(".untorn").exists(), "a refused mount leaves the directory of its log");
    assert!(!tree.is_mounted());
}

#[test]
fn a_directory_without_a_mount_is_not_unmounted() {
    let tree = Tree::new();
    untorn(&["unmount", text(&tree.mountpoint)]).expect(64).names("nothing is mounted here");
    untorn(&["unmount", "/proc"]).expect(64).names("no mount of untorn");
    untorn(&["unmount", "/nonexistent/directory"]).expect(74).names("/nonexistent");
}

#[test]
fn a_stage_refuses_to_run_for_anyone_but_its_parent() {
    for verb in ["mount-stage", "mount-pull"] {
        untorn(&[verb]).expect(64).names("starts this verb itself");
    }
}

#[test]
fn the_doctor_tries_each_way_to_mount() {
    let tree = Tree::new();
    let said = untorn(&["doctor", text(&tree.source), "--json"]).json();
    let ways = said["mount"].as_array().expect("a list");
    let names: Vec<&str> = ways.iter().filter_map(|way| way["name"].as_str()).collect();
    assert_eq!(names, ["/dev/fuse", "mount", "fusermount3", "private"]);
    for way in ways {
        let works = way["works"].as_bool().expect("yes or no");
        assert!(way["why"].as_str().is_some_and(|why| !why.is_empty()), "{way}");
        assert!(!works || way["advice"].is_null(), "{way}");
    }
    let text = untorn(&["doctor", text(&tree.source)]).text();
    assert!(text.contains("`untorn mount` ") && names.iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn a_file_makes_the_round_trip_through_two_mounts() {
    needs_mounts!();
    for mode in MODES {
        let tree = Tree::new();
        round_trip(&tree, mode);
    }
}

fn round_trip(tree: &Tree, mode: &str) {
    let (below, above) = (tree.source.join("file"), tree.mountpoint.join("file"));
    for round in 0..2 {
        let said = untorn(&tree.arguments(&["--json", "--mode", mode])).expect(0).json();
        assert_eq!((&said["mode"], &said["mountpoint"]), (&mode.into(), &text(&tree.mountpoint).into()));
        assert!(tree.is_mounted(), "it returned before the mount was there");
        let mut file = fs::File::options().read(true).write(true).open(&above).unwrap();
        let mut bytes = String::new();
        file.read_to_string(&mut bytes).unwrap();
        assert_eq!(bytes, ["before", "round0"][round]);
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(format!("round{round}").as_bytes()).unwrap();
        file.sync_all().unwrap();
        fs::write(tree.mountpoint.join(format!("new{round}")), "new").unwrap();
        drop(file);
        assert!(!tree.mountpoint.join(".untorn").exists(), "the log's directory shows");
        untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
        assert!(!tree.is_mounted());
        assert_eq!(fs::read_to_string(&below).unwrap(), format!("round{round}"));
        assert_eq!(fs::read(tree.source.join(format!("new{round}"))).unwrap(), b"new");
    }
    // `unmount` waits for the server, which has removed its log.
    assert!(!tree.source.join(".untorn").exists());
}

#[test]
fn a_signal_removes_the_mount_and_the_report_says_what_was_done() {
    needs_mounts!();
    for (name, mode) in ["TERM", "INT"].into_iter().zip(MODES) {
        let tree = Tree::new();
        let child = tree.serve(mode);
        fs::write(tree.mountpoint.join("new"), "twelve bytes").unwrap();
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let ended = crate::common::Run::of(output, &["mount"]).expect(0);
        assert!(!tree.is_mounted());
        let report = ended.json();
        assert_eq!(report["mode"], mode);
        assert!(report["managed"].as_u64().is_some_and(|files| files >= 1), "{report}");
        assert_eq!(report["failed"], serde_json::json!([]), "{report}");
    }
}

#[test]
fn a_mount_in_use_names_its_user_and_is_removed_lazily() {
    needs_mounts!();
    for mode in MODES {
        mount_in_use(mode);
    }
}

fn mount_in_use(mode: &str) {
    let tree = Tree::new();
    let child = tree.serve(mode);
    let mut held = fs::File::options().read(true).append(true).open(tree.mountpoint.join("file")).unwrap();
    let me = format!("process {} ", std::process::id());
    let refused = untorn(&["unmount", text(&tree.mountpoint)]).expect(74).names(&me);
    // The server and its puller have files open too, and are none to wait for.
    assert!(!refused.err.contains("(untorn"), "{}", refused.err);
    assert!(tree.is_mounted());
    // The first signal removes the name alone.
    signal(&child, "TERM");
    while tree.is_mounted() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Syncs still work, though the mount has no name by which a file in it could be opened.
    held.write_all(b" and after").unwrap();
    held.sync_all().unwrap();
    drop(held);
    crate::common::Run::of(child.wait_with_output().unwrap(), &["mount"]).expect(0);
    assert_eq!(fs::read_to_string(tree.source.join("file")).unwrap(), "before and after");
}

#[test]
fn a_second_signal_ends_a_mount_that_is_in_use() {
    needs_mounts!();
    let tree = Tree::new();
    let mut child = tree.serve("boost");
    let mut held = fs::File::options().append(true).open(tree.mountpoint.join("file")).unwrap();
    held.write_all(b" and more").unwrap();
    signal(&child, "TERM");
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("a second signal ends it at once"), "{said}");
    signal(&child, "TERM");
    let status = child.wait().unwrap();
    assert!(status.code().is_some(), "{status}");
    held.write_all(b"lost").and_then(|()| held.sync_all()).unwrap_err();
    drop(held);
    // The write that was answered is there, at the latest after a replay.
    let log = tree.source.join(".untorn/mount.log");
    if log.exists() {
        untorn(&["replay", text(&log)]).expect(0);
    }
    assert_eq!(fs::read_to_string(tree.source.join("file")).unwrap(), "before and more");
}

#[test]
fn a_log_in_use_by_another_mount_is_refused() {
    needs_mounts!();
    let tree = Tree::new();
    let child = tree.serve("boost");
    let other = tree.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let refused = untorn(&["mount", text(&tree.source), text(&other)]).expect(74);
    let holder = format!("process {} ", child.id());
    assert!(
        refused.err.contains("mount.log is in use by")
            && refused.err.contains("give this mount another --log")
            && refused.err.contains(&holder),
        "{}",
        refused.err
    );
    let twice = untorn(&tree.arguments(&[])).expect(64);
    assert!(twice.err.contains("already has a mount"), "{}", twice.err);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(text(&other)), "the refused mount is still there");
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    crate::common::Run::of(child.wait_with_output().unwrap(), &["mount"]).expect(0);
}

#[test]
fn a_killed_servers_mount_gives_way_to_the_next() {
    needs_mounts!();
    let tree = Tree::new();
    let mut child = tree.serve("boost");
    let mut file = fs::File::options().append(true).open(tree.mountpoint.join("file")).unwrap();
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    crate::common::kill(&mut child);
    assert_eq!(file.write_all(b"!").and_then(|()| file.sync_all()).unwrap_err().raw_os_error(), Some(107));
    let said = run(Command::new(UNTORN).args(tree.arguments(&[])), &["mount"], b"").expect(0);
    assert!(said.err.contains("whose server is gone"), "{}", said.err);
    assert_eq!(fs::read_to_string(tree.mountpoint.join("file")).unwrap(), "before and after");
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
}

#[test]
fn a_killed_server_leaves_each_file_at_its_last_commit() {
    needs_mounts!();
    for options in [&["--mode=atomic"][..], &["--mode=atomic", "--write-through"]] {
        let tree = Tree::new();
        let mut child = Command::new(UNTORN)
            .args(tree.arguments(&[options, &["--foreground"]].concat()))
            .stdin(Stdio::null())
            .spawn()
            .expect("the binary under test starts");
        tree.wait_until_mounted();
        let mut file = fs::File::options().write(true).open(tree.mountpoint.join("file")).unwrap();
        file.write_all(b"commit").unwrap();
        file.sync_all().unwrap();
        file.write_all(&[b'x'; 10_000]).unwrap();
        crate::common::kill(&mut child);
        drop(file);
        untorn(&tree.arguments(options)).expect(0);
        assert_eq!(fs::read_to_string(tree.mountpoint.join("file")).unwrap(), "commit", "{options:?}");
        untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
        assert_eq!(fs::read_to_string(tree.source.join("file")).unwrap(), "commit", "{options:?}");
    }
}

#[test]
fn options_that_an_existing_log_does_not_have_are_refused() {
    needs_mounts!();
    let tree = Tree::new();
    let log = format!("--log={}", tree.dir.path().join("log").display());
    let sized = |size: &'static str| untorn(&tree.arguments(&[&log, size]));
    sized("--log-size=1M").expect(0);
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    sized("--log-size=2M").expect(64).names("--log-size differs");
    sized("--log-size=1M").expect(0);
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    // One that was named stays.
    assert!(tree.dir.path().join("log").exists());
}

/// The answer of a question that is to have one within a minute.
fn in_time<T>(question: impl Fn() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "no answer in a minute");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Kills a server with a commit that SOURCE lacks, and returns the log's path.
fn killed_with_a_commit(tree: &Tree) -> PathBuf {
    let mut child = tree.serve("atomic");
    let mut file = fs::File::options().write(true).open(tree.mountpoint.join("file")).unwrap();
    file.write_all(b"commit").unwrap();
    file.sync_all().unwrap();
    crate::common::kill(&mut child);
    drop(file);
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    tree.source.join(".untorn/mount.log")
}

#[test]
fn a_log_that_a_killed_server_left_above_or_below_is_found() {
    needs_mounts!();
    let mut tree = Tree::new();
    let outer = tree.dir.path().canonicalize().unwrap().join("outer");
    let inner = outer.join("source");
    fs::create_dir(&outer).unwrap();
    fs::rename(&tree.source, &inner).unwrap();
    tree.source = inner.clone();
    let log = killed_with_a_commit(&tree);
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "before", "the server was killed too late");
    // Over the directory above: the one below shows nothing until its log is empty.
    untorn(&["mount", text(&outer), text(&tree.mountpoint)]).expect(0);
    let below = tree.mountpoint.join("source");
    assert!(below.is_dir() && tree.mountpoint.read_dir().unwrap().count() == 1);
    for refused in [fs::read(below.join("file")).map(drop), fs::write(below.join("new"), "")] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(117), "EUCLEAN");
    }
    untorn(&["replay", text(&log)]).expect(0);
    // An answer holds for a second.
    assert_eq!(in_time(|| fs::read_to_string(below.join("file")).ok()), "commit");
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    // Over one below: refused, with the way out.
    fs::remove_file(&log).unwrap();
    fs::write(inner.join("file"), "before").unwrap();
    let log = killed_with_a_commit(&tree);
    let sub = inner.join("sub/deep");
    fs::create_dir_all(&sub).unwrap();
    let below = || untorn(&["mount", text(&sub), text(&tree.mountpoint)]);
    below().expect(1).names(&format!("run `untorn replay '{}'` first", log.display()));
    // So is the directory itself with another log.
    let other = format!("--log={}", tree.dir.path().join("other").display());
    untorn(&tree.arguments(&[&other])).expect(1).names("untorn replay");
    untorn(&["replay", text(&log)]).expect(0);
    below().expect(0);
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "commit");
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    assert!(!sub.join(".untorn").exists());
}

#[test]
fn a_log_that_a_live_server_has_above_or_below_is_found() {
    needs_mounts!();
    let tree = Tree::new();
    let sub = tree.source.join("sub");
    fs::create_dir(&sub).unwrap();
    let other = tree.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let child = tree.serve("boost");
    untorn(&["mount", text(&sub), text(&other)]).expect(74).names("wait for the end of that run or mount");
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    crate::common::Run::of(child.wait_with_output().unwrap(), &["mount"]).expect(0);
    untorn(&["mount", text(&sub), text(&other)]).expect(0);
    let child = tree.serve("boost");
    let busy = fs::write(tree.mountpoint.join("sub/file"), "").unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(16), "EBUSY");
    untorn(&["unmount", text(&other)]).expect(0);
    in_time(|| fs::write(tree.mountpoint.join("sub/file"), "text").ok());
    untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
    let ended = crate::common::Run::of(child.wait_with_output().unwrap(), &["mount"]).expect(0).json();
    assert_eq!(ended["sealed"][0]["path"], text(&sub.join(".untorn/mount.log")), "{ended}");
}

/// Kills the server of a mount again and again. The next mount, with the same log, has what was acknowledged.
#[test]
fn a_server_that_is_killed_often_loses_nothing_acknowledged() {
    needs_mounts!();
    needs!("python3");
    for mode in MODES {
        let tree = Tree::new();
        let mut number = 0;
        let mut server = tree.serve(mode);
        for round in 0..untorn_testing::cases(3, 500) {
            let before = Before::of(&tree.mountpoint, number);
            let mut writer = Command::new("python3");
            writer.args(["-c", records::WRITER, &number.to_string()]).current_dir(&tree.mountpoint);
            let mut writer = writer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut said = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
            let heard = said.nth(round % 23).expect("the writer ended by itself");
            crate::common::kill(&mut server);
            let acknowledged: u64 = said.last().unwrap_or(heard).parse().unwrap();
            writer.wait().unwrap();
            untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
            server = tree.serve(mode);
            before.check(&tree.mountpoint, acknowledged, mode == "atomic");
            number = acknowledged + 1;
        }
        untorn(&["unmount", text(&tree.mountpoint)]).expect(0);
        crate::common::Run::of(server.wait_with_output().unwrap(), &["mount"]).expect(0);
        assert!(!tree.source.join(".untorn").exists());
    }
}
