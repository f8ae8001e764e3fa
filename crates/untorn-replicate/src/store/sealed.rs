//! A store whose objects are encrypted.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `UNTORNEN` |
//! | 8 | 1 | version, 1: XChaCha20-Poly1305 |
//! | 9 | 7 | zero |
//! | 16 | 8 | the key's number, which tells keys apart |
//! | 24 | 24 | nonce |
//! | 48 | | the object, encrypted |
//! | end | 16 | tag |
//!
//! # Invariants
//!
//! 1. No nonce is used twice with a key. It has 192 random bits, also when a request is repeated, so neither the crash
//!    of a writer nor two writers with one epoch can make it come again.
//! 2. The tag covers the header and the name of the object. An object under another name is damaged: names have the
//!    epoch and the number, so none can stand in for another.
//! 3. A store with a key reads nothing that is not encrypted with it.

use std::path::Path;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key as Bytes, XChaCha20Poly1305, XNonce};

use super::{Answer, Fetched, Listed, Put, Read, Requests, Store, StoreError, Tag};
use crate::error::{Error, Result};
use crate::format::hex;
use crate::random;

const MAGIC: &[u8; 8] = b"UNTORNEN";
const VERSION: u8 = 1;
const HEADER: usize = 24;
const NONCE: usize = 24;
const TAG: usize = 16;
const KEY: usize = 32;

/// A key.
pub(super) struct Key {
    cipher: XChaCha20Poly1305,
    number: [u8; 8],
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("number", &hex(&self.number)).finish_non_exhaustive()
    }
}

impl Key {
    /// The key in a file: 32 bytes, or 64 hexadecimal digits and perhaps the end of the line.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] for a file with anything else.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let failed = |source| Error::Io { operation: "read the key in", path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(failed)?;
        Self::parse(&bytes).ok_or_else(|| {
            let what = "is no key file; it needs 32 random bytes, or 64 hexadecimal digits";
            Error::Invalid { what: format!("{} {what}", path.display()) }
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if let Ok(bytes) = <[u8; KEY]>::try_from(bytes) {
            return Some(Key::new(&bytes));
        }
        let digits = str::from_utf8(bytes).ok()?.trim_end_matches(['\r', '\n']);
        if digits.len() != 2 * KEY || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = [0; KEY];
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Key::new(&key))
    }

    fn new(bytes: &[u8; KEY]) -> Self {
        let cipher = XChaCha20Poly1305::new(Bytes::from_slice(bytes));
        // The tag of nothing under a nonce that no object has. It tells nothing about the key.
        let payload = Payload { msg: b"", aad: b"the number of an untorn key" };
        let tag = cipher.encrypt(XNonce::from_slice(&[0; NONCE]), payload).unwrap_or_default();
        let mut number = [0; 8];
        number.iter_mut().zip(&tag).for_each(|(to, from)| *to = *from);
        Key { cipher, number }
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8] = VERSION;
        header[16..].copy_from_slice(&self.number);
        header
    }

    fn seal(&self, name: &str, bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let header = self.header();
        let nonce = random::<NONCE>().map_err(|error| format!("there are no random numbers: {error}"))?;
        let aad = [&header, name.as_bytes()].concat();
        let payload = Payload { msg: bytes, aad: &aad };
        let sealed = self.cipher.encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| "it is too long to be encrypted".to_owned())?;
        Ok([&header[..], &nonce, &sealed].concat())
    }

    /// # Errors
    /// Why it is not an object of this name that has this key.
    fn open(&self, name: &str, bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
        if !is_sealed(bytes) {
            return Err("it is not encrypted; leave the key out".to_owned());
        }
        if bytes.len() < HEADER + NONCE + TAG {
            return Err("it is damaged: it is too short".to_owned());
        }
        let (header, rest) = bytes.split_at(HEADER);
        let (nonce, sealed) = rest.split_at(NONCE);
        if header[8] != VERSION {
            return Err(format!("it has version {} of the encryption; use a newer untorn", header[8]));
        }
        if header[16..] != self.number {
            let (needed, given) = (hex(&header[16..]), hex(&self.number));
            return Err(format!("it is encrypted with the key {needed}, and the given key is {given}"));
        }
        let aad = [header, name.as_bytes()].concat();
        // Its length is that of a nonce, so this does not panic.
        let opened = self.cipher.decrypt(XNonce::from_slice(nonce), Payload { msg: sealed, aad: &aad });
        opened.map_err(|_| "it is damaged, or was made under another name".to_owned())
    }
}

fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// A store whose objects have this key; without one, its objects are as they are.
pub(super) struct SealedStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) key: Option<Key>,
}

impl SealedStore {
    fn failed(operation: &'static str, name: &str, cause: String) -> StoreError {
        StoreError { operation, name: name.to_owned(), is_transient: false, cause }
    }

