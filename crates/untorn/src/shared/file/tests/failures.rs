//! Who takes over may fail where another process does not, and a failure that ended all promises is not forgotten
//! with the process that met it.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::*;
use crate::engine::{Close, Engine, Info, Piece, Recovery};
use crate::ipc::rpc::{DONE, EXECUTING, RequestSlot, RpcArea, Words};
use crate::shared::file::service::{Service, serve};
use crate::storage::Identity;

/// Three processes that share a file, of which the first serves, and the third leaves that to others for now.
fn three(engine: EngineKind) -> (tempfile::TempDir, PathBuf, [Puppet; 3]) {
    let (dir, path, mut puppets) = share(engine, Durability::PerWrite);
    raise(&path, &["abstain"]);
    puppets[2].tell("abstain").unwrap();
    assert_eq!(puppets[1].tell("write 1").as_deref(), Some("0"));
    assert_eq!(puppets[2].tell("read").as_deref(), Some("1"));
    (dir, path, puppets)
}

#[test]
fn a_process_that_cannot_open_the_file_leaves_it_to_others() {
    for engine in ENGINES {
        let panics = [Point::Lost, Point::Reopened, Point::Finished].map(|point| format!("panic-at {}", point as u32));
        for trouble in panics.into_iter().chain(["cannot-open 13".to_owned()]) {
            let (_dir, path, [first, mut second, mut third]) = three(engine);
            second.tell(&trouble).unwrap();
            drop(first);
            // Its own calls have nobody any more who does them, so they must not wait.
            assert_eq!(second.tell("write 2").as_deref(), Some("poisoned"), "{engine} {trouble}");
            assert_eq!(second.tell("read").as_deref(), Some("poisoned"), "{engine} {trouble}");
            lower(&path, &["abstain"]);
            assert_eq!(third.tell("read").as_deref(), Some("1"), "{engine} {trouble}");
            assert_eq!(third.tell("write 3").as_deref(), Some("0"), "{engine} {trouble}");
            drop(third);
            // The one that is evicted will never serve, so nobody waits for it.
            let file = options(Durability::PerWrite).open(&path).unwrap();
            assert_eq!(value(&file), 3);
            assert_eq!(second.tell("read").as_deref(), Some("poisoned"), "{engine} {trouble}");
        }
    }
}

#[test]
fn every_call_ends_when_no_process_can_listen() {
    let (dir, path, [first, mut second, mut third]) = three(EngineKind::Reflection);
    lower(&path, &["abstain"]);
    // Something that cannot be removed stands at the name of the socket.
    let rendezvous = crate::format::sidecar::meeting_place(
        crate::storage::detect(&path).unwrap().identity,
        crate::format::sidecar::CALLS,
    );
    let socket = dir.path().join(format!(".untorn/{rendezvous}.sock"));
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir_all(socket.join("in the way")).unwrap();
    drop(first);
    second.send_to("write 2");
    third.send_to("read");
    assert_eq!(second.answer().as_deref(), Some("poisoned"));
    assert_eq!(third.answer().as_deref(), Some("poisoned"));
    std::fs::remove_dir_all(&socket).unwrap();
    let file = options(Durability::PerWrite).open(&path).unwrap();
    assert_eq!(value(&file), 1);
}

#[test]
fn a_server_that_panics_with_the_file_open_goes_on() {
    for engine in ENGINES {
        let (_dir, _, [first, mut second, mut third]) = three(engine);
        second.tell(&format!("panic-at {}", Point::Owner as u32)).unwrap();
        drop(first);
        for number in [2, 3] {
            assert_eq!(third.tell(&format!("write {number}")).as_deref(), Some("0"), "{engine}");
            assert_eq!(second.tell("read"), Some(number.to_string()), "{engine}");
        }
    }
}

