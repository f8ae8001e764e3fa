//! Every operation has the same outcome in the mount as in a bare directory.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};

use crate::support::{How, mount, mount_as};

/// Whether blocks and holes may differ.
static LOOSE: AtomicBool = AtomicBool::new(false);

/// All that a program can see of a name, but for things that differ between any two directories.
fn look(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Err(error) => format!("{error}"),
        Ok(found) => {
            let size = if found.is_dir() { 0 } else { found.size() };
            // Bytes that only the log has are not allocated yet.
            let blocks = if found.is_dir() || LOOSE.load(Ordering::Relaxed) { 0 } else { found.blocks() };
            let (mode, links, device) = (found.mode(), found.nlink(), found.rdev());
            format!("{mode:o} {links} {} {} {size} {blocks} {device}", found.uid(), found.gid())
        }
    }
}

fn open(path: &Path, flags: OFlags) -> Result<rustix::fd::OwnedFd> {
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
}

fn said<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(errno) => format!("{errno:?}"),
    }
}

fn unit<T>(result: Result<T>) -> String {
    said(result.map(drop))
}

type Step = (&'static str, fn(&Path) -> String);

fn rename(at: &Path, from: &str, to: &str, flags: RenameFlags) -> String {
    unit(rustix::fs::renameat_with(CWD, at.join(from), CWD, at.join(to), flags))
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) -> Result<()> {
    let file = open(path, OFlags::WRONLY | OFlags::CREATE)?;
    assert_eq!(rustix::io::pwrite(&file, bytes, offset)?, bytes.len());
    Ok(())
}

fn names(at: &Path) -> String {
    let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    format!("{names:?}")
}

const STEPS: &[Step] = &[
    ("create", |at| unit(write_at(&at.join("f"), b"0123456789", 0)) + &look(&at.join("f"))),
    ("create again", |at| unit(open(&at.join("f"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL))),
    ("open what is not there", |at| unit(open(&at.join("none"), OFlags::RDONLY))),
    ("open a directory to write", |at| unit(open(at, OFlags::WRONLY))),
    ("open a file as a directory", |at| unit(open(&at.join("f"), OFlags::RDONLY | OFlags::DIRECTORY))),
    ("open below a file", |at| unit(open(&at.join("f/g"), OFlags::RDONLY))),
    ("a long name", |at| unit(open(&at.join("x".repeat(256)), OFlags::WRONLY | OFlags::CREATE))),
    ("read", |at| format!("{:?}", fs::read(at.join("f")))),
    ("read past the end", |at| {
        let file = open(&at.join("f"), OFlags::RDONLY).unwrap();
        said(rustix::io::pread(&file, &mut [0; 4], 10)) + &said(rustix::io::pread(&file, &mut [0; 4], 8))
    }),
    ("write to a file open for reading", |at| {
        unit(rustix::io::pwrite(open(&at.join("f"), OFlags::RDONLY).unwrap(), b"x", 0))
    }),
    ("write far behind the end", |at| unit(write_at(&at.join("sparse"), b"end", 1 << 20)) + &look(&at.join("sparse"))),
    ("data and holes", |at| {
        let file = open(&at.join("sparse"), OFlags::RDONLY).unwrap();
        [SeekFrom::Data(0), SeekFrom::Hole(0), SeekFrom::Hole(1 << 20), SeekFrom::Data(2 << 20)]
            .map(|place| said(rustix::fs::seek(&file, place)))
            .join(" ")
    }),
    ("truncate", |at| {
        let file = open(&at.join("sparse"), OFlags::RDWR).unwrap();
        let mut said = String::new();
        for len in [5000, 100, 9000, 0, 1 << 40] {
            said += &unit(rustix::fs::ftruncate(&file, len));
            said += &look(&at.join("sparse"));
        }
        said
    }),
    ("bytes that a truncation cut are zeros", |at| {
        let path = at.join("cut");
        write_at(&path, &[7; 6000], 0).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(10).unwrap();
        file.set_len(6000).unwrap();
        format!("{:?}", fs::read(path).unwrap().iter().map(|byte| u64::from(*byte)).sum::<u64>())
    }),
    ("O_TRUNC", |at| unit(open(&at.join("cut"), OFlags::WRONLY | OFlags::TRUNC)) + &look(&at.join("cut"))),
    ("O_RDONLY with O_TRUNC", |at| {
        let path = at.join("cut by a reader");
        write_at(&path, b"bytes", 0).unwrap();
        unit(open(&path, OFlags::RDONLY | OFlags::TRUNC)) + &look(&path)
    }),
    ("O_APPEND taken off and set", |at| {
        let path = at.join("appended and not");
        let file = open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND).unwrap();
        rustix::io::write(&file, b"abcdef").unwrap();
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).unwrap();
        rustix::io::pwrite(&file, b"in", 1).unwrap();
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
        rustix::io::pwrite(&file, b"end", 0).unwrap();
        format!("{:?}", fs::read_to_string(path))
    }),
    ("append by two descriptors", |at| {
        let path = at.join("appended");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let (one, two) = (open(&path, flags).unwrap(), open(&path, flags).unwrap());
        for (number, file) in [&one, &two, &one, &two].into_iter().enumerate() {
            rustix::io::write(file, format!("{number};").as_bytes()).unwrap();
        }
        format!("{:?}", fs::read_to_string(path))
    }),
    ("fallocate", |at| {
        let file = open(&at.join("allocated"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let mut said = String::new();
        rustix::io::pwrite(&file, &[9; 20000], 0).unwrap();
        for (mode, offset, len) in [
            (FallocateFlags::KEEP_SIZE, 1 << 16, 4096),
            (FallocateFlags::empty(), 0, 40000),
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192),
            (FallocateFlags::empty(), 0, 0),
        ] {
            said += &unit(rustix::fs::fallocate(&file, mode, offset, len));
            said += &look(&at.join("allocated"));
        }
        said + &format!("{}", fs::read(at.join("allocated")).unwrap().iter().map(|byte| u64::from(*byte)).sum::<u64>())
    }),
    ("copy_file_range", |at| {
        let from = open(&at.join("f"), OFlags::RDONLY).unwrap();
        let to = open(&at.join("copy"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let (mut read, mut written) = (2, 5);
        let copied = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut written), 100);
        format!("{} {read} {written} {:?}", said(copied), fs::read(at.join("copy")))
    }),
    ("fsync", |at| {
        let file = open(&at.join("f"), OFlags::RDWR).unwrap();
        unit(rustix::fs::fsync(&file))
            + &unit(rustix::fs::fdatasync(&file))
            + &unit(rustix::fs::fsync(open(at, OFlags::RDONLY).unwrap()))
    }),
    ("O_DIRECT and O_SYNC", |at| {
        let file = open(&at.join("synced"), OFlags::WRONLY | OFlags::CREATE | OFlags::SYNC).unwrap();
        said(rustix::io::write(&file, b"synced")) + &look(&at.join("synced"))
    }),
    ("mkdir", |at| unit(rustix::fs::mkdir(at.join("d"), Mode::from_raw_mode(0o1777))) + &look(&at.join("d"))),
    ("mkdir again", |at| unit(rustix::fs::mkdir(at.join("d"), Mode::RWXU))),
    ("mkdir below nothing", |at| unit(rustix::fs::mkdir(at.join("none/d"), Mode::RWXU))),
    ("set-group-id directory", |at| {
        rustix::fs::chown(at.join("d"), None, Some(Gid::from_raw(4321))).unwrap();
        rustix::fs::chmod(at.join("d"), Mode::from_raw_mode(0o2775)).unwrap();
        rustix::fs::mkdir(at.join("d/e"), Mode::from_raw_mode(0o777)).unwrap();
        write_at(&at.join("d/f"), b"x", 0).unwrap();
        look(&at.join("d/e")) + &look(&at.join("d/f"))
    }),
    ("fifo, socket, device", |at| {
        let mode = Mode::from_raw_mode(0o640);
        let device = rustix::fs::makedev(1, 3);
        let mut said = unit(rustix::fs::mknodat(CWD, at.join("fifo"), FileType::Fifo, mode, 0));
        said += &unit(rustix::fs::mknodat(CWD, at.join("null"), FileType::CharacterDevice, mode, device));
        drop(UnixListener::bind(at.join("socket")).unwrap());
        for name in ["fifo", "null", "socket"] {
            said += &look(&at.join(name));
        }
        said
    }),
    ("symlink", |at| {
        symlink("f", at.join("link")).unwrap();
        symlink("nowhere", at.join("dangling")).unwrap();
        format!(
            "{:?} {} {} {} {}",
            fs::read_link(at.join("link")),
            look(&at.join("link")),
            unit(open(&at.join("link"), OFlags::RDONLY)),
            unit(open(&at.join("link"), OFlags::RDONLY | OFlags::NOFOLLOW)),
            unit(open(&at.join("dangling"), OFlags::RDONLY)),
        )
    }),
    ("create through a dangling symlink", |at| {
        unit(write_at(&at.join("dangling"), b"x", 0)) + &look(&at.join("nowhere"))
    }),
    ("link", |at| {
        let made = unit(rustix::fs::link(at.join("f"), at.join("f2")));
        made + &look(&at.join("f"))
            + &unit(rustix::fs::link(at.join("f"), at.join("f2")))
            + &unit(rustix::fs::link(at.join("d"), at.join("d2")))
    }),
    ("unlink", |at| unit(rustix::fs::unlink(at.join("f2"))) + &look(&at.join("f")) + &look(&at.join("f2"))),
    ("unlink a directory", |at| unit(rustix::fs::unlink(at.join("d")))),
    ("unlink nothing", |at| unit(rustix::fs::unlink(at.join("none")))),
    ("rmdir", |at| {
        [at.join("d"), at.join("f"), at.join("none"), at.join("d/e")]
            .map(|path| unit(rustix::fs::rmdir(path)))
            .join(" ")
    }),
    ("rename", |at| rename(at, "f", "g", RenameFlags::empty()) + &look(&at.join("f")) + &look(&at.join("g"))),
    ("rename over a file", |at| {
        write_at(&at.join("h"), b"other", 0).unwrap();
        rename(at, "h", "g", RenameFlags::empty()) + &format!("{:?}", fs::read(at.join("g"))) + &look(&at.join("h"))
    }),
    ("rename without replacing", |at| {
        write_at(&at.join("h"), b"third", 0).unwrap();
        rename(at, "h", "g", RenameFlags::NOREPLACE) + &rename(at, "h", "i", RenameFlags::NOREPLACE) + &names(at)
    }),
    ("exchange", |at| {
        let done = rename(at, "g", "i", RenameFlags::EXCHANGE) + &rename(at, "g", "d", RenameFlags::EXCHANGE);
        let back = rename(at, "g", "d", RenameFlags::EXCHANGE) + &rename(at, "g", "none", RenameFlags::EXCHANGE);
        format!("{done}{back}{:?}{:?}", fs::read(at.join("g")), fs::read(at.join("i")))
    }),
    ("whiteout", |at| rename(at, "i", "j", RenameFlags::WHITEOUT) + &look(&at.join("i")) + &look(&at.join("j"))),
    ("rename a directory", |at| {
        fs::create_dir_all(at.join("p/q")).unwrap();
        fs::create_dir(at.join("empty")).unwrap();
        write_at(&at.join("p/q/f"), b"deep", 0).unwrap();
        let mut said = rename(at, "p", "p/q/r", RenameFlags::empty());
        said += &rename(at, "p", "d", RenameFlags::empty());
        said += &rename(at, "p", "g", RenameFlags::empty());
        said += &rename(at, "g", "p", RenameFlags::empty());
        said += &rename(at, "p", "empty", RenameFlags::empty());
        said + &format!("{:?}", fs::read(at.join("empty/q/f")))
    }),
    ("chmod", |at| {
        let mut said = String::new();
        for mode in [0o4755, 0o2711, 0o600, 0] {
            said += &unit(rustix::fs::chmod(at.join("g"), Mode::from_raw_mode(mode)));
            said += &look(&at.join("g"));
        }
        said
    }),
    ("chown takes the set-user-id away", |at| {
        rustix::fs::chmod(at.join("g"), Mode::from_raw_mode(0o6755)).unwrap();
        let (user, group) = (Some(Uid::from_raw(1234)), Some(Gid::from_raw(4321)));
        unit(rustix::fs::chown(at.join("g"), user, group)) + &look(&at.join("g"))
    }),
    ("times", |at| {
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let set = |last_access, last_modification| {
            unit(rustix::fs::utimensat(
                CWD,
                at.join("g"),
                &Timestamps { last_access, last_modification },
                AtFlags::empty(),
            ))
        };
        let mut said = set(time(1_000_000, 5), time(-3, 7));
        said += &set(time(0, UTIME_OMIT), time(77, 123_456_789));
        let found = fs::metadata(at.join("g")).unwrap();
        said += &format!("{} {} {} {}", found.atime(), found.atime_nsec(), found.mtime(), found.mtime_nsec());
        said += &set(time(0, UTIME_NOW), time(0, UTIME_OMIT));
        let found = fs::metadata(at.join("g")).unwrap();
        said + &format!("{} {}", found.atime() > 1_600_000_000, found.mtime())
    }),
    ("attributes", |at| {
        let path = at.join("g");
        let set = |value: &[u8], flags| unit(rustix::fs::setxattr(&path, "trusted.a", value, flags));
        let mut said =
            set(b"1", XattrFlags::REPLACE) + &set(b"12", XattrFlags::CREATE) + &set(b"123", XattrFlags::CREATE);
        let mut value = [0; 8];
        said += &super::same::said(rustix::fs::getxattr(&path, "trusted.a", &mut value[..]));
        said += &super::same::said(rustix::fs::getxattr(&path, "trusted.a", &mut value[..1]));
        said += &super::same::said(rustix::fs::getxattr(&path, "trusted.b", &mut value[..]));
        let mut names = vec![0; 1 << 12];
        let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        said += &String::from_utf8_lossy(&names[..len]);
        said += &unit(rustix::fs::removexattr(&path, "trusted.a"));
        said + &unit(rustix::fs::removexattr(&path, "trusted.a"))
    }),
    ("statfs", |at| {
        let found = rustix::fs::statvfs(at).unwrap();
        format!("{} {} {}", found.f_bsize, found.f_blocks, found.f_namemax)
    }),
    ("an unlinked file stays open", |at| {
        let file = open(&at.join("g"), OFlags::RDWR).unwrap();
        fs::remove_file(at.join("g")).unwrap();
        rustix::io::pwrite(&file, b"gone", 1).unwrap();
        let mut bytes = [0; 16];
        let count = rustix::io::pread(&file, &mut bytes, 0).unwrap();
        let status = rustix::fs::fstat(&file).unwrap();
        format!("{:?} {} {} {}", &bytes[..count], status.st_nlink, status.st_size, names(at))
    }),
    ("a renamed file stays open", |at| {
        let file = open(&at.join("j"), OFlags::RDWR).unwrap();
        fs::rename(at.join("j"), at.join("empty/j")).unwrap();
        rustix::io::pwrite(&file, b"moved", 1).unwrap();
        write_at(&at.join("j"), b"another", 0).unwrap();
        format!("{:?} {:?}", fs::read(at.join("empty/j")), fs::read(at.join("j")))
    }),
    ("access", |at| {
        let check = |name, mode| unit(rustix::fs::access(at.join(name), mode));
        check("j", rustix::fs::Access::WRITE_OK)
            + &check("j", rustix::fs::Access::EXEC_OK)
            + &check("none", rustix::fs::Access::EXISTS)
    }),
    ("a name that no file can have", |at| {
        said(rustix::fs::open(CString::new("").unwrap(), OFlags::RDONLY, Mode::empty()).map(drop))
            + &unit(rustix::fs::mkdir(at.join("."), Mode::RWXU))
    }),
];

fn compare(mount: &crate::support::Mount) {
    for (what, step) in STEPS {
        if LOOSE.load(Ordering::Relaxed) && *what == "data and holes" {
            continue;
        }
        let (bare, mounted) = (step(&mount.bare()), step(&mount.path()));
        assert_eq!(mounted, bare, "{what}");
    }
    let source = names(&mount.source()).replace("\".untorn\", ", "");
    assert_eq!(names(&mount.path()), source);
}

#[test]
fn each_operation_ends_as_in_a_bare_directory() {
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    compare(&mount);
    assert_eq!(mount.unmount(), (0, 0));
}

#[test]
fn each_operation_on_managed_files_ends_as_in_a_bare_one() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    compare(&mount);
    let (managed, plain) = mount.unmount();
    assert!(managed > 10, "{managed}");
    assert_eq!(plain, 0);
}

