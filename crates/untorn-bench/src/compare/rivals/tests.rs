//! Every rival of this build does what a comparison asks of it.

use super::*;
use crate::compare::keyvalue::key;

fn pairs(places: std::ops::Range<u64>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    places.map(|place| (key(place).to_vec(), vec![place as u8; 100]))
}

#[test]
fn every_database_keeps_what_it_was_given() {
    let mut seen = 0;
    for rival in databases() {
        if let Some(why) = (rival.missing)() {
            // Only the extension of SQLite is built apart, and RocksDB is the system's.
            let is_expected = match rival.name {
                "untorn-sqlite" => why.contains("VFS"),
                "rocksdb" => why.starts_with("librocksdb.so is not installed"),
                _ => false,
            };
            assert!(is_expected, "{why}");
            continue;
        }
        seen += 1;
        let dir = tempfile::tempdir().unwrap();
        let mut database = (rival.open)(dir.path(), 1 << 20).unwrap();
        {
            let mut session = database.session().unwrap();
            session.put_all(&mut pairs(0..50)).unwrap();
            session.put(&key(7), b"new").unwrap();
            session.put(&key(100), b"last").unwrap();
            session.remove_all(&mut (10..20).map(|place| key(place).to_vec())).unwrap();
        }
        let mut other = database.session().unwrap();
        let mut looked = false;
        other
            .read(&mut |reader| {
                let mut value = |place: u64| {
                    let mut found = Vec::new();
                    reader.get(&key(place), &mut |bytes| found.push(bytes.to_vec())).map(|()| found)
                };
                assert_eq!(value(7)?, [b"new".to_vec()], "{}", rival.name);
                assert_eq!(value(49)?, [vec![49; 100]], "{}", rival.name);
                assert!(value(15)?.is_empty() && value(99)?.is_empty(), "{}", rival.name);
                let mut found = Vec::new();
                reader.range(&key(8), 3, &mut |key, value| found.push((key.to_vec(), value.len())))?;
                assert_eq!(found, [8, 9, 20].map(|place| (key(place).to_vec(), 100)), "{}", rival.name);
                assert_eq!(reader.len()?, 41, "{}", rival.name);
                looked = true;
                Ok(())
            })
            .unwrap();
        drop(other);
        assert!(looked);
        database.compact().unwrap();
        let mut session = database.session().unwrap();
        session.read(&mut |reader| reader.len().map(|len| assert_eq!(len, 41, "{}", rival.name))).unwrap();
    }
    assert!(seen >= if cfg!(feature = "rivals") { 3 } else { 2 });
}
