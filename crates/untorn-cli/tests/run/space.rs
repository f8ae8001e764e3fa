//! A disk that is full under a run: the program is told, and what was acknowledged before is in the file, or in the log
//! until there is room.

use std::process::Command;

use untorn_testing::programs::text;

use crate::common::UNTORN;
use crate::running::{MODES, Place, needs_mounts};

/// Writes and syncs until the disk is full, and says what it was told and how much was synced.
const FILL: &str = "
import errno, os
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
taken = synced = 0
told = 'nothing'
try:
    while taken < 64 << 20:
        taken += os.write(fd, bytes([taken >> 12 & 255]) * 4096)
        if taken >> 12 & 15 == 0:
            os.fsync(fd)
            synced = taken
except OSError as error:
    told = errno.errorcode[error.errno]
print(told, synced, flush=True)
";

/// Writes without a sync until it is told that there is no room.
const FILL_UNSYNCED: &str = "
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
told = 'nothing'
try:
    for _ in range(1 << 20): os.write(fd, bytes(1 << 16))
except OSError as error:
    told = errno.errorcode[error.errno]
print(told)
try: os.close(fd)
except OSError: pass
";

/// A program that fills a disk never ends where writes are cached and told nothing: neither with a file that is passed
/// through, nor with one whose epoch has no more room.
#[test]
fn a_program_that_writes_until_the_disk_is_full_ends() {
    needs_mounts!("root", "unshare", "mount", "python3");
    let script = "mount -t tmpfs -o size=6M none .; cd \"$PWD\"; \
                  \"$0\" run --mode \"$1\" --log-size 1M --log \"$2\" --match '*.db' -- \
                  python3 -c \"$3\" \"$4\" || true";
    for (mode, name) in [("atomic", "plain"), ("boost", "plain"), ("boost", "f.db")] {
        let place = Place::new();
        let mut command = Command::new("timeout");
        command.args([
            "100",
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--",
            "sh",
            "-ec",
            script,
            UNTORN,
            mode,
        ]);
        command.arg(place.log()).args([FILL_UNSYNCED, name]).current_dir(place.files.path());
        if !untorn::doctor(place.aside.path()).unwrap().durable {
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        let output = command.output().unwrap();
        let (said, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && said.trim_end() == "ENOSPC", "{mode}, {name}: {said}{err}");
    }
}

/// Judges the file outside of the run.
const JUDGE: &str = "
import sys
synced = int(sys.argv[1])
found = open('f', 'rb').read()
assert len(found) >= synced, (len(found), synced)
assert found[:synced] == b''.join(bytes([block & 255]) * 4096 for block in range(synced >> 12))
print('whole')
";

/// Mounts a small disk on its working directory, which ends with the shell; fills it under a run; makes room.
const SCRIPT: &str = "
mount -t tmpfs -o size=6M none .
cd \"$PWD\"
said=$(\"$0\" run --mode \"$1\" --log-size 8M --log \"$2\" -- python3 -c \"$3\") || true
mount -o remount,size=256M .
\"$0\" replay \"$2\" > /dev/null
echo $said
set -- $said \"$4\"
python3 -c \"$3\" \"$2\"
";

#[test]
fn a_full_disk_is_told_and_keeps_what_was_synced() {
    needs_mounts!("root", "unshare", "mount", "python3");
    for mode in MODES {
        let place = Place::new();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-ec", SCRIPT, UNTORN, mode]);
        command.arg(place.log()).args([FILL, JUDGE]).current_dir(place.files.path());
        if !untorn::doctor(place.aside.path()).unwrap().durable {
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        let output = command.output().unwrap();
        let (said, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{mode}: {said}{err}");
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!((words.len(), words.last()), (3, Some(&"whole")), "{mode}: {said}{err}");
        // In mode atomic the log takes commits that the disk has no room for, until the drain meets the full disk.
        assert!(words[0] == "ENOSPC" || mode == "atomic" && words[0] == "EIO", "{mode}: {said}{err}");
        let synced: u64 = words[1].parse().unwrap();
        assert!(synced >= 1 << 20, "{mode}: the disk was full at {synced} bytes");
    }
}
