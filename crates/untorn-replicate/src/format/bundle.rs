//! A bundle: objects of one epoch that follow each other, as they are, in one more object. A reader that is far behind
//! gets them by one request.
//!
//! It is stored as a [part](super::part) is, with this in place of a piece of a file: the length of each object in 8
//! bytes, and its bytes.

use super::{Input, part};
use crate::error::{Error, Result};

/// The name of a bundle of this level. The bundles of each level divide the numbers of an epoch's objects evenly.
pub(crate) fn bundle_name(epoch: u64, level: u32, index: u64) -> String {
    format!("b/{epoch:016x}/{level}/{index:016x}")
}

/// The bytes of the bundle of this name.
pub(crate) fn encode(name: &str, objects: &[Vec<u8>], nonce: &[u8; 16]) -> Vec<u8> {
    let mut piece = Vec::new();
    for object in objects {
        piece.extend((object.len() as u64).to_le_bytes());
        piece.extend(object);
    }
    part::encode(name, &piece, nonce)
}

/// The objects of the bundle of this name.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`].
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let piece = part::decode(name, bytes)?;
    let (mut input, mut objects) = (Input(&piece), Vec::new());
    while !input.0.is_empty() {
        let object = input.u64().and_then(|len| input.bytes(usize::try_from(len).ok()?));
        let cut = || Error::Corrupt { name: name.to_owned(), what: "one of its objects is cut off".to_owned() };
        objects.push(object.ok_or_else(cut)?.to_vec());
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_bundle_come_back_as_they_were() {
        for objects in [vec![], vec![vec![]], vec![vec![1; 300], vec![], vec![2]]] {
            let bytes = encode("x", &objects, &[3; 16]);
            assert_eq!(decode("x", &bytes).unwrap(), objects);
            assert!(decode("y", &bytes).is_err(), "it stands for another bundle");
        }
        let cut = part::encode("x", &[9, 0, 0, 0, 0, 0, 0, 0, 1], &[3; 16]);
        assert!(matches!(decode("x", &cut), Err(Error::Corrupt { .. })));
    }
}