#[test]
fn a_file_put_in_the_place_of_the_shared_one_is_not_touched() {
    let (dir, path, [first, mut second, third]) = three(EngineKind::Reflection);
    let moved = dir.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    let stranger = vec![7; 3 * 4096];
    std::fs::write(&path, &stranger).unwrap();
    let sidecar = dir.path().join(format!(".untorn/{}", std::fs::metadata(&path).unwrap().ino()));
    drop(first);
    assert_eq!(second.tell("read").as_deref(), Some("poisoned"));
    assert_eq!(crate::inspect(&path).unwrap().engine, None, "it was given a mark");
    assert!(!sidecar.exists(), "it was given a sidecar");
    assert_eq!(std::fs::read(&path).unwrap(), stranger);
    drop((second, third));
    assert_eq!(value(&options(Durability::PerWrite).open(&moved).unwrap()), 1);
}

#[test]
fn a_lost_page_is_told_to_all_until_they_open_the_file_again() {
    for engine in ENGINES {
        let (_dir, path, [mut first, mut second, mut third]) = share(engine, Durability::PerWrite);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        let failed = second.tell("read").unwrap();
        assert!(failed.contains("lost") || failed == "poisoned", "{engine}: {failed}");
        file.set_len(3 * 4096).unwrap();
        assert_eq!(second.tell("write 2").as_deref(), Some("poisoned"), "{engine}");
        // It takes the engine that failed with it. The next one opens the file anew, which goes well.
        assert_eq!(first.tell("leave").as_deref(), Some("0"));
        for puppet in [&mut second, &mut third] {
            for call in ["read", "write 3", "sync"] {
                assert_eq!(puppet.tell(call).as_deref(), Some("poisoned"), "{engine} {call}");
            }
        }
        // Whose handle is new is concerned by nothing of that.
        let mut fourth = Puppet::new(&path, Durability::PerWrite);
        assert_eq!(fourth.tell("write 4").as_deref(), Some("0"), "{engine}");
        assert_eq!(fourth.tell("read").as_deref(), Some("4"), "{engine}");
    }
}

/// An engine whose writes fail, or panic, and which is poisoned from then on.
struct Failing {
    panics: bool,
    poisoned: AtomicBool,
}

impl Failing {
    fn poisoned(&self) -> crate::Result<()> {
        let cause = || "a flush failed".to_owned();
        let is = self.poisoned.load(Ordering::SeqCst);
        if is { Err(Error::Poisoned { path: self.path().to_owned(), cause: cause() }) } else { Ok(()) }
    }
}