#[test]
fn a_dead_server_answers_an_error_and_no_one_waits() {
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    write_at(&mount.path().join("f"), b"bytes", 0).unwrap();
    let file = open(&mount.path().join("f"), OFlags::RDWR).unwrap();
    mount.kill();
    // The server's puller, between fork and exec, may have the connection a moment longer: a request waits until it
    // lets go, and is aborted then.
    let failed = open(&mount.path().join("f"), OFlags::RDONLY).err();
    assert!(matches!(failed, Some(Errno::NOTCONN | Errno::CONNABORTED)), "{failed:?}");
    let failed = rustix::io::pwrite(&file, b"x", 0).err();
    assert!(matches!(failed, Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::IO)), "{failed:?}");
    drop(file);
    mount.mount_again();
    assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"bytes");
}

fn compare_atomic(test: &'static str, how: How) {
    let Some(mount) = mount_as(test, "/**", how) else { return };
    LOOSE.store(true, Ordering::Relaxed);
    compare(&mount);
    let contents = fs::read(mount.path().join("copy")).unwrap();
    let source = mount.source();
    assert_eq!(mount.unmount_keeping(|| fs::read(source.join("copy")).unwrap()), contents);
}

#[test]
fn each_operation_in_atomic_mode_ends_as_in_a_bare_directory() {
    compare_atomic(untorn_testing::test_name!(), How::Atomic);
}

#[test]
fn each_atomic_write_through_operation_ends_as_in_a_bare_one() {
    compare_atomic(untorn_testing::test_name!(), How::AtomicWriteThrough);
}
