use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;
use crate::images::Digest;
use crate::images::tar::testing::{changed, end};

/// A layer of one file of this user's own.
fn layer(content: &[u8]) -> Vec<u8> {
    let member = changed("f", b'0', content, |header| {
        let (owner, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        header[108..115].copy_from_slice(format!("{owner:07o}").as_bytes());
        header[116..123].copy_from_slice(format!("{group:07o}").as_bytes());
    });
    [member, end()].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Runs a job of one layer in a new folder.
fn unpack_one(sent: &[u8], digest: &Digest, diff_id: &Digest) -> (tempfile::TempDir, Outcome) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sent");
    std::fs::write(&file, sent).unwrap();
    let staging = folder.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    let packed = Packed {
        file,
        offset: 0,
        size: u64::try_from(sent.len()).unwrap(),
        digest: digest.to_string(),
        diff_id: diff_id.to_string(),
    };
    let outcome = run(&Job { base: Base::Nothing, staging, layers: vec![packed] });
    (folder, outcome)
}

fn check(sent: &[u8], plain: &[u8]) -> Outcome {
    unpack_one(sent, &Digest::of(sent), &Digest::of(plain)).1
}

#[test]
fn every_packing_is_unpacked() {
    let plain = layer(&[b'x'; 100_000]);
    let (first, second) = plain.split_at(50_000);
    let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
    for sent in [
        plain.clone(),
        gzip(&plain),
        [gzip(first), gzip(second)].concat(),
        zstd(&plain),
        [skippable.clone(), zstd(first), skippable, zstd(second)].concat(),
    ] {
        let (folder, outcome) = unpack_one(&sent, &Digest::of(&sent), &Digest::of(&plain));
        assert!(
            matches!(outcome, Outcome::Done(applied) if applied.bytes == 100_000),
            "{outcome:?}"
        );
        let content = std::fs::read(folder.path().join("staging/tree/f")).unwrap();
        assert_eq!(content, [b'x'; 100_000]);
    }
}

#[test]
fn what_is_not_what_it_should_be_is_said() {
    let plain = layer(b"x");
    let other = Digest::of(b"other");
    for sent in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let fault = |digest: &Digest, diff: &Digest| match unpack_one(&sent, digest, diff).1 {
            Outcome::Failed(0, Fault::Digest { what, expected, .. }) => (what, expected),
            other => panic!("{other:?}"),
        };
        let of_sent = Digest::of(&sent);
        assert_eq!(fault(&other, &Digest::of(&plain)), ("packed".into(), other.to_string()));
        assert_eq!(fault(&of_sent, &other), ("unpacked".into(), other.to_string()));
    }
}

#[test]
fn damage_is_said_wherever_it_is() {
    let plain = layer(&[b'x'; 10_000]);
    for sound in [gzip(&plain), zstd(&plain)] {
        for length in [4, sound.len() / 2, sound.len() - 1] {
            let outcome = check(&sound[..length], &plain);
            assert!(
                matches!(outcome, Outcome::Failed(0, Fault::Bad { .. })),
                "{length}: {outcome:?}"
            );
        }
        let trailing = [&sound[..], b"and more"].concat();
        assert!(matches!(
            check(&trailing, &plain),
            Outcome::Failed(0, Fault::Bad { .. })
        ));
        for at in 0..sound.len() {
            let mut flipped = sound.clone();
            flipped[at] ^= 1;
            // Whatever a decoder makes of it, it is not the layer.
            let outcome = unpack_one(&flipped, &Digest::of(&sound), &Digest::of(&plain)).1;
            assert!(
                matches!(
                    outcome,
                    Outcome::Failed(0, Fault::Bad { .. } | Fault::Digest { .. } | Fault::Full)
                ),
                "{at}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_bomb_ends_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let root = Tree::open(folder.path()).unwrap();
    let limits = Limits { room_bytes: u64::MAX };
    // Empty members, so that nothing is written: only what comes out of the decoder counts.
    let plain = [layer(b"")[..512].repeat(1000), end()].concat();
    let size = u64::try_from(plain.len()).unwrap();
    for sent in [plain.clone(), gzip(&plain), zstd(&plain)] {
        archive(&sent[..], &root, limits, size).unwrap();
        let fault = archive(&sent[..], &root, limits, size - 1).unwrap_err();
        assert!(
            matches!(&fault, Fault::Bad { reason, .. } if reason.contains("larger than")),
            "{fault}"
        );
    }
    // What follows the archive counts as well.
    let tail = |bytes: u64| {
        let mut plain = layer(b"x");
        plain.resize(plain.len() + usize::try_from(bytes).unwrap(), 0);
        archive(&plain[..], &root, limits, u64::MAX)
    };
    // One of the two blocks of zeros was read.
    assert!(tail(TAIL_BYTES_MAX - 512).is_ok());
    assert!(tail(TAIL_BYTES_MAX - 511).is_err());
}

#[test]
fn a_zstd_window_ends_at_its_limit() {
    // A frame header with a window descriptor of an exponent, and one raw block of one byte, the last.
    let frame = |exponent: u8| [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, exponent << 3][..], &[0x09, 0, 0], b"x"].concat();
    let read = |exponent| {
        let frame = frame(exponent);
        let mut out = Vec::new();
        unpacked_all(&frame, &mut out).map(|()| out)
    };
    // 2 ^ (10 + exponent)
    assert_eq!(1_u64 << 27, stream::WINDOW_BYTES_MAX);
    assert_eq!(read(17).unwrap(), b"x");
    assert!(read(18).is_err());
}

fn unpacked_all(sent: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    unpacked(sent)?.read_to_end(out).map(drop)
}

#[test]
fn a_job_and_its_outcome_are_read_as_written() {
    let job = Job {
        base: Base::Seen { layers: "/data/layers".into(), names: vec!["a".into()] },
        staging: "/data/staging/1".into(),
        layers: vec![Packed {
            file: "/data/partial/x".into(),
            offset: 512,
            size: 7,
            digest: Digest::of(b"a").to_string(),
            diff_id: Digest::of(b"b").to_string(),
        }],
    };
    let text = serde_json::to_string(&job).unwrap();
    assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    let outcome = Outcome::Failed(3, Fault::Bad { path: "a".into(), reason: "b".into() });
    let text = serde_json::to_string(&outcome).unwrap();
    assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
}