    fn open(&self, name: &str, found: Fetched) -> Answer<Fetched> {
        let opened = match &self.key {
            Some(key) => key.open(name, &found.bytes),
            None if is_sealed(&found.bytes) => Err("it is encrypted; give the key that it was made with".to_owned()),
            None => return Ok(found),
        };
        let bytes = opened.map_err(|cause| Self::failed("read", name, cause))?;
        Ok(Fetched { bytes, ..found })
    }

    fn sealed<T>(
        &self,
        operation: &'static str,
        name: &str,
        bytes: &[u8],
        put: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Answer<T> {
        match &self.key {
            None => put(bytes),
            Some(key) => {
                let sealed = key.seal(name, bytes).map_err(|cause| Self::failed(operation, name, cause))?;
                put(&sealed)
            }
        }
    }
}

impl Store for SealedStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn requests(&self) -> Requests {
        self.inner.requests()
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        self.inner.get(name)?.map(|found| self.open(name, found)).transpose()
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        Ok(match self.inner.get_if_changed(name, tag)? {
            Read::Changed(found) => Read::Changed(self.open(name, found)?),
            read => read,
        })
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        self.sealed("create", name, bytes, |bytes| self.inner.put_if_absent(name, bytes))
    }

    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put> {
        self.sealed("update", name, bytes, |bytes| self.inner.update_if_match(name, bytes, tag))
    }

    fn delete(&self, name: &str) -> Answer<()> {
        self.inner.delete(name)
    }

    fn list(&self, prefix: &str) -> Answer<Vec<Listed>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DirectoryStore;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; KEY])
    }

    #[test]
    fn an_object_opens_under_its_name_with_its_key_only() {
        let sealed = key(1).seal("o/1/2", b"the bytes of an object").unwrap();
        assert_eq!(key(1).open("o/1/2", &sealed).unwrap(), b"the bytes of an object");
        assert!(!sealed.windows(5).any(|part| part == b"bytes"));
        assert!(key(1).open("o/1/3", &sealed).unwrap_err().contains("another name"));
        assert!(key(2).open("o/1/2", &sealed).unwrap_err().contains("encrypted with the key"));
        assert!(key(1).open("o/1/2", b"plain").unwrap_err().contains("leave the key out"));
    }

    #[test]
    fn every_changed_or_missing_byte_of_an_object_is_noticed() {
        let sealed = key(1).seal("o", b"bytes").unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key(1).open("o", &changed).is_err(), "byte {at}");
            assert!(key(1).open("o", &sealed[..at]).is_err(), "length {at}");
        }
    }

    #[test]
    fn the_same_bytes_never_look_the_same() {
        let [one, two] = [0, 1].map(|_| key(1).seal("o", b"bytes").unwrap());
        assert_ne!(one[HEADER..HEADER + NONCE], two[HEADER..HEADER + NONCE]);
        assert_ne!(one[HEADER + NONCE..], two[HEADER + NONCE..]);
    }

    #[test]
    fn a_key_file_has_bytes_or_digits() {
        let digits = format!("{}\n", "0a".repeat(KEY));
        assert_eq!(Key::parse(&[10; KEY]).unwrap().number, Key::parse(digits.as_bytes()).unwrap().number);
        let signs = format!("+{}", "a".repeat(63));
        for wrong in [&b""[..], &[1; 31], &[1; 33], "zz".repeat(KEY).as_bytes(), signs.as_bytes()] {
            assert!(Key::parse(wrong).is_none(), "{wrong:?}");
        }
        assert!(!format!("{:?}", key(10)).contains("0a0a"));
    }

    #[test]
    fn a_store_with_a_key_is_read_with_it_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = |key| SealedStore { inner: Arc::new(DirectoryStore::new(dir.path())), key };
        let Put::Stored(tag) = store(Some(key(1))).put_if_absent("owner", b"one").unwrap() else { panic!("refused") };
        assert_eq!(store(Some(key(1))).get("owner").unwrap().unwrap().bytes, b"one");
        assert!(matches!(store(Some(key(1))).update_if_match("owner", b"two", &tag).unwrap(), Put::Stored(_)));
        assert!(matches!(
            store(Some(key(1))).get_if_changed("owner", &tag).unwrap(),
            Read::Changed(found) if found.bytes == b"two"
        ));
        assert!(store(None).get("owner").unwrap_err().cause.contains("give the key"));
        assert!(store(Some(key(2))).get_if_changed("owner", &tag).unwrap_err().cause.contains("given key"));
        store(None).put_if_absent("plain", b"x").unwrap();
        assert!(store(Some(key(1))).get("plain").is_err());
        crate::store::probe(&store(Some(key(1)))).unwrap();
    }
}
