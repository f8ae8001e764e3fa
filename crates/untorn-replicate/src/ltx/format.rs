//! The encoding of an LTX file, version 3.
//!
//! A file has the pages that a range of transactions changed: a header, page frames in LZ4 blocks, an index of the
//! frames, and a trailer with two checksums. One checksum is of the file. The other is of the database after the file
//! was applied: the exclusive or of the checksums of all its pages.
//!
//! Source: the format in <https://github.com/superfly/ltx>.

use std::io::{self, Write};

use crc_fast::{CrcAlgorithm, Digest};

const MAGIC: &[u8; 4] = b"LTX1";

/// Set in each checksum, so that none is 0.
pub(super) const CHECKSUM: u64 = 1 << 63;

/// The frame says how long its compressed bytes are.
const HAS_SIZE: u16 = 1;

/// Where SQLite locks bytes of the file: the page there has no content, and no frame.
const LOCKED_AT: u64 = 1 << 30;

/// The first length of a database that has such a page.
pub(super) const TOO_LONG: u64 = LOCKED_AT;

/// The header of a file, and the checksum of its trailer.
pub(super) struct Header {
    pub(super) page_size: u32,
    /// Pages of the database after the last transaction.
    pub(super) pages: u32,
    /// The first and the last transaction. A file that begins with transaction 1 has all pages.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Milliseconds since 1970.
    pub(super) time: u64,
    /// Checksum of the database before; 0 if the file begins with transaction 1.
    pub(super) before: u64,
    /// Checksum of the database after.
    pub(super) after: u64,
}

fn crc() -> Digest {
    Digest::new(CrcAlgorithm::Crc64GoIso)
}

/// The checksum of one page of a database.
pub(super) fn page_checksum(number: u32, page: &[u8]) -> u64 {
    let mut crc = crc();
    crc.update(&number.to_be_bytes());
    crc.update(page);
    crc.finalize() | CHECKSUM
}

/// Writes to a file, and counts and sums what the format has the checksum of.
struct Summed<W> {
    to: W,
    crc: Digest,
    at: u64,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.put_unsummed(bytes)
    }

    fn put_unsummed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Writes a file with these pages, in ascending order. Returns its length.
///
/// # Errors
/// Those of the writer.
pub(super) fn write<'p>(
    to: impl Write,
    header: &Header,
    pages: impl Iterator<Item = (u32, &'p [u8])>,
) -> io::Result<u64> {
    let mut out = Summed { to, crc: crc(), at: 0 };
    let mut head = [0; 100];
    let mut at = 0;
    let mut field = |bytes: &[u8]| {
        head[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    field(MAGIC);
    for number in [0, header.page_size, header.pages] {
        field(&number.to_be_bytes());
    }
    for number in [header.first, header.last, header.time, header.before] {
        field(&number.to_be_bytes());
    }
    out.put(&head)?;
    let mut index = Vec::new();
    for (number, page) in pages {
        let from = out.at;
        let packed = lz4_flex::block::compress(page);
        out.put(&number.to_be_bytes())?;
        out.put(&HAS_SIZE.to_be_bytes())?;
        out.put(&(packed.len() as u32).to_be_bytes())?;
        // The checksum is of the bytes before compression.
        out.crc.update(page);
        out.put_unsummed(&packed)?;
        put_varint(&mut index, number.into());
        put_varint(&mut index, from);
        put_varint(&mut index, out.at - from);
    }
    out.put(&[0; 6])?;
    index.push(0);
    out.put(&index)?;
    out.put(&(index.len() as u64).to_be_bytes())?;
    out.put(&header.after.to_be_bytes())?;
    let sum = out.crc.finalize() | CHECKSUM;
    out.put_unsummed(&sum.to_be_bytes())?;
    out.to.flush()?;
    Ok(out.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_format() {
        let page = [7; 512];
        let header =
            Header { page_size: 512, pages: 2, first: 2, last: 3, time: 4, before: 5 | CHECKSUM, after: 6 | CHECKSUM };
        let mut bytes = Vec::new();
        let len = write(&mut bytes, &header, [(2, &page[..])].into_iter()).unwrap();
        assert_eq!(len, bytes.len() as u64);
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(&bytes[..16], b"LTX1\0\0\0\0\0\0\x02\0\0\0\0\x02");
        assert_eq!([16, 24, 32, 40].map(number), [2, 3, 4, 5 | CHECKSUM]);
        assert!(bytes[48..100].iter().all(|byte| *byte == 0));
        let size = u32::from_be_bytes(bytes[106..110].try_into().unwrap()) as usize;
        assert_eq!(&bytes[100..106], b"\0\0\0\x02\0\x01");
        assert_eq!(lz4_flex::block::decompress(&bytes[110..110 + size], 512).unwrap(), page);
        let end = 110 + size;
        assert_eq!(&bytes[end..end + 6], [0; 6]);
        // The page, where its frame is, and how long; then the end of the index, and its length.
        assert_eq!(&bytes[end + 6..end + 10], [2, 100, 10 + size as u8, 0]);
        assert_eq!([end + 10, end + 18].map(number), [4, 6 | CHECKSUM]);
        let mut crc = crc();
        crc.update(&bytes[..110]);
        crc.update(&page);
        crc.update(&bytes[end..end + 26]);
        assert_eq!(number(end + 26), crc.finalize() | CHECKSUM);
        assert_eq!(bytes.len(), end + 34);
    }

    #[test]
    fn checksums_are_those_of_go() {
        // `crc64.Checksum([]byte("123456789"), crc64.MakeTable(crc64.ISO))`
        let mut crc = crc();
        crc.update(b"123456789");
        assert_eq!(crc.finalize(), 0xb909_56c7_75a4_1001);
    }

    #[test]
    fn numbers_have_seven_bits_in_each_byte() {
        for (number, wanted) in [(0, vec![0]), (127, vec![127]), (128, vec![128, 1]), (300, vec![172, 2])] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(bytes, wanted);
        }
    }
}
