//! Renames under `untorn run --mode boost`: what programs are told, what becomes of the files, and that they stay
//! behind the log.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::boosted::{Place, demotions};

/// Each rename has its own files. What it is told is printed, and at the end all there is.
const RENAMES: &str = r"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
HERE, NOREPLACE, EXCHANGE = -100, 1, 2

def make(name, content):
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, content)
    return fd

def say(what, call, *arguments):
    ctypes.set_errno(0)
    result = call(*arguments)
    print(what, result, errno.errorcode.get(ctypes.get_errno()) if result else '-')

os.mkdir('d')
os.mkdir('full'); open('full/f', 'w').close()
os.mkdir('locked')
held = {}
for name in ('free', 'over', 'plain', 'itself', 'twice', 'full', 'dir', 'kept',
             'swap', 'cross', 'slash', 'chain', 'gone', 'symbolic'):
    held[name] = make(name + '.managed', name.encode())
for name in ('over', 'kept', 'swap'):
    held['old ' + name] = make(name + '-old.managed', b'old ' + name.encode())
open('plain-old', 'w').write('old plain')
os.symlink('nowhere', 'link')
os.link('twice.managed', 'second.managed')
p = lambda name: (name + '.managed').encode()
say('free', libc.rename, p('free'), b'freed.managed')
say('over', libc.rename, p('over'), p('over-old'))
say('plain', libc.rename, p('plain'), b'plain-old')
say('itself', libc.rename, p('itself'), p('itself'))
say('hard link', libc.rename, p('twice'), p('second'))
say('onto a directory', libc.rename, p('dir'), b'd')
say('onto a full one', libc.rename, p('full'), b'full')
say('missing', libc.rename, p('missing'), p('nothing'))
say('missing directory', libc.rename, p('dir'), b'no/where')
say('not replaced', libc.renameat2, HERE, p('kept'), HERE, p('kept-old'), NOREPLACE)
say('not replacing', libc.renameat2, HERE, p('kept'), HERE, b'kept-new', NOREPLACE)
say('exchange', libc.renameat2, HERE, p('swap'), HERE, p('swap-old'), EXCHANGE)
say('both', libc.renameat2, HERE, p('swap'), HERE, p('swap-old'), EXCHANGE | NOREPLACE)
directory = os.open('d', os.O_RDONLY)
say('to a directory', libc.renameat, HERE, p('cross'), directory, p('crossed'))
say('with a slash', libc.rename, p('slash'), b'slashed/')
say('over a link', libc.rename, p('symbolic'), b'link')
for number in range(3):
    say('chain', libc.rename, b'chain.managed' if number == 0 else b'chain-%d' % number, b'chain-%d' % (number + 1))
say('again', libc.rename, p('gone'), b'gone-1')
say('unlinked', libc.unlink, b'gone-1')
say('null', libc.rename, None, b'x')
say('long', libc.rename, p('itself'), b'n' * 300)
say('far', libc.rename, p('itself'), b'/proc/nothing')
for name, fd in sorted(held.items()):
    # What is open is written to by whatever name it has.
    assert os.write(fd, b'!') == 1
    os.fsync(fd)
    print(name, os.pread(fd, 100, 0), os.fstat(fd).st_nlink)
    os.close(fd)
for directory, directories, names in sorted(os.walk('.')):
    directories.sort()
    for name in sorted(names):
        path = os.path.join(directory, name)
        print(path, os.readlink(path) if os.path.islink(path) else open(path, 'rb').read())
";

#[test]
fn renames_are_told_and_done_as_without_untorn() {
    untorn_testing::needs!("python3");
    let (bare, boosted) = (Place::new(), Place::new());
    let expected = bare.bare(RENAMES);
    let (said, report) = boosted.boosted(RENAMES);
    let (said, expected): (Vec<&str>, Vec<&str>) = (said.lines().collect(), expected.lines().collect());
    assert_eq!(said, expected, "{report}");
    assert_eq!(report["failures"], Value::Array(vec![]));
    if !boosted.tells_files_apart() {
        untorn_testing::skipped!("which are served, on a file system whose files have no generation or no birth time");
        return;
    }
    let renamed: Vec<_> = demotions(&report).into_iter().filter(|(_, why)| *why == "rename").collect();
    let is_demoted = |name: &str| renamed.iter().any(|(path, _)| Path::new(path).file_name().unwrap() == name);
    for name in
        ["freed.managed", "over-old.managed", "plain-old", "kept.managed", "kept-new", "crossed.managed", "chain-3"]
    {
        assert!(!is_demoted(name), "{name}: {renamed:?}");
    }
    assert!(is_demoted("swap.managed") && is_demoted("slash.managed"), "{renamed:?}");
}

/// The pattern of a file that is never there by halves.
#[test]
fn files_that_are_put_over_others_stay_behind_the_log() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import os
for number in range(5):
    fd = os.open('new.managed', os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b'version %d' % number)
    os.fsync(fd)
    os.close(fd)
    os.rename('new.managed', 'f.managed')
print('done')
";
    let (said, report) = place.boosted(program);
    assert_eq!(said, "done\n");
    assert_eq!(fs::read_to_string(place.files.path().join("f.managed")).unwrap(), "version 4");
    assert_eq!(fs::read_dir(place.files.path()).unwrap().count(), 1);
    if place.tells_files_apart() {
        assert_eq!(demotions(&report), [], "{report}");
    }
    assert_eq!(report["files"].as_array().unwrap().iter().map(|file| file["writes"].as_u64().unwrap()).sum::<u64>(), 5);
}
