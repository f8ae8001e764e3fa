//! `untorn_options` in terms of the core.

use std::mem::offset_of;
use std::path::Path;

use untorn_core::{AtomicFile, Durability, EngineKind, Layout, LostPage, Options, Order, ReadPolicy};

use crate::abi::{self, untorn_options};
use crate::errors::{Failure, Result};

/// Bytes of the struct in the first version of the library; no program passes fewer.
const FIRST_SIZE: usize = offset_of!(untorn_options, max_len) + size_of::<u64>();

/// The options in `bytes`, which are as many as its size field says. Fields a newer header added must be zero: a program
/// that sets one wants something this library cannot do.
pub(crate) fn decode(bytes: &[u8]) -> Result<untorn_options> {
    if bytes.len() < FIRST_SIZE {
        return Err(Failure::invalid(format!(
            "untorn_options.size is {}, at least {FIRST_SIZE} is needed; start from UNTORN_OPTIONS_INIT",
            bytes.len()
        )));
    }
    if bytes[size_of::<untorn_options>()..].iter().any(|&byte| byte != 0) {
        return Err(Failure::new(
            abi::UNTORN_EOPNOTSUPP,
            "untorn_options sets a field this version of libuntorn does not know; install a newer one",
        ));
    }
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    Ok(untorn_options {
        size: word(offset_of!(untorn_options, size)),
        engine: word(offset_of!(untorn_options, engine)),
        layout: word(offset_of!(untorn_options, layout)),
        durability: word(offset_of!(untorn_options, durability)),
        order: word(offset_of!(untorn_options, order)),
        read_policy: word(offset_of!(untorn_options, read_policy)),
        flags: word(offset_of!(untorn_options, flags)),
        reserved: word(offset_of!(untorn_options, reserved)),
        length: long(offset_of!(untorn_options, length)),
        max_len: long(offset_of!(untorn_options, max_len)),
    })
}

fn unknown<T>(field: &str, value: u32) -> Result<T> {
    Err(Failure::invalid(format!("untorn_options.{field} has the unknown value {value}")))
}

fn translate(c: &untorn_options) -> Result<Options> {
    let mut options = Options::new();
    options = match i64::from(c.engine) {
        abi::UNTORN_ENGINE_AUTO => options,
        abi::UNTORN_ENGINE_REFLECTION => options.engine(EngineKind::Reflection),
        abi::UNTORN_ENGINE_PASSTHROUGH => options.engine(EngineKind::Passthrough),
        _ => return unknown("engine", c.engine),
    };
    options = match i64::from(c.layout) {
        abi::UNTORN_LAYOUT_AUTO => options,
        abi::UNTORN_LAYOUT_DENSE => options.layout(Layout::Dense),
        abi::UNTORN_LAYOUT_SPARSE => options.layout(Layout::Sparse),
        _ => return unknown("layout", c.layout),
    };
    options = match i64::from(c.durability) {
        abi::UNTORN_DURABILITY_AUTO => options,
        abi::UNTORN_DURABILITY_PER_WRITE => options.durability(Durability::PerWrite),
        abi::UNTORN_DURABILITY_PER_COMMIT => options.durability(Durability::PerCommit),
        _ => return unknown("durability", c.durability),
    };
    options = match i64::from(c.order) {
        abi::UNTORN_ORDER_ONE_FENCE => options.order(Order::OneFence),
        abi::UNTORN_ORDER_TWO_FENCE => options.order(Order::TwoFence),
        _ => return unknown("order", c.order),
    };
    options = match i64::from(c.read_policy) {
        abi::UNTORN_READ_GATHER => options.read_policy(ReadPolicy::Gather),
        abi::UNTORN_READ_DEPLOY => options.read_policy(ReadPolicy::Deploy),
        _ => return unknown("read_policy", c.read_policy),
    };
    if c.reserved != 0 {
        return unknown("reserved", c.reserved);
    }
    if c.max_len != 0 {
        options = options.max_len(c.max_len);
    }
    let flag = |flag: i64| i64::from(c.flags) & flag != 0;
    if flag(abi::UNTORN_LOST_PAGE_SIGNAL) {
        options = options.on_lost_page(LostPage::Signal);
    }
    Ok(options.read_only(flag(abi::UNTORN_READ_ONLY)).verify(!flag(abi::UNTORN_NO_VERIFY)))
}

/// Every flag there is.
const FLAGS: i64 = abi::UNTORN_READ_ONLY
    | abi::UNTORN_CREATE
    | abi::UNTORN_EXCL
    | abi::UNTORN_NO_VERIFY
    | abi::UNTORN_LOST_PAGE_SIGNAL;

/// Opens or creates the file as the options say.
pub(crate) fn open(path: &Path, c: &untorn_options) -> Result<AtomicFile> {
    let flags = i64::from(c.flags);
    if flags & !FLAGS != 0 {
        return unknown("flags", c.flags);
    }
    let (create, excl) = (flags & abi::UNTORN_CREATE != 0, flags & abi::UNTORN_EXCL != 0);
    if create && flags & abi::UNTORN_READ_ONLY != 0 {
        return Err(Failure::invalid("a file cannot be created for reading only"));
    }
    if excl && !create {
        return Err(Failure::invalid("UNTORN_EXCL has a meaning only together with UNTORN_CREATE"));
    }
    let options = translate(c)?;
    if create {
        match options.create(path, c.length) {
            // As with open(2), a file that is there already is opened.
            Err(error) if error.errno() == libc::EEXIST && !excl => {}
            result => return Ok(result?),
        }
    }
    Ok(options.open(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_of_another_version_is_read_or_refused() {
        let mut bytes = vec![0; size_of::<untorn_options>() + 16];
        bytes[offset_of!(untorn_options, max_len)] = 9;
        assert_eq!(decode(&bytes).unwrap().max_len, 9);
        assert_eq!(decode(&bytes[..FIRST_SIZE]).unwrap().max_len, 9);
        assert_eq!(i64::from(decode(&bytes[..FIRST_SIZE - 1]).err().unwrap().code), abi::UNTORN_EINVAL);
        bytes[size_of::<untorn_options>() + 3] = 1;
        assert_eq!(i64::from(decode(&bytes).err().unwrap().code), abi::UNTORN_EOPNOTSUPP);
    }
}
