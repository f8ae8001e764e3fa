use super::*;
use crate::sys::in_forked_child;

/// A thread that is not there in the child has the list at the moment of the fork, as any thread that opens a store,
/// a shared map or a shared file may.
#[test]
fn a_child_forked_while_a_lock_file_is_opened_opens_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let rendezvous = Rendezvous::open(&data, dir.path(), "meeting").unwrap();
    rendezvous.attach().unwrap();
    let open = open_files();
    let held = open.lock();
    let child = in_forked_child(|| {
        // The parent's is another process's here, and the child may come too.
        let found = find_participant(&dir.path().join("data"), dir.path(), "meeting");
        let parent = found.is_ok_and(|who| who.is_some_and(|who| who != "this process"));
        let own = Rendezvous::open(&data, dir.path(), "meeting");
        i32::from(parent) | i32::from(own.is_ok_and(|own| own.slot() == 1 && own.has_others())) << 1
    });
    assert_eq!(child, Some(0b11), "nothing if the child had to be killed");
    drop(held);
    assert_eq!(
        find_participant(&dir.path().join("data"), dir.path(), "meeting").unwrap().as_deref(),
        Some("this process")
    );
}

/// Dropping what it inherited closes no descriptor of a lock file of which the child may have another one.
#[test]
fn a_child_that_drops_an_inherited_place_keeps_its_own_locks() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut inherited = Some(Rendezvous::open(&data, dir.path(), "meeting").unwrap());
    let child = in_forked_child(|| {
        let Ok(own) = Rendezvous::open(&data, dir.path(), "meeting") else { return 1 };
        if own.attach().is_err() {
            return 2;
        }
        drop(inherited.take());
        // Only another process sees a lock.
        let seen = in_forked_child(|| {
            i32::from(find_participant(&dir.path().join("data"), dir.path(), "meeting").is_ok_and(|who| who.is_some()))
        });
        if seen == Some(1) { 0 } else { 3 }
    });
    assert_eq!(child, Some(0));
}

/// Else who connects would try again for ever.
#[test]
fn a_removed_rendezvous_differs_from_one_without_a_listener() {
    let dir = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::open(&dir.path().join("data"), dir.path(), "meeting").unwrap();
    let nobody = rendezvous.connect().unwrap_err();
    std::fs::remove_file(dir.path().join("meeting.lock")).unwrap();
    let removed = rendezvous.connect().unwrap_err();
    assert_eq!((nobody.raw_os_error(), removed.raw_os_error()), (Some(Errno::NOENT.raw_os_error()), None), "{removed}");
}
