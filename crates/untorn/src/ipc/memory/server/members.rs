//! Seats: the processes that take part, and their connections.
//!
//! A process gets its seat when it attaches, and again from another server when it returns. It loses the seat when it
//! leaves, or when it is dead and its connection has ended.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::super::control::{PAGE, VERSION};
use super::super::cut::protect_pages;
use super::{Server, name};
use crate::ipc::message::{Kind, Message};
use crate::ipc::rendezvous::MEMBERS;
use crate::sys::userfault::Userfault;

/// A process that takes part.
pub(in super::super) struct MemberSlot {
    pub(in super::super) tracker: Userfault,
    /// Where it has the memory.
    pub(in super::super) base: usize,
    /// Its connection.
    pub(super) token: u64,
}

impl Server {
    pub(super) fn welcome(&mut self, token: u64, message: &Message) {
        let refused = match self.control.poisoned() {
            _ if message.a != VERSION => Some(format!(
                "it is shared with protocol version {VERSION}; use the same \
                                                       version of untorn in every process"
            )),
            _ if message.text != self.part => Some(format!(
                "the other processes share {} of this file; only one region of a store can be shared at a \
                              time",
                self.part
            )),
            Some(cause) => Some(self.poisoned(cause).to_string()),
            None => None,
        };
        if let Some(why) = refused {
            return self.send_to(token, &Message::new(Kind::Refused, 0, 1, 0).text(why), &[]);
        }
        if let Some(slot) = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS) {
            // It has the slot's lock, so whoever had the seat is dead, if only since a moment ago. From now on this
            // process looks alive to those who ask.
            self.release(slot);
        }
        let control = Arc::clone(&self.control);
        let welcome = Message::new(Kind::Welcome, 0, control.reserved(), 0);
        let Ok(pages) = self.view.file().try_clone_to_owned() else { return self.end_for_want(token) };
        self.send_to(token, &welcome, &[control.file(), pages.as_fd()]);
    }

    /// Gives a process its member slot, or says why not.
    pub(super) fn admit_member(
        &mut self,
        token: u64,
        message: &Message,
        mut fds: Vec<OwnedFd>,
    ) -> std::result::Result<(), String> {
        if message.text != name(&self.control) {
            return Err("other processes have started to share it anew".to_owned());
        }
        let slot = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS).ok_or(
            "the message names an \
                                                                                          impossible slot",
        )?;
        let tracker = Userfault::from_fd(fds.pop().ok_or("the message carries no file descriptor")?);
        let base = message.a as usize;
        if message.kind == Kind::Return {
            if !self.control.attached(slot) {
                return Err("this process was evicted".to_owned());
            }
        } else {
            let pages = self.cut_len().div_ceil(PAGE as u64);
            self.control.reset_member(slot);
            self.control.allocate_member(slot, pages).map_err(|error| {
                format!(
                    "cannot allocate memory for it: \
                                                                               {error}"
                )
            })?;
            if message.b < pages {
                // It has grown since the process had a look.
                protect_pages(&tracker, base, message.b, pages)
                    .map_err(|error| format!("cannot write-protect its pages: {error}"))?;
            }
            self.control.set_attached(slot, true);
        }
        if let Some(before) = self.seats[slot].replace(MemberSlot { tracker, base, token }) {
            // Its process has left that line, and asks on this one for what it was not answered.
            self.forget(before.token);
        }
        Ok(())
    }

    /// Gives a member slot up whose process is gone, or stores no more.
    pub(in super::super) fn release(&mut self, slot: usize) {
        self.seats[slot] = None;
        self.control.active(slot).store(0, std::sync::atomic::Ordering::SeqCst);
        self.control.set_attached(slot, false);
    }

    /// Whether the connection of a member slot has ended.
    pub(super) fn is_lonely(&self, admit_member: &MemberSlot) -> bool {
        !self.peers.iter().any(|peer| peer.token == admit_member.token && !peer.ended)
    }

    /// Gives up the member slots of the dead.
    pub(super) fn remove_dead(&mut self) {
        for slot in 0..MEMBERS {
            let lonely = self.seats[slot].as_ref().is_some_and(|admit_member| self.is_lonely(admit_member));
            if lonely && !self.rendezvous.is_alive(slot) {
                self.release(slot);
            }
        }
    }

    /// Whether every process that takes part has come back to this server.
    pub(super) fn all_are_back(&mut self) -> bool {
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
