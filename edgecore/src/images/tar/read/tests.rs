use super::super::testing::{changed, end, entry, link, pax};
use super::*;

/// Path, kind, size and content of every member, sparse parts put in their places.
fn members(archive: &[u8]) -> io::Result<Vec<(Member, Vec<u8>)>> {
    let mut reader = Reader::new(archive);
    let mut all = Vec::new();
    while let Some(member) = reader.next()? {
        let mut content = vec![0; usize::try_from(member.size.min(1 << 20)).unwrap()];
        match &member.parts {
            None => reader.read_exact(&mut content)?,
            Some(parts) => {
                for (offset, length) in parts {
                    let (from, length) = (usize::try_from(*offset).unwrap(), usize::try_from(*length).unwrap());
                    reader.read_exact(&mut content[from..from + length])?;
                }
            }
        }
        all.push((member, content));
    }
    reader.finish(1 << 20)?;
    Ok(all)
}

fn one(archive: &[u8]) -> (Member, Vec<u8>) {
    let mut all = members(archive).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn refused(archive: &[u8]) -> String {
    members(archive).unwrap_err().to_string()
}

#[test]
fn kinds_are_told_apart() {
    let device = |kind| {
        changed("dev", kind, b"", |header| {
            header[329..336].copy_from_slice(b"0000010");
            header[337..344].copy_from_slice(b"0000003");
        })
    };
    let archive = [
        entry("file", b'0', b"x"),
        entry("old/", 0, b""),
        entry("folder/", b'5', b""),
        link("hard", b'1', "file"),
        link("soft", b'2', "../file"),
        entry("fifo", b'6', b""),
        device(b'3'),
        device(b'4'),
        end(),
    ]
    .concat();
    let found: Vec<Kind> = members(&archive)
        .unwrap()
        .into_iter()
        .map(|(member, _)| member.kind)
        .collect();
    let device = |block| Kind::Device { block, major: 8, minor: 3 };
    let expected = [
        Kind::File,
        Kind::Folder,
        Kind::Folder,
        Kind::Link,
        Kind::Symlink,
        Kind::Fifo,
        device(false),
        device(true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_header_says_whose_it_is_and_from_when() {
    let archive = changed("f", b'0', b"", |header| {
        header[100..107].copy_from_slice(b"0104755");
        header[108..115].copy_from_slice(b"0001750");
        // 2^22, as GNU writes what seven digits do not hold.
        header[116..124].copy_from_slice(b"\x80\0\0\0\0\x40\0\0");
        header[136..148].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe");
    });
    let (member, _) = one(&archive);
    assert_eq!(
        (member.mode, member.owner, member.group, member.modified),
        (0o4755, 1000, 1 << 22, (-2, 0))
    );
}

#[test]
fn pax_has_the_last_word() {
    let archive = [
        pax(&[
            ("path", b"long/\xff"),
            ("size", b"3"),
            ("uid", b"4000000000"),
            ("gid", b"7"),
            ("mtime", b"-1.25"),
            ("SCHILY.xattr.security.capability", b"\x01\n\0="),
            ("SCHILY.xattr.user.empty", b""),
            ("comment", b"nobody reads it"),
        ]),
        entry("short", b'0', b"abc"),
        end(),
    ]
    .concat();
    let (member, content) = one(&archive);
    assert_eq!(member.path, b"long/\xff");
    assert_eq!(
        (member.owner, member.group, member.modified),
        (4_000_000_000, 7, (-2, 750_000_000))
    );
    let expected = [
        (b"security.capability".to_vec(), b"\x01\n\0=".to_vec()),
        (b"user.empty".to_vec(), Vec::new()),
    ];
    assert_eq!(member.attributes, expected);
    assert_eq!(content, b"abc");
}

#[test]
fn long_names_and_targets_are_read_in_both_forms() {
    let long = "d/".repeat(150);
    let gnu = [
        entry("././@LongLink", b'K', format!("{long}t\0").as_bytes()),
        entry("././@LongLink", b'L', format!("{long}n\0").as_bytes()),
        link("short", b'2', "short"),
        end(),
    ]
    .concat();
    let new = [
        pax(&[
            ("path", format!("{long}n").as_bytes()),
            ("linkpath", format!("{long}t").as_bytes()),
        ]),
        link("short", b'2', "short"),
        end(),
    ]
    .concat();
    for archive in [gnu, new] {
        let (member, _) = one(&archive);
        assert_eq!(member.path, format!("{long}n").into_bytes());
        assert_eq!(member.target, format!("{long}t").into_bytes());
    }
}

#[test]
fn a_link_with_a_size_has_no_content() {
    let archive = [
        changed("hard", b'1', b"", |header| {
            header[124..135].copy_from_slice(b"00000001000");
        }),
        entry("next", b'0', b"x"),
        end(),
    ]
    .concat();
    let found = members(&archive).unwrap();
    assert_eq!(found[1].0.path, b"next");
}

#[test]
fn sparse_files_are_read_in_every_form() {
    let expected = [&[0; 512][..], &[b'a'; 512], &[0; 1024], b"bc", &[0; 6]].concat();
    let stored = [&[b'a'; 512][..], b"bc"].concat();
    let gnu = changed("sparse", b'S', &stored, |header| {
        for (at, number) in [
            (386, 512),
            (398, 512),
            (410, 2048),
            (422, 2),
            (434, 2056),
            (446, 0),
            (483, 2056),
        ] {
            header[at..at + 11].copy_from_slice(format!("{number:011o}").as_bytes());
        }
    });
    let extended = changed("sparse", b'S', &[], |header| {
        header[482] = 1;
        header[483..494].copy_from_slice(format!("{:011o}", 2056).as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", stored.len()).as_bytes());
    });
    let mut more = vec![0; BLOCK];
    for (at, number) in [(0, 512), (12, 512), (24, 2048), (36, 2)] {
        more[at..at + 11].copy_from_slice(format!("{number:011o}").as_bytes());
    }
    let mut padded = stored.clone();
    padded.resize(1024, 0);
    let with_map = |records: &[(&str, &[u8])], content: &[u8]| {
        [pax(records), entry("GNUSparseFile.1/sparse", b'0', content)].concat()
    };
    let mut in_content = b"2\n512\n512\n2048\n2\n".to_vec();
    in_content.resize(BLOCK, 0);
    in_content.extend_from_slice(&stored);
    for archive in [
        gnu,
        [extended, more, padded].concat(),
        with_map(
            &[
                ("GNU.sparse.size", b"2056"),
                ("GNU.sparse.numblocks", b"2"),
                ("GNU.sparse.name", b"sparse"),
                ("GNU.sparse.offset", b"512"),
                ("GNU.sparse.numbytes", b"512"),
                ("GNU.sparse.offset", b"2048"),
                ("GNU.sparse.numbytes", b"2"),
            ],
            &stored,
        ),
        with_map(
            &[
                ("GNU.sparse.size", b"2056"),
                ("GNU.sparse.name", b"sparse"),
                ("GNU.sparse.map", b"512,512,2048,2"),
            ],
            &stored,
        ),
        with_map(
            &[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"sparse"),
                ("GNU.sparse.realsize", b"2056"),
            ],
            &in_content,
        ),
    ] {
        let (member, content) = one(&[archive, end()].concat());
        assert_eq!((member.path.as_slice(), member.size), (&b"sparse"[..], 2056));
        assert_eq!(content, expected);
    }
}

#[test]
fn what_is_wrong_with_sparse_files_is_said() {
    for (map, size, stored, reason) in [
        ("0,4,2,4", "9", 8, "overlap"),
        ("0,4,8,4", "9", 8, "leave it"),
        ("0,4", "9", 5, "do not add up"),
        ("0", "9", 5, "no length"),
        ("18446744073709551615,2", "9", 2, "leave it"),
    ] {
        let records = [("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", map.as_bytes())];
        let archive = [pax(&records), entry("s", b'0', &vec![1; stored]), end()].concat();
        let said = refused(&archive);
        assert!(said.contains(reason), "{map}: {said}");
    }
    let parts = |count: usize| -> Vec<u8> { "0,0,".repeat(count).trim_end_matches(',').into() };
    let many = |count| {
        [
            pax(&[("GNU.sparse.map", &parts(count)[..])]),
            entry("s", b'0', b""),
            end(),
        ]
        .concat()
    };
    assert!(members(&many(PARTS_MAX)).is_ok());
    // Empty parts are not kept, so that only real ones count.
    let map: String = (0..=PARTS_MAX).map(|at| format!("{},1,", at * 2)).collect();
    let content = vec![1; PARTS_MAX + 1];
    let size = (PARTS_MAX * 3).to_string();
    let records = [("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", map.as_bytes())];
    let said = refused(&[pax(&records), entry("s", b'0', &content), end()].concat());
    assert!(said.contains("more than"), "{said}");
}

#[test]
fn an_archive_that_is_cut_off_is_an_error_at_every_byte() {
    let archive = [
        pax(&[("path", b"a")]),
        entry("f", b'0', &[7; 700]),
        entry("g", b'0', b"x"),
    ]
    .concat();
    // The end of a member is the end of an archive as well.
    let whole = [0, 1024 + 512 + 1024, archive.len()];
    for length in 0..archive.len() {
        let expected = whole.contains(&length);
        assert_eq!(members(&archive[..length]).is_ok(), expected, "{length}");
    }
    assert!(members(&archive).is_ok());
}

#[test]
fn limits_hold_at_and_past_them() {
    let name = |length: u64| {
        let name = vec![b'n'; usize::try_from(length).unwrap()];
        [entry("././@LongLink", b'L', &name), entry("f", b'0', b""), end()].concat()
    };
    assert!(members(&name(EXTENDED_BYTES_MAX)).is_ok());
    assert!(refused(&name(EXTENDED_BYTES_MAX + 1)).contains("too large"));
    let count = |before: u64| {
        let archive = entry("f", b'0', b"");
        let mut reader = Reader::new(&archive[..]);
        reader.members = before;
        reader.next().map(|member| assert!(member.is_some()))
    };
    assert!(count(MEMBERS_MAX - 1).is_ok());
    assert!(count(MEMBERS_MAX).is_err());
    let tail = [entry("f", b'0', b""), end(), vec![0; 100]].concat();
    let finish = |max| {
        let mut reader = Reader::new(&tail[..]);
        while reader.next().unwrap().is_some() {}
        reader.finish(max)
    };
    assert!(finish(612).is_ok());
    assert!(finish(611).is_err());
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    assert!(refused(&[b'x'; 2048]).contains("checksum"));
    assert!(refused(&[entry("f", b'Z', b""), end()].concat()).contains("unknown kind"));
    assert!(refused(&[pax(&[("path", b"a")]), end()].concat()).contains("ends after"));
    let sound = [
        pax(&[("path", b"a"), ("GNU.sparse.map", b"0,1"), ("mtime", b"1.5")]),
        entry("name", b'0', b"x"),
        changed("s", b'S', &[1; 600], |header| {
            header[386..397].copy_from_slice(b"00000000000");
            header[398..409].copy_from_slice(format!("{:011o}", 600).as_bytes());
            header[483..494].copy_from_slice(format!("{:011o}", 600).as_bytes());
        }),
        link("l", b'2', "t"),
        end(),
    ]
    .concat();
    assert!(members(&sound).is_ok());
    let mut seed = 1_u64;
    for _ in 0..5_000 {
        let mut archive = sound.clone();
        for _ in 0..3 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(seed >> 33).unwrap() % archive.len();
            archive[at] = seed.to_le_bytes()[3];
            // What the sum does not find is what the rest of the reader sees.
            for block in archive
                .chunks_exact_mut(BLOCK)
                .filter(|block| &block[257..262] == b"ustar")
            {
                block[148..156].fill(b' ');
                let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
                block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            }
        }
        let _ = members(&archive);
    }
}
