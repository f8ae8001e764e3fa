//! `libuntorn_preload.so`: the layer that `untorn run` puts into unmodified programs.
//!
//! It replaces the C library's calls on files ([`symbols`]). One on a descriptor that is not managed goes on to the C
//! library. One on a managed descriptor is sent to the process that serves the run, together with the descriptor
//! ([`client`]). The layer keeps no table of descriptors and no copy of any byte: whether a descriptor is managed is
//! a mark that the kernel keeps with the open file description, and which `dup`, `fork` and `exec` take along.
//!
//! # What makes it sound
//! 1. A call on a managed descriptor never reaches the kernel as it is. What cannot be served fails, and is reported;
//!    or, in the mode that boosts files, the server makes the file a plain one before the call goes on.
//! 2. The layer allocates nothing after it was loaded, takes no lock that a signal handler or a forked child could
//!    wait for (all signals are blocked while a connection is in use; a child finds the connections gone,
//!    `MADV_WIPEONFORK`), and calls the kernel itself ([`raw`]): so it may be called from signal handlers, from a
//!    child of `vfork`, and by `malloc`. It waits for a lock that other processes and threads have too only to write
//!    by itself ([`beside`]), with all signals blocked, and not in a child of `vfork`.
//! 3. A pointer to bytes of the program is given to the kernel, not dereferenced: a wrong one is EFAULT, as without
//!    the layer. What the process writes by itself is copied, once the kernel has found that it is there. Vectors
//!    (`readv`), offsets (`sendfile`) and strings are read, as the C library reads them; a wrong one crashes.
//! 4. A process that has seen no managed descriptor pays for a load of one flag in each call.

mod beside;
mod busy;
mod client;
#[cfg(feature = "oracle")]
mod death;
mod hidden;
mod known;
mod layer;
mod log;
mod mapped;
#[cfg(all(feature = "oracle", target_arch = "x86_64"))]
mod oracle;
mod path;
mod raw;
mod real;
mod settings;
mod symbols;
