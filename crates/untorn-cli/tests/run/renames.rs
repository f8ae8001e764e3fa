//! Renames under `untorn run`: what programs are told, and that the files stay behind the log.

use crate::running::{MODES, Place, needs_mounts, same_as_bare};

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
    needs_mounts!("python3");
    same_as_bare(&["python3".as_ref(), "-c".as_ref(), RENAMES.as_ref()]);
}

/// The pattern of a file that is never there by halves.
#[test]
fn files_that_are_put_over_others_stay_behind_the_log() {
    needs_mounts!("python3");
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
    for mode in MODES {
        let place = Place::new();
        let (said, report) = place.reported(mode, &[], &["python3", "-c", program]);
        assert_eq!(said, "done\n", "{mode}");
        assert_eq!(place.read("f.managed"), "version 4", "{mode}");
        assert_eq!(std::fs::read_dir(place.files.path()).unwrap().count(), 1, "{mode}");
        assert_eq!((&report["managed"], &report["plain"]), (&5.into(), &serde_json::json!([])), "{mode}: {report}");
    }
}

#[test]
fn a_directory_is_renamed_with_the_open_files_below_it() {
    needs_mounts!("python3");
    let program = "
import os
os.makedirs('a/b')
file = open('a/b/f.managed', 'wb', buffering=0)
file.write(b'1')
os.rename('a', 'c')
file.write(b'2')
os.fsync(file.fileno())
os.rename('c/b', 'c/d')
file.write(b'3')
file.close()
print(os.listdir('c/d'), open('c/d/f.managed').read())
os.rename('c/d/f.managed', 'f.managed')
os.removedirs('c/d')
";
    same_as_bare(&["python3".as_ref(), "-c".as_ref(), program.as_ref()]);
}
