//! What the launcher said in the environment, read once, when the layer is loaded.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use untorn_wire::{BOARD, BOARD_BYTES, LAYER, MATCH, MODE, SOCKET, board_bit};

use crate::{beside, client, known, layer, raw};

/// Of a process under untorn.
pub(crate) struct Settings {
    pub(crate) socket: Vec<u8>,
    pub(crate) globs: Vec<Vec<u8>>,
    /// Whether it is the mode in which what cannot be served is handed to the kernel, instead of refused.
    pub(crate) boost: bool,
    /// The variables that an environment must have for the layer to be in: `NAME=value` and a zero.
    pub(crate) variables: Vec<Vec<u8>>,
    /// The layer's path.
    pub(crate) layer: Vec<u8>,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Whether this process has, or may have inherited, a managed descriptor.
static SEEN: AtomicBool = AtomicBool::new(false);

/// The settings, once the layer is set up, in a process that `untorn run` started.
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Whether a descriptor of this process may be managed.
pub(crate) fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// From now on one may be.
pub(crate) fn see() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Whether a file may be managed. Wrong only in saying yes.
pub(crate) fn may_be_managed(device: u64, inode: u64) -> bool {
    let bit = board_bit(device, inode);
    let mut byte = [u8::MAX];
    // A board that cannot be read says nothing, so the server is asked.
    if let Some(board) = client::board() {
        let _ = raw::pread(board, &mut byte, (bit / 8 % BOARD_BYTES) as u64);
    }
    byte[0] >> (bit % 8) & 1 == 1
}

fn variable(name: &str) -> Option<Vec<u8>> {
    untorn_ring::environment::variable(name).map(OsString::into_vec)
}

/// Sets the layer up, if this process is one of a run.
pub(crate) fn set_up() {
    let (Some(socket), Some(board), Some(layer)) = (variable(SOCKET), variable(BOARD), variable(LAYER)) else { return };
    let globs = variable(MATCH).unwrap_or_default();
    let globs = globs.split(|byte| *byte == b'\n').filter(|glob| !glob.is_empty()).map(<[u8]>::to_vec).collect();
    let mut variables = Vec::new();
    for name in [SOCKET, BOARD, LAYER, MATCH, MODE, "LD_PRELOAD"] {
        if let Some(value) = variable(name) {
            variables.push([name.as_bytes(), b"=", &value, b"\0"].concat());
        }
    }
    #[cfg(feature = "oracle")]
    crate::death::set_up();
    let mut path = board;
    path.push(0);
    client::open_board(&path);
    client::set_up();
    let boost = variable(MODE).is_some_and(|mode| mode == b"boost");
    if SETTINGS.set(Settings { socket, globs, boost, variables, layer }).is_err() {
        return;
    }
    if boost {
        beside::watch_forks();
    }
    layer::hello();
    // What was inherited: managed already, or opened by a program without the layer, or by `posix_spawn`. Shells keep
    // such descriptors low; one that is handed down by number is low, too.
    for fd in 0..256 {
        if raw::fcntl(fd, libc::F_GETFL, 0).unwrap_or(libc::O_PATH) & libc::O_PATH != 0 {
            continue;
        }
        if layer::is_marked(fd) {
            see();
            if boost {
                known::note(fd);
                beside::set_up();
            }
        } else if boost {
            // Others may have it too, for whose writes the kernel asks nobody.
        } else if layer::adopt(fd, false, false).is_err() {
            // It stays as it is; the program finds a descriptor that nobody serves.
            let _ = layer::refuse(c"exec", c"inherited a descriptor of a file that untorn cannot manage", fd);
        }
    }
}