impl Engine for Failing {
    fn path(&self) -> &Path {
        Path::new("/a/file")
    }
    fn len(&self) -> u64 {
        4096
    }
    fn identity(&self) -> crate::Result<Identity> {
        Ok(Identity { device: 0, inode: 0, generation: 0, birth: 0 })
    }
    fn writable(&self) -> crate::Result<()> {
        self.poisoned()
    }
    fn read(&self, _: u64, _: &mut [u8]) -> crate::Result<()> {
        self.poisoned()
    }
    fn write(&self, _: &[Piece<'_>]) -> crate::Result<()> {
        assert!(!self.panics, "as it was made to");
        self.poisoned.store(true, Ordering::SeqCst);
        Err(Error::io("flush", self.path(), rustix::io::Errno::IO))
    }
    fn deploy(&self, _: u64, _: u64) -> crate::Result<()> {
        self.poisoned()
    }
    fn sync(&self) -> crate::Result<u64> {
        self.poisoned().map(|()| 1)
    }
    fn resize(&self, _: u64) -> crate::Result<()> {
        self.poisoned()
    }
    fn reclaim(&self) -> crate::Result<u64> {
        self.poisoned().map(|()| 0)
    }
    fn info(&self) -> Info {
        Info {
            engine: EngineKind::Reflection,
            len: 4096,
            commit: 0,
            committed: None,
            durability: Durability::PerWrite,
            layout: None,
            sidecar: None,
            reflected_pages: 0,
            reflected_slices: 0,
            recovery: Recovery::default(),
        }
    }
    fn accepts(&self, _: &Options) -> bool {
        true
    }
    fn close(&self, _: Close) -> crate::Result<()> {
        self.poisoned()
    }
    fn settle(&self) -> crate::Result<()> {
        self.poisoned()
    }
}

pub(in crate::shared::file) fn failing(panics: bool) -> (Arc<RpcArea>, Service) {
    let rpc_area = Arc::new(RpcArea::create([0; 4], "").unwrap());
    let engine = Box::new(Failing { panics, poisoned: AtomicBool::new(false) });
    (Arc::clone(&rpc_area), Service::new(engine, rpc_area))
}

/// Puts a call in place, as another process would.
pub(in crate::shared::file) fn put_call(request_slot: RequestSlot<'_>, kind: u64, generation: u64) {
    let table = crate::shared::file::call::table(&[Piece { offset: 0, bytes: b"x" }]);
    request_slot.allocate(4096).unwrap();
    request_slot.put(0, &table);
    request_slot.put(table.len(), b"x");
    let (a, len) = if kind == 2 { (1, table.len() as u64 + 1) } else { (0, 0) };
    request_slot.ask(Words { kind, a, len, generation, ..Words::default() });
    request_slot.call();
}

/// Has a call done; the error it ends with, if it does.
fn call(
    service: &Service,
    rpc_area: &RpcArea,
    request_slot: RequestSlot<'_>,
    kind: u64,
    generation: u64,
) -> crate::Result<u64> {
    put_call(request_slot, kind, generation);
    serve(service, rpc_area, request_slot, &mut Vec::new());
    assert_eq!(request_slot.state(), DONE);
    crate::shared::file::call::result(request_slot, "write", Path::new("/a/file")).map(|words| words.a)
}

pub(in crate::shared::file) const WRITE: u64 = 2;
const SYNC: u64 = 4;

#[test]
fn a_flush_that_failed_begins_a_new_generation() {
    let (rpc_area, service) = failing(false);
    let request_slot = rpc_area.request_slot(3, 0);
    assert!(call(&service, &rpc_area, request_slot, SYNC, 0).is_ok());
    rpc_area.lose_epoch();
    assert_eq!(rpc_area.generation(), 0, "nothing has failed");
    assert!(matches!(call(&service, &rpc_area, request_slot, WRITE, 0), Err(Error::Io { .. })));
    drop(service);
    rpc_area.lose_epoch();
    assert_eq!((rpc_area.generation(), rpc_area.was_lost()), (1, false));
    rpc_area.lose_epoch();
    assert_eq!(rpc_area.generation(), 1, "once is enough");
    let (_, sound) = failing(false);
    let refused = call(&sound, &rpc_area, request_slot, SYNC, 0).unwrap_err();
    assert!(refused.to_string().contains("a flush of the file failed"), "{refused}");
    assert!(call(&sound, &rpc_area, request_slot, SYNC, 1).is_ok());
}

/// A write that was begun is repeated by the next server, which may find it counted already.
#[test]
fn only_what_was_not_begun_is_refused() {
    for is_begun in [false, true] {
        let (rpc_area, service) = failing(false);
        let request_slot = rpc_area.request_slot(3, 0);
        put_call(request_slot, WRITE, 0);
        rpc_area.note_change();
        let condition = crate::shared::file::call::of_condition(Some(rpc_area.changes() - 1));
        request_slot.ask(Words { b: condition, ..request_slot.asked() });
        if is_begun {
            request_slot.set_state(EXECUTING);
        }
        serve(&service, &rpc_area, request_slot, &mut Vec::new());
        let answer = crate::shared::file::call::result(request_slot, "write", Path::new("/a/file"));
        let refused = answer.as_ref().is_ok_and(|words| words.a == crate::shared::file::call::REFUSED);
        assert_eq!((refused, answer.is_err()), (!is_begun, is_begun), "the engine fails every write");
    }
}

#[test]
fn no_request_is_executed_after_a_panic() {
    let (rpc_area, service) = failing(true);
    let request_slot = rpc_area.request_slot(3, 0);
    for kind in [WRITE, SYNC, WRITE] {
        let refused = call(&service, &rpc_area, request_slot, kind, 0).unwrap_err();
        assert!(matches!(&refused, Error::Poisoned { cause, .. } if cause.contains("panicked")), "{refused}");
    }
    rpc_area.lose_epoch();
    assert_eq!(rpc_area.generation(), 1);
}
