//! Member slots: the processes that take part.
//!
//! A process gets its slot when it attaches, and again from another server when it returns. It loses the slot when it
//! leaves, or when it is dead and its connection has ended.

use std::os::fd::{AsFd, OwnedFd};

use super::super::control::{PAGE, VERSION};
use super::Server;
use super::requests::Request;
use crate::ipc::membership::{Connections, Host};
use crate::ipc::message::{Kind, Message};
use crate::ipc::rendezvous::MEMBERS;
use crate::sys::userfault::Userfault;

/// A process that takes part.
pub(in super::super) struct MemberSlot {
    pub(in super::super) tracker: Userfault,
    /// Where it has the memory.
    pub(in super::super) base: usize,
}

impl Host for Server {
    const VERSION: u64 = VERSION;

    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connections_mut(&mut self) -> &mut Connections {
        &mut self.connections
    }

    fn name(&self) -> String {
        self.control.name()
    }

    fn refuses(&self, part: &str) -> Option<String> {
        if part != self.part {
            return Some(format!(
                "the other processes share {} of this file; only one region of a store can be shared at a time",
                self.part
            ));
        }
        self.control.poisoned().map(|cause| self.poisoned(cause).to_string())
    }

    fn welcome(&mut self, token: u64) {
        let Ok(pages) = self.view.file().try_clone_to_owned() else { return self.connections.end_for_want(token) };
        let welcome = Message::new(Kind::Welcome, 0, self.control.reserved(), 0);
        self.connections.send(token, &welcome, &[self.control.file(), pages.as_fd()]);
    }

    fn is_attached(&self, slot: usize) -> bool {
        self.control.attached(slot)
    }

    fn has(&self, slot: usize) -> bool {
        self.seats[slot].is_some()
    }

    fn admit_member(
        &mut self,
        slot: usize,
        message: &Message,
        mut fds: Vec<OwnedFd>,
    ) -> std::result::Result<(), String> {
        let tracker = Userfault::from_fd(fds.pop().ok_or("the message carries no file descriptor")?);
        let base = message.a as usize;
        if message.kind == Kind::Attach {
            let pages = self.cut_len().div_ceil(PAGE as u64);
            self.control.reset_member(slot);
            self.guard_present(slot, &tracker, base, pages)
                .map_err(|error| format!("cannot write-protect its pages: {error}"))?;
            self.control.set_attached(slot, true);
        }
        self.seats[slot] = Some(MemberSlot { tracker, base });
        Ok(())
    }

    /// Gives a member slot up whose process is gone, or stores no more.
    fn release(&mut self, slot: usize) {
        self.seats[slot] = None;
        self.connections.unseat(slot);
        self.control.active(slot).store(0, std::sync::atomic::Ordering::SeqCst);
        self.control.set_attached(slot, false);
    }

    fn handle(&mut self, token: u64, message: Message) {
        match message.kind {
            Kind::Fill => self.fill(message.a),
            Kind::Commit | Kind::RollBack | Kind::Grow => self.queue.push_back(Request { token, message }),
            Kind::Leave => {
                if let Some(slot) = self.connections.slot_of(token) {
                    self.release(slot);
                }
                self.answer(&Request { token, message }, &Ok(self.control.commit()));
            }
            // Nobody says anything else to a server.
            _ => self.connections.end(token),
        }
    }

    /// Forgets also what was asked on it and is not begun: its process asks again, on another line, for what it was
    /// not answered.
    fn forget(&mut self, token: u64) {
        self.queue.retain(|request| request.token != token);
        self.connections.end(token);
    }
}

impl Server {
    /// Whether every process that takes part has come back to this server.
    pub(in super::super) fn all_are_back(&mut self) -> bool {
        (0..MEMBERS).all(|slot| {
            if !self.control.attached(slot) || self.seats[slot].is_some() {
                return true;
            }
            let alive = self.rendezvous.is_alive(slot);
            if !alive {
                self.release(slot);
            }
            !alive
        })
    }
}
