use super::*;

const LEN: u64 = (2 << 20) + 7;

const LOG: Option<[u8; 16]> = Some([0xf0; 16]);

fn known(manifest: &Manifest) -> Known {
    Known { id: manifest.id(), manifest: manifest.clone() }
}

fn manifest(base: Option<&Manifest>) -> Manifest {
    let taken = UNIX_EPOCH + Duration::new(1_764_381_234, 5);
    let known = base.map(known);
    let from = known.as_ref().map_or(Origin::Nothing, Origin::Base);
    let of = (42, taken, LEN);
    let mut manifest = Manifest::new(Path::new("/var/lib/a\nb"), of, Some(0o640), LOG, from).unwrap();
    manifest.add(0, &[7; 16 << 10], base);
    manifest.add(1 << 20, &[0; 16 << 10], base);
    manifest.add(2 << 20, &[1; 7], base);
    manifest
}

/// What changed after commit 40: a chunk, and two others that became zeros, beside the last one.
fn by_the_log() -> Manifest {
    let of = (42, UNIX_EPOCH, LEN);
    let mut manifest = Manifest::new(Path::new("f"), of, None, LOG, Origin::Commit(40)).unwrap();
    let chunks = manifest.chunks_of(&[100..101, (3 << 14)..(5 << 14), LEN..LEN + 9]);
    assert_eq!(chunks.iter().cloned().collect::<Vec<_>>(), [0..1, 3..5, 128..129]);
    assert_eq!(manifest.add(0, &[7; 16 << 10], None), Some(0));
    assert_eq!(manifest.add(2 << 20, &[1; 7], None), Some(16 << 10));
    manifest.note_zeros(&chunks);
    assert!(manifest.zeros.iter().eq([&(3..5)]));
    assert_eq!(manifest.file_len(), (16 << 10) + 7);
    manifest
}

/// Text with the checksum that it should have.
fn sealed(lines: &str) -> String {
    format!("{lines}end {:016x}\n", sum_of(lines.as_bytes()))
}

#[test]
fn a_manifest_comes_back_and_any_changed_byte_is_noticed() {
    let full = manifest(None);
    let mut increment = manifest(Some(&full));
    assert_eq!((increment.chunks.len(), increment.file_len()), (2, 0), "nothing differs");
    increment.add(128 << 14, &[9; 7], Some(&full));
    increment.chunks.insert(5, Chunk { sum: 1, at: None });
    let path = Path::new("m");
    for manifest in [&full, &increment, &by_the_log()] {
        let text = manifest.to_text();
        let parsed = Manifest::parse(path, &text).unwrap();
        assert_eq!((parsed.to_text(), &parsed.chunks, parsed.id()), (text.clone(), &manifest.chunks, manifest.id()));
        assert_eq!(parsed.file_len(), manifest.file_len());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8_lossy(&changed).into_owned();
            assert!(Manifest::parse(path, &changed).is_err(), "byte {at}");
            let cut = String::from_utf8_lossy(&text.as_bytes()[..at]);
            assert!(Manifest::parse(path, &cut).is_err(), "cut at {at}");
        }
        let newer = text.replace("backup 3", "backup 4");
        assert!(matches!(Manifest::parse(path, &newer), Err(Error::Unsupported { .. })));
    }
    full.check(path, 0, 0, &[7; 16 << 10]).unwrap();
    full.check(path, 0, 64, &[0; 16 << 10]).unwrap();
    assert!(full.check(path, 0, 0, &[0; 16 << 10]).is_err() && full.check(path, 0, 64, &[1]).is_err());
}

