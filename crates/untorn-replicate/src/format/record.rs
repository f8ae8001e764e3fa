//! The ownership record: one JSON object that is only ever replaced by compare-and-swap.

use serde::{Deserialize, Serialize};

use super::{OWNER, Place, Sum, hex16};
use crate::error::{Error, Result};

const FORMAT: u64 = 1;

/// Epochs and numbers of objects stay below this, so that a forged one does not overflow.
const MOST: u64 = 1 << 62;

/// The owner of the replica, and how its chain runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u64,
    /// Another one with each write: identical bytes would have an identical version.
    #[serde(with = "hex16")]
    pub(crate) nonce: [u8; 16],
    /// Which replica it is.
    #[serde(with = "hex16")]
    pub(crate) replica: [u8; 16],
    /// The present epoch.
    pub(crate) epoch: u64,
    pub(crate) owner: Owner,
    /// The token of the last owner that was known to have all commits of the chain. It is the present owner's once the
    /// ends of all epochs before are recorded.
    #[serde(with = "hex16")]
    pub(crate) heir: [u8; 16],
    /// The epochs before that the chain still has objects of, ascending.
    pub(crate) lineage: Vec<Past>,
    /// The snapshots, ascending by place.
    pub(crate) snapshots: Vec<SnapshotEntry>,
    /// All objects below this place are deleted.
    pub(crate) swept: Place,
}

/// A writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// Random, and known to its file alone.
    #[serde(with = "hex16")]
    pub(crate) token: [u8; 16],
    /// For people: host and process.
    pub(crate) name: String,
    /// It has shipped everything, sealed its epoch, and waits for another owner.
    #[serde(default)]
    pub(crate) is_released: bool,
}

/// An epoch that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Past {
    pub(crate) epoch: u64,
    /// Its end, once it is recorded.
    pub(crate) cut: Option<Cut>,
}

/// The end of an epoch. Objects behind it are of a stale writer, and nothing reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    /// The number of its last object; 0 if it has none.
    pub(crate) seq: u64,
    /// The commit that the chain has there.
    pub(crate) commit: u64,
    /// The checksum of the last object of the chain.
    #[serde(with = "hex16")]
    pub(crate) sum: Sum,
}

/// A snapshot that a restoration can begin with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotEntry {
    pub(crate) place: Place,
    pub(crate) commit: u64,
    /// Nanoseconds since 1970.
    pub(crate) time: u64,
    /// The length of the file.
    pub(crate) len: u64,
    /// Its number among the attempts at snapshots of its epoch.
    pub(crate) attempt: u64,
    /// The numbers of its parts are below this.
    pub(crate) parts: u64,
    /// It is not to be used any more, and its objects may be deleted.
    #[serde(default)]
    pub(crate) is_dropped: bool,
}

impl Record {
    /// The record of a replica that has nothing yet.
    pub(crate) fn new(replica: [u8; 16], owner: Owner) -> Self {
        let (heir, swept) = (owner.token, Place::default());
        let (lineage, snapshots) = (Vec::new(), Vec::new());
        Record { format: FORMAT, nonce: [0; 16], replica, epoch: 1, owner, heir, lineage, snapshots, swept }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let corrupt = |what: String| Error::Corrupt { name: OWNER.to_owned(), what };
        let damaged = |error: serde_json::Error| corrupt(error.to_string());
        let Version { format } = serde_json::from_slice(bytes).map_err(damaged)?;
        if format != FORMAT {
            return Err(Error::Unsupported { name: OWNER.to_owned(), what: format!("format {format}") });
        }
        let record: Record = serde_json::from_slice(bytes).map_err(damaged)?;
        let epochs: Vec<u64> = record.lineage.iter().map(|past| past.epoch).chain([record.epoch]).collect();
        let places: Vec<Place> = record.snapshots.iter().map(|entry| entry.place).collect();
        if !epochs.is_sorted_by(|one, next| one < next) || !places.is_sorted_by(|one, next| one < next) {
            return Err(corrupt("its epochs or snapshots are out of order".to_owned()));
        }
        let cuts = record.lineage.iter().filter_map(|past| past.cut).map(|cut| cut.seq);
        let ends = places.iter().chain([&record.swept]).flat_map(|place| [place.epoch, place.seq]);
        if cuts.chain(ends).chain([record.epoch]).any(|number| number > MOST) {
            return Err(corrupt("it has a number that no replica comes to".to_owned()));
        }
        Ok(record)
    }

    /// The oldest snapshot that may be used: what is below its place may be deleted.
    pub(crate) fn oldest(&self) -> Option<&SnapshotEntry> {
        self.snapshots.iter().find(|entry| !entry.is_dropped)
    }

    /// The cut of an epoch, if the epoch is over and its end is recorded.
    pub(crate) fn cut(&self, epoch: u64) -> Option<Cut> {
        self.lineage.iter().find(|past| past.epoch == epoch).and_then(|past| past.cut)
    }

    /// The epoch that follows this one.
    pub(crate) fn epoch_after(&self, epoch: u64) -> Option<u64> {
        self.lineage.iter().map(|past| past.epoch).chain([self.epoch]).find(|next| *next > epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::new([1; 16], Owner { token: [2; 16], name: "here".to_owned(), is_released: true });
        record.epoch = 3;
        record.lineage =
            vec![Past { epoch: 1, cut: Some(Cut { seq: 4, commit: 9, sum: [5; 16] }) }, Past { epoch: 2, cut: None }];
        let place = Place { epoch: 1, seq: 2 };
        let entry = SnapshotEntry { place, commit: 7, time: 1, len: 10, attempt: 1, parts: 1, is_dropped: false };
        record.snapshots = vec![entry];
        record
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        assert_eq!(Record::decode(&record().encode()).unwrap(), record());
    }

    #[test]
    fn damage_and_newer_formats_are_told_apart() {
        let text = String::from_utf8(record().encode()).unwrap();
        let newer = text.replace("\"format\": 1", "\"format\": 2, \"more\": 1");
        assert!(matches!(Record::decode(newer.as_bytes()), Err(Error::Unsupported { .. })));
        for at in 0..text.len() - 3 {
            assert!(matches!(Record::decode(&text.as_bytes()[..at]), Err(Error::Corrupt { .. })), "{at}");
        }
        let order = text.replace("\"epoch\": 3", "\"epoch\": 2");
        assert!(matches!(Record::decode(order.as_bytes()), Err(Error::Corrupt { .. })));
        let huge = text.replace("\"seq\": 4", "\"seq\": 18446744073709551615");
        assert!(matches!(Record::decode(huge.as_bytes()), Err(Error::Corrupt { .. })));
        let sign = text.replacen("01010101", "+1010101", 1);
        assert!(matches!(Record::decode(sign.as_bytes()), Err(Error::Corrupt { .. })));
    }
}
