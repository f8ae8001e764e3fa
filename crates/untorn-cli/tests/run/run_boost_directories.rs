//! Syncs of directories under `untorn run --mode boost`: which of them the kernel has to make, and what it is told.

use serde_json::Value;

use crate::common::boosted::{Place, demotions};

/// How many syncs of directories waited for no device.
fn kept(report: &Value) -> u64 {
    report["directory_syncs_kept"].as_u64().unwrap()
}

/// What SQLite does with its journal, and what others do who replace a file.
#[test]
fn a_directory_whose_changes_are_all_logged_is_synced_once() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import os
directory = os.open('.', os.O_RDONLY)
for number in range(5):
    journal = os.open('journal.managed', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(journal, b'journal %d' % number)
    os.fsync(journal)
    os.fdatasync(directory)
    new = os.open('new.managed', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(new, b'version %d' % number)
    os.fsync(new)
    os.close(new)
    os.rename('new.managed', 'f.managed')
    os.fsync(directory)
    os.close(journal)
    os.unlink('journal.managed')
print('done')
";
    let (said, report) = place.boosted(program);
    assert_eq!(said, "done\n");
    assert_eq!(std::fs::read_to_string(place.files.path().join("f.managed")).unwrap(), "version 4");
    if !place.tells_files_apart() {
        untorn_testing::skipped!("which are made, on a file system whose files have no generation or no birth time");
        return;
    }
    assert_eq!(demotions(&report), [], "{report}");
    // The first makes known what is there.
    assert_eq!(kept(&report), 9, "{report}");
}

/// Each line is something that only the directory's own sync makes durable.
#[test]
fn the_kernel_syncs_directory_changes_the_log_lacks() {
    untorn_testing::needs!("python3");
    let changes = [
        "open('plain', 'w').close()",
        "os.mkdir('d')",
        "os.symlink('f.managed', 'link')",
        "os.unlink('f.managed')",
        "os.mkfifo('fifo')",
        "os.link('f.managed', 'second')",
        "os.chmod('.', 0o700)",
        "os.close(os.open('other.managed', os.O_RDWR | os.O_CREAT))",
        "m = __import__('mmap').mmap(f, 1); os.rename('f.managed', 'moved.managed')",
        "__import__('subprocess').run(['env', '-u', 'LD_PRELOAD', 'touch', 'outside.managed'], check=True)",
        "[open('many-%d' % n, 'w').close() or os.unlink('many-%d' % n) for n in range(100)]",
    ];
    for change in changes {
        let program = format!(
            "
import os
directory = os.open('.', os.O_RDONLY)
f = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b'f')
os.fsync(directory)
os.fsync(directory)
{change}
os.fsync(directory)
print('done')
"
        );
        let place = Place::new();
        let (said, report) = place.boosted(&program);
        assert_eq!(said, "done\n");
        let once = u64::from(place.tells_files_apart());
        assert_eq!(kept(&report), once, "{change}: {report}");
    }
}

#[test]
fn a_sync_of_a_directory_fails_as_without_untorn() {
    untorn_testing::needs!("python3");
    let program = "
import errno, os
def say(what, call):
    try: print(what, call())
    except OSError as error: print(what, errno.errorcode[error.errno])
f = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b'f')
say('path', lambda: os.fsync(os.open('.', os.O_PATH)))
say('process', lambda: os.fsync(os.open('/proc/self', os.O_RDONLY)))
say('pipe', lambda: os.fsync(os.pipe()[0]))
gone = (os.mkdir('e'), os.open('e', os.O_RDONLY), os.rmdir('e'))[1]
say('gone', lambda: os.fsync(gone))
say('gone once more', lambda: os.fsync(gone))
";
    let (bare, boosted) = (Place::new(), Place::new());
    let expected = bare.bare(program);
    let (said, report) = boosted.boosted(program);
    assert_eq!(said, expected, "{report}");
}