/// Ones that somebody made by hand, with the right checksum.
#[test]
fn a_forged_manifest_is_refused() {
    let full = manifest(None);
    let mut increment = manifest(Some(&full));
    increment.add(2 << 20, &[9; 7], Some(&full));
    let text = increment.lines();
    let path = Path::new("m");
    Manifest::parse(path, &sealed(&text)).unwrap();
    let line = |number: u64| format!("{number} {:016x}", increment.chunks[&number].sum);
    let forged = [
        text.replace("1764381234.", "18446744073709551615."),
        text.replace(".000000005", ".4294967295"),
        text.replace(&format!("length {LEN}"), "length 18446744073709551615"),
        text.replace(&format!("length {LEN}"), "length 9223372036854775807"),
        text.replace("chunk 16384", "chunk 0"),
        text.replace("chunk 16384", "chunk 16385"),
        text.replace("chunk 16384", "chunk 9223372036854775808"),
        text.replace("mode 640", "mode 4755"),
        text.replace("base ", "base 0"),
        text.replace(&line(0), &format!("{}\n{}", line(0), line(0))),
        text.replace(&line(0), &line(0).replacen('0', "129", 1)),
        text.replace(&line(0), &line(0).replacen('0', "18446744073709551616", 1)),
        text.replace(&line(128), &line(128).replacen("128", "200", 1)),
        text.replace(&line(128), &format!("{}z", line(128))),
        text.lines().filter(|line| !line.starts_with("base ")).map(|line| format!("{line}\n")).collect(),
    ];
    for lines in forged {
        assert_ne!(lines, text);
        assert!(matches!(Manifest::parse(path, &sealed(&lines)), Err(Error::Corrupt { .. })), "{lines}");
    }
}

#[test]
fn a_forged_increment_by_the_log_is_refused() {
    let manifest = by_the_log();
    let text = manifest.lines();
    let path = Path::new("m");
    Manifest::parse(path, &sealed(&text)).unwrap();
    for (from, to) in [
        ("since 40", "since 43"),
        ("since 40\n", "base 5a0e7c6b1f2d3c4b 40 7\nsince 40\n"),
        ("zeros 3 2", "zeros 3 0"),
        ("zeros 3 2", "zeros 0 2"),
        ("zeros 3 2", "zeros 3 126"),
        ("zeros 3 2", "zeros 3 18446744073709551615"),
        ("zeros 3 2", "zeros 3 1\nzeros 4 1"),
        ("zeros 3 2", "zeros 5 1\nzeros 3 1"),
        ("log f0f0", "log F0f0"),
        ("log f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0\n", ""),
        (&format!("128 {:016x}\n", manifest.chunks[&128].sum), ""),
        (&format!("{:016x}\n", manifest.chunks[&128].sum), &format!("{:016x} +\n", manifest.chunks[&128].sum)),
    ] {
        let forged = text.replacen(from, to, 1);
        assert_ne!(forged, text);
        assert!(matches!(Manifest::parse(path, &sealed(&forged)), Err(Error::Corrupt { .. })), "{forged}");
    }
    let of_a_full_one = self::manifest(None).lines().replace("stored", "zeros 3 2\nstored");
    assert!(matches!(Manifest::parse(path, &sealed(&of_a_full_one)), Err(Error::Corrupt { .. })));
}

/// A base tells all of the file, together with what changed since.
#[test]
fn manifests_together_tell_the_whole_file() {
    let of = |len| Manifest::new(Path::new("f"), (40, UNIX_EPOCH, len), None, LOG, Origin::Nothing).unwrap();
    let mut before = of(3 << 20);
    for chunk in [0, 1, 3, 128, 150] {
        before.add(chunk << 14, &[chunk as u8 + 1; 16 << 10], None);
    }
    let after = by_the_log().over(before).unwrap();
    assert_eq!(after.chunks.keys().copied().collect::<Vec<_>>(), [0, 1, 128]);
    assert_eq!((after.chunks[&0].sum, after.len), (sum_of(&[7; 16 << 10]), LEN));
    assert!(by_the_log().over(of(20 << 30)).is_none(), "chunks of another length");
}

#[test]
fn a_long_file_has_large_chunks_and_keeps_those_of_its_base() {
    let at = |len, base: Option<&Manifest>| {
        let known = base.map(known);
        let from = known.as_ref().map_or(Origin::Nothing, Origin::Base);
        Manifest::new(Path::new("f"), (1, UNIX_EPOCH, len), None, None, from)
    };
    let chunks = [0, 16 << 30, 17 << 30, 1 << 40, 1 << 46].map(|len| at(len, None).unwrap().chunk);
    assert_eq!(chunks, [16 << 10, 16 << 10, 32 << 10, 1 << 20, 64 << 20]);
    let base = at(1 << 20, None).unwrap();
    assert_eq!(at(60 << 30, Some(&base)).unwrap().chunk, base.chunk);
    assert!(matches!(at(65 << 30, Some(&base)), Err(Error::Invalid { .. })));
}
