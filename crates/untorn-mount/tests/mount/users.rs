//! Requests of other users: what they create is theirs, and they may do what they may do on the source.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::support::mount;

const USER: u32 = 23456;
const GROUP: u32 = 34567;
const OTHER: u32 = 45678;

/// Runs on a thread that is this user, for good.
fn as_user<T: Send>(groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rustix::thread::set_thread_groups(&groups).unwrap();
            let group = Gid::from_raw(GROUP);
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            let user = Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn create(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map(drop)
}

fn owner(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode())
}

/// A user tries everything in a directory.
fn story(at: &Path) -> String {
    fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
    for (name, mode, group) in
        [("own", 0o777, 0), ("grouped", 0o770, OTHER), ("secret", 0o700, 0), ("sticky", 0o1777, 0)]
    {
        fs::create_dir(at.join(name)).unwrap();
        rustix::fs::chown(at.join(name), None, Some(Gid::from_raw(group))).unwrap();
        fs::set_permissions(at.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::create_dir(at.join("inherits")).unwrap();
    rustix::fs::chown(at.join("inherits"), None, Some(Gid::from_raw(OTHER))).unwrap();
    fs::set_permissions(at.join("inherits"), PermissionsExt::from_mode(0o2777)).unwrap();
    fs::write(at.join("secret/f"), "1").unwrap();
    fs::write(at.join("sticky/f"), "1").unwrap();
    fs::write(at.join("readable"), "1").unwrap();
    fs::write(at.join("program"), "1").unwrap();
    fs::set_permissions(at.join("program"), PermissionsExt::from_mode(0o6777)).unwrap();
    let one = as_user(&[], || {
        let mut said = format!("{:?} {:?}", create(&at.join("own/f")), owner(&at.join("own/f")));
        said += &format!("{:?}", rustix::fs::mkdir(at.join("own/d"), Mode::from_raw_mode(0o777)));
        said += &format!("{:?}", std::os::unix::fs::symlink("f", at.join("own/l")).map_err(|error| error.kind()));
        said += &format!("{:?} {:?}", owner(&at.join("own/d")), owner(&at.join("own/l")));
        said += &format!("{:?} {:?}", create(&at.join("f")), create(&at.join("grouped/f")));
        said += &format!(
            "{:?} {:?}",
            create(&at.join("secret/g")),
            fs::read(at.join("secret/f")).map_err(|error| error.kind())
        );
        said += &format!("{:?}", rustix::fs::unlink(at.join("sticky/f")));
        said += &format!("{:?} {:?}", create(&at.join("inherits/f")), owner(&at.join("inherits/f")));
        said += &format!("{:?}", rustix::fs::chmod(at.join("readable"), Mode::RWXU));
        said += &format!("{:?}", rustix::fs::open(at.join("readable"), OFlags::RDWR, Mode::empty()).map(drop));
        said += &format!("{:?}", fs::read(at.join("readable")).map_err(|error| error.kind()));
        // A write takes the set-user-id from a program.
        let program = rustix::fs::open(at.join("program"), OFlags::WRONLY, Mode::empty()).unwrap();
        said += &format!("{:?} {:?}", rustix::io::write(&program, b"2"), owner(&at.join("program")));
        said += &format!("{:?}", rustix::fs::chown(at.join("own/f"), Some(Uid::ROOT), None));
        said
    });
    let grouped =
        as_user(&[7, OTHER], || format!("{:?} {:?}", create(&at.join("grouped/f")), owner(&at.join("grouped/f"))));
    fs::set_permissions(at.join("program"), PermissionsExt::from_mode(0o6777)).unwrap();
    let cut = as_user(&[], || {
        let program = rustix::fs::open(at.join("program"), OFlags::WRONLY | OFlags::TRUNC, Mode::empty());
        format!("{:?} {:?}", program.map(drop), owner(&at.join("program")))
    });
    format!("{one} {grouped} {cut}")
}

#[test]
fn another_user_meets_the_same_as_in_a_bare_directory() {
    for chosen in ["*.none", "/**"] {
        let Some(mount) = mount(untorn_testing::test_name!(), chosen) else { return };
        let bare = story(&mount.bare());
        assert_eq!(story(&mount.path()), bare);
        mount.unmount();
    }
}
